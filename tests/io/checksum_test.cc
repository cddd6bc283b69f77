// SPDX-License-Identifier: Apache-2.0

#include "io/checksum.h"

#include <xxhash.h>

#include <vector>

#include "gtest/gtest.h"
#include "tests/io/io_test_util.h"

namespace spillway::io {
namespace {

// A store must be readable on another machine, so the value is XXH3's with any instruction set.
TEST(Checksum, IsXxh3OfAnySize) {
  EXPECT_EQ(Checksum({}), 0x2d06800538d394c2u);  // from xxHash's specification
  std::vector<std::byte> bytes(70001);
  FillPattern(bytes, 1);
  for (const size_t size : {1, 3, 16, 17, 128, 129, 240, 241, 1024, 4096, 65536, 70001}) {
    EXPECT_EQ(Checksum({bytes.data(), size}), XXH3_64bits(bytes.data(), size)) << size;
  }
}

TEST(Checksum, OneBitChangesIt) {
  std::vector<std::byte> bytes(4096);
  const uint64_t zeros = Checksum(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 101) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(Checksum(bytes), zeros) << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

}  // namespace
}  // namespace spillway::io
