// SPDX-License-Identifier: Apache-2.0
//
// Flips one bit of one byte of a store, in any of its files, while it is closed or after a crash.
// Opening and reading the store must report damage or give everything as promised.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/exhaustive.h"
#include "tests/io/store/simulated_store.h"
#include "tests/seed.h"

namespace spillway::io {
namespace {

using Files = std::map<std::string, std::string>;  // content by path

Files ReadFiles(const std::string& root) {
  Files files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files[std::filesystem::relative(entry.path(), root)] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// The files of a store after the run, closed or as a crash leaves them, and the promised state.
class FlippedBitTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    SimulatedStore store(folder_.path(), {}, 1);
    for (const auto& call : SimulatedCalls()) {
      const absl::Status status = call(store);
      ASSERT_TRUE(status.ok()) << status;
    }
    promised_ = store.state();
    if (GetParam()) files_ = ReadFiles(folder_.path());
  }
  // Completes the saved files and restores them in the folder. REQUIRES: no store is open there.
  void Settle() {
    if (!GetParam()) files_ = ReadFiles(folder_.path());
    // SQLite rebuilds its -shm file after a crash, and the lock file's content is only for
    // messages.
    std::erase_if(files_, [](const auto& file) {
      return file.first.ends_with("-shm") || file.first.ends_with("-lock");
    });
    Reset();
  }
  void Reset() {
    for (const auto& [path, bytes] : ReadFiles(folder_.path())) {
      if (!files_.contains(path)) std::filesystem::remove(folder_ / path);
    }
    for (const auto& [path, bytes] : files_) WriteFile(folder_ / path, bytes);
  }

  // Reads everything that the store promised, as a caller would. Returns whether a status or a
  // checksum reported damage, and the report or the unreported difference.
  std::pair<bool, std::string> Read() {
    SimulatedStore store(folder_.path(), promised_, 1000);
    const absl::Status opened = store.Open();
    if (!opened.ok()) return {true, opened.ToString()};
    absl::Status checked = store.CheckPages();
    if (!checked.ok()) return {true, checked.ToString()};
    const std::string difference = store.Difference(promised_);
    return {difference.find("DATA_LOSS") != std::string::npos, difference};
  }

  // Flips a bit of the byte, reads the store, and restores the files. Returns whether the damage
  // was reported.
  bool Flip(const std::string& path, size_t at, int bit) {
    std::string bytes = files_.at(path);
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
    WriteFile(folder_ / path, bytes);
    const auto [is_told, what] = Read();
    EXPECT_TRUE(is_told || what.empty())
        << path << ", byte " << at << ", bit " << bit << ": " << what;
    for (const char* folder : {"a", "b"}) {
      for (const char* suffix : {"-wal", "-shm"}) {
        std::filesystem::remove(folder_ / absl::StrCat(folder, "/spillway-catalog.sqlite", suffix));
      }
    }
    for (const auto& [name, content] : files_) {
      if (name.find("segment") == std::string::npos) WriteFile(folder_ / name, content);
    }
    WriteFile(folder_ / path, files_.at(path));
    return is_told;
  }

  TempFolder folder_{FastPlace()};
  StoreState promised_;
  Files files_;
};

TEST_P(FlippedBitTest, IsToldOrHarmless) {
  Settle();
  ASSERT_EQ(Read(), std::make_pair(false, std::string()));
  Reset();
  std::mt19937_64 random(test::Seed());
  for (const auto& [path, bytes] : files_) {
    const bool is_data = path.find("segment") != std::string::npos;
    const size_t num_samples =
        IsExhaustive() && !is_data ? bytes.size() : (bytes.size() / 700 + 20) / SampleShare();
    size_t told = 0;
    for (size_t i = 0; i < num_samples && !HasFailure(); ++i) {
      const size_t at = num_samples == bytes.size() ? i : random() % bytes.size();
      told += Flip(path, at, static_cast<int>(random() % 8)) ? 1 : 0;
    }
    std::cout << path << ": " << bytes.size() << " bytes, " << num_samples << " flipped, " << told
              << " told\n";
  }
}

INSTANTIATE_TEST_SUITE_P(Both, FlippedBitTest, ::testing::Values(false, true),
                         [](const auto& after) { return after.param ? "Crashed" : "Closed"; });

}  // namespace
}  // namespace spillway::io
