// SPDX-License-Identifier: Apache-2.0
//
// Tracks which bytes of the segment files are free, and allocates extents from them. Pure
// bookkeeping: it opens no file and has no notion of pages. The store adds space as it loads or
// grows files, and allocates from one device at a time.
//
// One idea: space that was written before is reused first, by best fit, and space that was never
// written is used only after that. So the files grow no further than the largest set of extents
// that was in use at once, plus fragmentation.

#ifndef SPILLWAY_IO_STORE_EXTENT_ALLOCATOR_H_
#define SPILLWAY_IO_STORE_EXTENT_ALLOCATOR_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/function_ref.h"
#include "io/store/store.h"

namespace spillway::io {

// Free runs of each device, in units of kIoAlignment. Adjacent runs are joined; no run crosses a
// segment. Calls for one device take O(log n) for its n runs, except ForEachRun. Externally
// synchronised.
//
//   ExtentAllocator extents(/*num_devices=*/1, /*max_bytes=*/kGiB, /*used_bytes=*/0);
//   extents.AddFresh(0, /*segment=*/0, /*offset=*/0, 64 * kMiB);
//   std::optional<Extent> extent = extents.TakeWritten(0, kMiB);       // nothing was written yet
//   if (!extent) extent = extents.TakeFresh(0, kMiB);
//   extents.Free(*extent);
class ExtentAllocator {
 public:
  // `max_bytes` bounds the bytes that are in use at once, over all devices. `used_bytes` are in use
  // from the start.
  ExtentAllocator(uint16_t num_devices, uint64_t max_bytes, uint64_t used_bytes);

  // Adds free space of a segment file: fresh space was never written, written space was. Offsets
  // and sizes are multiples of kIoAlignment. Fresh space that continues the device's fresh run
  // joins it. Other fresh space replaces that run, whose rest becomes an ordinary free run.
  void AddFresh(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes);
  void AddWritten(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes);

  // Whether any of these bytes is free already. The caller checks this before it adds bytes that
  // the catalog lists as free, because a damaged catalog may list them twice.
  bool HasFree(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes) const;

  // Whether `size_bytes` more (any size, rounded up) stay within max_bytes.
  bool WithinBudget(uint64_t size_bytes) const;
  // Allocates `size_bytes`, rounded up to kIoAlignment, from written or from fresh space. Returns
  // none if that is over the budget or no run is long enough.
  std::optional<Extent> TakeWritten(uint16_t device, uint32_t size_bytes);
  std::optional<Extent> TakeFresh(uint16_t device, uint32_t size_bytes);
  // Frees an extent that one of the Take functions returned. Freeing bytes that are free already
  // breaks an invariant.
  void Free(const Extent& extent);
  // Lowers used_bytes() without adding free space. The caller adds the bytes with AddWritten or
  // AddFresh if this allocator is to manage them.
  void Unuse(uint64_t size_bytes);

  // Removes the free space at the end of a segment of `size_bytes`. Returns the offset where it
  // began.
  uint64_t CutTail(uint16_t device, uint32_t segment, uint64_t size_bytes);
  // Calls `take(segment, offset, size_bytes)` for each free run of a device.
  void ForEachRun(uint16_t device,
                  absl::FunctionRef<void(uint32_t, uint64_t, uint64_t)> take) const;

  uint16_t num_devices() const { return static_cast<uint16_t>(devices_.size()); }
  uint64_t max_bytes() const { return max_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t num_runs() const;  // free runs, for tests and statistics

 private:
  // A position in a device: the segment in the high half, the unit in the segment in the low half.
  // Runs of different segments can therefore never be adjacent.
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
  uint64_t used_bytes_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_EXTENT_ALLOCATOR_H_
