// SPDX-License-Identifier: Apache-2.0
//
// Compares the allocator with a model that records the state of each unit of each segment.

#include "io/store/extent_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "tests/seed.h"

namespace spillway::io {
namespace {

constexpr uint64_t kUnit = kIoAlignment;
constexpr uint64_t kNoLimit = UINT64_MAX;

TEST(ExtentAllocator, GivesNothingBeforeThereIsSpace) {
  ExtentAllocator extents(1, kNoLimit, 0);
  EXPECT_FALSE(extents.TakeWritten(0, kUnit));
  EXPECT_FALSE(extents.TakeFresh(0, kUnit));
  EXPECT_EQ(extents.used_bytes(), 0u);
}

TEST(ExtentAllocator, RoundsUpToUnits) {
  ExtentAllocator extents(1, kNoLimit, 0);
  extents.AddFresh(0, 0, 0, 4 * kUnit);
  const auto extent = extents.TakeFresh(0, kUnit + 1);
  ASSERT_TRUE(extent);
  EXPECT_EQ(*extent, (Extent{0, 0, 0, 2 * kUnit}));
  EXPECT_EQ(extents.used_bytes(), 2 * kUnit);
}

TEST(ExtentAllocator, WrittenSpaceIsPreferredByBestFit) {
  ExtentAllocator extents(1, kNoLimit, 0);
  extents.AddWritten(0, 0, 0, 8 * kUnit);
  extents.AddWritten(0, 0, 10 * kUnit, 3 * kUnit);
  extents.AddWritten(0, 0, 20 * kUnit, 2 * kUnit);
  EXPECT_EQ(extents.TakeWritten(0, 2 * kUnit)->offset, 20 * kUnit);
  EXPECT_EQ(extents.TakeWritten(0, 2 * kUnit)->offset, 10 * kUnit);
  EXPECT_EQ(extents.TakeWritten(0, 2 * kUnit)->offset, 0u);
  EXPECT_EQ(extents.TakeWritten(0, 7 * kUnit), std::nullopt);
}

TEST(ExtentAllocator, NeighboursBecomeOneRunInAnyOrder) {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    ExtentAllocator extents(1, kNoLimit, 0);
    extents.AddFresh(0, 0, 0, 4 * kUnit);
    std::vector<Extent> taken;
    for (int i = 0; i < 4; ++i) taken.push_back(*extents.TakeFresh(0, kUnit));
    for (int i : order) extents.Free(taken[static_cast<size_t>(i)]);
    EXPECT_EQ(extents.num_runs(), 1u);
    EXPECT_TRUE(extents.TakeWritten(0, 4 * kUnit));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(ExtentAllocator, RunsOfDifferentSegmentsStayApart) {
  ExtentAllocator extents(1, kNoLimit, 0);
  extents.AddWritten(0, 0, 0, 2 * kUnit);
  extents.AddWritten(0, 1, 0, 2 * kUnit);
  EXPECT_FALSE(extents.TakeWritten(0, 3 * kUnit));
  EXPECT_EQ(extents.num_runs(), 2u);
}

TEST(ExtentAllocator, FreshSpaceThatContinuesJoinsAndTheRestOfAnEarlierFileIsNotLost) {
  ExtentAllocator extents(1, kNoLimit, 0);
  extents.AddFresh(0, 0, 0, 2 * kUnit);
  extents.AddFresh(0, 0, 2 * kUnit, 2 * kUnit);
  ASSERT_TRUE(extents.TakeFresh(0, 3 * kUnit));
  extents.AddFresh(0, 1, 0, 4 * kUnit);
  EXPECT_EQ(extents.TakeWritten(0, kUnit), (Extent{0, 0, 3 * kUnit, kUnit}));
  EXPECT_EQ(extents.TakeFresh(0, 4 * kUnit), (Extent{0, 1, 0, 4 * kUnit}));
}

TEST(ExtentAllocator, BudgetIsHard) {
  ExtentAllocator extents(1, 5 * kUnit / 2, 0);
  extents.AddFresh(0, 0, 0, 8 * kUnit);
  EXPECT_TRUE(extents.WithinBudget(2 * kUnit));
  EXPECT_FALSE(extents.WithinBudget(2 * kUnit + 1));
  const auto extent = extents.TakeFresh(0, 2 * kUnit);
  ASSERT_TRUE(extent);
  EXPECT_FALSE(extents.TakeFresh(0, 1));
  extents.Free(*extent);
  EXPECT_TRUE(extents.TakeWritten(0, 1));
  EXPECT_FALSE(extents.TakeWritten(0, 2 * kUnit));
}

TEST(ExtentAllocator, BytesThatAreInUseFromTheStartCount) {
  ExtentAllocator extents(1, 3 * kUnit, 2 * kUnit);
  extents.AddWritten(0, 0, 0, 4 * kUnit);
  EXPECT_FALSE(extents.TakeWritten(0, 2 * kUnit));
  extents.Unuse(2 * kUnit);
  EXPECT_TRUE(extents.TakeWritten(0, 2 * kUnit));
}

TEST(ExtentAllocator, CutsTheFreeEndOfASegmentWrittenOrFresh) {
  ExtentAllocator extents(1, kNoLimit, 0);
  extents.AddWritten(0, 0, 2 * kUnit, 3 * kUnit);
  extents.AddWritten(0, 1, 0, 4 * kUnit);
  extents.AddFresh(0, 0, 5 * kUnit, 3 * kUnit);
  EXPECT_EQ(extents.CutTail(0, 0, 8 * kUnit), 2 * kUnit);
  EXPECT_EQ(extents.CutTail(0, 0, 2 * kUnit), 2 * kUnit);
  EXPECT_EQ(extents.CutTail(0, 1, 5 * kUnit), 5 * kUnit);
  EXPECT_EQ(extents.num_runs(), 1u);
  EXPECT_EQ(extents.CutTail(0, 1, 4 * kUnit), 0u);
  EXPECT_EQ(extents.num_runs(), 0u);
}

TEST(ExtentAllocator, KnowsWhichBytesAreFree) {
  ExtentAllocator extents(1, kNoLimit, 0);
  extents.AddWritten(0, 0, 2 * kUnit, 3 * kUnit);
  extents.AddFresh(0, 1, 4 * kUnit, 2 * kUnit);
  const auto has_free = [&](uint32_t segment, int first, int units) {
    return extents.HasFree(0, segment, static_cast<uint64_t>(first) * kUnit,
                           static_cast<uint64_t>(units) * kUnit);
  };
  for (int first = 0; first < 8; ++first) {
    for (int units = 1; units < 8; ++units) {
      EXPECT_EQ(has_free(0, first, units), first < 5 && first + units > 2) << first << "+" << units;
      EXPECT_EQ(has_free(1, first, units), first < 6 && first + units > 4) << first << "+" << units;
    }
  }
}

TEST(ExtentAllocatorDeathTest, FreeingTwiceIsABrokenInvariant) {
  ExtentAllocator extents(1, kNoLimit, 0);
  extents.AddFresh(0, 0, 0, 8 * kUnit);
  const Extent first = *extents.TakeFresh(0, kUnit);
  ASSERT_TRUE(extents.TakeFresh(0, kUnit));
  extents.Free(first);
  EXPECT_DEATH(extents.Free(first), "");
}

// Records whether each unit is fresh, free or taken. The model decides which calls must succeed.
class Model {
 public:
  enum State : char { kFresh, kFree, kTaken };
  using Segment = std::pair<uint16_t, uint32_t>;

  void Add(uint16_t device, uint32_t segment, uint64_t units, State state) {
    auto& cells = segments_[{device, segment}];
    cells.insert(cells.end(), units, state);
  }
  bool AllAre(const Extent& extent, State state) const {
    const auto& cells = segments_.at({extent.device, extent.segment});
    const uint64_t begin = extent.offset / kUnit;
    const uint64_t end = begin + extent.size_bytes / kUnit;
    return end <= cells.size() && std::all_of(cells.begin() + static_cast<long>(begin),
                                              cells.begin() + static_cast<long>(end),
                                              [state](State s) { return s == state; });
  }
  void Set(const Extent& extent, State state) {
    auto& cells = segments_[{extent.device, extent.segment}];
    for (uint64_t i = 0; i < extent.size_bytes / kUnit; ++i)
      cells[extent.offset / kUnit + i] = state;
  }
  // Turns the rest of the device's fresh space into free space, because another file was started.
  void RetireFresh(uint16_t device) {
    for (auto& [key, cells] : segments_) {
      if (key.first == device) std::replace(cells.begin(), cells.end(), kFresh, kFree);
    }
  }
  // Returns the lengths of the maximal free runs of a device.
  std::vector<uint64_t> FreeRuns(uint16_t device) const {
    std::vector<uint64_t> runs;
    for (const auto& [key, cells] : segments_) {
      if (key.first != device) continue;
      uint64_t length = 0;
      for (State state : cells) {
        if (state == kFree) ++length;
        if (state != kFree && length > 0) runs.push_back(std::exchange(length, 0));
      }
      if (length > 0) runs.push_back(length);
    }
    return runs;
  }
  // Returns the length of the shortest run that holds `units`, or 0 if there is none.
  uint64_t BestFit(uint16_t device, uint64_t units) const {
    uint64_t best = 0;
    for (uint64_t run : FreeRuns(device)) {
      if (run >= units && (best == 0 || run < best)) best = run;
    }
    return best;
  }
  // Returns the length of the maximal free run that contains the start of this extent.
  uint64_t RunAround(const Extent& extent) const {
    const auto& cells = segments_.at({extent.device, extent.segment});
    uint64_t begin = extent.offset / kUnit;
    uint64_t end = begin;
    while (begin > 0 && cells[begin - 1] == kFree) --begin;
    while (end < cells.size() && cells[end] == kFree) ++end;
    return end - begin;
  }

 private:
  std::map<Segment, std::vector<State>> segments_;
};

class RandomRun {
 public:
  explicit RandomRun(uint64_t seed)
      : random_(seed),
        num_devices_(static_cast<uint16_t>(1 + random_() % 3)),
        extents_(num_devices_, kBudget, 0) {
    next_segment_.resize(num_devices_);
  }

  void Step() {
    switch (random_() % 8) {
      case 0: return AddSpace();
      case 1:
      case 2:
      case 3: return Free();
      default: return Take();
    }
  }
  void Check() const {
    uint64_t used = 0;
    for (const Extent& extent : taken_) used += extent.size_bytes;
    ASSERT_EQ(extents_.used_bytes(), used);
    ASSERT_LE(used, kBudget);
  }

 private:
  static constexpr uint64_t kBudget = 600 * kUnit;

  void AddSpace() {
    const uint16_t device = static_cast<uint16_t>(random_() % num_devices_);
    const uint64_t units = 1 + random_() % 40;
    const bool written = random_() % 3 == 0;
    const uint32_t segment = next_segment_[device]++;
    if (written) {
      extents_.AddWritten(device, segment, 0, units * kUnit);
      model_.Add(device, segment, units, Model::kFree);
    } else {
      model_.RetireFresh(device);
      extents_.AddFresh(device, segment, 0, units * kUnit);
      model_.Add(device, segment, units, Model::kFresh);
    }
  }
  void Free() {
    if (taken_.empty()) return;
    std::swap(taken_[random_() % taken_.size()], taken_.back());
    extents_.Free(taken_.back());
    model_.Set(taken_.back(), Model::kFree);
    taken_.pop_back();
  }
  void Take() {
    const uint32_t size_bytes = static_cast<uint32_t>(1 + random_() % (12 * kUnit));
    const uint64_t units = (size_bytes + kUnit - 1) / kUnit;
    const bool fits_budget = extents_.used_bytes() + units * kUnit <= kBudget;
    const uint16_t device = static_cast<uint16_t>(random_() % num_devices_);
    const uint64_t best_fit = model_.BestFit(device, units);
    std::optional<Extent> extent = extents_.TakeWritten(device, size_bytes);
    ASSERT_EQ(extent.has_value(), fits_budget && best_fit > 0);
    if (extent) {
      ASSERT_TRUE(model_.AllAre(*extent, Model::kFree));
      ASSERT_EQ(model_.RunAround(*extent), best_fit);
    } else {
      extent = extents_.TakeFresh(device, size_bytes);
      if (!extent) return;
      ASSERT_TRUE(fits_budget);
      ASSERT_TRUE(model_.AllAre(*extent, Model::kFresh));
    }
    ASSERT_EQ(extent->device, device);
    ASSERT_EQ(extent->size_bytes, units * kUnit);
    model_.Set(*extent, Model::kTaken);
    taken_.push_back(*extent);
  }

  std::mt19937_64 random_;
  uint16_t num_devices_;
  ExtentAllocator extents_;
  Model model_;
  std::vector<uint32_t> next_segment_;
  std::vector<Extent> taken_;
};

TEST(ExtentAllocator, AgreesWithTheModel) {
  const uint64_t first = test::Seed();
  for (uint64_t seed = first; seed != first + 30; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    RandomRun run(seed);
    for (int step = 0; step < 2000; ++step) {
      run.Step();
      if (::testing::Test::HasFatalFailure()) return;
    }
    run.Check();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace spillway::io
