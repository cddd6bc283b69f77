// SPDX-License-Identifier: Apache-2.0
//
// One folder of a store: the names of Spillway's files, the identity file, which says which store
// the folder belongs to, and the lock, which excludes a second process. io/FORMAT.md specifies
// them.
//
// One idea: every file is identified by its exact name. Other files in the folder are never read,
// changed or removed. The contents of segment files and of the catalog are left to segment_files.h
// and catalog.h.

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
#include "src/base/forks.h"

namespace spillway::io {

// A folder that may hold a store. The object holds the lock once Lock has succeeded. The destructor
// removes what the object made (folders, lock file) unless Keep was called. A forked child process
// does not hold the lock, and the destructor does nothing there. Move-only; externally
// synchronised.
class StoreFolder {
 public:
  // Segment files are numbered below this.
  static constexpr uint32_t kMaxSegments = 1u << 24;

  enum class Mode { kMake, kExisting, kIfThere };
  // Opens the folder; with kMake, makes it and its parents if they are missing. NotFound if it does
  // not exist. FailedPrecondition if the path is not a folder, or if a symbolic link on it does not
  // lead to one, and names the link. Unavailable if permissions or the file system forbid it. With
  // kIfThere, a folder that does not exist, or whose device fails to read it, is no error. It is
  // then only a path: it has no identity, and the checks and locks of it succeed.
  static absl::StatusOr<StoreFolder> Open(const std::string& path, Mode mode);
  StoreFolder(StoreFolder&& other) noexcept;
  StoreFolder& operator=(StoreFolder&&) = delete;
  ~StoreFolder();

  const std::string& path() const { return path_; }
  bool is_there() const { return folder_fd_ >= 0; }
  bool IsSameAs(const StoreFolder& other) const;

  // Checks that everything with the name of a store's file is a regular file: opening a pipe would
  // wait. Unavailable if one is a symbolic link, FailedPrecondition if one is something else.
  absl::Status CheckFiles() const;
  // Takes the lock. FailedPrecondition, naming its process, if another StoreFolder has the lock.
  // NotFound if the folder was removed since it was opened. Unavailable, with nothing changed, if
  // Spillway did not make the lock file. Otherwise the errors of CheckFiles.
  absl::Status Lock();
  // Takes the lock for a caller that only reads. If this user or the file system forbids writing
  // the lock file, takes a shared lock, which excludes those that Lock took, and writes nothing. On
  // a read-only file system without a lock file there is nothing to lock. Errors as for Lock.
  absl::Status LockToRead();
  // Unavailable if the path no longer leads to the folder that was opened, with the lock file that
  // was locked: they were removed, moved or replaced. Another store may lie at the path then, so no
  // file may be made or removed by its path before this check, and none that was opened by its path
  // may be changed before the check has succeeded after the opening.
  absl::Status CheckIsThere() const;
  // Describes the process that has the lock, or had it last: "process 123".
  std::string HolderOfLock() const;

  // Reads the identity file; none if there is none. DataLoss if it is damaged. FailedPrecondition
  // if it has another format version, or is not a Spillway file.
  absl::StatusOr<std::optional<FolderIdentity>> ReadIdentity() const;
  // Whether there is an identity file that Spillway made, of any version and even if damaged.
  bool HasIdentityOfOurs() const;
  // Writes the identity file, which appears complete or not at all. Durable on return.
  absl::Status WriteIdentity(const FolderIdentity& identity);

  std::string CatalogPath() const;
  std::string WitnessPath() const;
  std::string SegmentPath(uint32_t segment) const;
  absl::StatusOr<bool> HasCatalog() const;
  // Lists the files that a store that was never finished left here.
  absl::StatusOr<std::vector<std::string>> ListUnfinishedFiles() const;
  // Lists every file here that has the name of a store's file, whatever its content, except the
  // lock file.
  absl::StatusOr<std::vector<std::string>> ListStoreFiles() const;
  // Path of the lock file; none if this object made the file, and so removes it again.
  std::optional<std::string> LockFile() const;
  // Numbers of the segment files that are here, in order. NotFound if the folder is not there.
  absl::StatusOr<std::vector<uint32_t>> ListSegments() const;
  // Makes durable that files were made, renamed or removed here.
  absl::Status Sync() const;

  // Removes a file of the store, if it is there. Errors of CheckIsThere: then it is another's.
  absl::Status RemoveFile(const std::string& path) const;
  // Removes every file of a store, the identity last. The lock stays held. From here on the lock
  // file counts as made by this object. Errors of RemoveFile.
  absl::Status RemoveStoreFiles();
  // Its parts. Each is durable on return. Data is segment files and the witness.
  absl::Status RemoveData();
  absl::Status RemoveCatalog();
  absl::Status RemoveIdentity();
  // Called when the store is open or made: the destructor then removes nothing. Undo reverts that.
  void Keep() { keep_ = true; }
  void Undo() { keep_ = false; }

 private:
  explicit StoreFolder(std::string path) : path_(std::move(path)) {}
  std::string File(std::string_view name) const;
  void CloseLock();
  absl::Status TakeLock(bool to_read);
  absl::Status InUse() const;
  absl::Status CheckIsNamed() const;

  std::string path_;
  std::vector<std::string> made_folders_;  // outermost first
  int folder_fd_ = -1;
  int lock_fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  bool made_lock_file_ = false;
  bool is_read_ = false;  // the lock was refused, and those who have it share it
  bool keep_ = false;
  base::ForkGuard process_;
};

// Maps the errno of opening, making or writing a file to the Status that opening a store returns:
// missing permissions and read-only file systems are Unavailable.
absl::Status FileErrorToStatus(int error, std::string_view what);
// Whether the status comes from an EIO: the device failed.
bool IsDeviceError(const absl::Status& status);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_FOLDER_H_
