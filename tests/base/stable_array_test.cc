// SPDX-License-Identifier: Apache-2.0

#include "src/base/stable_array.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <thread>

namespace spillway::base {
namespace {

struct Element {
  explicit Element(uint64_t i) : value(i), square(i * i) {}
  uint64_t value, square;
};

constexpr size_t kElements = 10'000;

TEST(StableArray, ItsElementsStayWhereTheyAre) {
  StableArray<Element> array;
  const Element* const first = &array.emplace_back(0);
  for (size_t i = 1; i < kElements; ++i) array.emplace_back(i);
  EXPECT_EQ(&array[0], first);
  ASSERT_EQ(array.size(), kElements);
  for (size_t i = 0; i < kElements; ++i) EXPECT_EQ(array[i].value, i);
}

// Under the thread sanitizer, this also shows that the order of the two threads is kept.
TEST(StableArray, AReaderFindsEachElementWholeThatItKnowsOf) {
  StableArray<Element> array;
  std::thread writer([&] {
    for (size_t i = 0; i < kElements; ++i) array.emplace_back(i);
  });
  size_t wrong = 0;
  for (size_t read = 0; read < kElements;) {
    for (const size_t size = array.size(); read < size; ++read)
      wrong += array[read].value != read || array[read].square != read * read ? 1 : 0;
  }
  writer.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace spillway::base
