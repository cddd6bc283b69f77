// SPDX-License-Identifier: Apache-2.0
//
// Whose turn it is: the folders of a store take pages in proportion to their bandwidths, so that
// all of them are done with a step's pages at once.
//
// One idea: each device has a clock that advances by bytes over weight with what it takes; the next
// page goes to the device whose clock is behind.

#ifndef SPILLWAY_IO_STORE_DEVICE_ROTATION_H_
#define SPILLWAY_IO_STORE_DEVICE_ROTATION_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "io/store/store.h"

namespace spillway::io {

// Not thread-safe.
class DeviceRotation {
 public:
  explicit DeviceRotation(uint16_t num_devices)
      : calibrated_(num_devices, 1), weights_(num_devices, 1), clocks_(num_devices, 0) {}

  // A page is written once for each time that it is read, so a device's weight is what a byte each
  // way takes, inverted. All weights are equal unless every device has a profile.
  void SetProfiles(const std::vector<std::optional<DeviceProfile>>& profiles);
  // The device has `share` of its calibrated bandwidth now; above 0. What it has taken too much or
  // too little until now stays the same in bytes.
  void SetSpeed(uint16_t device, double share);

  // All devices, the one whose turn it is first. Valid until the next call.
  std::span<const uint16_t> Order();
  // The device took so many bytes. It passes over those that were before it in the order: they had
  // no room, and are not owed any.
  void Took(uint16_t device, uint64_t size_bytes);

 private:
  std::vector<double> calibrated_;  // weights at the speed of the calibration
  std::vector<double> weights_;
  std::vector<double> clocks_;
  std::vector<uint16_t> order_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_DEVICE_ROTATION_H_
