// SPDX-License-Identifier: Apache-2.0
//
// Computes how much disk space a run needs. The need is checked before the run, reported together
// with the cost of commits, and computed again if the disk fills up nevertheless.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_STORE_ROOM_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_STORE_ROOM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/trainer/model.h"

namespace spillway::command {

// The folders of a store, and the limits that apply to it.
struct StorePlace {
  std::vector<std::string> folders;
  uint64_t store_bytes = 0;   // the budget
  uint64_t pinned_bytes = 0;  // budget; what fits there need not be stored before a commit
  uint64_t page_bytes = 0;    // 0: the engine's choice
};

// What determines the room that a run's store needs at its fullest.
struct StoreNeed {
  trainer::StateBytes state;
  bool keeps_old_copy = false;  // an earlier commit exists while one is written
  bool is_committed = false;    // whether the run commits
};

// UsageError if the budget is too small; the message names the smallest that works. If the file
// systems have too little free space, the error is a failure, not a usage error.
absl::Status CheckStoreRoom(const StorePlace& place, const StoreNeed& need);

// Checks that the store and then an export of `export_bytes` to `save` fit on the disk, if they
// share a file system. If not, the error is a failure that names both needs.
absl::Status CheckRoomForExport(const StorePlace& place, const StoreNeed& need,
                                const std::string& save, uint64_t export_bytes);

// Describes in one line the most disk space that the run takes, and what a commit writes.
std::string DescribeStoreCost(const StorePlace& place, const StoreNeed& need);

// If `status` says that a file system is full, adds how much room is missing, as far as free space
// and the run's need show. Returns any other status unchanged. Must be called while the run's store
// still exists.
absl::Status WithRoomMissing(const absl::Status& status, const StorePlace& place,
                             const StoreNeed& need);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_STORE_ROOM_H_
