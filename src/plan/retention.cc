// SPDX-License-Identifier: Apache-2.0

#include "src/plan/retention.h"

#include <algorithm>
#include <optional>

namespace spillway::plan {

uint64_t Retention::ReservedFrameBytes() const {
  uint64_t bytes = 0;
  for (TileIndex tile = 0; tile < num_tiles(); ++tile)
    bytes += has_reserved_frame(tile) ? size_bytes[tile] : 0;
  return bytes;
}

void Retention::Finish() {
  MarkGaps();
  SumUseBytes();
}

void Retention::MarkGaps() {
  for (TileIndex tile = 0; tile < num_tiles(); ++tile) {
    // Goes through the period twice, since a tile's first use finds what its last use left.
    bool dirty = false, has_bytes = true;
    uint32_t writer = 0;
    for (uint32_t i = 0; i < 2 * (first[tile + 1] - first[tile]); ++i) {
      const uint32_t u = first[tile] + i % (first[tile + 1] - first[tile]);
      Use& use = uses[u];
      has_bytes = use.kind == Use::Kind::kHold;
      dirty = has_bytes && (dirty || use.dirties);
      if (use.dirties) writer = u;
      use.dirty = dirty;
      if (dirty && (use.cleaned || use.away)) {
        uses[writer].forced_write = true;
        dirty = false;
      }
      use.leaves = !has_bytes || (!use.dirty && !SavesRead(u));
    }
    for (uint32_t u = first[tile]; u < first[tile + 1]; ++u) {
      if (!uses[u].forced_write) continue;
      for (uint32_t gap = u; uses[gap].dirty; gap = Next(gap)) {
        uses[gap].dirty = false;
        uses[gap].leaves = !SavesRead(gap);
        if (uses[Next(gap)].dirties) break;
      }
    }
    for (uint32_t u = first[tile]; u < first[tile + 1]; ++u) {
      Use& use = uses[u];
      if (!use.away && !has_reserved_frame(tile)) continue;
      use.leaves = true;
      use.cleaned = false;
      if (has_reserved_frame(tile)) use.needs = use.dirty = use.forced_write = false;
    }
  }
}

void Retention::SumUseBytes() {
  // First enters the bytes that come and go at each position, modulo 2^64; then sums them up.
  use_bytes.assign(num_positions + 1, 0);
  for (const Use& use : uses) {
    if (use.kind != Use::Kind::kHold || has_reserved_frame(use.tile)) continue;
    use_bytes[use.begin] += size_bytes[use.tile];
    use_bytes[use.end] -= size_bytes[use.tile];
  }
  uint64_t now = 0;
  for (uint64_t& bytes : use_bytes) {
    bytes = now += bytes;
    peak_use_bytes = std::max(peak_use_bytes, now);
  }
  use_bytes.pop_back();
}

namespace {

// Returns the epoch that begins with the gap after a use, if one does.
std::optional<Epoch> EpochAt(const Retention& retention, uint32_t use) {
  const Use& is = retention.uses[use];
  if (!is.dirty) return is.leaves ? std::nullopt : std::optional(Epoch{use, 1, false});
  if (!is.dirties) return std::nullopt;  // part of an epoch that began before
  Epoch epoch{use, 1, true};
  for (uint32_t next = retention.Next(use);
       retention.uses[next].dirty && !retention.uses[next].dirties; next = retention.Next(next)) {
    ++epoch.num_gaps;
  }
  return epoch;
}

}  // namespace

std::vector<Epoch> AllEpochs(const Retention& retention) {
  std::vector<Epoch> epochs;
  epochs.reserve(retention.uses.size());
  for (uint32_t u = 0; u < retention.uses.size(); ++u) {
    if (const auto epoch = EpochAt(retention, u)) epochs.push_back(*epoch);
  }
  return epochs;
}

std::vector<bool> GoesDown(const Retention& retention, const Retained& retained) {
  std::vector<bool> goes_down(retention.uses.size());
  for (uint32_t u = 0; u < goes_down.size(); ++u) {
    const Use& use = retention.uses[u];
    goes_down[u] = use.forced_write;
    if (!use.dirty || !use.dirties) continue;
    const std::optional<Epoch> epoch = EpochAt(retention, u);
    bool all = true;
    ForGaps(retention, *epoch, [&](uint32_t gap) { all &= retained[gap]; });
    goes_down[u] = !all;
  }
  return goes_down;
}

uint64_t Cost(const Retention& retention, const Retained& retained) {
  const std::vector<bool> goes_down = GoesDown(retention, retained);
  uint64_t bytes = 0;
  for (uint32_t u = 0; u < retained.size(); ++u) {
    const bool finds_bytes = retained[u] && retention.uses[u].kind == Use::Kind::kHold;
    if (!finds_bytes && retention.SavesRead(u)) bytes += retention.UseBytes(u);
    if (goes_down[u]) bytes += retention.UseBytes(u);
  }
  return bytes;
}

}  // namespace spillway::plan
