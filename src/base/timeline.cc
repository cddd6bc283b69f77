// SPDX-License-Identifier: Apache-2.0
//
// Names of the things in a timeline: tiles, reasons for moves and causes of stalls.

#include "spillway/timeline.h"

#include <algorithm>

namespace spillway {

std::string Timeline::TileName(uint32_t tile) const {
  const auto after = std::upper_bound(
      tensors.begin(), tensors.end(), tile,
      [](uint32_t index, const Tensor& tensor) { return index < tensor.first_tile; });
  if (tile == TimelineEvent::kNoTile || after == tensors.begin()) return "";
  const Tensor& tensor = *std::prev(after);
  if (tensor.num_tiles == 1) return tensor.name;
  return tensor.name + " [" + std::to_string(tile - tensor.first_tile) + "]";
}

std::string_view Name(MoveReason reason) {
  switch (reason) {
    case MoveReason::kLease: return "lease";
    case MoveReason::kAhead: return "ahead of use";
    case MoveReason::kMakeRoom: return "making room";
    case MoveReason::kWriteBehind: return "write-behind";
    case MoveReason::kCommit: return "commit";
  }
  return "?";
}

std::string_view Name(StallCause cause) {
  switch (cause) {
    case StallCause::kNvme: return "bytes on NVMe";
    case StallCause::kCopy: return "copy in flight";
    case StallCause::kZeros: return "first touch";
    case StallCause::kWriteBack: return "write-back";
    case StallCause::kCopyOut: return "copy out";
    case StallCause::kNoRoom: return "no room";
    case StallCause::kLeased: return "leased";
  }
  return "?";
}

}  // namespace spillway
