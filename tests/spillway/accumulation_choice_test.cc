// SPDX-License-Identifier: Apache-2.0
//
// The choice of the order in which micro-batches pass through the layers. It depends on the bytes
// that each order would move.

#include "tools/spillway/train/accumulation_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spillway/types.h"
#include "tests/plan/model_step.h"

namespace spillway::command {
namespace {

using plan::ModelShape;
using plan::StepShape;
using plan::StepTrace;
using plan::Trace;
using simulation::SimulationOptions;
using trainer::AccumulationOrder;

Trace ByLayer(StepShape shape) {
  shape.by_layer = true;
  return StepTrace(shape);
}

TEST(AccumulationChoice, ByLayerReadsWeightsOnceADirection) {
  StepShape shape = ModelShape();
  shape.micro_batches = 8;
  shape.checkpoint_bytes = 64 * kKiB;
  shape.forward_seconds = shape.update_seconds = 0;  // as in the traces that are compared
  SimulationOptions options;
  options.budgets.device_bytes = 16 * kMiB;
  options.budgets.pinned_bytes = 64 * kMiB;
  const auto choice = ChooseOrder(StepTrace(shape), ByLayer(shape), options);
  ASSERT_TRUE(choice.ok()) << choice.status();
  ASSERT_TRUE(choice->layer && choice->micro_batch);
  EXPECT_EQ(choice->order, AccumulationOrder::kLayer);
  EXPECT_LT(choice->layer->total(), choice->micro_batch->total());
}

TEST(AccumulationChoice, ByMicroBatchWhereCheckpointsWouldSpill) {
  StepShape shape = ModelShape(/*tiles_per_layer=*/4);
  shape.layers = 4;
  shape.micro_batches = 8;
  shape.checkpoint_bytes = 8 * kMiB;
  SimulationOptions options;
  options.budgets.device_bytes = 128 * kMiB;  // the weights and one micro-batch's checkpoints
  options.budgets.pinned_bytes = 64 * kMiB;
  const auto choice = ChooseOrder(StepTrace(shape), ByLayer(shape), options);
  ASSERT_TRUE(choice.ok()) << choice.status();
  ASSERT_TRUE(choice->layer && choice->micro_batch);
  EXPECT_EQ(choice->order, AccumulationOrder::kMicroBatch);
}

TEST(AccumulationChoice, ByMicroBatchWhereEitherMovesTheSame) {
  StepShape shape = ModelShape();
  shape.micro_batches = 8;
  SimulationOptions options;
  options.budgets.device_bytes = 4 * kGiB;
  options.budgets.pinned_bytes = 4 * kGiB;
  options.budgets.has_store = false;
  shape.forward_seconds = shape.update_seconds = 0;
  const Trace trace = StepTrace(shape);
  const auto choice = ChooseOrder(trace, trace, options);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->order, AccumulationOrder::kMicroBatch);
}

TEST(AccumulationChoice, WhereNeitherOrderFitsTheErrorSaysWhy) {
  const StepShape shape = ModelShape();
  SimulationOptions options;
  options.budgets.device_bytes = options.budgets.pinned_bytes = 64 * kKiB;  // less than a tile
  const Trace trace = StepTrace(shape);
  const absl::Status neither = ChooseOrder(trace, trace, options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(neither)) << neither;
  EXPECT_THAT(neither.message(), testing::HasSubstr("64.0 KiB")) << "the budget";
}

}  // namespace
}  // namespace spillway::command
