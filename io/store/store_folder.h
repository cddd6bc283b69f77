// SPDX-License-Identifier: Apache-2.0
//
// One folder of a store: the names of the files that are Spillway's, the identity file that says
// which store the folder belongs to, and the lock that keeps a second process out. io/FORMAT.md
// specifies them.
//
// One idea: every file here is known by its exact name. Whatever else lies in the folder is never
// read, changed or removed. Segment bytes and the catalog's content are others'.

#ifndef SPILLWAY_IO_STORE_STORE_FOLDER_H_
#define SPILLWAY_IO_STORE_STORE_FOLDER_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/store/folder_identity.h"

namespace spillway::io {

// A folder that may hold a store. The object holds the lock. What it made to get there (folders,
// lock file) it removes again in its destructor unless Keep was called. Move-only; externally
// synchronised.
class StoreFolder {
 public:
  // Segment files are numbered below this.
  static constexpr uint32_t kMaxSegments = 1u << 24;

  enum class Mode { kMake, kExisting };
  // Makes the folder with its parents, if asked to. NotFound: it is absent. FailedPrecondition: the
  // path is something else. Unavailable: the rights or the file system forbid it.
  static absl::StatusOr<StoreFolder> Open(const std::string& path, Mode mode);
  StoreFolder(StoreFolder&& other) noexcept;
  StoreFolder& operator=(StoreFolder&&) = delete;
  ~StoreFolder();

  const std::string& path() const { return path_; }
  bool IsSameAs(const StoreFolder& other) const;

  // What has the name of a store's file must be a regular file: opening a pipe would wait.
  // Unavailable: it is a symbolic link. FailedPrecondition: it is something else.
  absl::Status CheckFiles() const;
  // FailedPrecondition, naming its process, if another StoreFolder has the lock. Unavailable, with
  // nothing changed, if the lock file is somebody else's; else as CheckFiles.
  absl::Status Lock();
  // Unavailable if somebody has removed the folder or the lock file since: what is written here
  // then goes with this process.
  absl::Status CheckIsThere() const;
  // Whether another StoreFolder has the lock, for who may only read the folder.
  bool IsLocked() const;
  // In words, "process 123": who has the lock, or had it last.
  std::string HolderOfLock() const;

  // None: there is no identity file. DataLoss: it is damaged. FailedPrecondition: it is of another
  // format version, or no Spillway file at all.
  absl::StatusOr<std::optional<FolderIdentity>> ReadIdentity() const;
  // Whether the identity file, of any version and even if damaged, is one of a store.
  bool HasIdentityOfOurs() const;
  // Durable on return; appears at once or not at all.
  absl::Status WriteIdentity(const FolderIdentity& identity);

  std::string CatalogPath() const;
  std::string WitnessPath() const;
  std::string SegmentPath(uint32_t segment) const;
  absl::StatusOr<bool> HasCatalog() const;
  // The files that a store that was never finished left here.
  absl::StatusOr<std::vector<std::string>> ListUnfinishedFiles() const;
  // Every file of a store that is here, but for the lock, whatever its content.
  absl::StatusOr<std::vector<std::string>> ListStoreFiles() const;
  // The lock's file; none: this object has made it, and removes it again.
  std::optional<std::string> LockFile() const;
  // Numbers of the segment files that are here, in order.
  absl::StatusOr<std::vector<uint32_t>> ListSegments() const;
  // Files were made, renamed or removed here; makes that durable.
  absl::Status Sync() const;

  // Removes every file of a store, the identity last. The lock stays held; its file counts as made
  // by this object from here on.
  absl::Status RemoveStoreFiles();
  // The store is open or made: the destructor leaves everything. Undo takes that back.
  void Keep() { keep_ = true; }
  void Undo() { keep_ = false; }

 private:
  explicit StoreFolder(std::string path) : path_(std::move(path)) {}
  std::string File(std::string_view name) const;
  std::string path_;
  std::vector<std::string> made_folders_;  // outermost first
  int folder_fd_ = -1;
  int lock_fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  bool made_lock_file_ = false;
  bool keep_ = false;
};

// What the errno of opening, making or writing a file means to someone who opens a store: missing
// rights and read-only file systems are Unavailable.
absl::Status FileErrorToStatus(int error, std::string_view what);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_FOLDER_H_
