// SPDX-License-Identifier: Apache-2.0
//
// Calls that wait and are ended by an interrupt of their thread. Such a call has no effect.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/faulty_io_engine.h"
#include "spillway/engine.h"
#include "spillway/interrupt.h"
#include "tests/engine/faulty_machine.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"

namespace spillway::engine {
namespace {

constexpr int64_t kTileBytes = 16 * kKiB;
constexpr int64_t kTiles = 8;
constexpr uint64_t kPinnedTiles = 5;

// Ends every later wait of the calling thread if `always`, and none otherwise.
void Interrupt(bool always) {
  if (always) return SetInterrupt([] { return true; });
  SetInterrupt({});
}

class InterruptTest : public testing::Test {
 protected:
  void SetUp() override { Open(); }
  void TearDown() override { Interrupt(false); }

  void Open() {
    machine_ = {};
    EngineOptions options;
    options.store = {folder_ / "store"};
    options.mode = OpenMode::kOpenOrCreate;
    options.device_bytes = 3 * kTileBytes;
    options.pinned_bytes = kPinnedTiles * kTileBytes;
    options.page_bytes = kTileBytes;
    auto machine = OpenMachine(options, test::Seed());
    ASSERT_TRUE(machine.ok()) << machine.status();
    machine_ = *std::move(machine);
  }
  Engine& engine() { return *machine_.engine; }

  TensorId Register(const std::string& name) {
    const auto id = engine().Register(
        {.name = name, .dtype = DType::kU8, .shape = {kTiles, kTileBytes}, .tile_rows = 1});
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(TensorId{});
  }

  absl::Status Add(TileRef tile, uint64_t expected, bool on_host) {
    const auto lease = on_host ? engine().AcquireHost(tile, Access::kReadWrite)
                               : engine().Acquire(tile, Access::kReadWrite);
    if (!lease.ok()) return lease.status();
    for (uint64_t& word : lease->as<uint64_t>()) {
      EXPECT_EQ(word, expected);
      ++word;
    }
    return absl::OkStatus();
  }
  void AddAll(TensorId tensor, uint64_t expected) {
    for (uint64_t tile = 0; tile < kTiles; ++tile) {
      const absl::Status status = Add({tensor, tile}, expected, true);
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  void Expect(TensorId tensor, uint64_t tile, uint64_t expected) {
    const auto lease = engine().AcquireHost({tensor, tile}, Access::kRead);
    ASSERT_TRUE(lease.ok()) << lease.status();
    for (const uint64_t word : lease->as<const uint64_t>()) ASSERT_EQ(word, expected) << tile;
  }

  // Makes the disk slow for all later requests of this kind.
  void SlowDown(io::IoOp op) {
    machine_.disk->Inject({.kind = io::Fault::Kind::kDelay,
                           .op = op,
                           .count = 1'000'000,
                           .delay = absl::Milliseconds(200)});
  }

  test::TempFolder folder_;
  Machine machine_;
};

bool IsInterrupted(const absl::Status& status) {
  EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
  return !status.ok();
}

TEST_F(InterruptTest, EndsAWaitForAnothersLeaseAndLeavesNothingBehind) {
  const TensorId tensor = Register("w");
  for (const Tier tier : {Tier::kDevice, Tier::kPinned}) {
    for (const Access access : {Access::kRead, Access::kReadWrite, Access::kDiscard}) {
      auto held = engine().Acquire({tensor, 3}, Access::kReadWrite);
      ASSERT_TRUE(held.ok()) << held.status();
      auto waiting = std::async(std::launch::async, [&] {
        int asked = 0;
        SetInterrupt([&asked] { return ++asked == 2; });
        const auto lease = tier == Tier::kDevice ? engine().Acquire({tensor, 3}, access)
                                                 : engine().AcquireHost({tensor, 3}, access);
        return lease.status();
      });
      const absl::Status status = waiting.get();
      EXPECT_TRUE(absl::IsCancelled(status)) << status;
      EXPECT_NE(status.message().find("tensor 'w' tile 3"), absl::string_view::npos) << status;
      held->Release();
      EXPECT_TRUE(engine().Commit("nobody leases").ok());
    }
  }
  Expect(tensor, 3, 0);
}

TEST_F(InterruptTest, EndsAWaitForAnotherThreadsCommit) {
  const TensorId tensor = Register("w");
  std::string fresh;  // a name that no tensor has had
  ASSERT_TRUE(engine().Commit("").ok());
  SlowDown(io::IoOp::kWrite);
  const std::vector<std::function<absl::Status()>> calls = {
      [&] { return engine().Acquire({tensor, 0}, Access::kReadWrite).status(); },
      [&] { return engine().AcquireHost({tensor, 0}, Access::kRead).status(); },
      [&] { return engine().Prefetch(std::vector<Use>{{{tensor, 1}, Tier::kPinned}}); },
      [&] { return engine().Evict({tensor, 0}); },
      [&] { return engine().EndStep(); },
      [&] { return engine().Commit(""); },
      [&] { return engine().Restore("never made"); },
      [&] {
        const TensorSpec spec{.name = fresh, .dtype = DType::kU8, .shape = {1}};
        return engine().Register(spec).status();
      }};
  uint64_t value = 0;
  for (size_t number = 0; number < calls.size(); ++number) {
    bool interrupted = false;
    for (int round = 0; round < 100 && !interrupted; ++round) {
      fresh = absl::StrCat("new", number, ".", round);
      ASSERT_TRUE(Add({tensor, 0}, value++, true).ok());
      // The commit has most likely begun when the call is made, and it lasts as long as a write. If
      // it has not begun, the call may make it fail.
      std::thread committing([&] {
        const absl::Status status = engine().Commit("");
        EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      Interrupt(true);
      interrupted = absl::IsCancelled(calls[number]());
      Interrupt(false);
      committing.join();
    }
    EXPECT_TRUE(interrupted) << "call " << number;
    EXPECT_TRUE(absl::IsNotFound(engine().Find(fresh).status())) << "call " << number;
  }
  Expect(tensor, 0, value);
}

TEST_F(InterruptTest, IsNotAskedWhereNothingWaits) {
  const TensorId tensor = Register("w");
  Interrupt(true);
  for (uint64_t tile = 0; tile < kPinnedTiles; ++tile) {  // the next would wait for a write
    const absl::Status status = Add({tensor, tile}, 0, true);
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(InterruptTest, EndsAReadAndTheNextFindsTheBytes) {
  const TensorId tensor = Register("w");
  AddAll(tensor, 0);
  ASSERT_TRUE(engine().Commit("").ok());
  SlowDown(io::IoOp::kRead);
  // On a busy machine a slow read may end before the waiting call checks for an interrupt.
  bool interrupted = false;
  for (uint64_t round = 0; round < 100 && !interrupted; ++round) {
    Interrupt(true);
    interrupted =
        IsInterrupted(engine().AcquireHost({tensor, round % kTiles}, Access::kRead).status());
    Interrupt(false);
    Expect(tensor, round % kTiles, 1);
  }
  EXPECT_TRUE(interrupted);
  machine_.disk->Clear();
  ASSERT_TRUE(engine().Commit("").ok());
}

TEST_F(InterruptTest, EndsACommitAndTheOneBeforeStays) {
  const TensorId tensor = Register("w");
  AddAll(tensor, 0);
  ASSERT_TRUE(engine().Commit("0").ok());
  SlowDown(io::IoOp::kWrite);
  bool interrupted = false;
  uint64_t added = 0, committed = 0;
  for (int round = 0; round < 100 && !interrupted; ++round) {
    AddAll(tensor, ++added);
    Interrupt(true);
    interrupted = IsInterrupted(engine().Commit(std::to_string(added)));
    Interrupt(false);
    if (!interrupted) committed = added;
  }
  ASSERT_TRUE(interrupted);
  EXPECT_EQ(engine().UserState(), std::to_string(committed));
  Open();
  EXPECT_EQ(engine().UserState(), std::to_string(committed));
  const TensorId found = Register("w");
  AddAll(found, committed + 1);
  ASSERT_TRUE(engine().Commit("next").ok());
}

TEST_F(InterruptTest, EndsARestoreThatWaitsForTransfers) {
  const TensorId tensor = Register("w");
  AddAll(tensor, 0);
  ASSERT_TRUE(engine().Commit("").ok());
  ASSERT_TRUE(engine().Snapshot("one").ok());
  AddAll(tensor, 1);
  ASSERT_TRUE(engine().Commit("").ok());
  SlowDown(io::IoOp::kRead);
  bool interrupted = false;
  uint64_t value = 2;
  for (int round = 0; round < 100 && !interrupted; ++round) {
    for (uint64_t tile = 0; tile < kTiles; ++tile) ASSERT_TRUE(engine().Evict({tensor, tile}).ok());
    std::vector<Use> uses;
    for (uint64_t tile = 0; tile < kTiles; ++tile)
      uses.push_back({{tensor, tile}, Tier::kPinned, Access::kRead});
    ASSERT_TRUE(engine().Prefetch(uses).ok());
    Interrupt(true);
    interrupted = IsInterrupted(engine().Restore("one"));
    Interrupt(false);
    if (!interrupted) value = 1;
    for (uint64_t tile = 0; tile < kTiles; ++tile) Expect(tensor, tile, value);
  }
  EXPECT_TRUE(interrupted);
  ASSERT_TRUE(engine().Restore("one").ok());
  for (uint64_t tile = 0; tile < kTiles; ++tile) Expect(tensor, tile, 1);
}

// The check reports an interrupt when the wait is already over. The call succeeds and puts the
// interrupt back, so that Ctrl-C is not lost.
TEST_F(InterruptTest, WhatComesTooLateIsPutBack) {
  const TensorId tensor = Register("w");
  for (const Access access : {Access::kRead, Access::kReadWrite}) {
    auto held = engine().Acquire({tensor, 3}, Access::kReadWrite);
    ASSERT_TRUE(held.ok()) << held.status();
    int put_back = 0;
    auto waiting = std::async(std::launch::async, [&] {
      SetInterrupt(
          [&held] {
            std::thread([&held] { held->Release(); }).join();
            return true;
          },
          [&put_back] { ++put_back; });
      return engine().Acquire({tensor, 3}, access).status();
    });
    const absl::Status status = waiting.get();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(put_back, 1);
  }
  EXPECT_TRUE(engine().Commit("").ok());
}

// Threads count in tensors of their own, in budgets that hold a part of these. The disk is slow now
// and then, and the calls are interrupted at random.
TEST_F(InterruptTest, AtRandomNoValueIsLostAndNoLeaseKept) {
  constexpr int kThreads = 3;
  constexpr int kRounds = 150;
  std::mt19937_64 random(test::Seed());
  const std::vector<io::Fault::Kind> kinds = {io::Fault::Kind::kDelay};
  for (io::Fault fault : io::RandomFaults(random(), kinds, 3000, 0.05)) {
    fault.delay = absl::Milliseconds(120);
    machine_.disk->Inject(fault);
  }
  std::vector<TensorId> tensors;
  for (int i = 0; i < kThreads; ++i) tensors.push_back(Register("w" + std::to_string(i)));
  std::vector<std::vector<uint64_t>> values(kThreads, std::vector<uint64_t>(kTiles));
  std::atomic<int> num_interrupted = 0;
  const auto count = [&](int number, uint64_t seed) {
    std::mt19937_64 own(seed);
    SetInterrupt([&own] { return own() % 2 == 0; });
    for (int round = 0; round < kRounds && !testing::Test::HasFailure(); ++round) {
      const auto tile = own() % kTiles;
      const absl::Status added = Add({tensors[number], tile}, values[number][tile], own() % 2 == 0);
      if (IsInterrupted(added)) {
        ++num_interrupted;
      } else {
        ++values[number][tile];
      }
      if (own() % 16 == 0) {
        const absl::Status status = engine().Commit("");
        if (!absl::IsFailedPrecondition(status)) num_interrupted += IsInterrupted(status) ? 1 : 0;
      }
      if (number == 0 && round % 20 == 19) {
        EXPECT_TRUE(engine().EndStep().ok());
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(count, i, random());
  for (std::thread& thread : threads) thread.join();
  std::printf("%d calls were interrupted\n", num_interrupted.load());
  EXPECT_GT(num_interrupted, 0);
  ASSERT_TRUE(engine().Commit("").ok());
  Open();
  for (int i = 0; i < kThreads; ++i) {
    const TensorId found = Register("w" + std::to_string(i));
    for (uint64_t tile = 0; tile < kTiles; ++tile) Expect(found, tile, values[i][tile]);
  }
}

}  // namespace
}  // namespace spillway::engine
