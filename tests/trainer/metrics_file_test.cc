// SPDX-License-Identifier: Apache-2.0
//
// Tests which evaluation the metrics file shows. tests/spillway/train_test.cc reads the whole file.

#include "tools/trainer/metrics/metrics_file.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_folder.h"

namespace spillway::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MetricsFileTest : public ::testing::Test {
 protected:
  // Writes the record and returns what the file has then.
  std::string TextAfter(const StepRecord& record) {
    EXPECT_TRUE(metrics_.Write(record, 10).ok());
    return test::ReadFile(path_);
  }

  const test::TempFolder folder_;
  const std::string path_ = folder_ / "spillway.prom";
  MetricsFile metrics_{*OutputFile::Open(path_, MetricsFile::kKind)};
};

TEST_F(MetricsFileTest, AnEvaluationStaysUntilTheNextOrAFailedOne) {
  StepRecord evaluated;
  evaluated.evaluation = Evaluation{.loss = 2.5, .windows = 8};
  StepRecord failed;
  failed.evaluation_failed = true;
  EXPECT_THAT(TextAfter({}), Not(HasSubstr("spillway_eval_loss")));
  EXPECT_THAT(TextAfter(evaluated), HasSubstr("spillway_eval_loss 2.5\n"));
  EXPECT_THAT(TextAfter({}), HasSubstr("spillway_eval_loss 2.5\n"));
  // The run's second failure has no error in its record.
  for (int round = 0; round < 2; ++round) {
    EXPECT_THAT(TextAfter(failed), Not(HasSubstr("spillway_eval_loss")));
    EXPECT_THAT(TextAfter({}), Not(HasSubstr("spillway_eval_loss")));
    EXPECT_THAT(TextAfter(evaluated), HasSubstr("spillway_eval_loss 2.5\n"));
  }
}

}  // namespace
}  // namespace spillway::trainer
