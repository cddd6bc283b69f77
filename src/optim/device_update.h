// SPDX-License-Identifier: Apache-2.0
//
// Updates a parameter's elements on the device, as work on a stream of the engine. A GPU runs
// AdamW's kernels. The host device runs UpdateFused, on the stream's thread, with the same bits.
//
// Each function returns when it has launched the work. The memory that it names is device memory
// under leases that end on the stream.

#ifndef SPILLWAY_OPTIM_DEVICE_UPDATE_H_
#define SPILLWAY_OPTIM_DEVICE_UPDATE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "src/optim/fused_update.h"
#include "src/optim/rule_kernels.h"

namespace spillway::optim {

// Whether there are kernels for the rule.
bool HasKernels(const Rule& rule);

// Updates `rows` rows, of which `first_row` is the first, and which follow each other in memory.
// There are several rows only if the state is encoded; other runs have any number of elements.
// REQUIRES: the factors are those of a rule that has kernels, and the run has no given weight.
absl::Status LaunchUpdate(Device device, Stream* stream, const RuleFactors& factors,
                          const FusedRun& first_row, int64_t rows);

// Sets all bits, which is NaN in each type of elements.
absl::Status LaunchNan(Device device, Stream* stream, std::byte* from, uint64_t size_bytes);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_DEVICE_UPDATE_H_
