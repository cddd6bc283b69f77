// SPDX-License-Identifier: Apache-2.0
//
// The folders of a capacity trial: whether their file systems can hold it, what it takes of them,
// and how everything that it made is removed again.

#ifndef SPILLWAY_TOOLS_SPILLWAY_CAPACITY_TRIAL_FOLDERS_H_
#define SPILLWAY_TOOLS_SPILLWAY_CAPACITY_TRIAL_FOLDERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spillway::capacity {

// What a folder's file system can do, found by trying on a file without a name. The folder need not
// exist: its nearest ancestor that does is asked.
struct FileSystemProbe {
  std::string folder;
  uint64_t device = 0;             // the same for folders on one file system
  uint64_t free_bytes = 0;         // for this user
  uint64_t sparse_file_bytes = 0;  // disk space that a file of kProbeBytes with 4 KiB written takes
  bool holds_largest = false;      // a file of the size that was asked for can be made
};
inline constexpr uint64_t kProbeBytes = uint64_t{64} << 20;

absl::StatusOr<FileSystemProbe> ProbeFileSystem(const std::string& folder,
                                                uint64_t largest_file_bytes);

// What a trial takes of the disk.
struct DiskNeed {
  uint64_t folder_bytes = 0;        // in each folder
  uint64_t first_folder_bytes = 0;  // besides, in the first: the catalog and its log
  uint64_t largest_file_bytes = 0;  // holes included
  uint64_t Total(size_t num_folders) const {
    return folder_bytes * num_folders + first_folder_bytes;
  }
};

// Unimplemented (this machine cannot) if a file system has no holes, too small files or too little
// free space. The message names the folder, what is needed and what it has.
absl::Status CheckFileSystems(const std::vector<FileSystemProbe>& probes, const DiskNeed& need);

// The folders of the list, and those above them, that do not exist: a trial makes them. Outermost
// first.
std::vector<std::string> MissingFolders(const std::vector<std::string>& folders);

// Returns the bytes of the disk that the store's files in the folders take.
absl::StatusOr<uint64_t> TakenDiskBytes(const std::vector<std::string>& folders);

// Removes the sparse store in the folders, if there is one that nobody has open, and those of
// `made` that are empty then.
absl::Status RemoveTrial(const std::vector<std::string>& folders,
                         const std::vector<std::string>& made);
// The same while this process has the store open, which it must not use afterwards. For a process
// that is about to end.
void RemoveOpenTrial(const std::vector<std::string>& folders, const std::vector<std::string>& made);

}  // namespace spillway::capacity

#endif  // SPILLWAY_TOOLS_SPILLWAY_CAPACITY_TRIAL_FOLDERS_H_
