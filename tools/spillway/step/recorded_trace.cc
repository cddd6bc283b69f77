// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/step/recorded_trace.h"

#include <cstdint>
#include <vector>

namespace spillway::command {

plan::Trace TraceOf(const trainer::RecordedStep& step) {
  using Kind = trainer::LeaseEvent::Kind;
  plan::Trace trace;
  std::vector<plan::TileIndex> first_tile;  // by tensor
  for (const TensorSpec& spec : step.tensors) {
    first_tile.push_back(static_cast<plan::TileIndex>(trace.tiles.size()));
    const uint64_t num_tiles = spec.num_tiles();
    for (uint64_t tile = 0; tile < num_tiles; ++tile) {
      trace.tiles.push_back({.size_bytes = spec.tile_bytes(tile),
                             .role = spec.role,
                             .transient = spec.transient,
                             .stored = !spec.transient});
    }
  }
  trace.events.reserve(step.events.size());
  for (const trainer::LeaseEvent& event : step.events) {
    const auto kind = event.kind == Kind::kAcquire   ? plan::TraceEvent::Kind::kAcquire
                      : event.kind == Kind::kRelease ? plan::TraceEvent::Kind::kRelease
                                                     : plan::TraceEvent::Kind::kDiscard;
    trace.events.push_back({.tile = first_tile[event.tile.tensor.value] + event.tile.tile,
                            .kind = kind,
                            .tier = event.tier,
                            .access = event.access});
  }
  return trace;
}

}  // namespace spillway::command
