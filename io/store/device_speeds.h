// SPDX-License-Identifier: Apache-2.0
//
// Measures how fast the devices of a store are now, each as a share of its calibrated rates, so
// that new extents go to the devices that write them soonest.
//
// The equation. For the bytes that end while it is busy without a pause, a device should take
//
//   expected seconds = bytes read / calibrated read rate + bytes written / calibrated write rate,
//
// and its speed is the expected seconds divided by the seconds that passed. Only long spells count
// in which the device has at least four requests in flight. With fewer, the device may be waiting
// for us. After a pause, a throttled or cached device lets more through than it can sustain.
//
// A slow device that gets few pages finishes soon and has no long spells any more. So the speed of
// a device that is idle while others work is raised in small steps, up to its calibration. If that
// is too much, the next long spell corrects it.

#ifndef SPILLWAY_IO_STORE_DEVICE_SPEEDS_H_
#define SPILLWAY_IO_STORE_DEVICE_SPEEDS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "io/io_engine.h"
#include "io/store/store.h"

namespace spillway::io {

// Not thread-safe. Times are in seconds of any clock that does not go back.
class DeviceSpeeds {
 public:
  // `profiles` are by device. Nothing is measured if any device has none.
  explicit DeviceSpeeds(const std::vector<std::optional<DeviceProfile>>& profiles);

  // Records that a request for the device is submitted to the I/O engine.
  void Begin(uint16_t device, double now);
  // Records that a request has ended; `bytes` is 0 if it failed.
  void End(uint16_t device, IoOp op, double now, uint64_t bytes);

  // The device's speed as a share of its calibration; 1: as calibrated.
  double speed(uint16_t device) const { return devices_[device].speed; }
  // Whether a speed has changed since the last call.
  bool TakeChanged();

 private:
  struct Device {
    double seconds_per_byte[2] = {0, 0};  // by IoOp, as calibrated
    double speed = 1;
    bool is_measured = false;  // false: the speed is assumed
    int64_t in_flight = 0;
    double since = 0;  // when the busy spell began or, with nothing in flight, the pause
    // The measurement under way. It begins kBeginningSeconds into a spell, or where the last one
    // ended.
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
