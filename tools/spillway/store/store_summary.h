// SPDX-License-Identifier: Apache-2.0
//
// A summary of what a store holds, in figures from its catalog, for people and programs.

#ifndef SPILLWAY_TOOLS_SPILLWAY_STORE_STORE_SUMMARY_H_
#define SPILLWAY_TOOLS_SPILLWAY_STORE_STORE_SUMMARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "io/store/store.h"
#include "io/store/store_view.h"
#include "nlohmann/json.hpp"

namespace spillway::command {

// A tensor of the last commit.
struct TensorSummary {
  std::string name;
  nlohmann::ordered_json description;  // dtype, shape, role, tile_rows; null if it is not JSON
  uint64_t pages = 0;                  // how many the tensor may have
  uint64_t stored_pages = 0;           // how many are stored; others read as zeros
  uint64_t stored_bytes = 0;
};

// A folder of the store. Bytes are those of its segment files. All but disk_bytes are from the
// catalog, which does not know what the files have grown by since the last commit.
struct DeviceSummary {
  std::string path;
  uint64_t disk_bytes = 0;  // as allocated by the file system now: holes take none
  uint64_t segments = 0;
  uint64_t file_bytes = 0;
  uint64_t written_bytes = 0;  // of these, written at least once
  uint64_t free_bytes = 0;
  uint64_t free_runs = 0;
  uint64_t largest_free_bytes = 0;  // the longest run
  std::optional<io::DeviceProfile> profile;

  uint64_t used_bytes() const { return file_bytes - free_bytes; }
};

struct CommitSummary {
  uint64_t number = 0;
  std::string time;
  uint64_t used_bytes = 0;  // of extents that it or a snapshot names
  std::string user_state;
};

struct StoreSummary {
  std::string store_id;
  uint64_t format_version = 0;
  uint64_t page_bytes = 0;
  bool is_scratch = false;
  std::string holder;  // "process 12", whose last commit this is; empty if no process has the store
  std::optional<CommitSummary> commit;
  std::vector<TensorSummary> tensors;
  std::vector<DeviceSummary> devices;
  std::vector<io::SnapshotRecord> snapshots;
  uint64_t snapshot_bytes = 0;  // of extents that only snapshots need
};

absl::StatusOr<StoreSummary> SummarizeStore(const io::StoreView& view);

// Describes a device's calibration in words: rates, request size, depths, and how long a read waits
// for writes.
std::string DescribeCalibration(const io::DeviceProfile& profile);

// Returns the training step that a user state names; none if it names none.
std::optional<int64_t> StepIn(const std::string& user_state);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_STORE_STORE_SUMMARY_H_
