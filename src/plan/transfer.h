// SPDX-License-Identifier: Apache-2.0
//
// What is done with a tile's bytes. Plans, the pager's actions and the timeline's recorder use this
// enumeration. The public TimelineEvent::Kind has the four transfers that have a link beside other
// kinds of events.

#ifndef SPILLWAY_PLAN_TRANSFER_H_
#define SPILLWAY_PLAN_TRANSFER_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace spillway::plan {

enum class Transfer : uint8_t {
  // Each of these has its own link, which is an edge of the tier graph.
  kRead,     // NVMe → a frame in pinned memory
  kWrite,    // pinned memory → NVMe; afterwards both have the bytes
  kCopyIn,   // pinned memory → a frame on the device
  kCopyOut,  // device → a frame in pinned memory
  // These move no bytes.
  kZero,  // a frame in pinned memory is filled with zeros
  kTake,  // a frame is taken for a lease that writes every byte
  kDrop,  // the copy is forgotten and its frame becomes free
};
inline constexpr int kNumLinks = 4;
constexpr bool HasLink(Transfer transfer) { return transfer <= Transfer::kCopyOut; }
constexpr bool TakesFrame(Transfer transfer) {
  return transfer != Transfer::kWrite && transfer != Transfer::kDrop;
}

// Bytes moved over each link.
struct LinkBytes {
  std::array<uint64_t, kNumLinks> bytes = {};
  uint64_t& operator[](Transfer link) { return bytes[static_cast<size_t>(link)]; }
  uint64_t operator[](Transfer link) const { return bytes[static_cast<size_t>(link)]; }
  uint64_t nvme() const { return bytes[0] + bytes[1]; }
  uint64_t device() const { return bytes[2] + bytes[3]; }
  uint64_t total() const { return nvme() + device(); }
  friend bool operator==(const LinkBytes&, const LinkBytes&) = default;
};

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_TRANSFER_H_
