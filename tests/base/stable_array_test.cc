// SPDX-License-Identifier: Apache-2.0

#include "src/base/stable_array.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace spillway::base {
namespace {

struct Element {
  explicit Element(uint64_t i) : value(i), square(i * i) {}
  uint64_t value, square;
};

TEST(StableArray, ItsElementsStayWhereTheyAre) {
  constexpr size_t kElements = 10'000;
  StableArray<Element> array;
  const Element* const first = &array.emplace_back(0);
  for (size_t i = 1; i < kElements; ++i) array.emplace_back(i);
  EXPECT_EQ(&array[0], first);
  ASSERT_EQ(array.size(), kElements);
  for (size_t i = 0; i < kElements; ++i) EXPECT_EQ(array[i].value, i);
}

// Under the thread sanitizer, this also shows that the order of the two threads is kept. It reports
// only what it still has the history of, so a round is short and there are many.
TEST(StableArray, AReaderFindsEachElementWholeThatItKnowsOf) {
  constexpr size_t kElements = 300;
  size_t wrong = 0;
  for (int round = 0; round < 200; ++round) {
    StableArray<Element> array;
    std::atomic<bool> is_reading = false;
    std::thread writer([&] {
      while (!is_reading.load(std::memory_order_relaxed)) std::this_thread::yield();
      for (size_t i = 0; i < kElements; ++i) array.emplace_back(i);
    });
    is_reading.store(true, std::memory_order_relaxed);
    for (size_t read = 0; read < kElements;) {
      for (const size_t size = array.size(); read < size; ++read)
        wrong += array[read].value != read || array[read].square != read * read ? 1 : 0;
    }
    writer.join();
  }
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace spillway::base
