// SPDX-License-Identifier: Apache-2.0

#include "io/store/device_rotation.h"

#include <algorithm>
#include <numeric>

namespace spillway::io {

void DeviceRotation::SetProfiles(const std::vector<std::optional<DeviceProfile>>& profiles) {
  std::fill(clocks_.begin(), clocks_.end(), 0);
  std::fill(calibrated_.begin(), calibrated_.end(), 1);
  if (std::all_of(profiles.begin(), profiles.end(), [](const auto& p) { return p.has_value(); })) {
    for (size_t device = 0; device < calibrated_.size(); ++device) {
      const DeviceProfile& profile = *profiles[device];
      calibrated_[device] =
          1 / (1 / profile.read_bytes_per_second + 1 / profile.write_bytes_per_second);
    }
  }
  weights_ = calibrated_;
}

void DeviceRotation::SetSpeed(uint16_t device, double share) {
  const double weight = calibrated_[device] * share;
  // A clock's lead over the one that is furthest behind is in seconds of its own device. It is
  // scaled so that it stays the same in bytes.
  const double behind = *std::min_element(clocks_.begin(), clocks_.end());
  clocks_[device] = behind + (clocks_[device] - behind) * weights_[device] / weight;
  weights_[device] = weight;
}

std::span<const uint16_t> DeviceRotation::Order() {
  if (order_.empty()) {
    order_.resize(clocks_.size());
    std::iota(order_.begin(), order_.end(), uint16_t{0});
  }
  if (order_.size() > 1) {
    std::sort(order_.begin(), order_.end(), [this](uint16_t a, uint16_t b) {
      return clocks_[a] != clocks_[b] ? clocks_[a] < clocks_[b] : a < b;
    });
  }
  return order_;
}

void DeviceRotation::Took(uint16_t device, uint64_t size_bytes) {
  // `order_` is still the order in which the caller found the device.
  for (uint16_t other : order_) {
    if (other == device) break;
    clocks_[other] = std::max(clocks_[other], clocks_[device]);
  }
  clocks_[device] += static_cast<double>(size_bytes) / weights_[device];
}

}  // namespace spillway::io
