// SPDX-License-Identifier: Apache-2.0
//
// Tests leases and discards that wait for work on streams, through the public engine. A gate blocks
// a stream. While it is closed, a test checks what must not have happened yet.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "spillway/engine.h"
#include "tests/temp_folder.h"

namespace spillway {
namespace {

constexpr int64_t kWords = 1024;

// Blocks a stream until it is opened.
class Gate {
 public:
  explicit Gate(Stream* stream) {
    const auto launched = stream->Launch([future = open_.get_future().share()] { future.wait(); });
    EXPECT_TRUE(launched.ok()) << launched;
  }
  ~Gate() { Open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void Open() {
    if (!std::exchange(is_open_, true)) open_.set_value();
  }

 private:
  std::promise<void> open_;
  bool is_open_ = false;
};

class StreamLeases : public testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.store = {folder_ / "store"};
    options.mode = OpenMode::kScratch;
    options.device_bytes = 2 * kWords * 4;
    options.pinned_bytes = 8 * kWords * 4;
    options.calibration = Calibration::kKeep;
    auto engine = Engine::Open(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    const auto id = engine_->Register(
        {.name = "transient", .shape = {4, kWords}, .tile_rows = 1, .transient = true});
    ASSERT_TRUE(id.ok()) << id.status();
    id_ = *id;
    auto stream = engine_->CreateStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }

  // Adds one to each word of the tile, on the stream. The lease ends on the stream.
  void AddOneOnStream() {
    auto lease = engine_->Acquire(tile(), Access::kReadWrite, stream_.get());
    ASSERT_TRUE(lease.ok()) << lease.status();
    const auto words = lease->as<uint32_t>();
    ASSERT_TRUE(stream_
                    ->Launch([words] {
                      for (uint32_t& word : words) ++word;
                    })
                    .ok());
  }
  void ExpectWords(uint32_t expected) {
    const auto lease = engine_->AcquireHost(tile(), Access::kRead);
    ASSERT_TRUE(lease.ok()) << lease.status();
    const auto words = lease->as<const uint32_t>();
    EXPECT_TRUE(std::all_of(words.begin(), words.end(), [expected](uint32_t word) {
      return word == expected;
    })) << words[0];
  }
  TileRef tile(uint64_t index = 0) const { return {id_, index}; }

  test::TempFolder folder_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Stream> stream_;
  TensorId id_;
};

TEST_F(StreamLeases, ALeaseOnTheStreamOfAWriterDoesNotBlockItsCaller) {
  AddOneOnStream();
  ASSERT_TRUE(stream_->Synchronize().ok());
  Gate gate(stream_.get());
  for (int i = 0; i < 3; ++i) AddOneOnStream();  // blocks forever if it waits for the stream
  gate.Open();
  ExpectWords(4);
}

// The caller waits before the holder releases its lease.
TEST_F(StreamLeases, ACallerOnTheStreamWaitsForTheHolderOnly) {
  AddOneOnStream();
  auto holder = engine_->Acquire(tile(), Access::kReadWrite, stream_.get());
  ASSERT_TRUE(holder.ok()) << holder.status();
  auto caller = std::async(std::launch::async, [this] { AddOneOnStream(); });
  EXPECT_EQ(caller.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  Gate gate(stream_.get());
  holder->Release();
  caller.wait();  // blocks forever if it waits for the stream
  gate.Open();
  caller.get();
  ExpectWords(2);
}

TEST_F(StreamLeases, OthersWaitForAWriterOnAStream) {
  Gate gate(stream_.get());
  AddOneOnStream();
  auto reader = std::async(std::launch::async, [this] { ExpectWords(2); });
  AddOneOnStream();
  EXPECT_EQ(reader.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  gate.Open();
  reader.get();
}

// A reader on the stream holds its lease while the writer before it drains: the next writer waits
// for the reader, not for the stream.
TEST_F(StreamLeases, AWriterWaitsForAReaderOfItsStreamWhoHolds) {
  Gate gate(stream_.get());
  AddOneOnStream();
  auto reader = engine_->Acquire(tile(), Access::kRead, stream_.get());
  ASSERT_TRUE(reader.ok()) << reader.status();
  auto writer = std::async(std::launch::async, [this] { AddOneOnStream(); });
  EXPECT_EQ(writer.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  gate.Open();
  EXPECT_EQ(writer.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  reader->Release();
  writer.get();
  ExpectWords(2);
}

TEST_F(StreamLeases, ADiscardTakesEffectWhenTheStreamLetsGo) {
  AddOneOnStream();
  ASSERT_TRUE(stream_->Synchronize().ok());
  ExpectWords(1);
  Gate gate(stream_.get());
  {
    const auto lease = engine_->Acquire(tile(), Access::kRead, stream_.get());
    ASSERT_TRUE(lease.ok()) << lease.status();
    const auto words = lease->as<const uint32_t>();
    ASSERT_TRUE(stream_->Launch([words] { EXPECT_EQ(words[0], 1u); }).ok());
  }
  ASSERT_TRUE(engine_->Discard(tile()).ok());
  auto reader = std::async(std::launch::async, [this] { ExpectWords(0); });
  EXPECT_EQ(reader.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  gate.Open();
  reader.get();
}

TEST_F(StreamLeases, CallsThatWantTheEngineAloneWaitForTheStream) {
  const TensorId other = engine_->Register({.name = "other", .shape = {kWords}}).value();
  const std::pair<const char*, std::function<absl::Status()>> calls[] = {
      {"Commit", [&] { return engine_->Commit(""); }},
      {"Snapshot", [&] { return engine_->Snapshot("one"); }},
      {"Restore", [&] { return engine_->Restore("one"); }},
      {"Unregister", [&] { return engine_->Unregister(id_); }}};
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    Gate gate(stream_.get());
    AddOneOnStream();
    std::future<absl::Status> ended = std::async(std::launch::async, call);
    // A longer timeout detects a call that does not wait more reliably.
    EXPECT_EQ(ended.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
    gate.Open();
    const absl::Status status = ended.get();
    EXPECT_TRUE(status.ok()) << status;
  }
  Gate gate(stream_.get());
  {
    const auto lease = engine_->Acquire({other, 0}, Access::kRead, stream_.get());
    ASSERT_TRUE(lease.ok()) << lease.status();
    // The call does not wait, because the lease's holder may be waiting for this thread.
    EXPECT_TRUE(absl::IsFailedPrecondition(engine_->Commit("")));
  }
}

TEST_F(StreamLeases, ADiscardOrAnEvictionOfWhatIsHeldIsRefused) {
  const auto lease = engine_->Acquire(tile(), Access::kRead, stream_.get());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->Discard(tile())));
  const absl::Status evicted = engine_->Evict(tile());
  EXPECT_TRUE(absl::IsFailedPrecondition(evicted)) << evicted;
}

// Repeats discards behind a stream in every step, so that a plan is followed.
TEST_F(StreamLeases, StepsOfDiscardsBehindAStreamFollowTheirPlan) {
  constexpr uint32_t kSteps = 6;
  for (uint32_t step = 0; step < kSteps; ++step) {
    for (uint64_t i = 0; i < 4; ++i) {
      const auto lease = engine_->Acquire(tile(i), Access::kDiscard, stream_.get());
      ASSERT_TRUE(lease.ok()) << lease.status();
      const auto words = lease->as<uint32_t>();
      ASSERT_TRUE(
          stream_->Launch([words, step] { std::fill(words.begin(), words.end(), step + 7); }).ok());
    }
    for (uint64_t i = 0; i < 4; ++i) {
      {
        const auto lease = engine_->Acquire(tile(i), Access::kRead, stream_.get());
        ASSERT_TRUE(lease.ok()) << lease.status();
        const auto words = lease->as<const uint32_t>();
        ASSERT_TRUE(stream_->Launch([words, step] { EXPECT_EQ(words[0], step + 7); }).ok());
      }
      ASSERT_TRUE(engine_->Discard(tile(i)).ok());
    }
    ASSERT_TRUE(engine_->EndStep().ok());
    ASSERT_TRUE(engine_->WaitForPlan().ok());
  }
  const PlanStats plan = engine_->Stats().plan;
  EXPECT_EQ(plan.not_planned, "");
  EXPECT_EQ(plan.deviations, 0u);
  EXPECT_GT(plan.steps, 0u);
}

// Two writers release their leases on two streams. A reader that follows the second writer must
// also wait for the first.
TEST_F(StreamLeases, WritersOnSeveralStreamsAreAllWaitedFor) {
  auto other = engine_->CreateStream();
  ASSERT_TRUE(other.ok()) << other.status();
  Gate gate(stream_.get());
  AddOneOnStream();
  auto second = engine_->Acquire(tile(), Access::kReadWrite, stream_.get());
  ASSERT_TRUE(second.ok()) << second.status();
  second->Release(other->get());
  auto reads = std::async(std::launch::async, [&] {
    const auto lease = engine_->Acquire(tile(), Access::kRead, other->get());
    return lease.ok() ? lease->as<uint32_t>()[0] : 99;
  });
  EXPECT_EQ(reads.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  gate.Open();
  EXPECT_EQ(reads.get(), 1u);
}

}  // namespace
}  // namespace spillway
