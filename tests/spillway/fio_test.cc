// SPDX-License-Identifier: Apache-2.0
//
// How `spillway bench io` runs fio, with a script in fio's place.

#include "tools/spillway/bench/io/fio.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/temp_folder.h"

namespace spillway::bench_io {
namespace {

// fio's memory is a shared segment, perhaps of reserved huge pages. Killed, it would leave it.
TEST(Fio, MayFreeItsMemoryWhenTheBenchmarkIsInterrupted) {
  const test::TempFolder folder;
  std::ofstream(folder / "fio") << "#!/bin/sh\ntrap 'touch " << folder / "freed"
                                << "; exit 1' TERM\ntouch " << folder / "begun"
                                << "\nwhile :; do sleep 0.02; done\n";
  std::filesystem::permissions(folder / "fio", std::filesystem::perms::owner_all);
  const std::string path = ::getenv("PATH");
  ::setenv("PATH", absl::StrCat(folder.path(), ":", path).c_str(), /*overwrite=*/1);
  std::atomic<bool> interrupted = false, is_over = false;
  std::thread user([&] {
    while (!is_over && !std::filesystem::exists(folder / "begun"))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    interrupted = true;
  });
  const auto result =
      RunFio({.block_bytes = 4096, .size_bytes = 4096, .paths = {"a"}}, interrupted);
  is_over = true;
  user.join();
  ::setenv("PATH", path.c_str(), /*overwrite=*/1);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled) << result.status();
  EXPECT_TRUE(std::filesystem::exists(folder / "freed"));
}

}  // namespace
}  // namespace spillway::bench_io
