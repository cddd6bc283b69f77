// SPDX-License-Identifier: Apache-2.0
//
// `spillway simulate`: answers for machines and models that are not here, and what it refuses.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/temp_folder.h"
#include "tools/hf/config.h"
#include "tools/spillway/plan/model_presets.h"
#include "tools/trainer/parameters.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;

// A question that takes little time to answer.
Arguments Small(const Arguments& more = {}, const std::string& dram = "8GB") {
  return Arguments{"simulate", "--model", "1.1B",      "--gpu",    "rtx4090", "--dram",
                   dram,       "--nvme",  "7GB/s:1TB", "--tokens", "32768",   "--json"} +
         more;
}

TEST(Simulate, AnswersWithBytesSecondsAndWhatBinds) {
  const Ended ended = RunCommand(Small());
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  EXPECT_EQ(json["v"], 1);
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["parameters"], 1'100'048'384);
  EXPECT_EQ(json["planned"], true);
  EXPECT_EQ(json["tokens"], 32768);
  EXPECT_EQ(json["micro_batch"].get<int>() * json["accumulate"].get<int>(), 16);
  EXPECT_GE(json["step_seconds"].get<double>() * (1 + 1e-9), json["bound_seconds"].get<double>());
  EXPECT_GE(json["step_seconds"].get<double>(), json["walk_seconds"].get<double>());
  // bf16 weights and AdamW's fp32 state: master weights and two moments.
  EXPECT_EQ(json["bytes"]["nvme"]["weights"], 2 * 1'100'048'384LL);
  EXPECT_EQ(json["bytes"]["nvme"]["moments"], 8 * 1'100'048'384LL);
  EXPECT_GT(json["read_bytes"]["nvme"], 0);
}

TEST(Simulate, TheSameQuestionHasTheSameBytes) {
  const Arguments jitter = Small({"--jitter", "0.2", "--seed", "7"});
  EXPECT_EQ(RunCommand(jitter).out, RunCommand(jitter).out);
}

TEST(Simulate, MoreMemoryMovesLess) {
  const Json less = RunCommand(Small()).json();
  const Json more = RunCommand(Small({}, "64GB")).json();
  EXPECT_LT(more["read_bytes"]["nvme"], less["read_bytes"]["nvme"]);
  EXPECT_LE(more["step_seconds"], less["step_seconds"]);
}

TEST(Simulate, TheLogAndTheTraceOpenInTheReport) {
  const TempFolder folder;
  const std::string log = folder / "log.jsonl", trace = folder / "trace.json";
  const Arguments question = Small(
      {"--steps", "3", "--log-json", log, "--trace", trace, "--jitter", "0.1", "--seed", "5"});
  const Ended ended = RunCommand(question);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const std::vector<Json> lines = ReadLog(log);
  ASSERT_EQ(lines.size(), 3U);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["step"], i + 1);
    EXPECT_TRUE(lines[i]["loss"].is_null());
    EXPECT_GE(lines[i]["seconds"].get<double>() * (1 + 1e-9),
              lines[i]["time_bound_s"].get<double>());
    EXPECT_GE(lines[i]["read_bytes"]["nvme"], lines[i]["state_read_bytes"]);
    EXPECT_GT(lines[i]["state_written_bytes"], 0);
  }
  EXPECT_EQ(lines[2]["plan_moved_bytes"], lines[2]["planned_bytes"]);
  EXPECT_EQ(lines[2]["seconds"], ended.json()["step_seconds"]);
  EXPECT_THAT(ReadFile(trace), HasSubstr("model.layers.21.mlp.down_proj.weight"));

  const Ended report = RunCommand({"report", log, trace, "--out", folder / "report.html"});
  ASSERT_EQ(report.exit_code, 0) << report.err;
  EXPECT_THAT(ReadFile(folder / "report.html"), HasSubstr("model.layers.21.mlp.down_proj.weight"));

  const std::string first_log = ReadFile(log), first_trace = ReadFile(trace);
  const Ended refused = RunCommand(question);
  EXPECT_EQ(refused.exit_code, 2) << "they may be those of a real run";
  EXPECT_THAT(refused.err, HasSubstr("--force"));
  ASSERT_EQ(RunCommand(question + Arguments{"--force"}).exit_code, 0);
  EXPECT_EQ(ReadFile(log), first_log) << "a seed gives the same bytes";
  EXPECT_EQ(ReadFile(trace), first_trace);
}

TEST(Simulate, DoesNotFitIsAnAnswer) {
  const Ended ended = RunCommand({"simulate", "--model", "70B", "--gpu", "rtx4090", "--dram",
                                  "64GB", "--nvme", "7GB/s:500GB", "--seq", "512"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("lacks"));
  EXPECT_THAT(ended.out, HasSubstr("does not fit"));
}

TEST(Simulate, TheTextNamesWhatItComputedWith) {
  const Ended ended = RunCommand({"simulate", "--model", "1.1B", "--gpu", "a100", "--dram", "16GB",
                                  "--nvme", "2x3GB/s", "--seq", "512"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* word :
       {"TinyLlama 1.1B: 1.1 B parameters", "NVIDIA A100", "2 drives", "tokens/s", "bind", "NVMe"})
    EXPECT_THAT(ended.out, HasSubstr(word));
}

TEST(Simulate, NonsenseIsAUsageError) {
  const auto with = [](const Arguments& more) {
    return Arguments{"simulate"} + more +
           Arguments{"--gpu", "h200", "--dram", "64GB", "--nvme", "7GB/s"};
  };
  for (const Arguments& arguments :
       {with({"--model", "9B"}), with({}), with({"--model", "7B", "--tokens", "-1"}),
        with({"--model", "7B", "--tokens", "1000"}), with({"--model", "7B", "--seq", "100000"}),
        with({"--model", "7B", "--flops-share", "nan"}), with({"--model", "7B", "--jitter", "inf"}),
        with({"--model", "7B", "--link", "0GB/s"}), with({"--model", "7B", "--tokens", "1e30"}),
        with({"--model", "7B", "--tokens", "1099511627776"}),
        with({"--model", "7B", "--freeze", "zzz*"}),
        Arguments{"simulate", "--model", "7B", "--gpu", "h200", "--nvme", "7GB/s"},
        Arguments{"simulate", "--model", "7B", "--gpu", "h200", "--dram", "64GB"},
        Arguments{"simulate", "--model", "7B", "--gpu", "h9", "--dram", "64GB", "--nvme", "7GB/s"},
        Arguments{"simulate", "--model", "7B", "--dram", "64GB", "--nvme", "0x7GB/s"}}) {
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, 2) << ::testing::PrintToString(arguments) << ended.out << ended.err;
    EXPECT_FALSE(ended.err.empty());
    EXPECT_TRUE(ended.out.empty()) << ended.out;
  }
}

TEST(ModelPresets, HaveThePublishedParameters) {
  for (const command::ModelPreset& preset : command::ModelPresets()) {
    SCOPED_TRACE(std::string(preset.name));
    const absl::StatusOr<hf::ModelConfig> config = command::ConfigOf(preset);
    ASSERT_TRUE(config.ok()) << config.status();
    double parameters = 0;
    for (const trainer::ParameterShape& shape : trainer::ListParameters(*config))
      parameters += static_cast<double>(shape.elements());
    EXPECT_NEAR(parameters / preset.published_parameters, 1, 0.006);
    EXPECT_FALSE(preset.source.empty());
  }
}

}  // namespace
}  // namespace spillway::test
