// SPDX-License-Identifier: Apache-2.0
//
// Utilities for the tests of io/: aligned memory, unnamed files, patterns that identify a block.

#ifndef SPILLWAY_TESTS_IO_IO_TEST_UTIL_H_
#define SPILLWAY_TESTS_IO_IO_TEST_UTIL_H_

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "io/direct_file.h"
#include "io/io_engine.h"

namespace spillway::io {

// Zeroed memory aligned to kIoAlignment.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(size_t size_bytes)
      : size_(size_bytes),
        data_(static_cast<std::byte*>(std::aligned_alloc(kIoAlignment, size_bytes))) {
    std::memset(data_.get(), 0, size_);
  }
  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  size_t size_;
  std::unique_ptr<std::byte, Free> data_;
};

// Fills `out` with bytes that depend on seed and position, so that a misplaced block is detected.
inline void FillPattern(std::span<std::byte> out, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (size_t at = 0; at < out.size(); at += sizeof(state)) {
    state = state * 6364136223846793005 + 1442695040888963407;
    std::memcpy(&out[at], &state, std::min(sizeof(state), out.size() - at));
  }
}

inline bool HasPattern(std::span<const std::byte> bytes, uint64_t seed) {
  std::vector<std::byte> expected(bytes.size());
  FillPattern(expected, seed);
  return std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0;
}

// Opens an unnamed file in the test folder. It disappears with its descriptor.
inline DirectFile NamelessFile() {
  std::string path = absl::StrCat(testing::TempDir(), "/spillway-io-test-XXXXXX");
  const int made = ::mkstemp(path.data());
  EXPECT_GE(made, 0) << path;
  ::close(made);
  absl::StatusOr<DirectFile> file = OpenDirect(path, O_RDWR);
  ::unlink(path.c_str());
  EXPECT_TRUE(file.ok()) << file.status();
  return std::move(*file);
}

// Reaps until nothing is in flight.
inline std::vector<IoCompletion> ReapAll(IoEngine& engine) {
  std::vector<IoCompletion> done;
  while (engine.in_flight() > 0) engine.Reap(absl::InfiniteDuration(), &done);
  return done;
}

// Submits one request and returns its status. REQUIRES: nothing else in flight.
inline absl::Status Transact(IoEngine& engine, const IoRequest& request) {
  engine.Submit({&request, 1});
  const std::vector<IoCompletion> done = ReapAll(engine);
  EXPECT_EQ(done.size(), 1u);
  if (done.size() != 1) return absl::InternalError("not one completion");
  EXPECT_EQ(done[0].tag, request.tag);
  return done[0].status;
}

}  // namespace spillway::io

#endif  // SPILLWAY_TESTS_IO_IO_TEST_UTIL_H_
