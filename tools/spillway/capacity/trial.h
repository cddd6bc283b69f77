// SPDX-License-Identifier: Apache-2.0
//
// A capacity trial: the real store with the whole layout of a model. Every page has an extent and a
// row in the catalog; a sample of the pages is written, and the others are holes. Commits, a
// snapshot, reopening, and kills during a commit then show what they take at this size.

#ifndef SPILLWAY_TOOLS_SPILLWAY_CAPACITY_TRIAL_H_
#define SPILLWAY_TOOLS_SPILLWAY_CAPACITY_TRIAL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/store/store.h"
#include "spillway/types.h"
#include "tools/spillway/capacity/layout.h"
#include "tools/spillway/capacity/trial_folders.h"

namespace spillway::capacity {

struct TrialOptions {
  std::vector<std::string> folders;
  std::vector<TensorSpec> specs;  // transient tensors get room and no rows
  uint64_t page_bytes = io::kDefaultPageBytes;
  uint64_t segment_bytes = io::kDefaultSegmentBytes;
  uint64_t disk_bytes = 0;  // cap of what the trial may take of the disks
  uint64_t seed = 0;
  const std::atomic<bool>* stop = nullptr;  // if true, the trial soon ends with Cancelled
  // May be empty. `progress` is called often; `before_phase` is called between phases, when
  // nothing is under way.
  std::function<void(std::string_view phase, uint64_t done, uint64_t total)> progress;
  std::function<void(std::string_view phase)> before_phase;
  std::function<void(std::string_view note)> note;
};

struct TrialPhase {
  std::string name;
  double seconds = 0;
};

struct TrialReport {
  LayoutTotals rows;       // tensors, pages and bytes that commits hold
  LayoutTotals transient;  // those that have room only
  uint64_t page_bytes = 0;
  uint64_t files = 0;
  uint64_t file_bytes = 0;     // sizes of the segment files, holes included
  uint64_t written_pages = 0;  // distinct ones, each read back
  uint64_t written_bytes = 0;
  uint64_t rewritten_pages = 0;  // of these, in each further commit
  uint64_t verified_holes = 0;
  uint64_t commits = 0;
  uint64_t kills = 0;              // that came during a commit
  uint64_t kills_with_commit = 0;  // of these, where the store had the new commit
  uint64_t catalog_bytes = 0;      // after the last commit, its log not counted
  uint64_t needed_bytes = 0;       // of the disks, as computed before
  uint64_t disk_bytes = 0;         // at most, as measured after each phase
  uint64_t memory_bytes = 0;       // at most, of this process
  std::vector<TrialPhase> phases;
};

// What a trial takes of the disks.
DiskNeed NeedOf(const TrialOptions& options);

// Runs a trial. It makes its store in the folders and removes it again, however it ends. Errors:
// those of Store::Open with must_not_exist; ResourceExhausted if the disks get full or `disk_bytes`
// is exceeded; DataLoss if anything does not verify; Cancelled. The file systems must have been
// checked (CheckFileSystems).
absl::StatusOr<TrialReport> RunTrial(const TrialOptions& options);

}  // namespace spillway::capacity

#endif  // SPILLWAY_TOOLS_SPILLWAY_CAPACITY_TRIAL_H_
