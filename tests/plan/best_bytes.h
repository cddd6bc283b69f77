// SPDX-License-Identifier: Apache-2.0
//
// The least bytes that a step can move over NVMe, found by trying everything. It is for steps of
// few tiles that lease in pinned memory alone, and does not model gaps, prices or frames.

#ifndef SPILLWAY_TESTS_PLAN_BEST_BYTES_H_
#define SPILLWAY_TESTS_PLAN_BEST_BYTES_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "src/plan/trace.h"

namespace spillway::plan {

// A state gives for each tile whether it is absent (not in memory), clean (in memory and on NVMe)
// or dirty (in memory alone).
class BestBytes {
 public:
  BestBytes(const Trace& trace, uint64_t capacity) : trace_(trace), capacity_(capacity) {
    for (size_t i = 0; i < trace.tiles.size(); ++i) num_states_ *= 3;
    std::vector<bool> zero;
    for (const TraceTile& tile : trace.tiles) zero.push_back(!tile.stored);
    for (int round = 0; round < 2; ++round) {
      zero_before_.clear();
      for (const TraceEvent& event : trace.events) {
        zero_before_.push_back(zero[event.tile]);
        if (event.kind == TraceEvent::Kind::kDiscard) zero[event.tile] = true;
        if (event.kind == TraceEvent::Kind::kAcquire && Writes(event.access))
          zero[event.tile] = false;
      }
    }
    zero_at_seam_ = zero;
  }

  // Find returns kNoWay if the leases do not fit.
  static constexpr uint64_t kNoWay = std::numeric_limits<uint64_t>::max();
  uint64_t Find() const {
    uint64_t best = kNoWay;
    for (uint32_t start = 0; start < num_states_; ++start) {
      if (IsStart(start)) best = std::min(best, FromTo(start));
    }
    return best;
  }

 private:
  enum : uint32_t { kAbsent, kClean, kDirty };
  using Costs = std::vector<uint64_t>;

  size_t num_tiles() const { return trace_.tiles.size(); }
  static uint32_t Pow3(size_t i) {
    uint32_t value = 1;
    while (i-- > 0) value *= 3;
    return value;
  }
  static uint32_t Of(uint32_t state, size_t tile) { return state / Pow3(tile) % 3; }
  static uint32_t With(uint32_t state, size_t tile, uint32_t value) {
    return state + (value - Of(state, tile)) * Pow3(tile);
  }
  uint64_t Bytes(uint32_t state) const {
    uint64_t bytes = 0;
    for (size_t i = 0; i < num_tiles(); ++i)
      bytes += Of(state, i) == kAbsent ? 0 : trace_.tiles[i].size_bytes;
    return bytes;
  }
  bool IsStart(uint32_t state) const {
    for (size_t i = 0; i < num_tiles(); ++i) {
      if (zero_at_seam_[i] && Of(state, i) != kAbsent) return false;
    }
    return Bytes(state) <= capacity_;
  }

  // Lowers costs by evictions. Any tile that is not leased may be evicted at any time.
  void Evict(const std::vector<int>& leases, Costs& costs) const {
    for (size_t tile = 0; tile < num_tiles(); ++tile) {
      if (leases[tile] > 0) continue;
      for (uint32_t state = 0; state < num_states_; ++state) {
        if (costs[state] == kNoWay || Of(state, tile) == kAbsent) continue;
        const uint64_t write = Of(state, tile) == kDirty ? trace_.tiles[tile].size_bytes : 0;
        uint64_t& cost = costs[With(state, tile, kAbsent)];
        cost = std::min(cost, costs[state] + write);
      }
    }
  }

  uint64_t FromTo(uint32_t start) const {
    Costs costs(num_states_, kNoWay);
    costs[start] = 0;
    std::vector<int> leases(num_tiles());
    for (size_t e = 0; e < trace_.events.size(); ++e) {
      const TraceEvent& event = trace_.events[e];
      Evict(leases, costs);
      Costs next(num_states_, kNoWay);
      for (uint32_t state = 0; state < num_states_; ++state) {
        if (costs[state] == kNoWay) continue;
        uint32_t to = state;
        uint64_t cost = costs[state];
        if (event.kind == TraceEvent::Kind::kDiscard) {
          to = With(state, event.tile, kAbsent);
        } else if (event.kind == TraceEvent::Kind::kAcquire) {
          if (Of(state, event.tile) == kAbsent) {
            const bool reads = event.access != Access::kDiscard && !zero_before_[e];
            cost += reads ? trace_.tiles[event.tile].size_bytes : 0;
            to = With(state, event.tile, kClean);
          }
          if (Writes(event.access)) to = With(to, event.tile, kDirty);
          if (Bytes(to) > capacity_) continue;
        }
        next[to] = std::min(next[to], cost);
      }
      if (event.kind == TraceEvent::Kind::kAcquire) ++leases[event.tile];
      if (event.kind == TraceEvent::Kind::kRelease) --leases[event.tile];
      costs.swap(next);
    }
    Evict(leases, costs);
    return costs[start];
  }

  const Trace& trace_;
  const uint64_t capacity_;
  uint32_t num_states_ = 1;
  std::vector<bool> zero_before_, zero_at_seam_;  // the first by event, the second by tile
};

}  // namespace spillway::plan

#endif  // SPILLWAY_TESTS_PLAN_BEST_BYTES_H_
