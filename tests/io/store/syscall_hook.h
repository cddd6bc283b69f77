// SPDX-License-Identifier: Apache-2.0
//
// Intercepts the calls with which this test program and SQLite change files, so that a test can
// kill the process before or in the middle of the n-th call, make the call fail, or observe the
// calls. Only one source file of a program may include it: it defines the C library's functions
// themselves, and the dynamic linker prefers these definitions.

#ifndef SPILLWAY_TESTS_IO_STORE_SYSCALL_HOOK_H_
#define SPILLWAY_TESTS_IO_STORE_SYSCALL_HOOK_H_

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <string>
#include <utility>
#include <vector>

namespace spillway::io::hook {

enum class Deed { kNothing, kKill, kKillHalfway, kFail };

// What happens to call number `at` (from 1) after Arm. REQUIRES: one thread.
struct Plan {
  Deed deed = Deed::kNothing;
  int at = 0;
  int error = 0;  // the errno of kFail
  int only = -1;  // number of the one system call that counts; -1: all
  int calls = 0;  // counted since Arm
  bool is_armed = false;
  bool failed = false;                                       // the call was made to fail
  std::vector<std::pair<long, std::string>>* log = nullptr;  // each call and its file
};
inline Plan plan;
// A signal ends each fallocate of more bytes than this. It does so 1,000 times at most, so that a
// caller that only tries again ends, too.
inline off_t most_allocated_bytes = 0;  // 0: no signal comes
inline int interruptions = 0;
inline bool refuses_direct = false;  // each open with O_DIRECT, as some file systems do

inline void Arm(Deed deed, int at, int error = 0, int only = -1) {
  plan = Plan{.deed = deed, .at = at, .error = error, .only = only, .is_armed = true};
}
inline void Disarm() { plan.is_armed = false; }

// Receives each call that succeeded, after the call.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void Opened(int fd, const char* path, bool was_made) = 0;
  virtual void Wrote(int fd, const void* data, size_t size, off_t offset) = 0;
  virtual void Resized(int fd, off_t size) = 0;                            // ftruncate
  virtual void Allocated(int fd, int mode, off_t offset, off_t size) = 0;  // fallocate
  virtual void Synced(int fd) = 0;                                         // a file or a folder
  virtual void Renamed(const char* from, const char* to) = 0;
  virtual void Unlinked(const char* path) = 0;
  virtual void MadeFolder(const char* path) = 0;
};
inline Observer* observer = nullptr;

inline std::string PathOf(int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(link.c_str(), path, sizeof path);
  return size > 0 ? std::string(path, static_cast<size_t>(size)) : "";
}

// Counts the call and applies the plan to it. Returns true if the call must fail with plan.error.
// `halfway` does the first part of the call.
template <typename Halfway>
bool Meet(long call, int fd, const Halfway& halfway) {
  if (!plan.is_armed || (plan.only >= 0 && plan.only != call)) return false;
  if (plan.log) plan.log->push_back({call, fd >= 0 ? PathOf(fd) : ""});
  if (++plan.calls != plan.at) return false;
  if (plan.deed == Deed::kKillHalfway) halfway();
  if (plan.deed == Deed::kKill || plan.deed == Deed::kKillHalfway) ::kill(::getpid(), SIGKILL);
  plan.failed = plan.deed == Deed::kFail;
  if (plan.failed) errno = plan.error;
  return plan.failed;
}
inline bool Meet(long call, int fd = -1) {
  return Meet(call, fd, [] {});
}

// Reports the call to the observer, if there is one and the call succeeded. Returns the call's
// result.
template <typename Result, typename Tell>
Result Done(Result result, const Tell& tell) {
  if (observer && result >= 0) {
    const int error = errno;
    tell(*observer);
    errno = error;
  }
  return result;
}

inline int Open(const char* path, int flags, mode_t mode) {
  if (refuses_direct && (flags & O_DIRECT) != 0) {
    errno = EINVAL;
    return -1;
  }
  const bool makes = observer && (flags & O_CREAT) != 0 && ::access(path, F_OK) != 0;
  const int fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  return Done(fd, [&](Observer& o) {
    o.Opened(fd, path, makes);
    if ((flags & O_TRUNC) != 0 && !makes) o.Resized(fd, 0);
  });
}

inline ssize_t Write(int fd, const void* data, size_t size) {
  if (Meet(SYS_write, fd, [&] { ::syscall(SYS_write, fd, data, size / 2); })) return -1;
  const ssize_t result = ::syscall(SYS_write, fd, data, size);
  return Done(result, [&](Observer& o) {
    // A pipe has no offset, and its writes are not observed.
    const off_t end = ::lseek(fd, 0, SEEK_CUR);
    if (end >= 0) o.Wrote(fd, data, static_cast<size_t>(result), end - result);
  });
}
inline ssize_t WriteAt(int fd, const void* data, size_t size, off_t offset) {
  if (Meet(SYS_pwrite64, fd,
           [&] { ::syscall(SYS_pwrite64, fd, data, size / 2 / 512 * 512, offset); }))
    return -1;
  const ssize_t result = ::syscall(SYS_pwrite64, fd, data, size, offset);
  return Done(result, [&](Observer& o) { o.Wrote(fd, data, static_cast<size_t>(result), offset); });
}
inline int Sync(long call, int fd) {
  if (Meet(call, fd)) return -1;
  return Done(static_cast<int>(::syscall(call, fd)), [&](Observer& o) { o.Synced(fd); });
}

}  // namespace spillway::io::hook

// The functions must be visible, or SQLite's library would not find them.
#pragma GCC visibility push(default)
extern "C" {
ssize_t write(int fd, const void* data, size_t size) {
  return spillway::io::hook::Write(fd, data, size);
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return spillway::io::hook::WriteAt(fd, data, size, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  return spillway::io::hook::WriteAt(fd, data, size, offset);
}
int open(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return spillway::io::hook::Open(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return spillway::io::hook::Open(path, flags, mode);
}
int fdatasync(int fd) { return spillway::io::hook::Sync(SYS_fdatasync, fd); }
int fsync(int fd) { return spillway::io::hook::Sync(SYS_fsync, fd); }
int ftruncate(int fd, off_t size) noexcept {
  if (spillway::io::hook::Meet(SYS_ftruncate, fd)) return -1;
  return spillway::io::hook::Done(static_cast<int>(syscall(SYS_ftruncate, fd, size)),
                                  [&](auto& o) { o.Resized(fd, size); });
}
int ftruncate64(int fd, off64_t size) noexcept { return ftruncate(fd, size); }
int fallocate(int fd, int mode, off_t offset, off_t size) {
  namespace hook = spillway::io::hook;
  if (hook::most_allocated_bytes > 0 && size > hook::most_allocated_bytes &&
      hook::interruptions < 1000) {
    ++hook::interruptions;
    errno = EINTR;
    return -1;
  }
  if (hook::Meet(SYS_fallocate, fd)) return -1;
  return spillway::io::hook::Done(static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, size)),
                                  [&](auto& o) { o.Allocated(fd, mode, offset, size); });
}
int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
  return fallocate(fd, mode, offset, size);
}
int rename(const char* from, const char* to) noexcept {
  if (spillway::io::hook::Meet(SYS_renameat2)) return -1;
  return spillway::io::hook::Done(
      static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0)),
      [&](auto& o) { o.Renamed(from, to); });
}
int unlink(const char* path) noexcept {
  if (spillway::io::hook::Meet(SYS_unlinkat)) return -1;
  return spillway::io::hook::Done(static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0)),
                                  [&](auto& o) { o.Unlinked(path); });
}
int mkdir(const char* path, mode_t mode) noexcept {
  if (spillway::io::hook::Meet(SYS_mkdirat)) return -1;
  return spillway::io::hook::Done(static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode)),
                                  [&](auto& o) { o.MadeFolder(path); });
}
}  // extern "C"
#pragma GCC visibility pop

#endif  // SPILLWAY_TESTS_IO_STORE_SYSCALL_HOOK_H_
