// SPDX-License-Identifier: Apache-2.0

#include "io/store/store_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/errno_status.h"
#include "src/base/existing_folder.h"
#include "src/base/file_descriptor.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"

namespace spillway::io {
namespace {

constexpr char kIdentityName[] = "spillway-store";
constexpr char kLockName[] = "spillway-lock";
constexpr char kWitnessName[] = "spillway-commit";
constexpr char kCatalogName[] = "spillway-catalog.sqlite";
constexpr char kSegmentPrefix[] = "spillway-segment-";
constexpr char kNewSuffix[] = ".new";
// The catalog itself is last, so that no log of it is left alone.
constexpr std::array<std::string_view, 6> kCatalogSuffixes = {"-wal",         "-shm", "-journal",
                                                              ".new-journal", ".new", ""};
constexpr size_t kMaxIdentityBytes = 4096;

using base::View;

// A file descriptor that is closed at the end of its scope.
class ScopedFd {
 public:
  explicit ScopedFd(int fd) : fd_(fd) {}
  ScopedFd(const ScopedFd&) = delete;
  ScopedFd& operator=(const ScopedFd&) = delete;
  ~ScopedFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// Opens a file or a folder, and retries after EINTR. A folder may be reached through symbolic
// links; a file must not be one. ENXIO if it is not a regular file. O_NONBLOCK, because opening a
// pipe would wait for its other end.
int OpenRetrying(const std::string& path, int flags) {
  const bool is_folder = (flags & O_DIRECTORY) != 0;
  if (!is_folder) flags |= O_NOFOLLOW | O_NONBLOCK;
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  } while (fd < 0 && errno == EINTR);
  struct stat info;
  if (fd >= 0 && !is_folder && (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))) {
    ::close(fd);
    errno = ENXIO;
    return -1;
  }
  return base::AboveStandardStreams(fd);
}

absl::Status SyncFd(int fd, const std::string& path) {
  if (::fsync(fd) != 0) return FileErrorToStatus(errno, absl::StrCat("sync ", path));
  return absl::OkStatus();
}

absl::Status SyncFolder(const std::string& path) {
  const ScopedFd fd(OpenRetrying(path, O_RDONLY | O_DIRECTORY));
  if (fd.get() < 0) return FileErrorToStatus(errno, absl::StrCat("open folder ", path));
  return SyncFd(fd.get(), path);
}

absl::Status WriteAll(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileErrorToStatus(errno, absl::StrCat("write ", path));
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadUpTo(int fd, size_t limit_bytes, const std::string& path) {
  std::string text(limit_bytes, '\0');
  size_t size = 0;
  while (size < limit_bytes) {
    const ssize_t got =
        ::pread(fd, text.data() + size, limit_bytes - size, static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileErrorToStatus(errno, absl::StrCat("read ", path));
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  return text;
}

// A lock file holds a process id, or nothing; after a power cut it may hold zeros, since it is
// never synced. Lock overwrites the file, so a file that holds anything else is refused: it is not
// Spillway's.
absl::Status CheckLockFile(int fd, const std::string& path) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text, ReadUpTo(fd, 32, path));
  const bool is_ours =
      text.size() < 32 && text.find_first_not_of({"0123456789\n\0", 12}) == std::string::npos;
  if (is_ours) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(path, " was not made by Spillway; move it away, or choose another folder"));
}

// Returns the process id that a lock file holds; none if it holds no such number.
std::optional<pid_t> PidIn(const std::string& lock_path) {
  const ScopedFd fd(OpenRetrying(lock_path, O_RDONLY));
  const auto text = fd.get() >= 0 ? ReadUpTo(fd.get(), 32, lock_path) : std::string();
  pid_t pid = 0;
  if (!text.ok() || !absl::SimpleAtoi(*text, &pid)) return std::nullopt;
  return pid;
}

// Whether the errno says that this user, or the file system, forbids writing a file.
bool ForbidsWriting(int error) { return error == EACCES || error == EPERM || error == EROFS; }

absl::StatusOr<bool> Exists(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) == 0) return true;
  if (errno == ENOENT) return false;
  return FileErrorToStatus(errno, absl::StrCat("look for ", path));
}

// Whether the path leads to the file or folder that is open as `fd`. True without an open file.
absl::StatusOr<bool> LeadsTo(const std::string& path, int fd) {
  if (fd < 0) return true;
  struct stat named;
  struct stat open;
  if (::stat(path.c_str(), &named) == 0 && ::fstat(fd, &open) == 0)
    return named.st_dev == open.st_dev && named.st_ino == open.st_ino;
  if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return false;
  return FileErrorToStatus(errno, absl::StrCat("look for ", path));
}

// Makes `path` and its missing parents; appends each folder that was made to `made`.
absl::Status MakeFolders(const std::string& path, std::vector<std::string>* made) {
  std::vector<std::filesystem::path> missing;
  std::filesystem::path folder = std::filesystem::path(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  std::error_code error;
  while (!folder.empty() &&
         !std::filesystem::exists(std::filesystem::symlink_status(folder, error))) {
    missing.push_back(folder);
    folder = folder.parent_path();
  }
  for (auto it = missing.rbegin(); it != missing.rend(); ++it) {
    if (::mkdir(it->c_str(), 0755) != 0) {
      if (errno == EEXIST) continue;
      return FileErrorToStatus(errno, absl::StrCat("make folder ", it->string()));
    }
    made->push_back(it->string());
    const std::filesystem::path parent = it->parent_path();
    SPILLWAY_RETURN_IF_ERROR(SyncFolder(parent.empty() ? "." : parent.string()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FileErrorToStatus(int error, std::string_view what) {
  absl::Status status = base::ErrnoToStatus(error, what);
  switch (error) {
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::UnavailableError(
          absl::StrCat(status.message(), "; a store needs a folder that this user can write"));
    case ENOTDIR:
      return absl::FailedPreconditionError(
          absl::StrCat(status.message(), "; a store folder must be a folder"));
    case ELOOP:
      return absl::UnavailableError(absl::StrCat(
          View(what),
          ": it is a symbolic link, and Spillway opens no file through one; remove the "
          "link, or choose another folder"));
    case ENXIO:
      return absl::FailedPreconditionError(
          absl::StrCat(View(what),
                       ": it is not a regular file, and a store's files are; move it away, or "
                       "choose another folder"));
    default: return status;
  }
}

bool IsDeviceError(const absl::Status& status) {
  return absl::StrContains(status.message(), "(EIO)");
}

absl::StatusOr<StoreFolder> StoreFolder::Open(const std::string& path, Mode mode) {
  if (path.empty())
    return absl::InvalidArgumentError("a store folder's name is empty; name a folder");
  // The path is made absolute, so that a program that changes its working folder can still use its
  // store.
  std::error_code error;
  StoreFolder folder(std::filesystem::absolute(path, error).string());
  if (error) {
    return absl::UnavailableError(absl::StrCat(
        "store folder ", path, ": the working folder cannot be read (", error.message(),
        "); go to another, or name the store from the root of the file system on"));
  }
  // The errno of a call does not tell which link on the path leads to no folder.
  const auto failed = [&](absl::Status status) {
    const std::string broken = base::BrokenLink(folder.path_);
    if (broken.empty()) return status;
    return absl::FailedPreconditionError(absl::StrCat("open store folder ", path, ": ", broken));
  };
  if (mode == Mode::kMake) {
    const absl::Status made = MakeFolders(folder.path_, &folder.made_folders_);
    if (!made.ok()) return failed(made);
  }
  folder.folder_fd_ = OpenRetrying(folder.path_, O_RDONLY | O_DIRECTORY);
  if (folder.folder_fd_ < 0 && mode == Mode::kIfThere && (errno == ENOENT || errno == EIO))
    return folder;
  if (folder.folder_fd_ < 0)
    return failed(FileErrorToStatus(
        errno,
        absl::StrCat("open store folder ", path,
                     errno == ENOENT ? " (give the folder that the store was made in)" : "")));
  struct stat info;
  if (::fstat(folder.folder_fd_, &info) != 0)
    return FileErrorToStatus(errno, absl::StrCat("stat ", path));
  folder.device_ = info.st_dev;
  folder.inode_ = info.st_ino;
  // The kernel may still know the folder of a device that it can no longer read.
  if (mode == Mode::kIfThere && IsDeviceError(folder.ListSegments().status()))
    ::close(std::exchange(folder.folder_fd_, -1));
  return folder;
}

StoreFolder::StoreFolder(StoreFolder&& other) noexcept
    : path_(std::move(other.path_)),
      made_folders_(std::exchange(other.made_folders_, {})),
      folder_fd_(std::exchange(other.folder_fd_, -1)),
      lock_fd_(std::exchange(other.lock_fd_, -1)),
      device_(other.device_),
      inode_(other.inode_),
      made_lock_file_(std::exchange(other.made_lock_file_, false)),
      is_read_(other.is_read_),
      keep_(other.keep_),
      process_(other.process_) {}

// Releases the lock before the descriptor is closed: a process that was forked without notice (by
// the system call itself) has a copy of the descriptor, and would hold the lock until it ends.
void StoreFolder::CloseLock() {
  if (lock_fd_ < 0) return;
  base::KeepInChildren(lock_fd_);
  ::flock(lock_fd_, LOCK_UN);
  ::close(std::exchange(lock_fd_, -1));
}

StoreFolder::~StoreFolder() {
  if (process_.is_forked()) return;  // the folder and its lock are the parent's
  // The lock file is removed while its lock is held: Lock relies on that.
  if (!keep_ && made_lock_file_ && lock_fd_ >= 0) (void)RemoveFile(File(kLockName));
  CloseLock();
  if (folder_fd_ >= 0) ::close(folder_fd_);
  if (keep_) return;
  // rmdir fails, as it should, for a folder into which another program has put something.
  for (auto it = made_folders_.rbegin(); it != made_folders_.rend(); ++it) ::rmdir(it->c_str());
}

std::string StoreFolder::File(std::string_view name) const {
  return absl::StrCat(path_, "/", View(name));
}
std::string StoreFolder::CatalogPath() const { return File(kCatalogName); }
std::string StoreFolder::WitnessPath() const { return File(kWitnessName); }
std::string StoreFolder::SegmentPath(uint32_t segment) const {
  return File(absl::StrFormat("%s%06d", kSegmentPrefix, segment));
}

bool StoreFolder::IsSameAs(const StoreFolder& other) const {
  return is_there() && other.is_there() && device_ == other.device_ && inode_ == other.inode_;
}

std::string StoreFolder::HolderOfLock() const {
  if (is_read_) return "a process of another user that only reads it";
  const std::optional<pid_t> pid = PidIn(File(kLockName));
  if (!pid) return "another process";
  return *pid == ::getpid() ? absl::StrCat("this process (", *pid, ")")
                            : absl::StrCat("process ", *pid);
}

absl::Status StoreFolder::CheckIsThere() const {
  if (!is_there()) return absl::OkStatus();
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_folder, LeadsTo(path_, folder_fd_));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_lock, LeadsTo(File(kLockName), lock_fd_));
  if (has_folder && has_lock) return absl::OkStatus();
  for (const int fd : {folder_fd_, lock_fd_}) {
    struct stat info;
    if (fd < 0 || ::fstat(fd, &info) != 0 || info.st_nlink > 0) continue;
    return absl::UnavailableError(absl::StrCat(
        "the store's files in ", path_,
        " were removed while it was in use, and with them all commits; begin a new store"));
  }
  return absl::UnavailableError(absl::StrCat(
      path_,
      " no longer leads to the store that was opened there: its folder or its lock file was moved "
      "or replaced while it was in use; move it back, or open the store where it is now"));
}

// Returns the error for a lock that another StoreFolder has.
absl::Status StoreFolder::InUse() const {
  // A process that may not write the file leaves the number of an earlier one in it.
  const std::optional<pid_t> pid = is_read_ ? std::nullopt : PidIn(File(kLockName));
  const bool is_ours = pid && *pid == ::getpid();
  const bool is_gone = pid && *pid > 0 && ::kill(*pid, 0) != 0 && errno == ESRCH;
  const std::string_view advice =
      is_ours   ? "; close its engine first, or choose another folder"
      : is_gone ? ", which is not running here: a process that it forked, or one in another "
                  "container, holds the store; end that one, or choose another folder"
                : "; wait for it to end, or choose another folder";
  return absl::FailedPreconditionError(
      absl::StrCat("the store in ", path_, " is in use by ", HolderOfLock(), View(advice)));
}

// NotFound if no name leads to the folder that was opened.
absl::Status StoreFolder::CheckIsNamed() const {
  SPILLWAY_ASSIGN_OR_RETURN(const bool is_named, LeadsTo(path_, folder_fd_));
  if (is_named) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("store folder ", path_, " was removed while it was opened; try again"));
}

absl::Status StoreFolder::Lock() { return TakeLock(/*to_read=*/false); }

absl::Status StoreFolder::LockToRead() { return TakeLock(/*to_read=*/true); }

absl::Status StoreFolder::TakeLock(bool to_read) {
  if (!is_there()) return absl::OkStatus();
  const std::string path = File(kLockName);
  bool is_shared = false;
  while (true) {
    lock_fd_ = OpenRetrying(path, O_RDWR | O_CREAT | O_EXCL);
    made_lock_file_ = lock_fd_ >= 0;
    if (lock_fd_ < 0 && errno == EEXIST) lock_fd_ = OpenRetrying(path, O_RDWR);
    is_shared = to_read && lock_fd_ < 0 && ForbidsWriting(errno);
    if (is_shared) {
      const int error = errno;
      lock_fd_ = OpenRetrying(path, O_RDONLY);
      if (lock_fd_ < 0 && errno == ENOENT && error == EROFS) return CheckFiles();
      if (lock_fd_ < 0 && errno == ENOENT) errno = error;
    }
    if (lock_fd_ < 0 && errno == ENOENT) {
      SPILLWAY_RETURN_IF_ERROR(CheckIsNamed());
      continue;  // the lock file's owner removed it in between
    }
    if (lock_fd_ < 0) return FileErrorToStatus(errno, absl::StrCat("open ", path));
    if (absl::Status ours = CheckLockFile(lock_fd_, path); !ours.ok()) {
      ::close(std::exchange(lock_fd_, -1));
      return ours;
    }
    if (::flock(lock_fd_, (is_shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
      const int error = errno;
      is_read_ = error == EWOULDBLOCK && ::flock(lock_fd_, LOCK_SH | LOCK_NB) == 0;
      ::close(std::exchange(lock_fd_, -1));
      made_lock_file_ = false;
      return error == EWOULDBLOCK ? InUse() : FileErrorToStatus(error, absl::StrCat("lock ", path));
    }
    SPILLWAY_ASSIGN_OR_RETURN(const bool is_named, LeadsTo(path, lock_fd_));
    if (is_named) break;
    ::close(std::exchange(lock_fd_, -1));  // the locked file was just removed by its owner
  }
  base::CloseInChildren(lock_fd_);
  if (absl::Status files = CheckFiles(); !files.ok() || is_shared) return files;
  // The process id is only for the message above. If there is no room for it, the message says
  // "another process".
  const std::string pid = absl::StrCat(::getpid(), "\n");
  if (::ftruncate(lock_fd_, 0) == 0 && ::pwrite(lock_fd_, pid.data(), pid.size(), 0) < 0)
    return absl::OkStatus();
  return absl::OkStatus();
}

absl::StatusOr<std::optional<FolderIdentity>> StoreFolder::ReadIdentity() const {
  if (!is_there()) return std::optional<FolderIdentity>();
  const std::string path = File(kIdentityName);
  const ScopedFd fd(OpenRetrying(path, O_RDONLY));
  if (fd.get() < 0 && errno == ENOENT) return std::optional<FolderIdentity>();
  if (fd.get() < 0) return FileErrorToStatus(errno, absl::StrCat("open ", path));
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text, ReadUpTo(fd.get(), kMaxIdentityBytes, path));
  SPILLWAY_ASSIGN_OR_RETURN(FolderIdentity identity, ParseIdentity(text, path));
  return std::optional(std::move(identity));
}

bool StoreFolder::HasIdentityOfOurs() const {
  const std::string path = File(kIdentityName);
  const ScopedFd fd(OpenRetrying(path, O_RDONLY));
  const auto text = fd.get() >= 0 ? ReadUpTo(fd.get(), kMaxIdentityBytes, path) : std::string();
  return text.ok() && std::string_view(*text).starts_with(absl::StrCat(kIdentityTitle, "\n"));
}

absl::Status StoreFolder::WriteIdentity(const FolderIdentity& identity) {
  const std::string path = File(kIdentityName);
  const std::string temporary = path + kNewSuffix;
  SPILLWAY_RETURN_IF_ERROR(RemoveFile(temporary));
  {
    const ScopedFd fd(OpenRetrying(temporary, O_WRONLY | O_CREAT | O_EXCL));
    if (fd.get() < 0) return FileErrorToStatus(errno, absl::StrCat("make ", temporary));
    SPILLWAY_RETURN_IF_ERROR(WriteAll(fd.get(), FormatIdentity(identity), temporary));
    SPILLWAY_RETURN_IF_ERROR(SyncFd(fd.get(), temporary));
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    return FileErrorToStatus(errno, absl::StrCat("rename ", temporary, " to ", path));
  }
  return Sync();
}

absl::StatusOr<bool> StoreFolder::HasCatalog() const { return Exists(CatalogPath()); }

absl::StatusOr<std::vector<std::string>> StoreFolder::ListUnfinishedFiles() const {
  std::vector<std::string> paths;
  for (const std::string& path :
       {CatalogPath() + kNewSuffix, CatalogPath() + kNewSuffix + "-journal",
        File(kIdentityName) + kNewSuffix}) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool exists, Exists(path));
    if (exists) paths.push_back(path);
  }
  return paths;
}

std::optional<std::string> StoreFolder::LockFile() const {
  return made_lock_file_ ? std::nullopt : std::optional(File(kLockName));
}

absl::StatusOr<std::vector<std::string>> StoreFolder::ListStoreFiles() const {
  std::vector<std::string> paths;
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<uint32_t> segments, ListSegments());
  for (const uint32_t segment : segments) paths.push_back(SegmentPath(segment));
  std::vector<std::string> others = {WitnessPath(), File(kIdentityName) + kNewSuffix,
                                     File(kIdentityName)};
  for (std::string_view suffix : kCatalogSuffixes) {
    others.push_back(absl::StrCat(CatalogPath(), View(suffix)));
  }
  for (const std::string& path : others) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool exists, Exists(path));
    if (exists) paths.push_back(path);
  }
  return paths;
}

namespace {

// Parses the number after the prefix of a segment file's name. Accepts only the form that
// SegmentPath writes: a file such as "1.bak" is not Spillway's.
std::optional<uint32_t> SegmentNumber(std::string_view digits) {
  if (digits.size() < 6 || (digits.size() > 6 && digits[0] == '0')) return std::nullopt;
  uint32_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [parsed, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc() || parsed != end || number >= StoreFolder::kMaxSegments)
    return std::nullopt;
  return number;
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> StoreFolder::ListSegments() const {
  struct Closer {
    void operator()(DIR* folder) const { ::closedir(folder); }
  };
  const std::unique_ptr<DIR, Closer> folder(::opendir(path_.c_str()));
  if (!folder) return FileErrorToStatus(errno, absl::StrCat("list ", path_));
  std::vector<uint32_t> segments;
  for (errno = 0; const dirent* entry = ::readdir(folder.get()); errno = 0) {
    std::string_view digits = entry->d_name;
    if (!digits.starts_with(kSegmentPrefix)) continue;
    digits.remove_prefix(std::string_view(kSegmentPrefix).size());
    if (const auto segment = SegmentNumber(digits)) segments.push_back(*segment);
  }
  if (errno != 0) return FileErrorToStatus(errno, absl::StrCat("list ", path_));
  std::sort(segments.begin(), segments.end());
  return segments;
}

absl::Status StoreFolder::CheckFiles() const {
  if (!is_there()) return absl::OkStatus();
  SPILLWAY_ASSIGN_OR_RETURN(std::vector<std::string> files, ListStoreFiles());
  files.push_back(File(kLockName));
  for (const std::string& path : files) {
    struct stat info;
    if (::lstat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) continue;
    return FileErrorToStatus(S_ISLNK(info.st_mode) ? ELOOP : ENXIO, absl::StrCat("open ", path));
  }
  return absl::OkStatus();
}

absl::Status StoreFolder::Sync() const { return SyncFd(folder_fd_, path_); }

absl::Status StoreFolder::RemoveFile(const std::string& path) const {
  // Without any lock file no other store has the folder: a program that cleans up has removed ours.
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_folder, LeadsTo(path_, folder_fd_));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_lock_file, Exists(File(kLockName)));
  if (!has_folder || has_lock_file) SPILLWAY_RETURN_IF_ERROR(CheckIsThere());
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return FileErrorToStatus(errno, absl::StrCat("remove ", path));
}

absl::Status StoreFolder::RemoveStoreFiles() {
  SPILLWAY_RETURN_IF_ERROR(RemoveData());
  SPILLWAY_RETURN_IF_ERROR(RemoveCatalog());
  return RemoveIdentity();  // it outlasts the files that it vouches for
}

absl::Status StoreFolder::RemoveData() {
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<uint32_t> segments, ListSegments());
  for (uint32_t segment : segments) SPILLWAY_RETURN_IF_ERROR(RemoveFile(SegmentPath(segment)));
  SPILLWAY_RETURN_IF_ERROR(RemoveFile(WitnessPath()));
  return Sync();
}

absl::Status StoreFolder::RemoveCatalog() {
  for (std::string_view suffix : kCatalogSuffixes) {
    SPILLWAY_RETURN_IF_ERROR(RemoveFile(absl::StrCat(CatalogPath(), View(suffix))));
  }
  return Sync();
}

absl::Status StoreFolder::RemoveIdentity() {
  SPILLWAY_RETURN_IF_ERROR(RemoveFile(absl::StrCat(File(kIdentityName), kNewSuffix)));
  SPILLWAY_RETURN_IF_ERROR(RemoveFile(File(kIdentityName)));
  made_lock_file_ = true;
  return Sync();
}

}  // namespace spillway::io
