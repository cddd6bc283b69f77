// SPDX-License-Identifier: Apache-2.0
//
// Makes every call from several threads at once. Nothing may be undefined, calls that require that
// no lease is held are refused while one is, and each tile holds the bytes that were written to it
// last.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "spillway/engine.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"

namespace spillway {
namespace {

constexpr int kThreads = 8;
constexpr int kRounds = 60;
constexpr uint64_t kTiles = 3;
constexpr int64_t kTileValues = 2048;  // 16 KiB

struct Case {
  bool has_store = true;
  bool goes_back = false;  // threads call Restore, so a tile may have any value that it ever had
};

TensorSpec SpecOf(const std::string& name) {
  return {.name = name,
          .dtype = DType::kU8,
          .shape = {int64_t{kTiles}, kTileValues * 8},
          .tile_rows = 1};
}

bool IsRefused(const absl::Status& status) { return absl::IsFailedPrecondition(status); }

// The calls of one thread. It registers and unregisters a tensor of its own, and shares one tensor
// with all threads.
class Caller {
 public:
  Caller(Engine* engine, const Case& of, int number, uint64_t seed)
      : engine_(*engine), of_(of), number_(number), random_(seed) {}

  void Run() {
    for (int round = 0; round < kRounds && !testing::Test::HasFailure(); ++round) DoOne();
  }
  uint64_t num_added() const { return num_added_; }

 private:
  void DoOne() {
    switch (random_() % 12) {
      case 0: return ComeOrGo();
      case 1: return Refusable(engine_.Commit(std::to_string(number_)));
      case 2: return Snapshot();
      case 3: return ExpectOk(engine_.EndStep());
      case 4: return ExpectOk(engine_.WaitForPlan());
      case 5: return Declare();
      case 6: return Refusable(engine_.Evict({*engine_.Find("shared"), random_() % kTiles}));
      case 7: return Look();
      default: return random_() % 2 == 0 ? AddToShared() : WriteOwn();
    }
  }

  void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }
  void Refusable(const absl::Status& status) {
    EXPECT_TRUE(status.ok() || IsRefused(status)) << status;
  }

  // Registers its tensor, filled with a value, or unregisters it.
  void ComeOrGo() {
    if (own_) {
      const absl::Status gone = engine_.Unregister(*own_);
      ExpectOk(gone);
      own_.reset();
      return;
    }
    const uint64_t value = NewValue();
    const auto fill = [&](uint64_t, std::span<std::byte> out) {
      std::fill_n(reinterpret_cast<uint64_t*>(out.data()), out.size() / 8, value);
      return absl::OkStatus();
    };
    // The name is new each time, because the last commit may have the unregistered tensor.
    const auto id = engine_.Register(
        SpecOf("own." + std::to_string(number_) + "." + std::to_string(value)), fill);
    ASSERT_TRUE(id.ok()) << id.status();
    own_ = *id;
    values_.fill(value);
  }

  void Snapshot() {
    if (!of_.has_store) return Refusable(engine_.Snapshot("none"));
    const std::string label = std::to_string(number_);
    const absl::Status kept = engine_.Snapshot(label);
    Refusable(kept);
    if (!kept.ok()) return;
    if (of_.goes_back) Refusable(engine_.Restore(label));
    EXPECT_TRUE(engine_.Snapshots().ok());
    ExpectOk(engine_.Drop(label));
  }

  void Declare() {
    if (!own_) return engine_.ClearPrefetch();
    std::vector<Use> uses;
    for (uint64_t tile = 0; tile < kTiles; ++tile) uses.push_back({{*own_, tile}, Tier::kDevice});
    ExpectOk(engine_.Prefetch(uses));
  }

  void Look() {
    (void)engine_.Stats();
    (void)engine_.UserState();
    EXPECT_TRUE(engine_.TakeTimeline().tensors.size() < 10'000);
    EXPECT_TRUE(engine_.Find("shared").ok());
  }

  absl::StatusOr<Lease> Take(TileRef tile, Access access) {
    return random_() % 2 == 0 ? engine_.Acquire(tile, access) : engine_.AcquireHost(tile, access);
  }

  void AddToShared() {
    const auto lease = Take({*engine_.Find("shared"), random_() % kTiles}, Access::kReadWrite);
    ASSERT_TRUE(lease.ok()) << lease.status();
    const std::span<uint64_t> values = lease->as<uint64_t>();
    const uint64_t before = values.front();
    for (uint64_t& value : values) {
      ASSERT_EQ(value, before);
      value = before + 1;
    }
    ++num_added_;
    if (random_() % 4 == 0) {  // the lease is still held
      const absl::Status refused = engine_.Commit("never");
      EXPECT_TRUE(IsRefused(refused)) << refused;
    }
  }

  void WriteOwn() {
    if (!own_) return;
    const uint64_t tile = random_() % kTiles;
    const bool writes = random_() % 2 == 0;
    const auto lease = Take({*own_, tile}, writes ? Access::kReadWrite : Access::kRead);
    ASSERT_TRUE(lease.ok()) << lease.status();
    const std::span<uint64_t> values = lease->as<uint64_t>();
    const uint64_t expected = of_.goes_back ? values.front() : values_[tile];
    for (const uint64_t value : values) ASSERT_EQ(value, expected) << "thread " << number_;
    if (!writes) return;
    values_[tile] = NewValue();
    std::fill(values.begin(), values.end(), values_[tile]);
  }

  uint64_t NewValue() { return (static_cast<uint64_t>(number_) << 32) + ++last_value_; }

  Engine& engine_;
  const Case of_;
  const int number_;
  std::mt19937_64 random_;
  std::optional<TensorId> own_;
  std::array<uint64_t, kTiles> values_ = {};
  uint64_t last_value_ = 0;
  uint64_t num_added_ = 0;  // to the shared tensor
};

class ConcurrentCallsTest : public testing::TestWithParam<Case> {};

TEST_P(ConcurrentCallsTest, EveryTileHasWhatWasWrittenLast) {
  const uint64_t seed = test::Seed();
  const test::TempFolder folder;
  EngineOptions options;
  if (GetParam().has_store) options.store = {folder / "s"};
  constexpr uint64_t kTileBytes = kTileValues * 8;
  options.device_bytes = 12 * kTileBytes;
  // Without a store every registered tensor stays in pinned memory. An unregistered one keeps no
  // room there.
  options.pinned_bytes = (GetParam().has_store ? 20 : 64) * kTileBytes;
  options.page_bytes = 4 * kKiB;
  options.timeline_events = 1000;
  auto engine = Engine::Open(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE((*engine)->Register(SpecOf("shared")).ok());

  std::vector<Caller> callers;
  for (int i = 0; i < kThreads; ++i)
    callers.emplace_back(engine->get(), GetParam(), i, seed + static_cast<uint64_t>(i));
  std::vector<std::thread> threads;
  for (Caller& caller : callers) threads.emplace_back([&caller] { caller.Run(); });
  for (std::thread& thread : threads) thread.join();

  uint64_t added = 0, found = 0;
  for (const Caller& caller : callers) added += caller.num_added();
  for (uint64_t tile = 0; tile < kTiles; ++tile) {
    const auto lease = (*engine)->Acquire({*(*engine)->Find("shared"), tile}, Access::kRead);
    ASSERT_TRUE(lease.ok()) << lease.status();
    found += lease->as<uint64_t>().front();
  }
  if (!GetParam().goes_back) {
    EXPECT_EQ(found, added);
  }
  EXPECT_GT(added, 0u);
}

// A commit or a restore while a tensor is being filled would treat a part of the tensor as the
// whole.
TEST(RegisterTest, NothingIsCommittedWhileATensorIsFilled) {
  const test::TempFolder folder;
  const auto open = [&] {
    return *Engine::Open({.store = {folder / "s"},
                          .mode = OpenMode::kOpenOrCreate,
                          .device_bytes = kMiB,
                          .pinned_bytes = kMiB});
  };
  auto engine = open();
  int asked = 0;
  const auto fill = [&](uint64_t, std::span<std::byte> out) {
    EXPECT_TRUE(IsRefused(engine->Commit("part")));
    EXPECT_TRUE(absl::IsNotFound(engine->Unregister(TensorId{0})));
    std::fill(out.begin(), out.end(), std::byte{7});
    return ++asked < 2 ? absl::OkStatus() : absl::OutOfRangeError("the file is short");
  };
  EXPECT_TRUE(absl::IsOutOfRange(engine->Register(SpecOf("one"), fill).status()));
  EXPECT_EQ(asked, 2);
  ASSERT_TRUE(engine->Commit("whole").ok());
  engine.reset();
  engine = open();
  asked = -10;
  EXPECT_TRUE(engine->Register(SpecOf("one"), fill).ok());
  EXPECT_EQ(asked, -10 + int{kTiles});
}

TEST(RegisterTest, AReaderThatThrowsGivesTheNameBack) {
  const auto engine = Engine::Open({.device_bytes = kMiB, .pinned_bytes = kMiB});
  const auto throws = [](uint64_t, std::span<std::byte>) -> absl::Status {
    throw std::runtime_error("no file");
  };
  EXPECT_THROW((void)(*engine)->Register(SpecOf("one"), throws), std::runtime_error);
  EXPECT_TRUE((*engine)->Register(SpecOf("one")).ok());
}

// Two threads that register one name get one tensor, and neither sees it before it is filled.
TEST(RegisterTest, ANameIsFilledOnceWhoeverAsks) {
  const auto engine = Engine::Open({.device_bytes = kMiB, .pinned_bytes = kMiB});
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::atomic<int> filled = 0;
  const auto fill = [&](uint64_t, std::span<std::byte> out) {
    ++filled;
    EXPECT_FALSE((*engine)->Find("one").ok());
    std::fill(out.begin(), out.end(), std::byte{7});
    return absl::OkStatus();
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const auto id = (*engine)->Register(SpecOf("one"), fill);
      ASSERT_TRUE(id.ok()) << id.status();
      const auto lease = (*engine)->AcquireHost({*id, kTiles - 1}, Access::kRead);
      ASSERT_TRUE(lease.ok()) << lease.status();
      EXPECT_EQ(lease->data()[0], std::byte{7});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(filled, int{kTiles});
}

INSTANTIATE_TEST_SUITE_P(All, ConcurrentCallsTest,
                         testing::Values(Case{}, Case{.has_store = false}, Case{.goes_back = true}),
                         [](const auto& at) {
                           if (!at.param.has_store) return std::string("InMemory");
                           return std::string(at.param.goes_back ? "GoingBack" : "Stored");
                         });

}  // namespace
}  // namespace spillway
