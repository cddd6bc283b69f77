// SPDX-License-Identifier: Apache-2.0
//
// Tests the lines of a step: they have exactly the promised fields and floats with all their
// digits, and the log file survives a torn last line.

#include "tools/trainer/metrics/step_log.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/temp_folder.h"

namespace spillway::trainer {
namespace {

using test::ReadFile;
using test::TempFolder;
using test::WriteFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

StepRecord Example() {
  StepRecord record;
  record.step = 3;
  record.loss = 0.1 + 0.2;
  record.grad_norm = 1.0 / 3;
  record.learning_rate = 5e-5;
  record.loss_scale = 65536;
  record.tokens_per_second = 1e17 / 3;
  record.seconds = 0.5;
  record.nvme = {.read_bytes = 1, .written_bytes = 2};
  record.pinned = {.read_bytes = 3, .written_bytes = 0xFFFFFFFFFFFFFFFF};
  record.state = {.read_bytes = 5, .written_bytes = 6};
  record.stall_seconds = 1e-300;
  return record;
}

std::vector<std::string> Keys(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

TEST(StepLog, TheJsonLineHasExactlyThePromisedFields) {
  const Json json = Json::parse(ToJsonLine(Example()));
  EXPECT_THAT(Keys(json),
              ElementsAre("v", "step", "loss", "grad_norm", "lr", "loss_scale", "skipped",
                          "tokens_per_s", "seconds", "read_bytes", "written_bytes",
                          "state_read_bytes", "state_written_bytes", "stall_s"));
  EXPECT_EQ(json["v"], 1);
  EXPECT_EQ(json["state_read_bytes"], 5);
  EXPECT_EQ(json["state_written_bytes"], 6);
  EXPECT_EQ(json["skipped"], false);
  EXPECT_THAT(Keys(json["read_bytes"]), ElementsAre("nvme", "pinned"));
  EXPECT_THAT(Keys(json["written_bytes"]), ElementsAre("nvme", "pinned"));
  EXPECT_EQ(json["written_bytes"]["pinned"].get<uint64_t>(), 0xFFFFFFFFFFFFFFFF);
}

TEST(StepLog, AnEvaluationAddsFields) {
  StepRecord record = Example();
  record.evaluation = Evaluation{.loss = 2.5, .windows = 8, .seconds = 1};
  const Json json = Json::parse(ToJsonLine(record));
  EXPECT_EQ(json["eval_loss"], 2.5);
  EXPECT_EQ(json["eval_windows"], 8);
  EXPECT_THAT(ToPeopleLine(record, 10), HasSubstr("validation loss 2.5000 over 8 windows"));
}

TEST(StepLog, ACommitAddsItsSeconds) {
  StepRecord record = Example();
  record.commit_seconds = 1.5;
  EXPECT_EQ(Json::parse(ToJsonLine(record))["commit_s"], 1.5);
}

TEST(StepLog, APlanAddsFields) {
  StepRecord record = Example();
  record.plan.plans = 1;
  record.plan.steps = 7;
  record.plan.nvme = {.read_bytes = 1000, .written_bytes = 200};
  record.plan.pinned = {.read_bytes = 30, .written_bytes = 4};
  record.plan.planned_bytes = 1235;
  record.plan.bytes_bound = 1100;
  record.plan.nvme_bytes_bound = 1090;
  const Json json = Json::parse(ToJsonLine(record));
  EXPECT_EQ(json["plan_steps"], 7);
  EXPECT_EQ(json["plan_moved_bytes"], 1234);
  EXPECT_EQ(json["planned_bytes"], 1235);
  EXPECT_EQ(json["bytes_bound"], 1100);
  EXPECT_EQ(json["nvme_bytes_bound"], 1090);
  record.plan.nvme = record.plan.pinned = {};  // no whole step since the plan was taken up
  EXPECT_FALSE(Json::parse(ToJsonLine(record)).contains("plan_moved_bytes"));
}

TEST(StepLog, FloatsReadBackAsTheSameBits) {
  for (const double value :
       {0.1 + 0.2, 1.0 / 3, 1e-300, 4.9e-324, 1.7976931348623157e308, 3.0, 11.090354919433594}) {
    StepRecord record = Example();
    record.loss = value;
    EXPECT_EQ(Json::parse(ToJsonLine(record))["loss"].get<double>(), value);
  }
}

TEST(StepLog, WhatIsNotFiniteIsNull) {
  StepRecord record = Example();
  record.loss = std::numeric_limits<double>::quiet_NaN();
  record.grad_norm = std::numeric_limits<double>::infinity();
  record.skipped = true;
  const Json json = Json::parse(ToJsonLine(record));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
  EXPECT_EQ(json["skipped"], true);
}

TEST(StepLog, ThePeopleLineSaysWhatMatters) {
  StepRecord record = Example();
  EXPECT_THAT(ToPeopleLine(record, 10),
              HasSubstr("step 3/10  loss 0.3000  norm 0.3333  lr 5e-05  scale 65536"));
  EXPECT_THAT(ToPeopleLine(record, 10), Not(HasSubstr("skipped")));
  EXPECT_THAT(ToPeopleLine(record, 10), Not(HasSubstr("validation")));
  record.skipped = true;
  EXPECT_THAT(ToPeopleLine(record, 10), HasSubstr("skipped"));
  record.evaluation_failed = true;
  EXPECT_THAT(ToPeopleLine(record, 10), HasSubstr("  | the validation failed"));
}

std::string Line(int64_t step) {
  StepRecord record = Example();
  record.step = step;
  return ToJsonLine(record) + "\n";
}

OutputFile Open(const std::string& path) {
  return *OutputFile::Open(path, StepLog::kKind, OutputFile::IfOther::kReplace);
}
absl::StatusOr<StepLog> Begin(const std::string& path) {
  auto file = OutputFile::Open(path, StepLog::kKind, OutputFile::IfOther::kReplace);
  if (!file.ok()) return file.status();
  return StepLog::Begin(*std::move(file));
}
absl::StatusOr<StepLog> Continue(const std::string& path, int64_t step) {
  return StepLog::Continue(Open(path), step);
}

TEST(StepLog, BeginReplacesAndContinueAppends) {
  const TempFolder folder;
  const std::string path = folder / "log.jsonl";
  WriteFile(path, "old\n");
  ASSERT_TRUE(Begin(path)->Write(Example()).ok());
  const std::string line = ToJsonLine(Example()) + "\n";
  EXPECT_EQ(ReadFile(path), line);
  ASSERT_TRUE(Continue(path, 1000)->Write(Example()).ok());
  EXPECT_EQ(ReadFile(path), line + line);
}

TEST(StepLog, ContinueCutsTheStepsThatWillBeDoneAgain) {
  const TempFolder folder;
  const std::string path = folder / "log.jsonl";
  for (const int64_t kept : {0, 1, 3, 5}) {
    std::string all;
    std::string expected;
    for (int64_t step = 1; step <= 5; ++step) {
      all += Line(step);
      if (step <= kept) expected += Line(step);
    }
    for (const char* const torn : {"", "{", R"({"v":1,"step":6,"lo)"}) {
      WriteFile(path, all + torn);
      ASSERT_TRUE(Continue(path, kept).ok());
      EXPECT_EQ(ReadFile(path), expected) << "after step " << kept << " with '" << torn << "'";
    }
  }
}

TEST(StepLog, ContinueKnowsTheStepAtWhichTheLogEnds) {
  const TempFolder folder;
  const std::string path = folder / "log.jsonl";
  for (const auto& [text, expected] : {std::pair(Line(3) + Line(4), std::optional<int64_t>(4)),
                                       {Line(3) + Line(4) + Line(9) + "{", 4},
                                       {Line(1) + "notes\n", std::nullopt},
                                       {Line(9), std::nullopt},
                                       {"", std::nullopt}}) {
    WriteFile(path, text);
    EXPECT_EQ(Continue(path, 7)->continued_after(), expected) << text;
  }
  EXPECT_EQ(Begin(path)->continued_after(), std::nullopt);
}

TEST(StepLog, ContinueLeavesWhatIsNotItsOwn) {
  const TempFolder folder;
  const std::string path = folder / "log.jsonl";
  for (const std::string& text :
       {std::string("notes\n"), std::string("{\"step\":9}\n"), "\n" + std::string(100'000, 'x')}) {
    WriteFile(path, text + (text.ends_with('\n') ? Line(7) : ""));
    ASSERT_TRUE(Continue(path, 2)->Write(Example()).ok());
    const std::string kept = text.ends_with('\n') ? text : text + "\n";
    EXPECT_EQ(ReadFile(path), kept + ToJsonLine(Example()) + "\n");
  }
}

TEST(StepLog, EndsWithAStepIfThereIsSomethingToCut) {
  const TempFolder folder;
  const std::string path = folder / "log.jsonl";
  for (const auto& [text, expected] : {std::pair(std::string(), false),
                                       {"notes\n", false},
                                       {Line(1) + "notes\n", false},
                                       {Line(1), true},
                                       {"notes\n" + Line(7), true},
                                       {Line(1) + "{", true}}) {
    WriteFile(path, text);
    EXPECT_EQ(*StepLog::EndsWithAStep(Open(path)), expected) << text;
    EXPECT_EQ(ReadFile(path), text);
  }
  EXPECT_FALSE(*StepLog::EndsWithAStep(Open("/dev/null")));
}

TEST(StepLog, AnUnwritableFileIsNamed) {
  const auto log = Begin("/nonexistent/log.jsonl");
  EXPECT_THAT(std::string(log.status().message()), HasSubstr("/nonexistent/log.jsonl"));
}

TEST(StepLog, AFullDiskIsAnError) {
  auto log = Begin("/dev/full");
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_THAT(std::string(log->Write(Example()).message()), HasSubstr("No space left on device"));
}

}  // namespace
}  // namespace spillway::trainer
