// SPDX-License-Identifier: Apache-2.0

#include "io/store/device_speeds.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace spillway::io {
namespace {

// The beginning of a spell, which is not measured. After a pause, Linux's throttle has a credit of
// at most a slice of this length.
constexpr double kBeginningSeconds = 0.1;
constexpr int64_t kBusyRequests = 4;      // with fewer in flight, it may be waiting for us
constexpr double kMeasuredSeconds = 0.2;  // the shortest measurement
constexpr double kNewest = 0.5;           // the weight of the newest measurement
constexpr double kLeastSpeed = 0.01;
constexpr double kMostSpeed = 2;
// A pause of kPauseSeconds, while others work, multiplies the speed by kRecovery.
constexpr double kPauseSeconds = 0.02;
constexpr double kRecovery = 1.03;

}  // namespace

DeviceSpeeds::DeviceSpeeds(const std::vector<std::optional<DeviceProfile>>& profiles)
    : devices_(profiles.size()) {
  has_profiles_ = std::all_of(profiles.begin(), profiles.end(),
                              [](const auto& profile) { return profile.has_value(); });
  if (!has_profiles_) return;
  for (size_t i = 0; i < profiles.size(); ++i) {
    devices_[i].seconds_per_byte[static_cast<size_t>(IoOp::kRead)] =
        1 / profiles[i]->read_bytes_per_second;
    devices_[i].seconds_per_byte[static_cast<size_t>(IoOp::kWrite)] =
        1 / profiles[i]->write_bytes_per_second;
  }
}

void DeviceSpeeds::Begin(uint16_t index, double now) {
  Device& device = devices_[index];
  if (device.in_flight++ == 0) device.since = now;
  if (device.in_flight != kBusyRequests) return;
  device.measured_since = now + kBeginningSeconds;
  device.expected_seconds = 0;
}

void DeviceSpeeds::End(uint16_t index, IoOp op, double now, uint64_t bytes) {
  Device& device = devices_[index];
  if (device.in_flight >= kBusyRequests && now > device.measured_since) {
    device.expected_seconds +=
        static_cast<double>(bytes) * device.seconds_per_byte[static_cast<size_t>(op)];
    if (now - device.measured_since >= kMeasuredSeconds) Measure(device, now);
  }
  if (--device.in_flight == 0) device.since = now;
  if (has_profiles_) Recover(now);
}

void DeviceSpeeds::Measure(Device& device, double now) {
  const double seconds = now - device.measured_since;
  const double measured = std::clamp(device.expected_seconds / seconds, kLeastSpeed, kMostSpeed);
  device.measured_since = now;
  device.expected_seconds = 0;
  if (!has_profiles_) return;
  device.speed += (device.is_measured ? kNewest : 1) * (measured - device.speed);
  device.is_measured = true;
  changed_ = true;
}

// Raises the speeds of devices that were idle. REQUIRES: at least one device was at work until now.
void DeviceSpeeds::Recover(double now) {
  for (Device& device : devices_) {
    if (device.in_flight > 0 || device.speed >= 1 || now - device.since < kPauseSeconds) continue;
    device.speed = std::min(1.0, device.speed * kRecovery);
    device.since = now;
    changed_ = true;
  }
}

bool DeviceSpeeds::TakeChanged() { return std::exchange(changed_, false); }

}  // namespace spillway::io
