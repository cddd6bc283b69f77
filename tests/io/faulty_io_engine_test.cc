// SPDX-License-Identifier: Apache-2.0
//
// Tests that each fault affects the requests that it matches and no others. The conformance suite
// runs the engine with an empty script.

#include "io/faulty_io_engine.h"

#include <unistd.h>

#include <bit>
#include <cstring>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "io/make_io_engine.h"
#include "tests/io/io_test_util.h"
#include "tests/io/io_uring_here.h"
#include "tests/seed.h"

namespace spillway::io {
namespace {

using Kind = Fault::Kind;
using testing::HasSubstr;

constexpr uint32_t kSize = 65536;

class FaultyIoEngineTest : public testing::TestWithParam<IoKind> {
 protected:
  void SetUp() override {
    if (!CanRun(GetParam())) GTEST_SKIP() << kNoIoUring;
    absl::StatusOr<std::unique_ptr<FaultyIoEngine>> engine =
        FaultyIoEngine::Create(/*seed=*/7, [](ResultHook hook) {
          return MakeIoEngine(GetParam(), {.queue_depth = 8, .result_hook = hook},
                              testing::TempDir());
        });
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = std::move(*engine);
    id_ = *engine_->AddFile(file_.fd(), "segment", 0);
    FillPattern(out_.span(), 1);
  }

  absl::Status Write() { return Transact(*engine_, {IoOp::kWrite, id_, 0, out_.data(), kSize, 1}); }
  absl::Status Read() { return Transact(*engine_, {IoOp::kRead, id_, 0, in_.data(), kSize, 2}); }

  const DirectFile file_ = NamelessFile();
  const AlignedBuffer out_{kSize};
  const AlignedBuffer in_{kSize};
  std::unique_ptr<FaultyIoEngine> engine_;
  FileId id_;
};

TEST_P(FaultyIoEngineTest, FailsTheRequestsAskedFor) {
  engine_->Inject({.kind = Kind::kEnospc, .op = IoOp::kWrite, .skip = 1, .count = 2});
  EXPECT_TRUE(Write().ok());
  EXPECT_TRUE(Read().ok());  // a read: not failed, and not counted by `skip`
  const absl::Status status = Write();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("write of 65536 B at offset 0 of segment (injected)"));
  EXPECT_FALSE(Write().ok());
  EXPECT_TRUE(Write().ok());
  EXPECT_EQ(engine_->faults_met(), 2u);
}

TEST_P(FaultyIoEngineTest, ClearEndsThem) {
  engine_->Inject({.kind = Kind::kEio, .op = IoOp::kWrite, .count = UINT64_MAX});
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(Write().ok());
  engine_->Clear();
  EXPECT_TRUE(Write().ok());
}

TEST_P(FaultyIoEngineTest, FlipsOneBitOfARead) {
  ASSERT_TRUE(Write().ok());
  engine_->Inject({.kind = Kind::kBitFlip});
  ASSERT_TRUE(Read().ok());
  int bits = 0;
  for (size_t i = 0; i < kSize; ++i) {
    bits += std::popcount(static_cast<unsigned>(in_.data()[i] ^ out_.data()[i]));
  }
  EXPECT_EQ(bits, 1);
  ASSERT_TRUE(Read().ok());
  EXPECT_TRUE(HasPattern(in_.span(), 1));  // the bytes on the disk were correct
}

TEST_P(FaultyIoEngineTest, ADelayedCompletionComesAfterLaterOnes) {
  engine_->Inject({.kind = Kind::kDelay, .op = IoOp::kWrite, .delay = absl::Hours(1)});
  const IoRequest requests[] = {{IoOp::kWrite, id_, 0, out_.data(), kSize, 1},
                                {IoOp::kWrite, id_, kSize, out_.data(), kSize, 2}};
  engine_->Submit(requests);
  std::vector<IoCompletion> done;
  engine_->Reap(absl::InfiniteDuration(), &done);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].tag, 2u);
  EXPECT_EQ(engine_->in_flight(), 1);
  // A wait for the delayed completion ends at a timeout or a wake-up, like any other wait.
  engine_->Reap(absl::ZeroDuration(), &done);
  engine_->Wake();
  engine_->Reap(absl::InfiniteDuration(), &done);
  EXPECT_EQ(done.size(), 1u);
}

TEST_P(FaultyIoEngineTest, ADelayEnds) {
  engine_->Inject({.kind = Kind::kDelay, .op = IoOp::kWrite});
  EXPECT_TRUE(Write().ok());
}

TEST_P(FaultyIoEngineTest, ShortAndRepeatedTransfersDoNotShow) {
  for (int i = 0; i < 20; ++i) {
    engine_->Inject({.kind = i % 2 == 0 ? Kind::kShort : Kind::kAgain, .op = IoOp::kWrite});
    engine_->Inject({.kind = i % 2 == 0 ? Kind::kShort : Kind::kAgain, .op = IoOp::kRead});
    FillPattern(out_.span(), static_cast<uint64_t>(i));
    ASSERT_TRUE(Write().ok());
    ASSERT_TRUE(Read().ok());
    EXPECT_TRUE(HasPattern(in_.span(), static_cast<uint64_t>(i)));
  }
  EXPECT_EQ(engine_->faults_met(), 40u);
}

TEST_P(FaultyIoEngineTest, AFlippedBitOfAWriteStays) {
  engine_->Inject({.kind = Kind::kBitFlip, .op = IoOp::kWrite});
  ASSERT_TRUE(Write().ok());
  EXPECT_TRUE(HasPattern(out_.span(), 1));  // the caller's buffer is unchanged
  ASSERT_TRUE(Read().ok());
  int bits = 0;
  for (size_t i = 0; i < kSize; ++i) {
    bits += std::popcount(static_cast<unsigned>(in_.data()[i] ^ out_.data()[i]));
  }
  EXPECT_EQ(bits, 1);
}

// Returns how many sectors of `bytes` equal those of `pattern`.
size_t SectorsOf(std::span<const std::byte> bytes, std::span<const std::byte> pattern) {
  size_t sectors = 0;
  for (size_t at = 0; at < bytes.size(); at += kSectorBytes) {
    if (std::memcmp(bytes.data() + at, pattern.data() + at, kSectorBytes) == 0) ++sectors;
  }
  return sectors;
}

TEST_P(FaultyIoEngineTest, ATornWriteFailsAndLeavesSomeSectors) {
  ASSERT_TRUE(Write().ok());
  const std::vector<std::byte> old(out_.span().begin(), out_.span().end());
  FillPattern(out_.span(), 2);
  engine_->Inject({.kind = Kind::kTorn, .op = IoOp::kWrite});
  EXPECT_EQ(Write().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(Read().ok());
  const size_t written = SectorsOf(in_.span(), out_.span());
  EXPECT_GT(written, 0u);
  EXPECT_GT(SectorsOf(in_.span(), old), 0u);
  EXPECT_EQ(written + SectorsOf(in_.span(), old), kSize / kSectorBytes);
}

TEST_P(FaultyIoEngineTest, ALostWriteSucceeds) {
  ASSERT_TRUE(Write().ok());
  FillPattern(out_.span(), 2);
  engine_->Inject({.kind = Kind::kLost, .op = IoOp::kWrite});
  EXPECT_TRUE(Write().ok());
  ASSERT_TRUE(Read().ok());
  EXPECT_TRUE(HasPattern(in_.span(), 1));
}

TEST_P(FaultyIoEngineTest, ADeadRingStaysDead) {
  ASSERT_TRUE(Write().ok());
  engine_->Inject({.kind = Kind::kDeadRing, .op = IoOp::kRead, .skip = 1});
  EXPECT_TRUE(Read().ok());
  const absl::Status status = Read();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  engine_->Clear();
  EXPECT_EQ(Write(), status);
}

TEST_P(FaultyIoEngineTest, PowerCutKeepsWhatWasSyncedAndMixesTheRest) {
  engine_->TrackWrites();
  ASSERT_TRUE(Write().ok());
  engine_->Synced();
  std::vector<std::vector<std::byte>> contents;
  for (uint64_t version = 1; version <= 3; ++version) {
    FillPattern(out_.span(), version);
    contents.emplace_back(out_.span().begin(), out_.span().end());
    if (version > 1) {
      ASSERT_TRUE(Write().ok());
    }
  }
  ASSERT_TRUE(engine_->PowerCut().ok());
  EXPECT_FALSE(Read().ok());  // the power is off
  ASSERT_EQ(::pread(file_.fd(), in_.data(), kSize, 0), static_cast<ssize_t>(kSize));
  size_t sectors = 0;
  for (const auto& content : contents) {
    EXPECT_GT(SectorsOf(in_.span(), content), 10u);
    sectors += SectorsOf(in_.span(), content);
  }
  EXPECT_EQ(sectors, kSize / kSectorBytes);
}

TEST_P(FaultyIoEngineTest, EveryRequestOfARandomScriptCompletesOnce) {
  ASSERT_TRUE(Write().ok());
  const Kind kinds[] = {Kind::kEio,   Kind::kEnospc, Kind::kBitFlip, Kind::kDelay,
                        Kind::kShort, Kind::kAgain,  Kind::kTorn,    Kind::kLost};
  for (const Fault& fault : RandomFaults(test::Seed(), kinds, 400, 0.3)) engine_->Inject(fault);
  const AlignedBuffer memory(400 * kIoAlignment);
  std::vector<IoRequest> requests;
  for (uint64_t tag = 0; tag < 400; ++tag) {
    const IoOp op = tag < 200 ? IoOp::kWrite : IoOp::kRead;
    std::byte* at = memory.data() + tag * kIoAlignment;
    requests.push_back({op, id_, tag % 16 * kIoAlignment, at, kIoAlignment, tag});
  }
  engine_->Submit(requests);
  std::set<uint64_t> tags;
  for (const IoCompletion& completion : ReapAll(*engine_)) {
    EXPECT_TRUE(tags.insert(completion.tag).second) << completion.tag;
  }
  EXPECT_EQ(tags.size(), 400u);
  EXPECT_GT(engine_->faults_met(), 0u);
}

TEST(RandomFaults, TheSameSeedGivesTheSameScript) {
  const Kind kinds[] = {Kind::kEio, Kind::kShort};
  const std::vector<Fault> a = RandomFaults(3, kinds, 100, 0.5);
  const std::vector<Fault> b = RandomFaults(3, kinds, 100, 0.5);
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].kind, b[i].kind);
    EXPECT_EQ(a[i].skip, b[i].skip);
  }
}

INSTANTIATE_TEST_SUITE_P(Both, FaultyIoEngineTest, testing::Values(IoKind::kUring, IoKind::kPosix),
                         [](const auto& test) {
                           return test.param == IoKind::kUring ? "Uring" : "Posix";
                         });

}  // namespace
}  // namespace spillway::io
