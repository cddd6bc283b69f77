// SPDX-License-Identifier: Apache-2.0
//
// Tests exports to file systems that lack calls: hard links, a rename that replaces nothing, or the
// sync of a folder. Replaces these functions of libc, so it is a separate program.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tests/temp_folder.h"
#include "tools/hf/file.h"
#include "tools/trainer/export.h"

namespace {

// The error of each call; 0: the call is libc's.
int link_error = 0;
int rename_no_replace_error = 0;
int sync_folder_error = 0;

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int Fail(int error) {
  errno = error;
  return -1;
}

}  // namespace

extern "C" int link(const char* from, const char* to) noexcept {
  return link_error != 0 ? Fail(link_error) : Next<int(const char*, const char*)>("link")(from, to);
}

extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned flags) noexcept {
  if (rename_no_replace_error != 0) return Fail(rename_no_replace_error);
  return Next<int(int, const char*, int, const char*, unsigned)>("renameat2")(from_folder, from,
                                                                              to_folder, to, flags);
}

extern "C" int fsync(int fd) {
  struct stat status;
  if (sync_folder_error != 0 && fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
    return Fail(sync_folder_error);
  }
  return Next<int(int)>("fsync")(fd);
}

namespace spillway::trainer {
namespace {

using test::FilesIn;
using test::ReadFile;
using test::TempFolder;

// Sets the errors while the object exists.
class Lacking {
 public:
  Lacking(int of_link, int of_rename, int of_sync) {
    link_error = of_link;
    rename_no_replace_error = of_rename;
    sync_folder_error = of_sync;
  }
  Lacking(const Lacking&) = delete;
  Lacking& operator=(const Lacking&) = delete;
  ~Lacking() { link_error = rename_no_replace_error = sync_folder_error = 0; }
};

absl::Status Export(const std::string& folder) {
  const std::vector<float> values(6, 1.5F);
  return ExportWeights(
      {{.name = "w", .shape = {2, 3}}},
      [&](const ParameterShape&, const ConsumeBytes& consume) {
        return consume(std::as_bytes(std::span(values)));
      },
      "{}", "", folder);
}

TEST(FileSystemLimits, AnExportNeedsNoHardLinks) {
  for (const int link : {EPERM, EOPNOTSUPP, ENOSYS, EMLINK}) {
    for (const int rename : {0, EINVAL, ENOSYS}) {
      const TempFolder folder;
      const Lacking lacking(link, rename, 0);
      const absl::Status status = Export(folder / "out");
      EXPECT_TRUE(status.ok()) << status << " with " << link << ", " << rename;
      EXPECT_EQ(FilesIn(folder / "out"),
                (std::vector<std::string>{"config.json", "model.safetensors"}));
    }
  }
}

TEST(FileSystemLimits, WithoutHardLinksNothingIsReplacedEither) {
  for (const int rename : {0, EINVAL}) {
    const TempFolder folder;
    const Lacking lacking(EPERM, rename, 0);
    auto first = hf::AtomicFile::Create(folder / "a", hf::IfExists::kFail);
    auto second = hf::AtomicFile::Create(folder / "a", hf::IfExists::kFail);
    ASSERT_TRUE(first.ok() && second.ok());
    ASSERT_TRUE((*first)->Append("first").ok());
    ASSERT_TRUE((*first)->Commit().ok());
    EXPECT_TRUE(absl::IsAlreadyExists((*second)->Commit()));
    second->reset();
    EXPECT_EQ(ReadFile(folder / "a"), "first");
    EXPECT_EQ(FilesIn(folder.path()).size(), 1u);
  }
}

TEST(FileSystemLimits, AnotherErrorOfALinkIsAnError) {
  const TempFolder folder;
  const Lacking lacking(EIO, 0, 0);
  const absl::Status status = Export(folder / "out");
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(FilesIn(folder.path()).empty());
}

TEST(FileSystemLimits, AnExportNeedsNoSyncOfAFolder) {
  const TempFolder folder;
  {
    const Lacking lacking(0, 0, EINVAL);
    const absl::Status status = Export(folder / "out");
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "out/model.safetensors"));
  const Lacking lacking(0, 0, EIO);
  EXPECT_FALSE(Export(folder / "broken").ok());
}

}  // namespace
}  // namespace spillway::trainer
