// SPDX-License-Identifier: Apache-2.0
//
// A training step with its seconds, of a machine that need not be there: the walk of training
// itself, dry, with a Compute that counts (counting_compute.h).

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_TIMED_STEP_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_TIMED_STEP_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "src/plan/trace.h"
#include "tools/hf/config.h"
#include "tools/trainer/model.h"

namespace spillway::command {

// Sustained rates of the device.
struct ComputeRates {
  double flops_16bit = 0;       // of products with 16-bit operands, per second
  double flops_fp32 = 0;        // of products with fp32 operands
  double bytes_per_second = 0;  // of the device's memory
};

struct StepRates {
  ComputeRates compute;
  double update_bytes_per_second = 0;  // of leased bytes, by the CPU's update
};

struct TimedStep {
  plan::Trace trace;  // an event's seconds_before are the device's, and the CPU's in the update
  double flops = 0;   // of products and attention
  double walk_seconds = 0;       // forward and backward
  double update_seconds = 0;     // the update's
  uint64_t workspace_bytes = 0;  // of the device
};

// Errors of trainer::RecordStep.
absl::StatusOr<TimedStep> TimeStep(const hf::ModelConfig& config,
                                   const trainer::ModelOptions& options, const StepRates& rates);

// The device's scratch of a step. Errors of trainer::RecordStep.
absl::StatusOr<uint64_t> WorkspaceBytes(const hf::ModelConfig& config,
                                        const trainer::ModelOptions& options);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_TIMED_STEP_H_
