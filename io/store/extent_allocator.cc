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

ExtentAllocator::ExtentAllocator(uint16_t num_devices, uint64_t max_bytes)
    : devices_(num_devices), max_bytes_(max_bytes) {}

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
  space_bytes_ += size_bytes;
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
  space_bytes_ += size_bytes;
  Coalesce(devices_[device], PositionOf({device, segment, offset, 0}),
           static_cast<Units>(size_bytes / kIoAlignment));
}

bool ExtentAllocator::Claim(const Extent& extent) {
  if (extent.device >= devices_.size() || extent.size_bytes == 0) return false;
  Device& device = devices_[extent.device];
  const Position begin = PositionOf(extent);
  const Position end = begin + UnitsFor(extent.size_bytes);
  auto run = device.by_position.upper_bound(begin);
  if (run == device.by_position.begin()) return false;
  --run;
  const Position run_begin = run->first;
  const Position run_end = run->first + run->second;
  if (end > run_end) return false;
  RemoveRun(device, run);
  if (run_begin < begin) AddRun(device, run_begin, static_cast<Units>(begin - run_begin));
  if (end < run_end) AddRun(device, end, static_cast<Units>(run_end - end));
  used_bytes_ += (end - begin) * kIoAlignment;
  return true;
}

bool ExtentAllocator::WithinBudget(uint64_t size_bytes) const {
  const uint64_t rounded = UnitsFor(size_bytes) * kIoAlignment;
  return used_bytes_ <= max_bytes_ && rounded <= max_bytes_ - used_bytes_;
}

Extent ExtentAllocator::Take(uint16_t device, Position position, Units units) {
  turn_ = static_cast<uint16_t>((device + 1) % devices_.size());
  used_bytes_ += units * kIoAlignment;
  return {device, static_cast<uint32_t>(position >> 32), (position & 0xffffffffu) * kIoAlignment,
          static_cast<uint32_t>(units * kIoAlignment)};
}

std::optional<Extent> ExtentAllocator::TakeWritten(uint32_t size_bytes) {
  if (!WithinBudget(size_bytes)) return std::nullopt;
  const Units units = static_cast<Units>(UnitsFor(size_bytes));
  for (size_t i = 0; i < devices_.size(); ++i) {
    const uint16_t index = static_cast<uint16_t>((turn_ + i) % devices_.size());
    Device& device = devices_[index];
    auto fit = device.by_length.lower_bound({units, 0});
    if (fit == device.by_length.end()) continue;
    const auto [run_units, position] = *fit;
    RemoveRun(device, device.by_position.find(position));
    if (run_units > units) AddRun(device, position + units, run_units - units);
    return Take(index, position, units);
  }
  return std::nullopt;
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

uint64_t ExtentAllocator::num_runs() const {
  uint64_t runs = 0;
  for (const Device& device : devices_)
    runs += device.by_position.size() + (device.fresh_units > 0 ? 1 : 0);
  return runs;
}

}  // namespace spillway::io
