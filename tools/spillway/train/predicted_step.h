// SPDX-License-Identifier: Apache-2.0
//
// What a simulation says of a step that a run has done: its bytes and seconds in virtual time,
// beside the real ones.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_PREDICTED_STEP_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_PREDICTED_STEP_H_

#include <cstdint>
#include <optional>
#include <string>

#include "nlohmann/json.hpp"
#include "spillway/engine.h"
#include "src/engine/recorded_step.h"
#include "src/plan/transfer.h"
#include "tools/trainer/metrics/step_log.h"

namespace spillway::command {

struct PredictedStep {
  int64_t step = 0;
  double seconds = 0;
  plan::LinkBytes bytes;
  double real_seconds = 0;
  plan::LinkBytes real_bytes;
  std::string unknown;  // why there is no prediction; empty if there is one
};

// Keeps the last step of a run that can be predicted.
class LastStep {
 public:
  // Call it after each step, before the engine does anything else. A step that an evaluation
  // followed is not kept: the engine remembers the evaluation.
  void Take(const trainer::StepRecord& record, Engine* engine);
  // Simulates the step with the rates that the run has shown and the step's own computing.
  PredictedStep Predict() const;

 private:
  std::optional<engine::RecordedStep> recorded_;
  trainer::StepRecord record_;
  std::string unknown_ = "no step was done";
};

// {"step":…,"step_s":…,"read_bytes":{…},"written_bytes":{…},"real_step_s":…,
// "real_read_bytes":{…},"real_written_bytes":{…}} or {"unknown":"why"}.
nlohmann::ordered_json ToJson(const PredictedStep& predicted);
// {"nvme":…,"pinned":…} under "read_bytes" and "written_bytes", each name after `prefix`.
void AddJsonBytes(const std::string& prefix, const plan::LinkBytes& bytes,
                  nlohmann::ordered_json* json);
// "2.1 GiB over NVMe and 0.9 GiB to and from the device".
std::string DescribeMoved(const plan::LinkBytes& bytes);
std::string ToText(const PredictedStep& predicted);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_PREDICTED_STEP_H_
