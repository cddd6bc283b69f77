// SPDX-License-Identifier: Apache-2.0
//
// `spillway plan` over random questions: it agrees with the simulation in the model's own tiles,
// and whatever it is asked, it answers or refuses.

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/base/status_macros.h"
#include "tests/exhaustive.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"
#include "tools/hf/config.h"
#include "tools/spillway/command/command_line.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/plan/answer.h"
#include "tools/spillway/plan/question.h"

namespace spillway::test {
namespace {

using command::Question;
using command::StepCost;

template <typename T>
const T& OneOf(const std::vector<T>& values, std::mt19937_64& random) {
  return values[random() % values.size()];
}

command::QuestionFlags RandomFlags(std::mt19937_64& random) {
  command::QuestionFlags flags;
  flags.recipe.model = OneOf<std::string>({"1.1B", "1.1B", "7B"}, random);
  flags.machine.gpu = OneOf<std::string>({"v100", "rtx4090", "a100", "h200"}, random);
  flags.machine.dram_bytes = uint64_t{1'000'000'000} * OneOf<uint64_t>({16, 32, 64, 256}, random);
  flags.machine.drives =
      *command::ParseDrives(OneOf<std::string>({"1GB/s", "7GB/s", "2x3GB/s", "8x7/5GB/s"}, random));
  trainer::ModelOptions& model = flags.recipe.trainer.model;
  model.micro_batch = 0;
  model.sequence = 2048;
  model.precision =
      OneOf<trainer::Precision>({trainer::Precision::kBf16, trainer::Precision::kFp16Amp}, random);
  flags.recipe.optimizer.format =
      OneOf<StateFormat>({StateFormat::kF32, StateFormat::k8Bit, StateFormat::kCompact}, random);
  flags.tokens = 2048 * OneOf<int64_t>({2, 8, 32}, random);
  return flags;
}

std::string Parts(const StepCost& cost) {
  return absl::StrCat(cost.seconds, " s: forward ", cost.forward_seconds, ", backward ",
                      cost.backward_seconds, ", update ", cost.update_seconds, ", waiting ",
                      cost.waiting_seconds, "; ");
}

TEST(PlanGrid, AgreesWithTheSimulationInTheModelsOwnTiles) {
  const uint64_t first = test::Seed();
  const uint64_t rounds = IsExhaustive() ? 60 : 4;
  int compared = 0;
  for (uint64_t seed = first; seed != first + rounds; ++seed) {
    std::mt19937_64 random(seed);
    auto question = command::ReadQuestion(RandomFlags(random));
    ASSERT_TRUE(question.ok()) << question.status();
    // As of a model many times larger: its own tiles are small beside it.
    const int64_t own = question->num_parameters < 2'000'000'000 ? 1 << 18 : 1 << 20;
    question->options.tiles = {.values = own, .state = own};
    SCOPED_TRACE(test::SeedLine(seed) + " " + question->model.title + " on " +
                 std::string(question->hardware.gpu.name));
    const auto fit = command::FitOf(*question);
    ASSERT_TRUE(fit.ok()) << fit.status();
    if (!fit->fits()) continue;
    const auto quick = command::QuickStep::Make(*question, *fit);
    ASSERT_TRUE(quick.ok()) << quick.status();
    const auto plan = quick->Cost(*question, *fit, /*with_bound=*/true);
    const auto simulated = command::AnswerBySimulation(*question, {});
    ASSERT_TRUE(plan.ok() && simulated.ok()) << plan.status() << simulated.status();
    const StepCost& real = *simulated->cost;
    EXPECT_LT(2 * plan->num_tiles, real.num_tiles);
    EXPECT_NEAR(plan->seconds / real.seconds, 1, 0.1)
        << Parts(*plan) << "and in the model's own tiles " << Parts(real);
    const auto bytes = static_cast<double>(real.bytes.total());
    EXPECT_NEAR(static_cast<double>(plan->bytes.total()) / bytes, 1, 0.1);
    if (real.bytes.nvme() > real.bytes.total() / 10) {
      EXPECT_NEAR(static_cast<double>(plan->bytes.nvme()) / static_cast<double>(real.bytes.nvme()),
                  1, 0.1);
    }
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

// A flag, and values that make sense, are at a limit, or make none.
struct Choice {
  std::string flag;
  std::vector<std::string> values;
};
const std::vector<Choice>& Choices() {
  static const auto& choices = *new std::vector<Choice>{
      {"--model", {"1.1B", "7b", "70B", "1T", "9B", "", "/dev/null", "/", "."}},
      {"--layers", {"2", "12", "48", "100000", "100001", "0", "-1", "1e3"}},
      {"--hidden", {"1", "64", "768", "4096", "65536", "2147483647", "2147483648", "x"}},
      {"--heads", {"1", "8", "7", "2147483647", "0"}},
      {"--kv-heads", {"1", "2", "3"}},
      {"--ffn", {"1", "256", "2147483647"}},
      {"--vocab", {"1", "50257", "2147483647"}},
      {"--positions", {"1", "2048", "2147483647"}},
      {"--type", {"gpt2", "llama", "mistral", "qwen2", "qwen3", "bert"}},
      {"--gpu", {"v100", "h200", "dgx-2", "H100", "h9", "thing"}},
      {"--dram", {"64GB", "2TB", "1MiB", "0", "18446744073709551615", "nan", "1e30"}},
      {"--nvme", {"7GB/s", "8x7GB/s:3.8TB", "1024x1B/s:1TB", "0x7GB/s", "8x7GB/s:16EB", "x"}},
      {"--link", {"25GB/s", "1B/s", "0GB/s", "999TB/s", "inf"}},
      {"--flops-share", {"1", "0.000001", "0", "nan", "2"}},
      {"--update-rate", {"100GB/s", "1B/s"}},
      {"--checksum-rate", {"20GB/s", "1B/s"}},
      {"--device-bytes", {"1MiB", "8GiB", "0", "unlimited"}},
      {"--pinned-bytes", {"1MiB", "8GiB", "0", "unlimited"}},
      {"--tokens", {"2048", "16384", "1", "0", "-5", "1099511627776", "9223372036854775807"}},
      {"--seq", {"1", "512", "2048", "1048576", "1048577"}},
      {"--batch", {"1", "3", "1048576"}},
      {"--accumulate", {"1", "8", "64", "0"}},
      {"--accumulation-order", {"auto", "layer", "micro-batch"}},
      {"--precision", {"fp32", "bf16", "fp16-amp", "fp8"}},
      {"--grad-dtype", {"fp32", "bf16", "fp16"}},
      {"--checkpoint-activations", {"on", "off"}},
      {"--state-format", {"fp32", "bf16", "8bit", "compact"}},
      {"--optimizer", {"adamw", "lion", "sgd", "adafactor", "lars"}},
      {"--place", {"optimizer=pinned", "parameters=device", "activations=nvme,gradients=pinned"}},
      {"--freeze", {"*", "*mlp*", "zzz"}},
      {"--fp32", {"*norm*", "*"}},
      {"--durability", {"none", "commit"}},
      {"--train-tokens", {"1", "1e18", "1e19", "nan", "-1"}},
      {"--endurance", {"7000TB", "1", "0", "lots"}},
  };
  return choices;
}

std::vector<std::string> RandomWords(std::mt19937_64& random) {
  std::vector<std::string> words = {"plan"};
  // Most questions name what is needed, so that others than the first check are reached.
  const bool has_dimensions = random() % 2 == 0;
  for (const Choice& choice : Choices()) {
    const bool is_needed = choice.flag == (has_dimensions ? "--layers" : "--model") ||
                           (has_dimensions && choice.flag == "--hidden") ||
                           choice.flag == "--dram" || choice.flag == "--nvme";
    if (random() % 12 != 0 && !is_needed) continue;
    words.push_back(choice.flag);
    // The first values make sense.
    words.push_back(
        choice.values[random() % 4 != 0 ? random() % 2 : random() % choice.values.size()]);
  }
  if (random() % 2 == 0) words.emplace_back("--json");
  return words;
}

// Runs a command line as main does, and returns its exit code.
command::ExitCode CodeOf(const std::vector<std::string>& words) {
  command::Run run;
  absl::Status status = command::ParseCommandLine(words, &run);
  if (status.ok() && run) status = run();
  return command::ExitCodeOf(status);
}

TEST(PlanGrid, AnswersOrRefusesWhateverItIsAsked) {
  const uint64_t first = test::Seed();
  const uint64_t rounds = IsExhaustive() ? 2000 : 40;
  int answered = 0;
  for (uint64_t seed = first; seed != first + rounds; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<std::string> words = RandomWords(random);
    SCOPED_TRACE(test::SeedLine(seed) + " " + ::testing::PrintToString(words));
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const command::ExitCode code = CodeOf(words);
    testing::internal::GetCapturedStderr();
    const std::string out = testing::internal::GetCapturedStdout();
    EXPECT_TRUE(code == command::ExitCode::kDone || code == command::ExitCode::kUsage);
    EXPECT_EQ(out.empty(), code != command::ExitCode::kDone);
    EXPECT_THAT(out, ::testing::Not(::testing::ContainsRegex("[^a-z]nan|[^a-z]inf[^a-z]")));
    if (code == command::ExitCode::kDone) ++answered;
  }
  EXPECT_GT(answered, 0);
}

// Changes one to four bytes.
std::string Broken(std::string bytes, std::mt19937_64& random) {
  for (uint64_t changes = 1 + random() % 4; changes > 0 && !bytes.empty(); --changes) {
    const size_t at = random() % bytes.size();
    switch (random() % 3) {
      case 0: bytes[at] = static_cast<char>(random()); break;
      case 1: bytes.erase(at, 1 + random() % 8); break;
      default: bytes.insert(at, std::to_string(random() >> (random() % 64))); break;
    }
  }
  return bytes;
}

TEST(PlanGrid, AnswersOrRefusesWhateverAFileHolds) {
  const TempFolder folder;
  const std::string config =
      R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
          "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
          "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false})";
  const std::string header = R"({"a.weight":{"dtype":"BF16","shape":[4,8],"data_offsets":[0,64]},)"
                             R"("b":{"dtype":"I32","shape":[16],"data_offsets":[64,128]}})";
  const uint64_t length = header.size();
  const std::string weights = std::string(reinterpret_cast<const char*>(&length), sizeof(length)) +
                              header + std::string(128, '\0');
  const uint64_t first = test::Seed();
  const uint64_t rounds = IsExhaustive() ? 4000 : 150;
  int answered = 0;
  for (uint64_t seed = first; seed != first + rounds; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    std::mt19937_64 random(seed);
    const bool is_config = random() % 2 == 0;
    const std::string path = folder / (is_config ? "config.json" : "model.safetensors");
    WriteFile(path, Broken(is_config ? config : weights, random));
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const command::ExitCode code = CodeOf({"plan", "--model", path, "--gpu", "h200", "--dram",
                                           "64GB", "--nvme", "7GB/s", "--batch", "1"});
    testing::internal::GetCapturedStderr();
    testing::internal::GetCapturedStdout();
    EXPECT_TRUE(code == command::ExitCode::kDone || code == command::ExitCode::kUsage);
    if (code == command::ExitCode::kDone) ++answered;
  }
  EXPECT_GT(answered, 0);
}

}  // namespace
}  // namespace spillway::test
