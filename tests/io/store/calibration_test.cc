// SPDX-License-Identifier: Apache-2.0

#include "io/store/calibration.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <vector>

#include "absl/time/clock.h"
#include "io/faulty_io_engine.h"
#include "io/make_io_engine.h"
#include "src/base/mutex.h"
#include "tests/io/io_test_util.h"
#include "tests/io/io_uring_here.h"

namespace spillway::io {
namespace {

const CalibrationOptions kQuick = {.file_bytes = 64 << 20,
                                   .memory_bytes = 32 << 20,
                                   .limit = absl::Milliseconds(300),
                                   .sample = absl::Milliseconds(1)};

using Rates = std::vector<double>;

TEST(Calibration, TakesTheSmallestWithinThreePercentOfTheBest) {
  EXPECT_EQ(SmallestGoodEnough(Rates{5}), 0u);
  EXPECT_EQ(SmallestGoodEnough(Rates{1, 2, 3, 4}), 3u);
  EXPECT_EQ(SmallestGoodEnough(Rates{50, 97, 100, 99}), 1u);
  EXPECT_EQ(SmallestGoodEnough(Rates{50, 96.9, 100, 120}), 3u);
  EXPECT_EQ(SmallestGoodEnough(Rates{3, 1, 0, 0}), 0u);
}

TEST(Calibration, AQueueMustOutlastTheGapsOfARun) {
  // At 4 GB/s these queues last for 4, 8, 16, 32 and 64 ms.
  const std::vector<uint64_t> bytes = {16 << 20, 32 << 20, 64 << 20, 128 << 20, 256 << 20};
  const auto chosen = [&bytes](const Rates& rates) {
    return bytes[SmallestGoodEnough(RunRates(Smoothed(rates), bytes))] >> 20;
  };
  EXPECT_EQ(chosen({4e9, 4e9, 4e9, 4e9, 4e9}), 128u);
  EXPECT_EQ(chosen({4e9, 6e9, 4e9, 4e9, 4e9}), 128u) << "one lucky sample";
  EXPECT_EQ(chosen({4e9, 4e9, 4e9, 2e9, 4e9}), 128u) << "one unlucky sample";
  EXPECT_EQ(chosen({4e9, 4e9, 4e9, 3.5e9, 3.5e9}), 64u) << "deeper is slower";
  EXPECT_EQ(chosen({4e9, 4e9, 4e9, 0, 0}), 64u) << "no time for more";
  EXPECT_EQ(chosen({0.1e9, 0.1e9, 0.1e9, 0.1e9, 0.1e9}), 16u) << "all last for long";
  EXPECT_EQ(chosen({1e9, 1.3e9, 1.6e9, 1.6e9, 1.6e9}), 64u) << "the deepest last for 170 ms";
  EXPECT_EQ(chosen({3e9, 0, 0, 0, 0}), 16u);
  EXPECT_DOUBLE_EQ(RunRates(Rates{1e9}, std::vector<uint64_t>{2'000'000})[0], 0.5e9);
  EXPECT_EQ(RunRates(Rates{0}, std::vector<uint64_t>{1})[0], 0);
}

TEST(Calibration, ADepthCountsWithItsNeighbours) {
  EXPECT_EQ(Smoothed(Rates{1, 2, 3, 9, 4}), (Rates{1.5, 2, 3, 4, 6.5}));
  EXPECT_EQ(Smoothed(Rates{1, 2, 0, 4}), (Rates{1.5, 1.5, 0, 4}));
  EXPECT_EQ(Smoothed(Rates{3}), Rates{3});
  EXPECT_EQ(Smoothed(Rates{0, 0}), (Rates{0, 0}));
}

TEST(Calibration, KeepsTheDefaultUnlessAnotherIsClearlyFaster) {
  EXPECT_EQ(DefaultOrBest(Rates{100, 95, 70, 99}, 2), 2u);
  EXPECT_EQ(DefaultOrBest(Rates{100, 95, 69, 99}, 2), 0u);
  EXPECT_EQ(DefaultOrBest(Rates{50, 50, 70, 80}, 1), 3u);
  EXPECT_EQ(DefaultOrBest(Rates{3, 0, 0}, 1), 1u) << "there was no time for the default";
}

// Regression test: a read depth that filled the memory left none for the concurrent writes, and the
// process aborted.
TEST(Calibration, ReadsAndWritesTogetherFitTheMemory) {
  for (const int slots : {2, 4, 8, 16, 64, 512}) {
    for (int reads = 2; reads <= slots; reads *= 2) {
      for (int writes = 2; writes <= slots; writes *= 2) {
        const std::vector<MixedDepth> depths = MixedDepths(reads, writes, slots);
        ASSERT_FALSE(depths.empty());
        EXPECT_EQ(depths[0].writes, 1);
        for (const MixedDepth& depth : depths) {
          EXPECT_GE(depth.reads, 1);
          EXPECT_LE(depth.reads, reads);
          EXPECT_LE(depth.writes, writes);
          EXPECT_LE(depth.reads + depth.writes, slots);
        }
      }
    }
  }
  EXPECT_EQ(MixedDepths(/*read_depth=*/4, /*write_depth=*/2, /*slots=*/64).back().reads, 4);
}

TEST(Calibration, ComparesMixesByTheTimeOfEqualShares) {
  const DeviceProfile alone = {.read_bytes_per_second = 4, .write_bytes_per_second = 2};
  EXPECT_DOUBLE_EQ(EqualSharesRate(2, 2, alone), 4);  // both take half a second
  // The read takes half a second. The last half byte of the write then takes a quarter.
  EXPECT_DOUBLE_EQ(EqualSharesRate(2, 1, alone), 2 / 0.75);
  EXPECT_DOUBLE_EQ(EqualSharesRate(1, 2, alone), 2 / (0.5 + 0.125));
}

TEST(Calibration, SaysHowLongAReadWaits) {
  const DeviceProfile profile = {.request_bytes = 2 << 20,
                                 .read_depth = 8,
                                 .write_depth = 16,
                                 .mixed_write_depth = 2,
                                 .read_bytes_per_second = 1e9,
                                 .write_bytes_per_second = double{32 << 20}};
  EXPECT_DOUBLE_EQ(SecondsBehindWrites(profile), 1);
}

class CalibrationTest : public ::testing::TestWithParam<IoEngineKind> {
 protected:
  void SetUp() override {
    if (!CanRun(GetParam())) GTEST_SKIP() << kNoIoUring;
  }
};

TEST_P(CalibrationTest, FindsSettingsThatTheDeviceTakes) {
  auto engine = *MakeIoEngine(GetParam(), {}, testing::TempDir());
  const auto profile = Calibrate(testing::TempDir(), *engine, 1, kQuick);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_GE(profile->request_bytes, 128u << 10);
  EXPECT_LE(profile->request_bytes, 2u << 20);
  EXPECT_EQ(profile->request_bytes % kIoAlignment, 0u);
  EXPECT_GE(profile->read_depth, 1);
  EXPECT_LE(static_cast<uint64_t>(profile->read_depth) * profile->request_bytes,
            kQuick.memory_bytes);
  EXPECT_GE(profile->write_depth, profile->mixed_write_depth);
  EXPECT_GE(profile->mixed_write_depth, 1);
  EXPECT_GT(profile->read_bytes_per_second, 1e6);
  EXPECT_GT(profile->write_bytes_per_second, 1e6);
  EXPECT_EQ(engine->in_flight(), 0);
  EXPECT_EQ(engine->unregistered_buffers(), 0);
}

TEST_P(CalibrationTest, AFailureIsReportedAndNothingStaysInFlight) {
  for (const IoOp op : {IoOp::kRead, IoOp::kWrite}) {
    auto engine = *FaultyIoEngine::Create(1, [&](ResultHook hook) {
      return MakeIoEngine(GetParam(), {.result_hook = std::move(hook)}, testing::TempDir());
    });
    engine->Inject({.kind = Fault::Kind::kEio, .op = op, .skip = 3});
    const absl::Status status = Calibrate(testing::TempDir(), *engine, 0, kQuick).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(engine->in_flight(), 0);
  }
  auto engine = *MakeIoEngine(GetParam(), {}, testing::TempDir());
  EXPECT_FALSE(Calibrate("/nonexistent", *engine, 0, kQuick).ok());
}

TEST_P(CalibrationTest, StopsWhenItIsAskedTo) {
  std::atomic<bool> stop = false;
  std::atomic<int> answers = 0;
  const auto stop_later = [&](const IoRequest&, int64_t result) {
    if (++answers == 100) stop = true;
    return result;
  };
  auto engine = *MakeIoEngine(GetParam(), {.result_hook = stop_later}, testing::TempDir());
  CalibrationOptions options = kQuick;
  options.stop = &stop;
  const absl::Status status = Calibrate(testing::TempDir(), *engine, 0, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_LT(answers, 400) << "what was under way, and no more";
  EXPECT_EQ(engine->in_flight(), 0);
}

// Each request takes 5 ms and the requests run one at a time, so the device does 200 requests in a
// second. A queue of a tenth of a second holds 20 requests. Neither filling the file nor the series
// of measured depths exceeds the time limit.
TEST_P(CalibrationTest, ASlowDeviceGetsAShortQueue) {
  base::Mutex one;
  const auto slow = [&](const IoRequest&, int64_t result) {
    base::MutexLock lock(&one);
    absl::SleepFor(absl::Milliseconds(5));
    return result;
  };
  auto engine = *MakeIoEngine(GetParam(), {.result_hook = slow}, testing::TempDir());
  CalibrationOptions options = kQuick;
  options.limit = absl::Seconds(2);
  options.sample = absl::Milliseconds(20);
  const auto profile = Calibrate(testing::TempDir(), *engine, 0, options);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_LE(profile->read_depth, 32);
  EXPECT_LE(profile->write_depth, 32);
}

// The store keeps the measured profile. It is measured again only on request.
TEST_P(CalibrationTest, TheStoreKeepsWhatWasFound) {
  const std::string folder = testing::TempDir() + "/spillway-calibration-test";
  auto engine = *MakeIoEngine(GetParam(), {}, testing::TempDir());
  auto store = Store::Open({.folders = {folder}, .scratch = true}, engine.get());
  ASSERT_TRUE(store.ok()) << store.status();
  const std::vector<std::string> folders = {folder};
  ASSERT_TRUE(CalibrateStore(**store, folders, *engine, /*again=*/false, kQuick).ok());
  const auto first = (*store)->Profile(0);
  ASSERT_TRUE(first.has_value());
  DeviceProfile mine = *first;
  mine.read_bytes_per_second = 1;
  ASSERT_TRUE((*store)->SetProfile(0, mine).ok());
  ASSERT_TRUE(CalibrateStore(**store, folders, *engine, /*again=*/false, kQuick).ok());
  EXPECT_EQ((*store)->Profile(0), mine);
  ASSERT_TRUE(CalibrateStore(**store, folders, *engine, /*again=*/true, kQuick).ok());
  EXPECT_NE((*store)->Profile(0), mine);
}

INSTANTIATE_TEST_SUITE_P(Engines, CalibrationTest,
                         testing::Values(IoEngineKind::kUring, IoEngineKind::kPosix),
                         [](const auto& kind) {
                           return kind.param == IoEngineKind::kUring ? "Uring" : "Posix";
                         });

}  // namespace
}  // namespace spillway::io
