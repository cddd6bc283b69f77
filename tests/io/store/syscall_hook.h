// SPDX-License-Identifier: Apache-2.0
//
// Stands between this test program and the calls with which it and SQLite change files, so that a
// test can kill the process before, or in the middle of, the n-th one, or let it fail. To be
// included by one source file of a program: it defines the C library's functions themselves, which
// the dynamic linker then prefers.

#ifndef SPILLWAY_TESTS_IO_STORE_SYSCALL_HOOK_H_
#define SPILLWAY_TESTS_IO_STORE_SYSCALL_HOOK_H_

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

namespace spillway::io::hook {

enum class Deed { kNothing, kKill, kKillHalfway, kFail };

// What happens to the call number `at` (from 1) after Arm. One thread.
struct Plan {
  Deed deed = Deed::kNothing;
  int at = 0;
  int error = 0;  // of kFail
  int only = -1;  // number of the one system call that counts; -1: all
  int calls = 0;  // that counted since Arm
  bool is_armed = false;
  bool failed = false;                                       // kFail happened
  std::vector<std::pair<long, std::string>>* log = nullptr;  // each call and its file
};
inline Plan plan;

inline void Arm(Deed deed, int at, int error = 0, int only = -1) {
  plan = Plan{.deed = deed, .at = at, .error = error, .only = only, .is_armed = true};
}
inline void Disarm() { plan.is_armed = false; }

inline std::string PathOf(int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(link.c_str(), path, sizeof path);
  return size > 0 ? std::string(path, static_cast<size_t>(size)) : "";
}

// True: the call must fail with plan.error. `halfway` does the first part of it.
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

inline ssize_t Write(int fd, const void* data, size_t size) {
  if (Meet(SYS_write, fd, [&] { ::syscall(SYS_write, fd, data, size / 2); })) return -1;
  return ::syscall(SYS_write, fd, data, size);
}
inline ssize_t WriteAt(int fd, const void* data, size_t size, off_t offset) {
  if (Meet(SYS_pwrite64, fd,
           [&] { ::syscall(SYS_pwrite64, fd, data, size / 2 / 512 * 512, offset); }))
    return -1;
  return ::syscall(SYS_pwrite64, fd, data, size, offset);
}

}  // namespace spillway::io::hook

// Visible, or SQLite's library would not find them.
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
int fdatasync(int fd) {
  if (spillway::io::hook::Meet(SYS_fdatasync, fd)) return -1;
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}
int fsync(int fd) {
  if (spillway::io::hook::Meet(SYS_fsync, fd)) return -1;
  return static_cast<int>(syscall(SYS_fsync, fd));
}
int ftruncate(int fd, off_t size) noexcept {
  if (spillway::io::hook::Meet(SYS_ftruncate, fd)) return -1;
  return static_cast<int>(syscall(SYS_ftruncate, fd, size));
}
int ftruncate64(int fd, off64_t size) noexcept { return ftruncate(fd, size); }
int fallocate(int fd, int mode, off_t offset, off_t size) {
  if (spillway::io::hook::Meet(SYS_fallocate, fd)) return -1;
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, size));
}
int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
  return fallocate(fd, mode, offset, size);
}
int rename(const char* from, const char* to) noexcept {
  if (spillway::io::hook::Meet(SYS_renameat2)) return -1;
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int unlink(const char* path) noexcept {
  if (spillway::io::hook::Meet(SYS_unlinkat)) return -1;
  return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
int mkdir(const char* path, mode_t mode) noexcept {
  if (spillway::io::hook::Meet(SYS_mkdirat)) return -1;
  return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
}  // extern "C"
#pragma GCC visibility pop

#endif  // SPILLWAY_TESTS_IO_STORE_SYSCALL_HOOK_H_
