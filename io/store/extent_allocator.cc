// SPDX-License-Identifier: Apache-2.0
//
// Each device keeps its free runs twice: by position, to join neighbours, and by length, to find
// the best fit.

#include "io/store/extent_allocator.h"

#include <iterator>

#include "src/base/check.h"

namespace spillway::io {
namespace {

uint64_t UnitsFor(uint64_t size_bytes) { return (size_bytes + kIoAlignment - 1) / kIoAlignment; }

}  // namespace

ExtentAllocator::ExtentAllocator(uint16_t num_devices, uint64_t max_bytes, uint64_t used_bytes)
    : devices_(num_devices), max_bytes_(max_bytes), used_bytes_(used_bytes) {}

ExtentAllocator::Position ExtentAllocator::PositionOf(const Extent& extent) {
  return uint64_t{extent.segment} << 32 | extent.offset / kIoAlignment;
}

void ExtentAllocator::AddRun(Device& device, Position position, Units units) {
  device.by_position.emplace(position, units);
  device.by_length.emplace(units, position);
}

void ExtentAllocator::RemoveRun(Device& device, absl::btree_map<Position, Units>::iterator run) {
  device.by_length.erase({run->second, run->first});
  device.by_position.erase(run);
}

void ExtentAllocator::Coalesce(Device& device, Position position, Units units) {
  auto next = device.by_position.lower_bound(position);
  if (next != device.by_position.end()) {
    SPILLWAY_CHECK(position + units <= next->first);
    if (position + units == next->first) {
      units += next->second;
      RemoveRun(device, next);
    }
  }
  auto previous = device.by_position.lower_bound(position);
  if (previous != device.by_position.begin()) {
    --previous;
    SPILLWAY_CHECK(previous->first + previous->second <= position);
    if (previous->first + previous->second == position) {
      position = previous->first;
      units += previous->second;
      RemoveRun(device, previous);
    }
  }
  AddRun(device, position, units);
}

void ExtentAllocator::AddFresh(uint16_t device_index, uint32_t segment, uint64_t offset,
                               uint64_t size_bytes) {
  Device& device = devices_[device_index];
  const Position position = PositionOf({device_index, segment, offset, 0});
  const Units units = static_cast<Units>(size_bytes / kIoAlignment);
  if (device.fresh_units > 0 && device.fresh_begin + device.fresh_units == position) {
    device.fresh_units += units;
    return;
  }
  if (device.fresh_units > 0) Coalesce(device, device.fresh_begin, device.fresh_units);
  device.fresh_begin = position;
  device.fresh_units = units;
}

void ExtentAllocator::AddWritten(uint16_t device, uint32_t segment, uint64_t offset,
                                 uint64_t size_bytes) {
  if (size_bytes == 0) return;
  Coalesce(devices_[device], PositionOf({device, segment, offset, 0}),
           static_cast<Units>(size_bytes / kIoAlignment));
}

bool ExtentAllocator::HasFree(uint16_t index, uint32_t segment, uint64_t offset,
                              uint64_t size_bytes) const {
  const Device& device = devices_[index];
  const Position begin = PositionOf({index, segment, offset, 0});
  const Position end = begin + UnitsFor(size_bytes);
  if (device.fresh_begin < end && begin < device.fresh_begin + device.fresh_units) return true;
  const auto next = device.by_position.lower_bound(begin);
  if (next != device.by_position.end() && next->first < end) return true;
  if (next == device.by_position.begin()) return false;
  const auto previous = std::prev(next);
  return begin < previous->first + previous->second;
}

bool ExtentAllocator::WithinBudget(uint64_t size_bytes) const {
  const uint64_t rounded = UnitsFor(size_bytes) * kIoAlignment;
  return used_bytes_ <= max_bytes_ && rounded <= max_bytes_ - used_bytes_;
}

Extent ExtentAllocator::Take(uint16_t device, Position position, Units units) {
  used_bytes_ += units * kIoAlignment;
  return {device, static_cast<uint32_t>(position >> 32), (position & 0xffffffffu) * kIoAlignment,
          static_cast<uint32_t>(units * kIoAlignment)};
}

std::optional<Extent> ExtentAllocator::TakeWritten(uint16_t index, uint32_t size_bytes) {
  if (!WithinBudget(size_bytes)) return std::nullopt;
  const Units units = static_cast<Units>(UnitsFor(size_bytes));
  Device& device = devices_[index];
  const auto fit = device.by_length.lower_bound({units, 0});
  if (fit == device.by_length.end()) return std::nullopt;
  const auto [run_units, position] = *fit;
  RemoveRun(device, device.by_position.find(position));
  if (run_units > units) AddRun(device, position + units, run_units - units);
  return Take(index, position, units);
}

std::optional<Extent> ExtentAllocator::TakeFresh(uint16_t device_index, uint32_t size_bytes) {
  if (!WithinBudget(size_bytes)) return std::nullopt;
  const Units units = static_cast<Units>(UnitsFor(size_bytes));
  Device& device = devices_[device_index];
  if (device.fresh_units < units) return std::nullopt;
  const Position position = device.fresh_begin;
  device.fresh_begin += units;
  device.fresh_units -= units;
  return Take(device_index, position, units);
}

void ExtentAllocator::Free(const Extent& extent) {
  const uint64_t units = UnitsFor(extent.size_bytes);
  SPILLWAY_CHECK(units > 0 && units * kIoAlignment <= used_bytes_);
  Coalesce(devices_[extent.device], PositionOf(extent), static_cast<Units>(units));
  used_bytes_ -= units * kIoAlignment;
}

void ExtentAllocator::Unuse(uint64_t size_bytes) {
  SPILLWAY_CHECK(size_bytes <= used_bytes_);
  used_bytes_ -= size_bytes;
}

uint64_t ExtentAllocator::CutTail(uint16_t index, uint32_t segment, uint64_t size_bytes) {
  Device& device = devices_[index];
  const Position begin = PositionOf({index, segment, 0, 0});
  Position end = PositionOf({index, segment, size_bytes, 0});
  while (end > begin) {
    if (device.fresh_units > 0 && device.fresh_begin + device.fresh_units == end) {
      end = device.fresh_begin;
      device.fresh_units = 0;
      continue;
    }
    auto run = device.by_position.lower_bound(end);
    if (run == device.by_position.begin()) break;
    --run;
    if (run->first + run->second != end) break;
    end = run->first;
    RemoveRun(device, run);
  }
  return (end - begin) * kIoAlignment;
}

void ExtentAllocator::ForEachRun(uint16_t index,
                                 absl::FunctionRef<void(uint32_t, uint64_t, uint64_t)> take) const {
  const auto give = [&](Position position, Units units) {
    take(static_cast<uint32_t>(position >> 32), (position & 0xffffffffu) * kIoAlignment,
         uint64_t{units} * kIoAlignment);
  };
  const Device& device = devices_[index];
  for (const auto& [position, units] : device.by_position) give(position, units);
  if (device.fresh_units > 0) give(device.fresh_begin, device.fresh_units);
}

uint64_t ExtentAllocator::num_runs() const {
  uint64_t runs = 0;
  for (const Device& device : devices_)
    runs += device.by_position.size() + (device.fresh_units > 0 ? 1 : 0);
  return runs;
}

}  // namespace spillway::io
