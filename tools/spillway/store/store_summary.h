// SPDX-License-Identifier: Apache-2.0
//
// What a store holds, in figures: read from its catalog, for people and programs.

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
  nlohmann::ordered_json description;  // dtype, shape, role, tile_rows; null if it is no JSON
  uint64_t pages = 0;                  // that it may have
  uint64_t stored_pages = 0;           // that it has: others read as zeros
  uint64_t stored_bytes = 0;
};

// A folder. Bytes are of segment files.
struct DeviceSummary {
  std::string path;
  uint64_t segments = 0;
  uint64_t file_bytes = 0;     // that the catalog knows
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
  std::string holder;  // "process 12": this is its last commit; empty: nobody has the store
  std::optional<CommitSummary> commit;
  std::vector<TensorSummary> tensors;
  std::vector<DeviceSummary> devices;
  std::vector<io::SnapshotRecord> snapshots;
  uint64_t snapshot_bytes = 0;  // of extents that only snapshots need
};

absl::StatusOr<StoreSummary> SummarizeStore(const io::StoreView& view);

// A device's calibration in words: rates, request size, depths, and how long a read waits for
// writes.
std::string DescribeCalibration(const io::DeviceProfile& profile);

// The training step that a user state tells of; none: it tells of none.
std::optional<int64_t> StepIn(const std::string& user_state);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_STORE_STORE_SUMMARY_H_
