// SPDX-License-Identifier: Apache-2.0
//
// From a trace to each tier's uses. The device's follow from the trace alone. Pinned memory's
// follow from what the device keeps: beside its own leases, a tile passes through it on its way to
// the device and back.

#ifndef SPILLWAY_PLAN_USES_H_
#define SPILLWAY_PLAN_USES_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "src/plan/keeping.h"
#include "src/plan/trace.h"

namespace spillway::plan {

// The events of each tile, in order. Once `stop` is true nobody wants what is made of them, and it
// is not complete.
class EventsByTile {
 public:
  explicit EventsByTile(const Trace& trace, const std::atomic<bool>* stop = nullptr);
  const std::atomic<bool>* stop() const { return stop_; }
  bool is_stopped() const { return stop_ != nullptr && *stop_; }
  const uint32_t* begin(TileIndex tile) const { return events_.data() + first_[tile]; }
  const uint32_t* end(TileIndex tile) const { return events_.data() + first_[tile + 1]; }

 private:
  const std::atomic<bool>* const stop_;
  std::vector<uint32_t> events_, first_;
};

// Zeros are brought to the device as other bytes are; with `zeros_are_free`, for the bound, not,
// and where tiles rest is left out: no placement saves a byte.
Keeping DeviceUses(const Trace& trace, const EventsByTile& events, uint64_t frame_alignment,
                   bool zeros_are_free = false);

// Without a store, tiles that the step leaves alone are in pinned memory too.
Keeping PinnedUses(const Trace& trace, const EventsByTile& events, const Keeping& device,
                   const Kept& device_kept, uint64_t frame_alignment, bool has_store);

// Of device and pinned memory seen as one tier above NVMe, for the bound.
Keeping PooledUses(const Trace& trace, const EventsByTile& events);

// Hears what happens to one tile over a period, in order. `event` is the one that it happens
// before, at or after.
class TileVisitor {
 public:
  // Where the bytes of a copy come from.
  enum class Source : uint8_t {
    kBelow,    // the tier below
    kDevice,   // of a pinned copy: the device, which had the only one
    kZeros,    // it has no bytes yet
    kNothing,  // the lease writes them all
  };
  virtual ~TileVisitor() = default;
  virtual void DeviceCopyBegins(uint32_t event, Source source) = 0;
  // Pinned memory's lease, which wrote, ends, and its bytes go to the device at once.
  virtual void DeviceCopyComesEarly(uint32_t event) = 0;
  // With `copy_out` its bytes go to pinned memory first.
  virtual void DeviceCopyEnds(uint32_t event, bool copy_out) = 0;
  virtual void DeviceCopyVoid(uint32_t event) = 0;
  virtual void PinnedLeaseBegins(uint32_t event, Source source) = 0;
  virtual void PinnedLeaseEnds(uint32_t event, bool dirties) = 0;
  // A writer on the device, or a discard.
  virtual void PinnedVoid(uint32_t event) = 0;
};

// What becomes of a tile when the device keeps what it keeps.
class TileWalk {
 public:
  TileWalk(const Trace& trace, const EventsByTile& events, const Keeping& device,
           const Kept& device_kept)
      : trace_(trace), events_(events), device_(device), kept_(device_kept) {}
  void Run(TileIndex tile, TileVisitor& visitor);
  // Whether the tile that was walked last has a copy on the device at the period's end.
  bool on_device() const { return on_device_; }

 private:
  void Round(TileIndex tile, TileVisitor* visitor);

  const Trace& trace_;
  const EventsByTile& events_;
  const Keeping& device_;
  const Kept& kept_;
  // Of the tile at this point.
  bool on_device_ = false;
  bool only_on_device_ = false;
  bool zero_ = false;
};

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_USES_H_
