// SPDX-License-Identifier: Apache-2.0
//
// Chooses the device that takes the next page. The folders of a store take pages in proportion to
// their bandwidths, so that all of them finish a step's pages at the same time.
//
// One idea: each device has a clock, which advances by bytes / weight for what the device takes.
// The next page goes to the device whose clock is furthest behind.

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

  // Sets the weights from the profiles and sets all clocks to zero. A page is written once for each
  // time that it is read, so a device's weight is the inverse of the time that it takes to read a
  // byte and to write one. All weights are equal unless every device has a profile.
  void SetProfiles(const std::vector<std::optional<DeviceProfile>>& profiles);
  // Sets the device's bandwidth to `share` of the calibrated one; `share` is above 0. The device's
  // lead over the device that is furthest behind stays the same in bytes.
  void SetSpeed(uint16_t device, double share);

  // Returns all devices, the one whose turn it is first. The result is valid until the next call.
  std::span<const uint16_t> Order();
  // Records that the device took `size_bytes`. The devices before it in the order had no room:
  // their clocks advance at least to this device's clock, so that they do not get more pages later
  // to make up for it.
  void Took(uint16_t device, uint64_t size_bytes);

 private:
  std::vector<double> calibrated_;  // weights at the speed of the calibration
  std::vector<double> weights_;
  std::vector<double> clocks_;
  std::vector<uint16_t> order_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_DEVICE_ROTATION_H_
