// SPDX-License-Identifier: Apache-2.0
//
// How the tiles of one parameter stream through pinned memory: a tile of each operand is leased,
// updated on all threads and released; then the next. Tiles of operands may differ in size. So a
// parameter is cut wherever a tile of any of them ends, and a tile stays leased from its first cut
// to its last. A rule that needs norms of the parameter first has its tiles pass more than once
// (rule_passes.h), in the same order each time. What brings the next tiles ahead is the engine,
// told by Prefetch.

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

// Adds the leases that UpdateParameter takes, in order.
void AppendUses(const CheckedParameter& parameter, std::vector<Use>* uses);

// Pinned bytes within which UpdateParameter always finds room.
uint64_t PinnedBytesFor(const Engine& engine, const CheckedParameter& parameter);

// Updates all of a parameter, by `rule`. After an error the tile at hand may be updated in part; of
// a 16-bit weight's what was not written is NaN. A tile of which the store has lost bytes stays as
// it was (DataLoss).
absl::Status UpdateParameter(Engine* engine, ThreadPool* pool, const CheckedParameter& parameter,
                             const Rule& rule, const Update& update);

// The pinned bytes within which one more lease finds room while `held` are held. With k−1 held and
// everything else out of the way, the free bytes lie in at most k gaps. If all were smaller than
// the k-th lease, less than k·l_k would be free; so a budget of (l_1 + … + l_(k−1)) + k·l_k has a
// gap that holds it, wherever the others lie. Sizes are rounded up to frames of 4 KiB.
uint64_t PinnedBytesForNext(std::span<const uint64_t> held_bytes, uint64_t next_bytes);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_UPDATE_PASS_H_
