// SPDX-License-Identifier: Apache-2.0
//
// Streams the tiles of one parameter through the tier where it is updated: a tile of each operand
// is leased, updated and released, then the next one. In pinned memory the CPU updates them, on all
// threads. On the device the leases and the update are work on a stream (device_update.h). Tiles of
// different operands may differ in size. So a parameter is cut into segments wherever a tile of any
// operand ends, and a tile stays leased from its first segment to its last. A rule that needs norms
// of the parameter first passes over the tiles more than once (rule_passes.h), in the same order
// each time. The engine reads the next tiles ahead if a caller declares them with Prefetch.

#ifndef SPILLWAY_OPTIM_UPDATE_PASS_H_
#define SPILLWAY_OPTIM_UPDATE_PASS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "spillway/optimizer.h"
#include "src/optim/parameter_checks.h"

namespace spillway::optim {

// Elements between two cuts.
struct Segment {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Calls visit(segment) in order until it fails.
absl::Status ForEachSegment(const CheckedParameter& parameter,
                            const std::function<absl::Status(const Segment&)>& visit);

// Whether a segment is the first, or the last, of a tile of the operand.
bool BeginsTile(const Operand& operand, const Segment& segment);
bool EndsTile(const CheckedParameter& parameter, const Operand& operand, const Segment& segment);

// Whether the tensor's tiles have frames on the device that they keep.
bool RestsOnDevice(const Engine& engine, TensorId tensor);

// Appends the leases that UpdateParameter takes, in order.
void AppendUses(const CheckedParameter& parameter, std::vector<Use>* uses);

// Returns the bytes within which UpdateParameter always finds room: of pinned memory, and of device
// memory beside the frames of tiles that rest there. A tile that is leased on the device passes
// through pinned memory.
uint64_t PinnedBytesFor(const Engine& engine, const CheckedParameter& parameter);
uint64_t DeviceBytesFor(const Engine& engine, const CheckedParameter& parameter);

// Updates a whole parameter by `rule`. A parameter of the device's tier needs `stream`, and the
// update need not have run when this returns. After an error the current tiles may be updated in
// part; in the tile of a 16-bit weight, the elements that were not written are NaN. A tile whose
// bytes the store has lost stays as it was (DataLoss).
absl::Status UpdateParameter(Engine* engine, ThreadPool* pool, Stream* stream,
                             const CheckedParameter& parameter, const Rule& rule,
                             const Update& update);

// Returns the bytes of a tier within which one more lease finds room while those of `held_bytes`
// are held. With k−1 leases held and all other tiles evicted, the free bytes lie in at most k gaps.
// If all gaps were smaller than the k-th lease, less than k·l_k would be free. So a budget of (l_1
// + … + l_(k−1)) + k·l_k has a gap that holds the lease, wherever the others lie. Sizes are rounded
// up to frames of 4 KiB.
uint64_t BytesForNext(std::span<const uint64_t> held_bytes, uint64_t next_bytes);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_UPDATE_PASS_H_
