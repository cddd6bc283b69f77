// SPDX-License-Identifier: Apache-2.0

#include "io/store/calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "io/faulty_io_engine.h"
#include "io/make_io_engine.h"
#include "io/store/calibration_ladder.h"
#include "spillway/interrupt.h"
#include "src/base/mutex.h"
#include "tests/io/io_test_util.h"
#include "tests/io/io_uring_here.h"
#include "tests/temp_folder.h"

namespace spillway::io {
namespace {

const CalibrationOptions kQuick = {.file_bytes = 64 << 20,
                                   .queue_bytes = 32 << 20,
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

TEST(Calibration, ASizeCountsWithItsWorstKindOfLoad) {
  using ByKind = std::vector<Rates>;
  EXPECT_EQ(LeastShares(ByKind{{10, 5, 8}, {2, 4, 3}}), (Rates{0.5, 0.5, 0.75}));
  EXPECT_EQ(LeastShares(ByKind{{10, 0, 8}, {4, 0, 0}, {0, 0, 0}}), (Rates{1, 0, 0}))
      << "what was not measured is not chosen";
  const auto chosen = [](const ByKind& rates) { return DefaultOrBest(LeastShares(rates), 0); };
  EXPECT_EQ(chosen({{10, 10, 10}, {6, 10, 9}, {9, 10, 10}}), 1u)
      << "writes of the default are slow";
  EXPECT_EQ(chosen({{8, 10, 5}, {8, 6, 10}, {8, 7, 9}}), 0u);
}

// Each candidate costs a part of a short time limit, and the last ones must not be left out.
TEST(Calibration, FewDepthsReachFromOneWriteToAllOfTheQueue) {
  EXPECT_EQ(MixedWriteDepths(1), (std::vector<int>{1}));
  EXPECT_EQ(MixedWriteDepths(2), (std::vector<int>{1, 2}));
  EXPECT_EQ(MixedWriteDepths(64), (std::vector<int>{1, 4, 16, 64}));
  EXPECT_EQ(MixedWriteDepths(128), (std::vector<int>{1, 4, 16, 64, 128}));
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

// Passes everything on to an engine, and records the depths and the requests.
class RecordingIoEngine final : public IoEngine {
 public:
  explicit RecordingIoEngine(std::unique_ptr<IoEngine> engine) : engine_(std::move(engine)) {}

  std::string_view name() const override { return engine_->name(); }
  absl::StatusOr<FileId> AddFile(int fd, std::string path, uint16_t device) override {
    return engine_->AddFile(fd, std::move(path), device);
  }
  absl::Status RemoveFile(FileId file) override { return engine_->RemoveFile(file); }
  void AddBuffer(std::span<std::byte> memory) override { engine_->AddBuffer(memory); }
  void RemoveBuffers() override { engine_->RemoveBuffers(); }
  int unregistered_buffers() const override { return engine_->unregistered_buffers(); }
  void SetDepths(uint16_t device, const QueueDepths& depths) override {
    sections_.push_back({depths});
    engine_->SetDepths(device, depths);
  }
  void Submit(std::span<const IoRequest> requests) override {
    Section& now = sections_.back();
    for (const IoRequest& request : requests) {
      ++(request.op == IoOp::kRead ? now.reads : now.writes);
      now.most_apart = std::max(now.most_apart, std::abs(now.reads - now.writes));
    }
    engine_->Submit(requests);
    now.most_under_way = std::max(now.most_under_way, engine_->in_flight());
    const uint64_t bytes = static_cast<uint64_t>(engine_->in_flight()) * requests[0].size_bytes;
    now.most_bytes_under_way = std::max(now.most_bytes_under_way, bytes);
  }
  void Reap(absl::Duration timeout, std::vector<IoCompletion>* done) override {
    engine_->Reap(timeout, done);
  }
  void Wake() override { engine_->Wake(); }
  int in_flight() const override { return engine_->in_flight(); }

  // What was submitted while the depths were the same.
  struct Section {
    QueueDepths depths;
    int reads = 0, writes = 0;
    int most_apart = 0;  // the difference between reads and writes at any time
    int most_under_way = 0;
    uint64_t most_bytes_under_way = 0;  // all requests of a sample have the same size
  };
  const std::vector<Section>& sections() const { return sections_; }

 private:
  const std::unique_ptr<IoEngine> engine_;
  std::vector<Section> sections_;
};

class CalibrationTest : public ::testing::TestWithParam<IoKind> {
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
            kQuick.queue_bytes);
  EXPECT_GE(profile->write_depth, profile->mixed_write_depth);
  EXPECT_GE(profile->mixed_write_depth, 1);
  EXPECT_GT(profile->read_bytes_per_second, 0);
  EXPECT_GT(profile->write_bytes_per_second, 0);
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
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("cannot calibrate the device of " + testing::TempDir()));
    EXPECT_EQ(engine->in_flight(), 0);
  }
  auto engine = *MakeIoEngine(GetParam(), {}, testing::TempDir());
  EXPECT_FALSE(Calibrate("/nonexistent", *engine, 0, kQuick).ok());
}

// The number of writes beside reads is measured with the queue that a run has, in a stream of
// alternating reads and writes. In the least memory, too, all of its requests find a place.
TEST_P(CalibrationTest, WritesBesideReadsAreMeasuredInAStreamOfBoth) {
  RecordingIoEngine engine(*MakeIoEngine(GetParam(), {}, testing::TempDir()));
  CalibrationOptions options = kQuick;
  options.queue_bytes = kLeastCalibrationBytes;
  const auto profile = Calibrate(testing::TempDir(), engine, 0, options);
  ASSERT_TRUE(profile.ok()) << profile.status();
  // The first section has the reads and writes alone, the last one the result.
  const std::vector<RecordingIoEngine::Section>& sections = engine.sections();
  ASSERT_GE(sections.size(), 3u);
  const std::vector<int> writes = MixedWriteDepths(profile->write_depth);
  for (size_t i = 1; i + 1 < sections.size(); ++i) {
    const RecordingIoEngine::Section& section = sections[i];
    EXPECT_EQ(section.depths.read, profile->read_depth);
    EXPECT_EQ(section.depths.write, profile->write_depth);
    EXPECT_EQ(section.depths.request_bytes, profile->request_bytes);
    EXPECT_EQ(std::count(writes.begin(), writes.end(), section.depths.mixed_write), 1);
    EXPECT_GT(section.reads, 0);
    EXPECT_GT(section.writes, 0);
    EXPECT_LE(section.most_apart, 1);
    EXPECT_LE(static_cast<uint64_t>(section.most_under_way) * profile->request_bytes,
              options.queue_bytes);
  }
  EXPECT_EQ(sections[1].depths.mixed_write, 1);
  EXPECT_EQ(sections.back().depths, DepthsOf(*profile));
}

// The depths that are tried do not end with the memory: several requests share it.
TEST(CalibrationQueues, AreLongerThanTheMemory) {
  if (!CanRun(IoKind::kUring)) GTEST_SKIP() << kNoIoUring;
  RecordingIoEngine engine(*MakeIoEngine(IoKind::kUring, {}, testing::TempDir()));
  CalibrationOptions options = kQuick;
  options.memory_bytes = 4 << 20;
  const auto profile = Calibrate(testing::TempDir(), engine, 0, options);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_GT(engine.sections()[0].most_bytes_under_way, options.memory_bytes);
}

TEST_P(CalibrationTest, AnErrorNamesTheFolderAndWhatToDo) {
  auto engine = *MakeIoEngine(GetParam(), {}, testing::TempDir());
  CalibrationOptions options = kQuick;
  options.queue_bytes = options.memory_bytes = uint64_t{1} << 60;
  const absl::Status status = Calibrate(testing::TempDir(), *engine, 0, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("cannot calibrate the device of " + testing::TempDir()));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("end other programs"));
}

TEST_P(CalibrationTest, StopsWhenItIsAskedTo) {
  std::atomic<bool> stop = false;
  std::atomic<int> answers = 0;
  const auto stop_later = [&](const IoRequest&, int64_t result) {
    if (++answers == 20) stop = true;
    return result;
  };
  auto engine = *MakeIoEngine(GetParam(), {.result_hook = stop_later}, testing::TempDir());
  CalibrationOptions options = kQuick;
  options.stop = &stop;
  const absl::Status status = Calibrate(testing::TempDir(), *engine, 0, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_LT(answers, 150) << "what was under way, and no more";
  EXPECT_EQ(engine->in_flight(), 0);
}

TEST_P(CalibrationTest, TheInterruptOfItsThreadEndsIt) {
  auto engine = *MakeIoEngine(GetParam(), {}, testing::TempDir());
  int checks = 0;
  SetInterrupt([&] { return ++checks == 2; });
  const absl::Status status = Calibrate(testing::TempDir(), *engine, 0, kQuick).status();
  SetInterrupt({});
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(checks, 2) << "what was taken is not put back, so no other may be taken";
  EXPECT_EQ(engine->in_flight(), 0);
  EXPECT_TRUE(Calibrate(testing::TempDir(), *engine, 0, kQuick).ok());
}

// Each request takes 10 ms and the requests run one at a time, so the device does at most 100 of
// them in a second. Each step ends with its share of the time limit.
TEST_P(CalibrationTest, ASlowDeviceIsMeasuredWithinTheLimit) {
  base::Mutex one;
  std::atomic<int> answers = 0;
  const auto slow = [&](const IoRequest&, int64_t result) {
    base::MutexLock lock(&one);
    absl::SleepFor(absl::Milliseconds(10));
    ++answers;
    return result;
  };
  auto engine = *MakeIoEngine(GetParam(), {.result_hook = slow}, testing::TempDir());
  CalibrationOptions options = kQuick;
  options.queue_bytes = 128 << 20;
  options.limit = absl::Seconds(1);
  options.sample = absl::Milliseconds(20);
  const auto profile = Calibrate(testing::TempDir(), *engine, 0, options);
  ASSERT_TRUE(profile.ok()) << profile.status();
  // There are 142 to 179, because a step looks at the time after each Reap, which may return all
  // that is under way. There were 248 to 261 when each sample had the whole limit for itself.
  EXPECT_LT(answers, 220);
}

// The store keeps the measured profile. It is measured again only on request.
TEST_P(CalibrationTest, TheStoreKeepsWhatWasFound) {
  const test::TempFolder temp;
  const std::string folder = temp / "store";
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

// The first write, which is of the first device's file, finds the disk full.
TEST_P(CalibrationTest, ADeviceThatCannotBeMeasuredLeavesTheOthersToBeMeasured) {
  const test::TempFolder temp;
  std::atomic<bool> has_failed = false;
  const auto full = [&](const IoRequest& request, int64_t result) -> int64_t {
    return request.op == IoOp::kWrite && !has_failed.exchange(true) ? -ENOSPC : result;
  };
  auto engine = *MakeIoEngine(GetParam(), {.result_hook = full}, testing::TempDir());
  const std::vector<std::string> folders = {temp / "a", temp / "b"};
  auto store = Store::Open({.folders = folders, .scratch = true}, engine.get());
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::Status status = CalibrateStore(**store, folders, *engine, /*again=*/false, kQuick);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_FALSE((*store)->Profile(0).has_value());
  EXPECT_TRUE((*store)->Profile(1).has_value());
}

INSTANTIATE_TEST_SUITE_P(Engines, CalibrationTest, testing::Values(IoKind::kUring, IoKind::kPosix),
                         [](const auto& kind) {
                           return kind.param == IoKind::kUring ? "Uring" : "Posix";
                         });

}  // namespace
}  // namespace spillway::io
