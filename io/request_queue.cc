// SPDX-License-Identifier: Apache-2.0

#include "io/request_queue.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"

namespace spillway::io {
namespace {

constexpr int kRead = static_cast<int>(IoOp::kRead);
constexpr int kWrite = static_cast<int>(IoOp::kWrite);

// A request counts as at least this part of one of request_bytes.
constexpr uint64_t kSmallestPart = 8;

int OpOf(const Transfer& transfer) { return static_cast<int>(transfer.request().op); }

}  // namespace

QueueDepths ClampDepths(const QueueDepths& depths, int most) {
  return {.read = std::clamp(depths.read, 1, most),
          .write = std::clamp(depths.write, 1, most),
          .mixed_write = std::clamp(depths.mixed_write, 1, most),
          .request_bytes = depths.request_bytes};
}

RequestQueue::RequestQueue(const QueueDepths& depths, int max_in_flight)
    : default_depths_(depths), max_in_flight_(max_in_flight) {}

RequestQueue::Device& RequestQueue::MakeDevice(uint16_t device) {
  if (devices_.size() <= device) devices_.resize(size_t{device} + 1, Device{default_depths_, {}});
  return devices_[device];
}

void RequestQueue::SetDepths(uint16_t device, const QueueDepths& depths) {
  MakeDevice(device).depths = depths;
}

void RequestQueue::Add(const Transfer& transfer) {
  MakeDevice(transfer.device()).waiting[OpOf(transfer)].push_back(transfer);
  ++num_waiting_;
}

bool RequestQueue::HasPlace(Device& device, IoOp op, int depth) {
  const uint64_t request_bytes = device.depths.request_bytes;
  const auto requests = static_cast<uint64_t>(device.in_flight[static_cast<int>(op)]);
  const uint64_t bytes = device.in_flight_bytes[static_cast<int>(op)];
  // `used` and `full` are in units of which a request has `one`.
  const uint64_t one = std::max<uint64_t>(request_bytes, 1);
  const uint64_t used =
      request_bytes == 0 ? requests : std::max(bytes, requests * request_bytes / kSmallestPart);
  const uint64_t full = static_cast<uint64_t>(depth) * one;
  const uint64_t quarter = static_cast<uint64_t>(std::max(1, depth / 4)) * one;
  bool& was_full = device.was_full[static_cast<int>(op)];
  if (used >= full) was_full = true;
  if (used <= full - quarter) was_full = false;
  return !was_full;
}

bool RequestQueue::MayGo(Device& device, IoOp op) const {
  if (device.waiting[static_cast<int>(op)].empty()) return false;
  if (op == IoOp::kRead) return HasPlace(device, op, device.depths.read);
  const bool reads = !device.waiting[kRead].empty() || device.in_flight[kRead] > 0;
  const int depth =
      reads ? std::min(device.depths.write, device.depths.mixed_write) : device.depths.write;
  return HasPlace(device, op, depth) && num_in_flight_[kWrite] < std::max(1, max_in_flight_ / 2);
}

std::optional<Transfer> RequestQueue::Take() {
  if (num_waiting_ == 0 || in_flight() >= max_in_flight_) return std::nullopt;
  for (const IoOp op : {IoOp::kRead, IoOp::kWrite}) {
    for (size_t i = 0; i < devices_.size(); ++i) {
      Device& device = devices_[(turn_ + i) % devices_.size()];
      if (!MayGo(device, op)) continue;
      turn_ = (turn_ + i + 1) % devices_.size();
      std::deque<Transfer>& waiting = device.waiting[static_cast<int>(op)];
      Transfer transfer = waiting.front();
      waiting.pop_front();
      --num_waiting_;
      ++device.in_flight[static_cast<int>(op)];
      device.in_flight_bytes[static_cast<int>(op)] += transfer.request().size_bytes;
      ++num_in_flight_[static_cast<int>(op)];
      return transfer;
    }
  }
  return std::nullopt;
}

void RequestQueue::Ended(const Transfer& transfer) {
  const int op = OpOf(transfer);
  Device& device = devices_[transfer.device()];
  SPILLWAY_CHECK(device.in_flight[op] > 0);
  --device.in_flight[op];
  device.in_flight_bytes[op] -= transfer.request().size_bytes;
  --num_in_flight_[op];
}

std::vector<Transfer> RequestQueue::TakeWaiting() {
  std::vector<Transfer> taken;
  for (Device& device : devices_) {
    for (std::deque<Transfer>& waiting : device.waiting) {
      taken.insert(taken.end(), waiting.begin(), waiting.end());
      waiting.clear();
    }
  }
  num_waiting_ = 0;
  return taken;
}

}  // namespace spillway::io
