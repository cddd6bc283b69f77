// SPDX-License-Identifier: Apache-2.0
//
// Tests that an update's memory, beside the tiles that it leases, is the same for a parameter of
// many tiles as for one of few. Replaces operator new to count bytes, so it is a separate program.

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "tests/heap_engine.h"
#include "tests/optim/reference_parameter.h"

namespace {

std::atomic<int64_t> live_bytes;
std::atomic<int64_t> most_bytes;

void* Count(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const auto bytes = static_cast<int64_t>(malloc_usable_size(memory));
  const int64_t live = live_bytes.fetch_add(bytes) + bytes;
  int64_t most = most_bytes.load();
  while (most < live && !most_bytes.compare_exchange_weak(most, live)) {
  }
  return memory;
}

void Uncount(void* memory) {
  if (memory != nullptr) live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// The other forms of new and delete call these.
void* operator new(size_t bytes) { return Count(std::malloc(std::max<size_t>(bytes, 1))); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  const auto to = static_cast<size_t>(alignment);
  return Count(std::aligned_alloc(to, (std::max<size_t>(bytes, 1) + to - 1) / to * to));
}
void operator delete(void* memory) noexcept { Uncount(memory); }
void operator delete(void* memory, size_t) noexcept { Uncount(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Uncount(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { Uncount(memory); }

namespace spillway::optim {
namespace {

constexpr int64_t kTileRows = 64;
constexpr int64_t kColumns = 512;

class MemoryOfAnUpdate : public testing::TestWithParam<RuleAndFormat> {
 protected:
  // Returns the most bytes that a step holds at a time, for a parameter of `num_tiles` tiles.
  int64_t PeakOf(int64_t num_tiles) {
    TensorSpec spec;
    spec.name = "weight";
    spec.dtype = DType::kBF16;
    spec.shape = {num_tiles * kTileRows, kColumns};
    spec.tile_rows = kTileRows;
    ReferenceParameter parameter(spec, DType::kBF16, GetParam().rule, GetParam().format, 1);
    parameter.NewGradient(2);
    HeapEngine engine;
    auto optimizer = Optimizer::Create(&engine, &pool_, GetParam().rule, GetParam().format);
    EXPECT_TRUE(optimizer.ok()) << optimizer.status();
    const auto added = (*optimizer)->Add(RegisterParameter(engine, parameter));
    EXPECT_TRUE(added.ok()) << added.status();
    engine.uses.reserve(100 * static_cast<size_t>(num_tiles));
    engine.discards.reserve(engine.uses.capacity());
    const Update update = {.parameter = *added, .step = 1, .learning_rate = 1e-3};
    most_bytes = live_bytes.load();
    const int64_t before = live_bytes;
    const absl::Status status = (*optimizer)->Step({&update, 1});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(live_bytes, before);
    EXPECT_GE(engine.uses.size(), num_tiles);  // the step leased its tiles
    held_ = engine.most_held();
    return most_bytes - before;
  }

  ThreadPool pool_{2};
  int held_ = 0;
};

TEST_P(MemoryOfAnUpdate, IsTheSameForTenTimesTheParameter) {
  PeakOf(2);  // starts threads, and allocates what is made once
  const int64_t small = PeakOf(2);
  const int small_held = held_;
  const int64_t large = PeakOf(20);
  RecordProperty("bytes", std::to_string(large));
  EXPECT_EQ(held_, small_held);
  EXPECT_GT(small, 0);
  EXPECT_LE(large, small + 1024);  // bytes; the larger parameter's bf16 weight has 1.2 MB more
}

INSTANTIATE_TEST_SUITE_P(Pairs, MemoryOfAnUpdate, testing::ValuesIn(AllPairs()), PairName);

}  // namespace
}  // namespace spillway::optim
