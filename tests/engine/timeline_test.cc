// SPDX-License-Identifier: Apache-2.0
//
// Compares the engine's timeline with the engine's counters. Bytes must be equal, occupancy must
// stay within the budgets, and spans must be possible.

#include "spillway/timeline.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spillway/engine.h"
#include "src/base/clock.h"
#include "tests/exhaustive.h"
#include "tests/temp_folder.h"

namespace spillway {
namespace {

using Kind = TimelineEvent::Kind;
using ::testing::IsEmpty;

constexpr int kTensors = 6;
constexpr int kTiles = 4;

// Six tensors of 256 KiB in 256 KiB of device and 512 KiB of pinned memory.
class TimelineTest : public ::testing::Test {
 protected:
  void Open(uint64_t timeline_events) {
    auto engine = Engine::Open({.store = {folder_ / "store"},
                                .device_bytes = 256 * kKiB,
                                .pinned_bytes = 512 * kKiB,
                                .page_bytes = 16 * kKiB,
                                .timeline_events = timeline_events});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    for (int i = 0; i < kTensors; ++i) {
      const auto id = engine_->Register(
          {.name = "t" + std::to_string(i), .shape = {kTiles, 16384}, .tile_rows = 1});
      ASSERT_TRUE(id.ok()) << id.status();
      tensors_.push_back(*id);
    }
  }

  // Adds one to every value, then commits.
  void Step() {
    for (const TensorId tensor : tensors_) {
      for (uint64_t tile = 0; tile < kTiles; ++tile) {
        auto lease = engine_->Acquire({tensor, tile}, Access::kReadWrite);
        ASSERT_TRUE(lease.ok()) << lease.status();
        for (float& value : lease->as<float>()) value += 1;
      }
    }
    ASSERT_TRUE(engine_->EndStep().ok());
    ASSERT_TRUE(engine_->WaitForPlan().ok());
    ASSERT_TRUE(engine_->Commit("x").ok());
  }

  test::TempFolder folder_;
  std::unique_ptr<Engine> engine_;
  std::vector<TensorId> tensors_;
};

std::map<Kind, uint64_t> BytesByKind(const Timeline& timeline) {
  std::map<Kind, uint64_t> bytes;
  for (const TimelineEvent& event : timeline.events) {
    if (!event.failed) bytes[event.kind] += event.size_bytes;
  }
  return bytes;
}

TEST_F(TimelineTest, NothingIsRecordedUnlessAskedFor) {
  Open(0);
  Step();
  const Timeline timeline = engine_->TakeTimeline();
  EXPECT_THAT(timeline.events, IsEmpty());
  EXPECT_THAT(timeline.tensors, IsEmpty());
}

TEST_F(TimelineTest, BytesOfEachLinkAreThoseThatTheEngineCounted) {
  Open(100'000);
  for (int i = 0; i < 3; ++i) Step();
  // A prefetch for the next step may end at any time. The timeline's own counts are of the same
  // moment as its events.
  const EngineStats before = engine_->Stats();
  const Timeline timeline = engine_->TakeTimeline();
  const EngineStats after = engine_->Stats();
  ASSERT_EQ(timeline.dropped, 0U);
  std::map<Kind, uint64_t> bytes = BytesByKind(timeline);
  ASSERT_GT(before.nvme.read_bytes, 0U);
  ASSERT_GT(before.pinned.written_bytes, 0U);
  EXPECT_EQ(bytes[Kind::kRead], timeline.nvme.read_bytes);
  EXPECT_EQ(bytes[Kind::kWrite], timeline.nvme.written_bytes);
  EXPECT_EQ(bytes[Kind::kCopyIn], timeline.pinned.read_bytes);
  EXPECT_EQ(bytes[Kind::kCopyOut], timeline.pinned.written_bytes);
  const auto expect_between = [](uint64_t least, uint64_t count, uint64_t most) {
    EXPECT_LE(least, count);
    EXPECT_LE(count, most);
  };
  expect_between(before.nvme.read_bytes, timeline.nvme.read_bytes, after.nvme.read_bytes);
  expect_between(before.nvme.written_bytes, timeline.nvme.written_bytes, after.nvme.written_bytes);
  expect_between(before.pinned.read_bytes, timeline.pinned.read_bytes, after.pinned.read_bytes);
  expect_between(before.pinned.written_bytes, timeline.pinned.written_bytes,
                 after.pinned.written_bytes);

  Step();
  const Timeline next = engine_->TakeTimeline();
  EXPECT_EQ(next.begin_ns, timeline.end_ns);
  EXPECT_EQ(BytesByKind(next)[Kind::kRead], next.nvme.read_bytes) << "each takes what is new";
}

TEST_F(TimelineTest, OccupancyIsWithinTheBudgetsAndReachesWhatWasCounted) {
  Open(100'000);
  for (int i = 0; i < 3; ++i) Step();
  const Timeline timeline = engine_->TakeTimeline();
  EXPECT_EQ(timeline.budget_bytes,
            (std::array<uint64_t, kNumTiers>{256 * kKiB, 512 * kKiB, kUnlimited}));
  std::array<uint64_t, kNumTiers> most{};
  for (const TimelineEvent& event : timeline.events) {
    if (event.kind != Kind::kOccupancy) continue;
    const auto tier = static_cast<size_t>(event.tier);
    EXPECT_LE(event.size_bytes, timeline.budget_bytes[tier]);
    most[tier] = std::max(most[tier], event.size_bytes);
  }
  EXPECT_EQ(most[0], 256 * kKiB);
  EXPECT_GT(most[1], 256 * kKiB);
  EXPECT_GE(most[2], kTensors * 256 * kKiB);
}

TEST_F(TimelineTest, ACallerComputesWaitsOrCommitsAndNeverTwoOfThem) {
  Open(100'000);
  for (int i = 0; i < 3; ++i) Step();
  const Timeline timeline = engine_->TakeTimeline();
  std::vector<std::pair<int64_t, int64_t>> spans;
  int stalls = 0, commits = 0;
  for (const TimelineEvent& event : timeline.events) {
    EXPECT_LE(timeline.begin_ns, event.begin_ns);
    EXPECT_LE(event.begin_ns, event.end_ns);
    EXPECT_LE(event.end_ns, timeline.end_ns);
    stalls += event.kind == Kind::kStall ? 1 : 0;
    commits += event.kind == Kind::kCommit ? 1 : 0;
    if (event.kind == Kind::kStall || event.kind == Kind::kCompute || event.kind == Kind::kCommit) {
      EXPECT_EQ(event.thread, 0);
      spans.emplace_back(event.begin_ns, event.end_ns);
    }
    if (event.kind == Kind::kStall) {
      EXPECT_THAT(timeline.TileName(event.tile), ::testing::StartsWith("t"));
      EXPECT_NE(event.other, TimelineEvent::kNoTile);
    }
  }
  EXPECT_GT(stalls, kTensors * kTiles) << "nothing was declared, so every lease waits";
  EXPECT_EQ(commits, 3);
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); ++i) EXPECT_LE(spans[i - 1].second, spans[i].first) << i;
}

TEST_F(TimelineTest, AFewEventsAreTheNewest) {
  Open(50);
  for (int i = 0; i < 3; ++i) Step();
  const Timeline timeline = engine_->TakeTimeline();
  EXPECT_EQ(timeline.events.size(), 50U + kNumTiers) << "and the level of each tier";
  EXPECT_GT(timeline.dropped, 100U);
  EXPECT_EQ(std::count_if(timeline.events.begin(), timeline.events.end(),
                          [](const TimelineEvent& event) { return event.kind == Kind::kCommit; }),
            1);
}

TEST_F(TimelineTest, TooManyEventsAreRefused) {
  const auto engine = Engine::Open({.timeline_events = kUnlimited});
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(engine.status().message()), ::testing::HasSubstr("timeline_events"));
}

TEST_F(TimelineTest, MoreEventsThanTheProcessHasAddressesForAreRefused) {
  if (SPILLWAY_IS_SANITIZED) GTEST_SKIP() << "a sanitizer needs more addresses than the limit";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit limit = {std::min<rlim_t>(rlim_t{16} << 30, before.rlim_max), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  const auto engine = Engine::Open(
      {.device_bytes = kMiB, .pinned_bytes = kMiB, .timeline_events = 1'000'000'000});  // 40 GB
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kResourceExhausted) << engine.status();
  EXPECT_THAT(std::string(engine.status().message()), ::testing::HasSubstr("timeline_events"));
}

TEST(Timeline, NamesATileByItsTensor) {
  Timeline timeline;
  timeline.tensors = {{"a", 0, 1}, {"b", 1, 3}};
  EXPECT_EQ(timeline.TileName(0), "a");
  EXPECT_EQ(timeline.TileName(3), "b [2]");
  EXPECT_EQ(timeline.TileName(TimelineEvent::kNoTile), "");
}

// A lease of a resident tile is only logged. Any thread may be the first to apply the log.
TEST_F(TimelineTest, AReaderComputesWhoeverHearsOfItsLease) {
  Open(100'000);
  const auto lease = [&](uint64_t tile, Access access) {
    auto taken = engine_->Acquire({tensors_[0], tile}, access);
    EXPECT_TRUE(taken.ok()) << taken.status();
    return taken;
  };
  const auto compute = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  for (const uint64_t tile : {1, 2, 3}) (void)lease(tile, Access::kRead);
  std::thread([&] {
    {
      const auto written = lease(0, Access::kReadWrite), read = lease(1, Access::kRead);
    }
    compute();
    const auto read = lease(2, Access::kRead);
    std::thread([&] { (void)engine_->Stats(); }).join();
    compute();
    const auto written = lease(3, Access::kReadWrite);
  }).join();
  std::map<uint32_t, uint16_t> thread_of;  // the thread that last computed with each tile
  for (const TimelineEvent& event : engine_->TakeTimeline().events) {
    if (event.kind == Kind::kCompute) thread_of[event.tile] = event.thread;
  }
  ASSERT_EQ(thread_of.count(1), 1U);
  ASSERT_EQ(thread_of.count(2), 1U);
  EXPECT_EQ(thread_of[2], thread_of[1]);
}

// The system gives the id of a thread that has ended to the next one.
TEST_F(TimelineTest, NoThreadComputesBetweenTwoThreads) {
  Open(100'000);
  for (const uint64_t tile : {1, 2, 3}) (void)*engine_->Acquire({tensors_[0], tile}, Access::kRead);
  const auto compute = [&] {
    std::thread([&] {
      for (const uint64_t tile : {1, 2, 3}) {
        (void)*engine_->Acquire({tensors_[0], tile}, Access::kRead);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }).join();
    return base::NowNs();
  };
  const int64_t between = compute();
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  compute();
  int before = 0, after = 0;
  for (const TimelineEvent& event : engine_->TakeTimeline().events) {
    if (event.kind != Kind::kCompute || event.thread == 0) continue;  // 0: this thread, above
    before += event.end_ns < between ? 1 : 0;
    after += event.begin_ns > between ? 1 : 0;
    EXPECT_FALSE(event.begin_ns <= between && between <= event.end_ns)
        << event.begin_ns - between << " to " << event.end_ns - between;
  }
  EXPECT_EQ(before, 2);
  EXPECT_EQ(after, 2);
}

}  // namespace
}  // namespace spillway
