// SPDX-License-Identifier: Apache-2.0
//
// A training step with its seconds, of a machine that need not be there: the walk of training
// itself, dry, with a Compute that counts (counting_compute.h).

#ifndef SPILLWAY_TOOLS_SPILLWAY_STEP_TIMED_STEP_H_
#define SPILLWAY_TOOLS_SPILLWAY_STEP_TIMED_STEP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "src/plan/trace.h"
#include "tools/hf/config.h"
#include "tools/trainer/model.h"

namespace spillway::command {

// Sustained rates of the device.
struct ComputeRates {
  double flops_16bit = 0;       // of products with 16-bit operands, per second
  double flops_fp32 = 0;        // of products with fp32 operands
  double bytes_per_second = 0;  // of the device's memory
  bool is_host = false;         // scratch is fp32, whatever it is rounded to
};

struct StepRates {
  ComputeRates compute;
  double update_bytes_per_second = 0;  // of leased bytes, by the CPU's update
  // Of leased bytes, where state rests on a device: most of them are read and written.
  double device_update_bytes_per_second() const { return compute.bytes_per_second / 2; }
};

struct TimedStep {
  plan::Trace trace;  // an event's seconds_before are the device's; in the update those of its tier
  size_t update = 0;  // the first event of the update
  double flops = 0;   // of products and attention
  double forward_seconds = 0;
  double backward_seconds = 0;  // with what is computed again
  double update_seconds = 0;
  double device_update_seconds = 0;  // of these, on the device
  uint64_t workspace_bytes = 0;      // of the device
  std::vector<TensorSpec> tensors;   // whose tiles are the trace's, in order

  double walk_seconds() const { return forward_seconds + backward_seconds; }
};

// `placement`: where roles rest, by which a GPU updates state or the CPU does. `tile_elements`: the
// most elements of a weight's tile, whose seconds count, if those of `options` stand for several.
// Errors of trainer::RecordStep.
absl::StatusOr<TimedStep> TimeStep(const hf::ModelConfig& config,
                                   const trainer::ModelOptions& options, const Placement& placement,
                                   const StepRates& rates, int64_t tile_elements = INT64_MAX);

// Leaves out the smallest tiles, which together have a thousandth of the bytes: norms and biases,
// whose leases are many and whose transfers take no time that counts. Computing takes as long as
// before. `tensors` is emptied.
void LeaveOutSmallTiles(TimedStep* step);

// The device's scratch of a step. Errors of trainer::RecordStep.
absl::StatusOr<uint64_t> WorkspaceBytes(const hf::ModelConfig& config,
                                        const trainer::ModelOptions& options);
// The same of the host, which computes on `threads` threads.
absl::StatusOr<uint64_t> HostWorkspaceBytes(const hf::ModelConfig& config,
                                            const trainer::ModelOptions& options, int threads);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_STEP_TIMED_STEP_H_
