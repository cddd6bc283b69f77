// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of the segment files are free. Pure bookkeeping: it opens no file and knows no page;
// the store tells it what space exists, and grows the files when it has none.
//
// One idea: space that was written before is used again first, best fit, and only then space that
// never was, so the files grow no further than the largest set of extents that was alive at once
// (and fragmentation).

#ifndef SPILLWAY_IO_STORE_EXTENT_ALLOCATOR_H_
#define SPILLWAY_IO_STORE_EXTENT_ALLOCATOR_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "io/store/store.h"

namespace spillway::io {

// Free runs a device, in units of kIoAlignment. Runs next to one another are one run; none crosses
// a segment. Every call is O(log runs) a device. Externally synchronised.
//
//   ExtentAllocator extents(/*num_devices=*/1, /*max_bytes=*/kGiB);
//   extents.AddFresh(0, /*segment=*/0, /*offset=*/0, 64 * kMiB);
//   std::optional<Extent> extent = extents.TakeWritten(kMiB);       // nothing was written yet
//   if (!extent) extent = extents.TakeFresh(extents.turn(), kMiB);
//   extents.Free(*extent);
class ExtentAllocator {
 public:
  // `max_bytes` bounds the bytes that are taken at once, over all devices.
  ExtentAllocator(uint16_t num_devices, uint64_t max_bytes);

  // Announces space that exists in a segment file: never written, or written before. Offsets and
  // sizes are multiples of kIoAlignment. Fresh space that continues the device's fresh run joins
  // it; other fresh space replaces that run, whose rest becomes a free run like any other.
  void AddFresh(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes);
  void AddWritten(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes);

  // Takes exactly this extent, as the catalog names it; max_bytes does not bound what was
  // committed. False, and nothing changes: part of it is taken already or does not exist.
  bool Claim(const Extent& extent);

  // True if `size_bytes` more (any size, rounded up) stay within max_bytes.
  bool WithinBudget(uint64_t size_bytes) const;
  // Takes room for `size_bytes`, rounded up to kIoAlignment, and passes the turn to the next
  // device. None: over the budget, or no run is long enough.
  std::optional<Extent> TakeWritten(
      uint32_t size_bytes);  // on the device whose turn it is, or else the others
  std::optional<Extent> TakeFresh(uint16_t device, uint32_t size_bytes);
  // Gives back what Claim or a Take gave. Giving back what is free already is a broken invariant.
  void Free(const Extent& extent);

  uint16_t turn() const { return turn_; }
  uint16_t num_devices() const { return static_cast<uint16_t>(devices_.size()); }
  uint64_t max_bytes() const { return max_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }    // taken
  uint64_t space_bytes() const { return space_bytes_; }  // announced: taken and free
  uint64_t num_runs() const;                             // free runs, for tests and statistics

 private:
  // A position in a device: the segment in the high half, the unit in it in the low half. Runs of
  // different segments can therefore never touch.
  using Position = uint64_t;
  using Units = uint32_t;
  struct Device {
    absl::btree_map<Position, Units> by_position;
    absl::btree_set<std::pair<Units, Position>> by_length;
    Position fresh_begin = 0;
    Units fresh_units = 0;
  };

  static Position PositionOf(const Extent& extent);
  static void AddRun(Device& device, Position position, Units units);
  static void RemoveRun(Device& device, absl::btree_map<Position, Units>::iterator run);
  static void Coalesce(Device& device, Position position, Units units);
  Extent Take(uint16_t device, Position position, Units units);

  std::vector<Device> devices_;
  uint64_t max_bytes_;
  uint64_t used_bytes_ = 0;
  uint64_t space_bytes_ = 0;
  uint16_t turn_ = 0;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_EXTENT_ALLOCATOR_H_
