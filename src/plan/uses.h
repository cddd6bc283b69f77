// SPDX-License-Identifier: Apache-2.0
//
// Derives each tier's uses from a trace. The device's uses follow from the trace alone. The uses of
// pinned memory depend on what the device retains: apart from pinned memory's own leases, a tile
// passes through it on its way to the device and back.

#ifndef SPILLWAY_PLAN_USES_H_
#define SPILLWAY_PLAN_USES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "src/plan/retention.h"
#include "src/plan/trace.h"

namespace spillway::plan {

// The events of each tile, in order.
class EventsByTile {
 public:
  explicit EventsByTile(const Trace& trace);
  std::span<const uint32_t> Of(TileIndex tile) const {
    return std::span(events_).subspan(first_[tile], first_[tile + 1] - first_[tile]);
  }

 private:
  std::vector<uint32_t> events_, first_;
};

// Zeros are brought to the device like other bytes. With `zeros_are_free`, which serves the bound,
// they are not, and where tiles rest is ignored, because no placement saves a byte.
Retention DeviceUses(const Trace& trace, const EventsByTile& events, uint64_t frame_alignment,
                     bool zeros_are_free = false);

// If there is no store, tiles that the step does not use are in pinned memory too.
Retention PinnedUses(const Trace& trace, const EventsByTile& events, const Retention& device,
                     const Retained& device_retained, uint64_t frame_alignment, bool has_store);

// The uses of device and pinned memory taken as one tier above NVMe, for the bound.
Retention PooledUses(const Trace& trace, const EventsByTile& events);

// Returns, by event, whether its tile has no bytes just before it, in a period that follows equal
// periods.
std::vector<bool> IsZeroBefore(const Trace& trace);

// Receives what happens to one tile over a period, in order. `event` is the event before, at or
// after which it happens.
class TileVisitor {
 public:
  // Where the bytes of a copy come from.
  enum class Source : uint8_t {
    kBelow,    // the tier below
    kDevice,   // only for a pinned copy: the device, which had the only copy
    kZeros,    // the tile has no bytes yet
    kNothing,  // none: the lease writes every byte
  };
  virtual ~TileVisitor() = default;
  virtual void DeviceCopyBegins(uint32_t /*event*/, Source /*source*/) {}
  // A lease in pinned memory that wrote ends, and its bytes go to the device at once.
  virtual void DeviceCopyComesEarly(uint32_t /*event*/) {}
  // If `copy_out` is true, the copy's bytes go to pinned memory first.
  virtual void DeviceCopyEnds(uint32_t /*event*/, bool /*copy_out*/) {}
  virtual void DeviceCopyVoid(uint32_t /*event*/) {}
  virtual void PinnedLeaseBegins(uint32_t /*event*/, Source /*source*/) {}
  virtual void PinnedLeaseEnds(uint32_t /*event*/, bool /*dirties*/) {}
  // The bytes in pinned memory become void: a lease on the device writes, or the tile is discarded.
  virtual void PinnedVoid(uint32_t /*event*/) {}
};

// Goes through a tile's events and reports what happens to its copies, given what the device
// retains.
class TileWalk {
 public:
  TileWalk(const Trace& trace, const EventsByTile& events, const Retention& device,
           const Retained& device_retained)
      : trace_(trace), events_(events), device_(device), retained_(device_retained) {}
  void Run(TileIndex tile, TileVisitor& visitor);
  // Whether the tile that was walked last has a copy on the device at the period's end.
  bool on_device() const { return on_device_; }

 private:
  void Round(TileIndex tile, TileVisitor& visitor);

  const Trace& trace_;
  const EventsByTile& events_;
  const Retention& device_;
  const Retained& retained_;
  // The state of the tile at the present event.
  bool on_device_ = false;
  bool only_on_device_ = false;
  bool zero_ = false;
};

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_USES_H_
