// SPDX-License-Identifier: Apache-2.0
//
// Checks a folder as a store uses it: with a file that is made there, used and removed.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/direct_file.h"
#include "io/make_io_engine.h"
#include "io/store/store_view.h"
#include "spillway/types.h"
#include "src/base/bytes.h"
#include "src/base/existing_folder.h"
#include "tools/spillway/command/file_systems.h"
#include "tools/spillway/doctor/checkup.h"
#include "tools/spillway/store/opened_store.h"
#include "tools/spillway/store/store_summary.h"

namespace spillway::command {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLeastFreeBytes = 16 * kMiB;
constexpr uint64_t kGoodFreeBytes = 10 * kGiB;

// A file with a unique name in a folder. The destructor removes it.
class ProbeFile {
 public:
  explicit ProbeFile(const std::string& folder) : path_(folder + "/.spillway-doctor-XXXXXX") {
    fd_ = mkstemp(path_.data());
    error_ = fd_ < 0 ? errno : 0;
  }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;
  ~ProbeFile() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(path_.c_str());
  }
  int fd() const { return fd_; }
  int error() const { return error_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
  int error_ = 0;
};

// `folder` is the one that was given, and `nearest` the one that is checked in its place.
Finding CheckWritable(const std::string& folder, const std::string& nearest,
                      const ProbeFile& file) {
  Finding finding = {.name = "folder", .found = nearest};
  if (const std::string broken = base::BrokenLink(folder); !broken.empty()) {
    finding.verdict = Verdict::kFail;
    finding.found = broken;
    finding.cure = "correct the link, or give another folder";
    return finding;
  }
  if (nearest != folder) {
    finding.verdict = Verdict::kWarn;
    finding.found = absl::StrCat(folder, " is not there yet; ", nearest, " was checked");
    finding.cure = "a run makes the folder; if the name is misspelt, give the right one";
  }
  if (file.fd() >= 0) return finding;
  finding.verdict = Verdict::kFail;
  absl::StrAppend(&finding.found, ": ", std::strerror(file.error()));
  finding.cure = "give a folder that this user can write";
  return finding;
}

Finding CheckFileSystem(const std::string& folder) {
  Finding finding = {.name = "file_system"};
  struct statfs info{};
  if (statfs(folder.c_str(), &info) != 0) {
    return {finding.name, Verdict::kFail, std::strerror(errno), "give a folder that can be read"};
  }
  const auto magic = static_cast<uint64_t>(info.f_type);
  if (const KnownFileSystem* const known = FindFileSystem(magic)) {
    finding.found = known->name;
    if (known->drawback == nullptr) return finding;
    finding.verdict = Verdict::kWarn;
    finding.cure = known->drawback;
    return finding;
  }
  finding.found = absl::StrFormat("unknown (0x%x)", magic);
  finding.verdict = Verdict::kWarn;
  finding.cure = "ext4 and xfs are what is tested";
  return finding;
}

// Checks the drive under the file system, as far as the kernel reports it.
Finding CheckDrive(const std::string& folder) {
  Finding finding = {.name = "drive"};
  struct stat info{};
  if (stat(folder.c_str(), &info) != 0) return finding;
  std::error_code error;
  fs::path node = fs::canonical(
      absl::StrFormat("/sys/dev/block/%d:%d", major(info.st_dev), minor(info.st_dev)), error);
  if (error) {
    finding.found = "not a drive that the kernel names here";
    return finding;
  }
  if (!fs::exists(node / "queue", error)) node = node.parent_path();  // a partition
  std::string rotational;
  std::string model;
  std::ifstream(node / "queue/rotational") >> rotational;
  std::ifstream model_file(node / "device/model");
  std::getline(model_file, model);
  finding.found = absl::StrCat(node.filename().string(), model.empty() ? "" : ", ", model);
  if (rotational != "1") return finding;
  finding.verdict = Verdict::kWarn;
  absl::StrAppend(&finding.found, ", said to be rotating");
  finding.cure =
      "a rotating disk serves a hundredth of an NVMe drive's requests: use an NVMe "
      "drive (virtual disks often say this wrongly; spillway bench io measures)";
  return finding;
}

Finding CheckFreeSpace(const std::string& folder) {
  Finding finding = {.name = "free_space"};
  struct statvfs info{};
  if (statvfs(folder.c_str(), &info) != 0) {
    return {finding.name, Verdict::kFail, std::strerror(errno), "give a folder that can be read"};
  }
  const uint64_t free_bytes = uint64_t{info.f_bavail} * info.f_frsize;
  finding.found = absl::StrFormat("%s free of %s", base::FormatBytes(free_bytes),
                                  base::FormatBytes(uint64_t{info.f_blocks} * info.f_frsize));
  if (free_bytes >= kGoodFreeBytes) return finding;
  finding.verdict = free_bytes >= kLeastFreeBytes ? Verdict::kWarn : Verdict::kFail;
  finding.cure = absl::StrFormat(
      "AdamW with 16-bit weights takes 16 bytes a parameter, 30 with commits (the gradient is not "
      "doubled): free some space, to %s at least, or give another folder",
      base::FormatBytes(kGoodFreeBytes));
  return finding;
}

// Checks the calls that every store makes: a lock, allocation of space ahead of use, and a sync.
Finding CheckCalls(const ProbeFile& file) {
  Finding finding = {.name = "calls", .found = "flock, fallocate and fdatasync work"};
  if (flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
    return {finding.name, Verdict::kFail, absl::StrCat("flock: ", std::strerror(errno)),
            "a store needs a file system with locks"};
  }
  if (fallocate(file.fd(), 0, 0, 64 * kKiB) != 0) {
    finding.verdict = Verdict::kWarn;
    finding.found = absl::StrCat("fallocate: ", std::strerror(errno));
    finding.cure = "a full disk is then found by a write that is on its way, not before";
    if (ftruncate(file.fd(), 64 * kKiB) != 0) finding.verdict = Verdict::kFail;
  }
  if (fdatasync(file.fd()) != 0) {
    return {finding.name, Verdict::kFail, absl::StrCat("fdatasync: ", std::strerror(errno)),
            "a store that cannot be synced cannot be kept"};
  }
  return finding;
}

Finding CheckDirect(const ProbeFile& file) {
  Finding finding = {.name = "o_direct"};
  const auto opened = io::OpenDirect(file.path(), O_RDWR);
  if (!opened.ok()) {
    return {finding.name, Verdict::kFail, std::string(opened.status().message()),
            "give a folder that this user can write"};
  }
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  const std::unique_ptr<void, Free> page(std::aligned_alloc(io::kIoAlignment, io::kIoAlignment));
  std::memset(page.get(), 0x5a, io::kIoAlignment);
  const bool works =
      pwrite(opened->fd(), page.get(), io::kIoAlignment, 0) == ssize_t{io::kIoAlignment} &&
      pread(opened->fd(), page.get(), io::kIoAlignment, 0) == ssize_t{io::kIoAlignment};
  if (!works) {
    return {finding.name, Verdict::kFail, absl::StrCat("a transfer fails: ", std::strerror(errno)),
            "look at the drive and its file system (dmesg)"};
  }
  if (opened->is_direct()) {
    finding.found = "4 KiB written and read";
    return finding;
  }
  finding.verdict = Verdict::kWarn;
  finding.found = "refused: transfers go through the page cache";
  finding.cure = "costs CPU and memory: use ext4 or xfs on a drive";
  return finding;
}

Finding CheckUring(const std::string& folder) {
  Finding finding = {.name = "io_uring"};
  const auto engine = io::MakeIoEngine(IoKind::kUring, {}, folder);
  if (engine.ok()) {
    finding.found = "plain and registered transfers work";
    return finding;
  }
  const auto threads = io::MakeIoEngine(IoKind::kPosix, {}, folder);
  if (!threads.ok()) {
    return {finding.name, Verdict::kFail, std::string(threads.status().message()),
            "look at the drive and its file system (dmesg)"};
  }
  finding.verdict = Verdict::kWarn;
  finding.found = std::string(engine.status().message());
  finding.cure =
      "threads are used, at a higher cost of CPU: sysctl kernel.io_uring_disabled=0; in "
      "a container, a seccomp profile that allows io_uring";
  return finding;
}

// Reports what an earlier run has measured of the store's folder `number`.
Finding CheckCalibration(const std::vector<std::string>& folders, size_t number) {
  Finding finding = {.name = "calibration"};
  const auto view = OpenView(folders, io::StoreView::Wanted::kAnyState);
  if (absl::IsNotFound(view.status())) {
    finding.found = "no store here yet: its first run measures the device";
    return finding;
  }
  const auto profiles =
      view.ok() ? (*view)->catalog().ReadProfiles()
                : absl::StatusOr<std::vector<std::optional<io::DeviceProfile>>>(view.status());
  if (!profiles.ok()) {
    return {finding.name, Verdict::kWarn, std::string(profiles.status().message()),
            "spillway fsck looks at a store, given all its folders"};
  }
  const auto& profile = profiles->at(number);
  finding.found = profile ? DescribeCalibration(*profile)
                          : "none: spillway train --calibrate now measures the device";
  return finding;
}

// Checks the store's folder `number`.
std::vector<Finding> CheckFolder(const std::vector<std::string>& folders, size_t number) {
  const std::string& given = folders[number];
  // If `given` is a file, that file is checked itself, and fails.
  std::error_code error;
  const std::string folder = fs::exists(given, error) ? given : base::ExistingFolder(given);
  const ProbeFile file(folder);
  std::vector<Finding> findings = {CheckWritable(given, folder, file), CheckFileSystem(folder),
                                   CheckDrive(folder), CheckFreeSpace(folder)};
  if (file.fd() < 0) return findings;
  findings.push_back(CheckCalls(file));
  findings.push_back(CheckDirect(file));
  findings.push_back(CheckUring(folder));
  findings.push_back(CheckCalibration(folders, number));
  return findings;
}

}  // namespace

std::vector<Finding> CheckFolders(const std::vector<std::string>& folders) {
  std::vector<Finding> findings;
  for (size_t i = 0; i < folders.size(); ++i) {
    for (Finding& finding : CheckFolder(folders, i)) {
      finding.folder = folders[i];
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

}  // namespace spillway::command
