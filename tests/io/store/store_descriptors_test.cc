// SPDX-License-Identifier: Apache-2.0
//
// A store in a process whose standard streams are closed: none of its files may take their numbers,
// or what is printed later would be written into it.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <string>

#include "tests/io/store/store_test_util.h"

namespace spillway::io {
namespace {

class StoreDescriptorsTest : public StoreTest {
 protected:
  // 0: no standard stream's number is a file of the store.
  int InChild() {
    for (int fd = 0; fd <= 2; ++fd) ::close(fd);
    auto store = Store::Open(Options(), &io_);
    if (!store.ok()) return 10;
    const auto tensor = (*store)->AddTensor({"w", "{}", 1}, false);
    if (!tensor.ok() || !WritePage(**store, io_, *tensor, 0, 1).ok()) return 11;
    if (!(*store)->Commit("one").ok()) return 12;
    for (int fd = 0; fd <= 2; ++fd) {
      char target[PATH_MAX] = {};
      const std::string link = "/proc/self/fd/" + std::to_string(fd);
      if (::readlink(link.c_str(), target, sizeof(target) - 1) < 0) continue;  // closed, as it was
      if (std::string(target).find(folder_.path()) != std::string::npos) return 20 + fd;
    }
    return 0;
  }
};

TEST_F(StoreDescriptorsTest, AreNeverThoseOfTheStandardStreams) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(InChild());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  auto store = Open(Options());
  ASSERT_TRUE(store);
  EXPECT_EQ(store->UserState(), "one");
}

}  // namespace
}  // namespace spillway::io
