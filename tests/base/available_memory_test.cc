// SPDX-License-Identifier: Apache-2.0
//
// What AvailableMemoryBytes reads of files as the kernel writes them.

#include "src/base/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "spillway/types.h"
#include "tests/temp_folder.h"

namespace spillway::base {
namespace {

class AvailableMemoryTest : public ::testing::Test {
 protected:
  AvailableMemoryTest() { Write("proc/meminfo", "MemTotal: 90 kB\nMemAvailable:   1048576 kB\n"); }

  void Write(const std::string& path, std::string_view text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ / path).parent_path());
    test::WriteFile(root_ / path, text);
  }
  uint64_t Available() const { return AvailableMemoryBytes(root_.path()); }

  const test::TempFolder root_;
};

TEST_F(AvailableMemoryTest, WithoutGroupsIsWhatTheKernelSays) {
  EXPECT_EQ(Available(), kGiB);
  EXPECT_EQ(AvailableMemoryBytes(root_ / "none"), 0u);
  EXPECT_GT(AvailableMemoryBytes(), 0u);
}

TEST_F(AvailableMemoryTest, AGroupOfVersion2LeavesItsLimitLessWhatIsInUseAndNotCached) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/memory.max", "max\n");
  Write("sys/fs/cgroup/a/memory.current", "5000\n");
  EXPECT_EQ(Available(), kGiB);
  Write("sys/fs/cgroup/a/b/memory.max", "10000\n");
  Write("sys/fs/cgroup/a/b/memory.current", "6000\n");
  EXPECT_EQ(Available(), 4000u);
  Write("sys/fs/cgroup/a/b/memory.stat", "anon 5\nfile 2000\ninactive_file 700\nactive_file 300\n");
  EXPECT_EQ(Available(), 5000u);
  Write("sys/fs/cgroup/a/memory.max", "7000\n");
  EXPECT_EQ(Available(), 2000u) << "of the group above";
  Write("sys/fs/cgroup/a/memory.current", "8000\n");
  EXPECT_EQ(Available(), 0u) << "the limit was lowered";
}

TEST_F(AvailableMemoryTest, AGroupOfVersion1LeavesTheSame) {
  Write("proc/self/cgroup", "9:name=systemd:/\n4:memory:/a\n0::/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/memory/memory.usage_in_bytes", "4096\n");
  EXPECT_EQ(Available(), kGiB);
  Write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "10000\n");
  Write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "6000\n");
  Write("sys/fs/cgroup/memory/a/memory.stat",
        "inactive_file 1\ntotal_inactive_file 700\ntotal_active_file 300\n");
  EXPECT_EQ(Available(), 5000u);
}

// A container may see its group at the top, and be told the path that the host has for it.
TEST_F(AvailableMemoryTest, AGroupWhosePathIsNotThereIsFoundAtTheTop) {
  Write("proc/self/cgroup", "0::/docker/0123\n");
  Write("sys/fs/cgroup/memory.max", "10000\n");
  Write("sys/fs/cgroup/memory.current", "6000\n");
  EXPECT_EQ(Available(), 4000u);
}

}  // namespace
}  // namespace spillway::base
