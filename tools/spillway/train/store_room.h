// SPDX-License-Identifier: Apache-2.0
//
// How much disk a run needs: checked before it begins, stated with the cost of its commits, and
// counted again when the disk filled up all the same.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_STORE_ROOM_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_STORE_ROOM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/trainer/model.h"

namespace spillway::command {

// Where the store is and what bounds it.
struct StorePlace {
  std::vector<std::string> folders;
  uint64_t store_bytes = 0;   // the budget
  uint64_t pinned_bytes = 0;  // what fits there need not go to the store before a commit
  uint64_t page_bytes = 0;    // 0: the engine's choice
};

// What the store must hold at its fullest.
struct StoreNeed {
  trainer::StateBytes state;
  bool keeps_old_copy = false;  // a commit is there, or will be, while the next one is written
  bool is_committed = false;    // there will be a commit at all
};

// UsageError if the budget is too small, naming the smallest that works. A failure, not a usage
// error, if the file systems have too little free space.
absl::Status CheckStoreRoom(const StorePlace& place, const StoreNeed& need);

// One line: the disk that the run takes at most, and what a commit writes.
std::string DescribeStoreCost(const StorePlace& place, const StoreNeed& need);

// For a run that a full file system ended, while its store is still there: the error with the room
// that is missing, as far as free space and the run's need tell. Other errors stay as they are.
absl::Status WithRoomMissing(const absl::Status& status, const StorePlace& place,
                             const StoreNeed& need);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_STORE_ROOM_H_
