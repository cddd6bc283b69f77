// SPDX-License-Identifier: Apache-2.0
//
// What a benchmark has on disk, for whoever ends it early.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_MADE_FOLDERS_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_MADE_FOLDERS_H_

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/base/mutex.h"
#include "src/base/status_macros.h"
#include "tools/spillway/bench/io/own_folder.h"

namespace spillway::command {

// What is on disk as long as the bench runs. Thread-safe.
class MadeFolders {
 public:
  // Cancelled once they are being removed.
  absl::StatusOr<bench_io::OwnFolder> Make(const std::string& parent) {
    base::MutexLock lock(&mutex_);
    if (removed_) return absl::CancelledError("interrupted");
    SPILLWAY_ASSIGN_OR_RETURN(bench_io::OwnFolder folder, bench_io::OwnFolder::Make(parent));
    folders_.push_back(folder.path());
    return folder;
  }
  // Beside a bench that goes on: what it makes meanwhile is removed in the next round.
  void Remove() {
    base::MutexLock lock(&mutex_);
    removed_ = true;
    for (const std::string& folder : folders_) {
      std::error_code error;
      for (int round = 0; round < 100; ++round) {
        std::filesystem::remove_all(folder, error);
        if (!std::filesystem::exists(folder, error)) break;
      }
    }
  }

 private:
  base::Mutex mutex_;
  bool removed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> folders_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_MADE_FOLDERS_H_
