// SPDX-License-Identifier: Apache-2.0

#include "src/plan/uses.h"

#include <algorithm>

#include "src/base/bytes.h"

namespace spillway::plan {
namespace {

using Kind = TraceEvent::Kind;

Retention EmptyRetention(const Trace& trace, uint64_t frame_alignment) {
  Retention retention;
  retention.num_positions = BeforeEvent(static_cast<uint32_t>(trace.events.size()));
  retention.size_bytes.reserve(trace.tiles.size());
  retention.first.reserve(trace.tiles.size() + 1);
  retention.uses.reserve(trace.events.size());
  for (const TraceTile& tile : trace.tiles) {
    retention.size_bytes.push_back(base::RoundUp(tile.size_bytes, frame_alignment));
  }
  retention.first.push_back(0);
  retention.reserved_frame.assign(trace.tiles.size(), kNotReserved);
  return retention;
}

// Adds one tile's uses in order.
class UseList {
 public:
  explicit UseList(Retention* retention) : retention_(*retention) {}

  void BeginTile(TileIndex tile) {
    tile_ = tile;
    num_holds_ = 0;
  }
  Use& Hold(uint32_t begin, uint32_t end) {
    ++num_holds_;
    retention_.uses.push_back({.begin = begin, .end = end, .tile = tile_});
    return retention_.uses.back();
  }
  void Void(uint32_t event) {
    retention_.uses.push_back(
        {.begin = AtEvent(event), .end = AtEvent(event), .tile = tile_, .kind = Use::Kind::kVoid});
  }
  Use& last() { return retention_.uses.back(); }
  // Whether the tile has no uses.
  bool empty() const { return retention_.uses.size() == retention_.first.back(); }
  void EndTile() {
    if (num_holds_ == 0)
      retention_.uses.resize(retention_.first.back());  // nothing can become void
    retention_.first.push_back(static_cast<uint32_t>(retention_.uses.size()));
  }

 private:
  Retention& retention_;
  TileIndex tile_ = 0;
  int num_holds_ = 0;
};

// Adds to a tier's uses what follows from where tiles rest. The last tier holds all tiles, so no
// tile is away from it.
void PlaceUses(const Trace& trace, Tier tier, bool is_last, Retention* retention) {
  for (TileIndex tile = 0; tile < trace.tiles.size(); ++tile) {
    const TraceTile& of = trace.tiles[tile];
    if (of.has_reserved_frame(tier)) retention->reserved_frame[tile] = of.reserved_frame->offset;
  }
  if (is_last) return;
  for (Use& use : retention->uses) {
    const TraceTile& of = trace.tiles[use.tile];
    use.away = of.rest.value_or(tier) != tier;
    // A tile with a reserved frame on the device need not be written to NVMe.
    if (tier == Tier::kPinned && of.has_reserved_frame(Tier::kDevice)) use.dirties = false;
  }
}

// Adds the uses of pinned memory. A device copy that comes early adds none: the pinned lease still
// holds the tile.
class PinnedUseVisitor : public TileVisitor {
 public:
  explicit PinnedUseVisitor(UseList* uses) : uses_(*uses) {}

  void DeviceCopyBegins(uint32_t event, Source source) override {
    if (source == Source::kNothing || in_lease_) return;
    uses_.Hold(BeforeEvent(event), BeforeEvent(event) + 1).needs = source == Source::kBelow;
  }
  void DeviceCopyEnds(uint32_t event, bool copy_out) override {
    if (copy_out) uses_.Hold(AfterEvent(event), AfterEvent(event) + 1).dirties = true;
  }
  void PinnedLeaseBegins(uint32_t event, Source source) override {
    in_lease_ = true;
    Use& use = uses_.Hold(BeforeEvent(event), BeforeEvent(event));
    use.needs = source == Source::kBelow;
    use.dirties = source == Source::kDevice;
  }
  void PinnedLeaseEnds(uint32_t event, bool dirties) override {
    in_lease_ = false;
    uses_.last().end = BeforeEvent(event + 1);
    uses_.last().dirties |= dirties;
  }
  void PinnedVoid(uint32_t event) override { uses_.Void(event); }

 private:
  UseList& uses_;
  bool in_lease_ = false;
};

// The uses of the device or, if `pooled`, of both tiers as one.
Retention LeasedUses(const Trace& trace, const EventsByTile& events, uint64_t frame_alignment,
                     bool zeros_are_free, bool pooled) {
  Retention retention = EmptyRetention(trace, frame_alignment);
  UseList uses(&retention);
  const std::vector<bool> is_zero =  // by event
      zeros_are_free ? IsZeroBefore(trace) : std::vector<bool>(trace.events.size());
  for (TileIndex tile = 0; tile < trace.tiles.size(); ++tile) {
    uses.BeginTile(tile);
    int leases = 0;
    bool cleaned_before_first = false;
    for (const uint32_t e : events.Of(tile)) {
      const TraceEvent& event = trace.events[e];
      const bool in_tier = pooled || event.tier == Tier::kDevice;
      if (event.kind == Kind::kDiscard) {
        uses.Void(e);
      } else if (in_tier && event.kind == Kind::kAcquire) {
        if (leases++ == 0)
          uses.Hold(BeforeEvent(e), 0).needs = event.access != Access::kDiscard && !is_zero[e];
        uses.last().dirties |= Writes(event.access);
      } else if (in_tier) {
        if (--leases == 0) uses.last().end = BeforeEvent(e + 1);
      } else if (event.kind == Kind::kAcquire) {
        // Pinned memory gets the bytes unless its lease writes them all.
        if (event.access != Access::kDiscard) {
          if (uses.empty()) {
            cleaned_before_first = true;
          } else {
            uses.last().cleaned = true;
          }
        }
        if (Writes(event.access)) uses.Void(e);
      } else if (Writes(event.access)) {
        uses.last().end = AfterEvent(e);  // the end of the void
      }
    }
    if (cleaned_before_first && !uses.empty()) uses.last().cleaned = true;
    uses.EndTile();
  }
  if (!zeros_are_free) PlaceUses(trace, Tier::kDevice, /*is_last=*/false, &retention);
  retention.Finish();
  return retention;
}

}  // namespace

EventsByTile::EventsByTile(const Trace& trace)
    : events_(trace.events.size()), first_(trace.tiles.size() + 2) {
  for (const TraceEvent& event : trace.events) {
    ++first_[event.tile + 2];
  }
  for (size_t i = 2; i < first_.size(); ++i) first_[i] += first_[i - 1];
  for (uint32_t e = 0; e < events_.size(); ++e) events_[first_[trace.events[e].tile + 1]++] = e;
}

Retention DeviceUses(const Trace& trace, const EventsByTile& events, uint64_t frame_alignment,
                     bool zeros_are_free) {
  return LeasedUses(trace, events, frame_alignment, zeros_are_free, /*pooled=*/false);
}

Retention PooledUses(const Trace& trace, const EventsByTile& events) {
  return LeasedUses(trace, events, 1, /*zeros_are_free=*/true, /*pooled=*/true);
}

Retention PinnedUses(const Trace& trace, const EventsByTile& events, const Retention& device,
                     const Retained& device_retained, uint64_t frame_alignment, bool has_store) {
  Retention retention = EmptyRetention(trace, frame_alignment);
  UseList uses(&retention);
  PinnedUseVisitor visitor(&uses);
  TileWalk walk(trace, events, device, device_retained);
  for (TileIndex tile = 0; tile < trace.tiles.size(); ++tile) {
    uses.BeginTile(tile);
    walk.Run(tile, visitor);
    if (!has_store && events.Of(tile).empty()) uses.Hold(0, 0);
    uses.EndTile();
  }
  PlaceUses(trace, Tier::kPinned, /*is_last=*/!has_store, &retention);
  retention.Finish();
  return retention;
}

std::vector<bool> IsZeroBefore(const Trace& trace) {
  std::vector<bool> zero, before(trace.events.size());
  for (const TraceTile& tile : trace.tiles) zero.push_back(!tile.stored);
  for (int round = 0; round < 2; ++round) {
    for (size_t e = 0; e < trace.events.size(); ++e) {
      const TraceEvent& event = trace.events[e];
      before[e] = zero[event.tile];
      if (event.kind == Kind::kDiscard) zero[event.tile] = true;
      if (event.kind == Kind::kAcquire && Writes(event.access)) zero[event.tile] = false;
    }
  }
  return before;
}

void TileWalk::Run(TileIndex tile, TileVisitor& visitor) {
  on_device_ = only_on_device_ = false;
  zero_ = !trace_.tiles[tile].stored;
  TileVisitor no_visitor;
  Round(tile, no_visitor);  // finds the state in which a period begins
  Round(tile, visitor);
}

void TileWalk::Round(TileIndex tile, TileVisitor& visitor) {
  using Source = TileVisitor::Source;
  int device_leases = 0, pinned_leases = 0;
  bool dirties = false;
  // A tile with a reserved frame on the device never leaves it, and no tier below has its bytes.
  const bool in_reserved_frame = device_.has_reserved_frame(tile);
  uint32_t use = device_.first[tile];
  const bool is_on_device = use != device_.first[tile + 1];  // at some time in the period
  const auto leave_device = [&](uint32_t e) {
    if (on_device_) visitor.DeviceCopyVoid(e);
    on_device_ = only_on_device_ = false;
  };
  for (const uint32_t e : events_.Of(tile)) {
    const TraceEvent& event = trace_.events[e];
    const bool overwrites = event.access == Access::kDiscard;
    if (event.kind == Kind::kDiscard) {
      leave_device(e);
      visitor.PinnedVoid(e);
      zero_ = true;
    } else if (event.tier == Tier::kDevice && event.kind == Kind::kAcquire) {
      if (device_leases++ == 0 && !on_device_) {
        const Source source = overwrites ? Source::kNothing
                              : zero_    ? Source::kZeros
                                         : Source::kBelow;
        visitor.DeviceCopyBegins(e, source);
        on_device_ = true;
        only_on_device_ |= in_reserved_frame;
      }
      if (!Writes(event.access)) continue;
      visitor.PinnedVoid(e);
      only_on_device_ = true;
      zero_ = false;
    } else if (event.tier == Tier::kDevice) {
      if (--device_leases > 0 || in_reserved_frame) continue;
      while (device_.uses[use].kind == Use::Kind::kVoid) ++use;
      if (retained_[use++]) continue;
      visitor.DeviceCopyEnds(e, only_on_device_);
      on_device_ = only_on_device_ = false;
    } else if (event.kind == Kind::kAcquire) {
      if (pinned_leases++ == 0) {
        const Source source = overwrites        ? Source::kNothing
                              : only_on_device_ ? Source::kDevice
                              : zero_           ? Source::kZeros
                                                : Source::kBelow;
        visitor.PinnedLeaseBegins(e, source);
        only_on_device_ = false;
      }
      if (!Writes(event.access)) continue;
      leave_device(e);
      dirties = true;
      zero_ = false;
      while (is_on_device && device_.uses[use].event() != e) ++use;  // to the void at this event
    } else if (--pinned_leases == 0) {
      const bool comes_early = dirties && is_on_device && !in_reserved_frame && retained_[use];
      const bool goes_to_reserved_frame = in_reserved_frame && !on_device_ && !zero_;
      if (comes_early || goes_to_reserved_frame) {
        visitor.DeviceCopyComesEarly(e);
        on_device_ = true;
      }
      only_on_device_ |= in_reserved_frame && on_device_;
      visitor.PinnedLeaseEnds(e, dirties);
      dirties = false;
    }
  }
}

}  // namespace spillway::plan
