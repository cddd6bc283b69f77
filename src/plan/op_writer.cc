// SPDX-License-Identifier: Apache-2.0

#include "src/plan/op_writer.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "src/plan/range_map.h"

namespace spillway::plan {
namespace {

// Records the operations tile by tile. Those of a tile are in the order in which they happen.
class OpVisitor : public TileVisitor {
 public:
  OpVisitor(const Trace& trace, const EventsByTile& events, const TierPlan& device,
            const TierPlan& pinned, bool has_store)
      : trace_(trace),
        events_(events),
        device_(device),
        pinned_(pinned),
        writes_after_(GoesDown(pinned.retention, pinned.retained)),
        has_store_(has_store) {
    // More than most plans have: moving millions of operations to a larger vector takes long.
    ops_.reserve(2 * (device.retention.uses.size() + pinned.retention.uses.size()));
  }

  void BeginTile(TileIndex tile) {
    tile_ = tile;
    device_use_ = device_.retention.first[tile];
    pinned_use_ = pinned_.retention.first[tile];
    in_pinned_ = pinned_use_ < EndOfPinned() && pinned_.retained[EndOfPinned() - 1];
    in_lease_ = false;
    // Across the seam, from the period before, the tile lies in the frames of its last uses.
    const uint32_t end_of_device = device_.retention.first[tile + 1];
    if (device_use_ < end_of_device) device_offset_ = device_.offset[end_of_device - 1];
    if (device_.retention.has_reserved_frame(tile))
      device_offset_ = device_.retention.reserved_frame[tile];
    if (pinned_use_ < EndOfPinned()) pinned_offset_ = pinned_.offset[EndOfPinned() - 1];
    ahead_ = events_.Of(tile);
    last_end_ = kNever;
    for (const uint32_t event : ahead_) {
      if (Ends(event)) last_end_ = event | kPeriodBefore;
    }
  }

  void DeviceCopyBegins(uint32_t event, Source source) override {
    while (device_.retention.uses[device_use_].event() != event) ++device_use_;
    device_offset_ = device_.offset[device_use_];
    if (source == Source::kNothing) return Add(Transfer::kTake, Tier::kDevice, event, kBefore);
    if (!in_lease_) EnterPinned(event, source, kBefore);
    Add(Transfer::kCopyIn, Tier::kDevice, event, kBefore);
    if (!in_lease_) EndPinnedUse(event, kBefore);
  }
  void DeviceCopyComesEarly(uint32_t event) override {
    if (!device_.retention.has_reserved_frame(tile_)) {
      while (device_.retention.uses[device_use_].end != AfterEvent(event)) ++device_use_;
      device_offset_ = device_.offset[device_use_];
    }
    Add(Transfer::kCopyIn, Tier::kDevice, event, kAfter);
  }
  void DeviceCopyEnds(uint32_t event, bool copy_out) override {
    if (copy_out) EnterPinned(event, Source::kDevice, kAfter);
    Add(Transfer::kDrop, Tier::kDevice, event, kAfter);
    if (copy_out) EndPinnedUse(event, kAfter);
  }
  void DeviceCopyVoid(uint32_t event) override { Add(Transfer::kDrop, Tier::kDevice, event, kAt); }
  void PinnedLeaseBegins(uint32_t event, Source source) override {
    EnterPinned(event, source, kBefore);
    in_lease_ = true;
  }
  void PinnedLeaseEnds(uint32_t event, bool) override {
    in_lease_ = false;
    EndPinnedUse(event, kAfter);
  }
  void PinnedVoid(uint32_t event) override {
    if (std::exchange(in_pinned_, false)) Add(Transfer::kDrop, Tier::kPinned, event, kAt);
    if (pinned_use_ < EndOfPinned()) ++pinned_use_;
  }

  // Adds the copies that the tile has in memory at the period's end.
  void EndTile(bool on_device, std::vector<Place>* seam) const {
    if (on_device) seam->push_back({tile_, Tier::kDevice, device_offset_});
    if (in_pinned_) seam->push_back({tile_, Tier::kPinned, pinned_offset_});
  }

  const std::vector<Op>& ops() const { return ops_; }

 private:
  static constexpr uint32_t kBefore = BeforeEvent(0), kAt = AtEvent(0), kAfter = AfterEvent(0);

  uint32_t EndOfPinned() const { return pinned_.retention.first[tile_ + 1]; }

  // Begins the tile's use in pinned memory. Adds the operation that takes its frame and brings its
  // bytes, unless the tile is there already.
  void EnterPinned(uint32_t event, Source source, uint32_t phase) {
    pinned_offset_ = pinned_.offset[pinned_use_];
    if (std::exchange(in_pinned_, true)) return;
    switch (source) {
      case Source::kBelow: return Add(Transfer::kRead, Tier::kPinned, event, phase);
      case Source::kDevice: return Add(Transfer::kCopyOut, Tier::kPinned, event, phase);
      case Source::kZeros: return Add(Transfer::kZero, Tier::kPinned, event, phase);
      case Source::kNothing: return Add(Transfer::kTake, Tier::kPinned, event, phase);
    }
  }
  void EndPinnedUse(uint32_t event, uint32_t phase) {
    if (has_store_ && writes_after_[pinned_use_])
      Add(Transfer::kWrite, Tier::kPinned, event, phase);
    if (!pinned_.retained[pinned_use_]) {
      Add(Transfer::kDrop, Tier::kPinned, event, phase);
      in_pinned_ = false;
    }
    ++pinned_use_;
  }

  void Add(Transfer kind, Tier tier, uint32_t event, uint32_t phase) {
    Op op;
    op.kind = kind;
    op.tier = tier;
    op.tile = tile_;
    op.offset = tier == Tier::kDevice ? device_offset_ : pinned_offset_;
    op.after = phase == kBefore ? LastEndBefore(event) : event;
    op.position = kPositionsPerEvent * event + phase;
    ops_.push_back(op);
  }

  // Returns the tile's last event before `event` that ended a lease or made its bytes void. If this
  // period has none, returns the last one of the period before.
  uint32_t LastEndBefore(uint32_t event) {
    for (; !ahead_.empty() && ahead_.front() < event; ahead_ = ahead_.subspan(1)) {
      if (Ends(ahead_.front())) last_end_ = ahead_.front();
    }
    return last_end_;
  }
  bool Ends(uint32_t event) const {
    return trace_.events[event].kind != TraceEvent::Kind::kAcquire;
  }

  const Trace& trace_;
  const EventsByTile& events_;
  const TierPlan& device_;
  const TierPlan& pinned_;
  const std::vector<bool> writes_after_;
  const bool has_store_;
  TileIndex tile_ = 0;
  uint32_t device_use_ = 0, pinned_use_ = 0;
  uint64_t device_offset_ = 0, pinned_offset_ = 0;
  bool in_pinned_ = false, in_lease_ = false;
  // The tile's events that are not before that of LastEndBefore's last call, and what that call
  // returned.
  std::span<const uint32_t> ahead_;
  uint32_t last_end_ = kNever;
  std::vector<Op> ops_;
};

// Goes through the period twice: first to find the last drop of each range at the period's end,
// then to record the operations that each operation waits for.
void FindWaits(const std::vector<uint64_t>& size_bytes, Plan* plan) {
  std::array<RangeMap<uint32_t>, 2> owners;  // by tier: the last drop of each range of the arena
  for (const bool writes : {false, true}) {
    for (uint32_t i = 0; i < plan->ops.size(); ++i) {
      Op& op = plan->ops[i];
      RangeMap<uint32_t>& tier = owners[op.tier == Tier::kDevice ? 0 : 1];
      const uint64_t end = op.offset + size_bytes[op.tile];
      if (writes) op.first_wait = static_cast<uint32_t>(plan->waits.size());
      if (op.kind == Transfer::kDrop) {
        tier.Set(op.offset, end, writes ? i : i | kPeriodBefore);
      } else if (writes && TakesFrame(op.kind)) {
        tier.ForRange(op.offset, end, [&](uint32_t owner) {
          const auto begin = plan->waits.begin() + op.first_wait;
          if (std::find(begin, plan->waits.end(), owner) == plan->waits.end())
            plan->waits.push_back(owner);
        });
      }
    }
  }
}

}  // namespace

void WriteOps(const Trace& trace, const EventsByTile& events, const TierPlan& device,
              const TierPlan& pinned, Plan* plan) {
  OpVisitor visitor(trace, events, device, pinned, plan->options.has_store);
  TileWalk walk(trace, events, device.retention, device.retained);
  for (TileIndex tile = 0; tile < trace.tiles.size(); ++tile) {
    visitor.BeginTile(tile);
    walk.Run(tile, visitor);
    visitor.EndTile(walk.on_device(), &plan->seam);
  }
  // Sorts the operations by position. Those of one position are of one tile and keep their order.
  std::vector<uint32_t> count(device.retention.num_positions + 1);
  for (const Op& op : visitor.ops()) {
    ++count[op.position + 1];
  }
  for (size_t p = 1; p < count.size(); ++p) count[p] += count[p - 1];
  plan->ops.resize(visitor.ops().size());
  for (const Op& op : visitor.ops()) {
    plan->ops[count[op.position]++] = op;
  }
  FindWaits(pinned.retention.size_bytes, plan);
}

}  // namespace spillway::plan
