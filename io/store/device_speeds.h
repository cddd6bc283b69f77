// SPDX-License-Identifier: Apache-2.0
//
// How fast the devices of a store are now, each as a share of what its calibration found, so that
// new extents go where they are written soonest.
//
// The equation. While a device is busy without a pause, it takes for the bytes that end
//
//   expected seconds = bytes read / calibrated read rate + bytes written / calibrated write rate,
//
// and its speed is the expected seconds over those that passed. Only long spells count in which the
// device has at least four requests: with fewer it may wait for us, and a throttled or cached
// device lets more through after a pause than it can keep up.
//
// A slow device that gets little is soon done and has no long spells any more. So a device that
// idles while others work is believed to be a bit faster than it was, up to its calibration; if it
// is not, the next long spell says so.

#ifndef SPILLWAY_IO_STORE_DEVICE_SPEEDS_H_
#define SPILLWAY_IO_STORE_DEVICE_SPEEDS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "io/io_engine.h"
#include "io/store/store.h"

namespace spillway::io {

// Not thread-safe. Seconds are on any clock that does not go back.
class DeviceSpeeds {
 public:
  // By device; where one has no profile, nothing is measured.
  explicit DeviceSpeeds(const std::vector<std::optional<DeviceProfile>>& profiles);

  // A request for the device goes to the I/O engine.
  void Begin(uint16_t device, double now);
  // It has ended; `bytes` is 0 if it failed.
  void End(uint16_t device, IoOp op, double now, uint64_t bytes);

  // 1: as calibrated.
  double speed(uint16_t device) const { return devices_[device].speed; }
  // Whether a speed has changed since the last call.
  bool TakeChanged();

 private:
  struct Device {
    double seconds_per_byte[2] = {0, 0};  // by IoOp, as calibrated
    double speed = 1;
    bool is_measured = false;  // else the speed is believed
    int64_t in_flight = 0;
    double since = 0;  // begin of the spell of use or, with none in flight, of the pause
    // Of the spell, from its kBeginningSeconds on or since the last measurement:
    double measured_since = 0;
    double expected_seconds = 0;
  };

  void Measure(Device& device, double now);
  void Recover(double now);

  std::vector<Device> devices_;
  bool has_profiles_ = false;
  bool changed_ = false;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_DEVICE_SPEEDS_H_
