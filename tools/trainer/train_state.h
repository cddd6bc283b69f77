// SPDX-License-Identifier: Apache-2.0
//
// What a commit holds beside the tensors, as versioned JSON: where the run is, the loss scaler, and
// everything that decides its numbers, so that a resume continues exactly or says which flag
// differs.

#ifndef SPILLWAY_TOOLS_TRAINER_TRAIN_STATE_H_
#define SPILLWAY_TOOLS_TRAINER_TRAIN_STATE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/trainer/loss_scaler.h"

namespace spillway::trainer {

// A flag that decides the numbers and its value in words: {"--lr", "0.0001"}.
using FixedFlag = std::pair<std::string, std::string>;

struct TrainState {
  int64_t step = 0;             // steps done, skipped ones included
  int64_t applied_updates = 0;  // steps that were not skipped: the t of the update rule
  uint64_t data_position = 0;   // windows taken
  LossScalerState loss_scale;
  double last_loss = 0;  // of the last step; for the summary of a run that has nothing left to do
  int64_t total_steps = 0;  // that the schedule was for; 0: of a store from before this was noted
  std::vector<FixedFlag> fixed;
  std::string config_json;  // the model's config.json, so that a store can be understood alone

  friend bool operator==(const TrainState&, const TrainState&) = default;
};

std::string SerializeTrainState(const TrainState& state);
// DataLoss if the text is no state of this format, naming what is wrong.
absl::StatusOr<TrainState> ParseTrainState(std::string_view text);

// Whether both lists agree; if not, names the flags that differ (--optimizer or --state-format
// alone, since others follow from these), their values in the store and those given:
// FailedPrecondition for another --model or --data (a store of something else), InvalidArgument for
// the rest.
absl::Status CheckSameNumbers(const std::vector<FixedFlag>& stored,
                              const std::vector<FixedFlag>& given);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_TRAIN_STATE_H_
