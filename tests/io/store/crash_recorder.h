// SPDX-License-Identifier: Apache-2.0
//
// Records what this program does to the files under one folder, SQLite's calls included, as events
// of crash_disk.h. Only one source file of a program may include it, as with syscall_hook.h.

#ifndef SPILLWAY_TESTS_IO_STORE_CRASH_RECORDER_H_
#define SPILLWAY_TESTS_IO_STORE_CRASH_RECORDER_H_

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/io/store/crash_disk.h"
#include "tests/io/store/syscall_hook.h"

namespace spillway::io {

// Records during its lifetime. REQUIRES: one recorder at a time, one thread.
class CrashRecorder final : public hook::Observer {
 public:
  explicit CrashRecorder(std::string root) : root_(std::move(root) + "/") { hook::observer = this; }
  // Continues the recording `before` of another folder, of which `root` is a copy.
  CrashRecorder(const std::string& root, std::vector<DiskEvent> before) : CrashRecorder(root) {
    events_ = std::move(before);
    std::map<std::string, std::pair<int, std::string>> named;
    for (const DiskEvent& event : events_) {
      if (event.kind == DiskEvent::Kind::kMake) named[event.path] = {event.file, event.path};
      if (event.kind == DiskEvent::Kind::kRename) named[event.to] = named.at(event.path);
      if (event.kind == DiskEvent::Kind::kRename || event.kind == DiskEvent::Kind::kUnlink)
        named.erase(event.path);
      next_ = std::max(next_, event.file + 1);
    }
    for (const auto& [path, file] : named) {
      struct stat info;
      if (::stat((root_ + path).c_str(), &info) == 0) files_[info.st_ino] = file;
    }
  }
  CrashRecorder(const CrashRecorder&) = delete;
  CrashRecorder& operator=(const CrashRecorder&) = delete;
  ~CrashRecorder() override { hook::observer = nullptr; }

  const std::vector<DiskEvent>& events() const { return events_; }

  void Opened(int fd, const char* path, bool was_made) override {
    if (!was_made || !IsOurs(path)) return;
    files_[InodeOf(fd)] = {next_, Relative(path)};
    events_.push_back({.kind = DiskEvent::Kind::kMake, .file = next_++, .path = Relative(path)});
  }
  void Wrote(int fd, const void* data, size_t size, off_t offset) override {
    Add(DiskEvent::Kind::kWrite, fd, offset, std::string(static_cast<const char*>(data), size));
  }
  void Resized(int fd, off_t size) override { Add(DiskEvent::Kind::kResize, fd, size); }
  void Allocated(int fd, int mode, off_t offset, off_t size) override {
    if ((mode & FALLOC_FL_PUNCH_HOLE) != 0) {
      Wrote(fd, std::string(static_cast<size_t>(size), '\0').data(), static_cast<size_t>(size),
            offset);
    } else if (struct stat info; ::fstat(fd, &info) == 0) {
      Resized(fd, info.st_size);
    }
  }
  void Synced(int fd) override {
    struct stat info;
    if (::fstat(fd, &info) != 0) return;
    if (!S_ISDIR(info.st_mode)) return Add(DiskEvent::Kind::kSync, fd, 0);
    const std::string path = hook::PathOf(fd) + "/";
    if (path.starts_with(root_)) {
      const std::string inside = path.substr(root_.size());
      events_.push_back({.kind = DiskEvent::Kind::kSyncFolder,
                         .path = inside.substr(0, inside.empty() ? 0 : inside.size() - 1)});
    }
  }
  void Renamed(const char* from, const char* to) override {
    if (!IsOurs(from)) return;
    events_.push_back(
        {.kind = DiskEvent::Kind::kRename, .path = Relative(from), .to = Relative(to)});
  }
  void Unlinked(const char* path) override {
    if (IsOurs(path)) events_.push_back({.kind = DiskEvent::Kind::kUnlink, .path = Relative(path)});
  }
  void MadeFolder(const char* path) override {
    if (IsOurs(path))
      events_.push_back({.kind = DiskEvent::Kind::kMakeFolder, .path = Relative(path)});
  }

 private:
  static ino_t InodeOf(int fd) {
    struct stat info;
    return ::fstat(fd, &info) == 0 ? info.st_ino : 0;
  }
  bool IsOurs(const char* path) const { return std::string(path).starts_with(root_); }
  std::string Relative(const char* path) const { return std::string(path).substr(root_.size()); }
  void Add(DiskEvent::Kind kind, int fd, off_t offset, std::string data = {}) {
    const auto found = files_.find(InodeOf(fd));
    if (found == files_.end()) return;
    events_.push_back({.kind = kind,
                       .file = found->second.first,
                       .path = found->second.second,
                       .offset = static_cast<uint64_t>(offset),
                       .data = std::move(data)});
  }

  const std::string root_;
  std::map<ino_t, std::pair<int, std::string>> files_;  // the newest file of each inode number
  std::vector<DiskEvent> events_;
  int next_ = 0;
};

}  // namespace spillway::io

#endif  // SPILLWAY_TESTS_IO_STORE_CRASH_RECORDER_H_
