// SPDX-License-Identifier: Apache-2.0
//
// train, eval and generate with --device cuda, on the emulated GPU: the same bits however bytes
// move and whatever interrupts a run, and what is said where a GPU cannot compute.

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/exhaustive.h"
#include "tests/seed.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;

const Arguments kOnGpu = {"--device", "cuda"};

// False where the command itself is tested on a GPU, as tools/gpu_bundle/run does. A GPU has no
// limits that a test sets.
bool IsEmulated() { return EmulatedPath() != CommandPath(); }

// Sets EMULATED_GPU while it lives.
class EmulatedGpu {
 public:
  explicit EmulatedGpu(const std::string& limits) { setenv("EMULATED_GPU", limits.c_str(), 1); }
  EmulatedGpu(const EmulatedGpu&) = delete;
  EmulatedGpu& operator=(const EmulatedGpu&) = delete;
  ~EmulatedGpu() { unsetenv("EMULATED_GPU"); }
};

// The flags of a run that accumulates under this precision.
Arguments Recipe(const std::string& precision, const std::string& device = "cuda") {
  return {"--device", device, "--precision", precision, "--batch", "2", "--accumulate", "2"};
}

Numbers InMemory(int64_t steps, const Arguments& flags) {
  const Training training;
  const Ended ended = RunEmulated(training.Train(steps) + flags);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  return training.NumbersOf(ended.json());
}

TEST(GpuRuns, AreNotTheHostsBitsAndNearThem) {
  for (const std::string precision : {"fp32", "fp16-amp", "bf16"}) {
    SCOPED_TRACE(precision);
    const Training training;
    const Ended on_gpu = RunEmulated(training.Train(4) + Recipe(precision));
    ASSERT_EQ(on_gpu.exit_code, 0) << on_gpu.err;
    EXPECT_THAT(on_gpu.err,
                HasSubstr(IsEmulated() ? "note: computes on an emulated GPU, with products"
                                       : "note: computes on "));
    const std::vector<Json> log = ReadLog(training.log());
    ASSERT_EQ(log.size(), 4);
    if (IsEmulated()) {
      EXPECT_EQ(log[0]["computed_by"]["gpu"], "an emulated GPU");
    }
    EXPECT_GT(log[0]["computed_by"]["algorithms"].size(), 10);
    EXPECT_FALSE(log[1].contains("computed_by"));
    for (const Json& step : log) EXPECT_EQ(step["device_waits"], 1);
    const Ended on_host = RunEmulated(training.Train(4) + Recipe(precision, "host"));
    ASSERT_EQ(on_host.exit_code, 0) << on_host.err;
    const std::vector<Json> host_log = ReadLog(training.log());
    EXPECT_FALSE(host_log[0].contains("device_waits"));
    for (size_t i = 0; i < log.size(); ++i)
      EXPECT_NEAR(log[i]["loss"].get<double>(), host_log[i]["loss"].get<double>(), 2e-2);
    EXPECT_NE(on_gpu.json()["weights_hash"], on_host.json()["weights_hash"]);
  }
}

// Random budgets, orders, checkpointing and places; killed once and resumed.
TEST(GpuRuns, GiveOneResultHoweverBytesMove) {
  std::mt19937_64 random(Seed());
  const std::string precision = std::array{"fp32", "fp16-amp", "bf16"}[random() % 3];
  SCOPED_TRACE(precision);
  constexpr int64_t kSteps = 6;
  const Numbers expected = InMemory(kSteps, Recipe(precision));
  const int runs = IsExhaustive() ? 12 : 3;
  for (int run = 0; run < runs; ++run) {
    const Training training;
    Arguments flags = training.TrainInStore(kSteps) + Recipe(precision);
    const auto add = [&](const std::string& flag, const std::string& value) {
      flags.push_back(flag);
      flags.push_back(value);
    };
    add("--device-bytes", std::to_string(48 + random() % 200) + "KiB");
    add("--pinned-bytes", std::to_string(96 + random() % 400) + "KiB");
    if (random() % 3 == 0) {  // state that rests on the device is updated there
      flags.push_back("--place");
      flags.push_back("optimizer=device");
      *std::next(std::find(flags.begin(), flags.end(), "--device-bytes")) = "2MiB";
    }
    add("--accumulation-order", random() % 2 == 0 ? "layer" : "micro-batch");
    add("--checkpoint-activations", random() % 2 == 0 ? "on" : "off");
    add("--policy", random() % 4 == 0 ? "demand" : "planned");
    add("--commit-every", "1");
    SCOPED_TRACE(testing::PrintToString(flags));
    Command command(flags, /*without_uring=*/false, EmulatedPath());
    while (!command.has_ended() && ReadLog(training.log()).size() < 2) usleep(2000);
    command.Signal(SIGKILL);
    (void)command.Wait();
    const Ended resumed = RunEmulated(flags + Arguments{"--resume"});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(training.NumbersOf(resumed.json()), expected);
  }
}

TEST(GpuRuns, ALostDeviceEndsTheRunAndAResumeGoesOn) {
  if (!IsEmulated()) GTEST_SKIP() << "a GPU is not lost by command";
  constexpr int64_t kSteps = 5;
  const Arguments recipe = Recipe("bf16");
  const Numbers expected = InMemory(kSteps, recipe);
  const Training training;
  const Arguments arguments = training.TrainInStore(kSteps) + recipe;
  std::string lost;
  {
    const EmulatedGpu gpu("launches=2500");
    const Ended ended = RunEmulated(arguments);
    lost = ended.err;
    ASSERT_EQ(ended.exit_code, 1) << ended.err;
  }
  EXPECT_THAT(lost, HasSubstr("the emulated GPU was lost"));
  EXPECT_THAT(lost, HasSubstr("--resume continues"));
  const size_t done = ReadLog(training.log()).size();
  EXPECT_GT(done, 0);
  EXPECT_LT(done, kSteps);
  const Ended resumed = RunEmulated(arguments + Arguments{"--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(training.NumbersOf(resumed.json()), expected);
}

TEST(GpuRuns, StayOnTheirKindOfDevice) {
  const Training training;
  ASSERT_EQ(RunEmulated(training.TrainInStore(2) + Recipe("fp32")).exit_code, 0);
  const Arguments resumed = training.TrainInStore(3) + Arguments{"--resume"};
  const Ended on_host = RunEmulated(resumed + Recipe("fp32", "host"));
  EXPECT_EQ(on_host.exit_code, 2);
  EXPECT_THAT(on_host.err, HasSubstr("--device was cuda in the store's run and is host now"));
  if (!IsEmulated()) return;
  const EmulatedGpu other("name=another");
  const Ended on_other = RunEmulated(resumed + Recipe("fp32"));
  EXPECT_EQ(on_other.exit_code, 0) << on_other.err;
  EXPECT_THAT(on_other.err, HasSubstr("bits may differ"));
  EXPECT_THAT(on_other.err, HasSubstr("Now: another;"));
}

TEST(GpuRuns, EvaluateAndGenerate) {
  const Training training;
  const Ended trained =
      RunEmulated(training.Train(3) + Recipe("bf16") + Arguments{"--save", training / "tuned"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const Arguments eval = {"eval",        "--model", training / "tuned", "--data", training.data(),
                          "--seq",       "16",      "--batches",        "3",      "--json",
                          "--precision", "bf16"};
  const Ended on_host = RunEmulated(eval), on_gpu = RunEmulated(eval + kOnGpu);
  ASSERT_EQ(on_gpu.exit_code, 0) << on_gpu.err;
  EXPECT_NEAR(on_gpu.json()["loss"].get<double>(), on_host.json()["loss"].get<double>(), 2e-2);
  const Arguments generate = {"generate", "--model", training / "tuned",
                              "--tokens", "1,2,3",   "--max-tokens",
                              "5",        "--json"};
  const Ended words_of_host = RunEmulated(generate), words = RunEmulated(generate + kOnGpu);
  ASSERT_EQ(words.exit_code, 0) << words.err;
  EXPECT_EQ(words.json()["tokens"], words_of_host.json()["tokens"]);
}

TEST(GpuRuns, NeedRoomForScratchBesideTheBudget) {
  if (!IsEmulated()) GTEST_SKIP() << "a GPU's memory is what it is";
  const EmulatedGpu gpu("free=140000");
  const Training training;
  const Ended ended =
      RunEmulated(training.TrainInStore(2) + kOnGpu + Arguments{"--device-bytes", "128KiB"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, HasSubstr("--device cuda:0: an emulated GPU has 137 KiB free"));
  EXPECT_THAT(ended.err, HasSubstr("128 KiB for tiles; use a smaller --device-bytes"));
  EXPECT_FALSE(std::filesystem::exists(training.store()));
}

TEST(GpuRuns, SayWhatIsMissing) {
  if (!IsEmulated()) GTEST_SKIP() << "nothing is missing";
  const Training training;
  const Ended no_such = RunEmulated(training.Train(2) + Arguments{"--device", "cuda:1"});
  EXPECT_EQ(no_such.exit_code, 3);
  EXPECT_THAT(no_such.err, HasSubstr("--device cuda:1: there is no such GPU"));
  if (!std::filesystem::exists("/dev/nvidia0")) {
    const Ended no_gpu = RunCommand(training.Train(2) + kOnGpu);
    EXPECT_EQ(no_gpu.exit_code, 3);
    EXPECT_THAT(no_gpu.err, HasSubstr("--device cuda:0: this "));
  }
  const Ended for_host = RunEmulated(training.Train(2) + Arguments{"--cublaslt", "libx.so"});
  EXPECT_EQ(for_host.exit_code, 2);
  EXPECT_THAT(for_host.err, HasSubstr("--cublaslt is for a GPU; give --device cuda too"));
}

}  // namespace
}  // namespace spillway::test
