// SPDX-License-Identifier: Apache-2.0
//
// The state that a commit holds beside the tensors, as versioned JSON: the run's position, the loss
// scaler, and every flag that decides the run's numbers. A resume continues exactly from it, or
// reports which flag differs.

#ifndef SPILLWAY_TOOLS_TRAINER_TRAIN_STATE_H_
#define SPILLWAY_TOOLS_TRAINER_TRAIN_STATE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/trainer/compute/computed_by.h"
#include "tools/trainer/loss_scaler.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

// A flag that decides the numbers, and its value as text: {"--lr", "0.0001"}.
using FixedFlag = std::pair<std::string, std::string>;

struct TrainState {
  int64_t step = 0;             // steps done, skipped ones included
  int64_t applied_updates = 0;  // steps not skipped: the t of the update rule
  uint64_t data_position = 0;   // windows used so far
  LossScalerState loss_scale;
  double last_loss = 0;  // of the last step; for the summary of a run that has nothing left to do
  int64_t total_steps = 0;  // the schedule's; 0: the store is older than this field
  TileSizes tiles;          // of the tensors; zeros: the store is older than this field
  std::string computed_by;  // see Summary; empty: by the host
  std::vector<FixedFlag> fixed;
  std::string config_json;  // the model's config.json, so that a store is self-contained

  friend bool operator==(const TrainState&, const TrainState&) = default;
};

// Names a GPU, its library, and a hash of the algorithms that were chosen. Runs with equal
// summaries give equal bits.
std::string Summary(const ComputedBy& by);

std::string SerializeTrainState(const TrainState& state);
// DataLoss, with the reason, if the text is not a state of this format.
absl::StatusOr<TrainState> ParseTrainState(std::string_view text);

// OK if both lists agree. Otherwise names the flags that differ, their values in the store and
// those given. If --optimizer or --state-format differs, it is named alone, because other flags
// differ as a consequence. FailedPrecondition for another --model or --data (a store of something
// else), InvalidArgument for the rest.
absl::Status CheckSameNumbers(const std::vector<FixedFlag>& stored,
                              const std::vector<FixedFlag>& given);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_TRAIN_STATE_H_
