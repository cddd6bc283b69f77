// SPDX-License-Identifier: Apache-2.0

#include "io/request_queue.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"

namespace spillway::io {
namespace {

constexpr int kRead = static_cast<int>(IoOp::kRead);

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

// Whether the device's queue has a place for the first request that waits. REQUIRES: one waits.
bool RequestQueue::HasPlace(Device& device, IoOp op, int depth) {
  const int kind = static_cast<int>(op);
  // Sizes are in bytes if those count, else in requests.
  const uint64_t one = std::max<uint64_t>(device.depths.request_bytes, 1);
  const uint64_t least = std::max<uint64_t>(one / 2, 1);
  const bool counts_bytes = device.depths.request_bytes > 0;
  const uint64_t requests = static_cast<uint64_t>(device.in_flight[kind]);
  const uint64_t next_bytes = device.waiting[kind].front().request().size_bytes;
  const uint64_t next = counts_bytes ? std::max(next_bytes, least) : 1;
  const uint64_t used =
      counts_bytes ? std::max(device.in_flight_bytes[kind], requests * least) : requests;
  const uint64_t full = static_cast<uint64_t>(depth) * one;
  bool& was_full = device.was_full[kind];
  if (used <= full - std::max(least, full / 4 / one * one)) was_full = false;
  if (requests > 0 && used + next > full) was_full = true;
  return !was_full;
}

// Whether the limit on the requests of all devices leaves room for one more of this kind.
bool RequestQueue::HasSlot(IoOp op) const {
  const int most =
      op == IoOp::kRead ? max_in_flight_ - max_in_flight_ / 4 : max_in_flight_ - max_in_flight_ / 2;
  return num_in_flight_[static_cast<int>(op)] < most;
}

bool RequestQueue::MayGo(Device& device, IoOp op) const {
  if (device.waiting[static_cast<int>(op)].empty() || !HasSlot(op)) return false;
  if (op == IoOp::kRead) return HasPlace(device, op, device.depths.read);
  const bool reads = !device.waiting[kRead].empty() || device.in_flight[kRead] > 0;
  const int depth =
      reads ? std::min(device.depths.write, device.depths.mixed_write) : device.depths.write;
  return HasPlace(device, op, depth);
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
