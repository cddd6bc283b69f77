// SPDX-License-Identifier: Apache-2.0
//
// Threads read the same few tiles, on the CPU and on streams, while another thread writes, evicts
// and discards them. In some setups the budgets hold only some of the tiles. Every lease must find
// one version in the whole tile, and never an older one than the same thread found before. All
// leases are counted, and none is left.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "spillway/engine.h"
#include "tests/engine/policies.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"

namespace spillway {
namespace {

constexpr uint64_t kTiles = 6;
constexpr int64_t kWords = 2048;  // of a tile, which has 16 KiB
constexpr int kReaders = 3;
constexpr int kSteps = 6;
constexpr int kLeasesOfStep = 150;  // of one thread

struct Setup {
  std::string name;
  engine::MaybePolicy policy = plan::Policy::kPlanned;
  uint64_t device_tiles = 0, pinned_tiles = 0;  // tiles that the budgets have room for
  bool has_store = true;
  bool is_disturbed = true;  // by a thread that writes, evicts and discards
};

class SharedLeases : public testing::TestWithParam<Setup> {
 protected:
  using Seen = std::array<std::array<uint64_t, kTiles>, 2>;

  void SetUp() override {
    EngineOptions options;
    if (GetParam().has_store) options.store = {folder_ / "store"};
    options.device_bytes = GetParam().device_tiles * kWords * 8;
    options.pinned_bytes = GetParam().pinned_tiles * kWords * 8;
    options.page_bytes = 8 * kKiB;
    auto engine = engine::OpenWith(GetParam().policy, options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    for (const bool transient : {false, true}) {
      const auto id = engine_->Register({.name = transient ? "transient" : "kept",
                                         .shape = {kTiles, kWords * 2},
                                         .tile_rows = 1,
                                         .transient = transient});
      ASSERT_TRUE(id.ok()) << id.status();
      ids_[transient ? 1 : 0] = *id;
    }
  }

  absl::StatusOr<Lease> Take(TileRef tile, Access access, bool on_host, Stream* stream) {
    auto lease =
        on_host ? engine_->AcquireHost(tile, access) : engine_->Acquire(tile, access, stream);
    EXPECT_TRUE(lease.ok()) << lease.status();
    if (lease.ok()) ++leases_;
    return lease;
  }

  // Returns the version that all words hold, or ~0 if they differ. It is 0 after a discard.
  static uint64_t VersionOf(std::span<const uint64_t> words) {
    const uint64_t version = words[0];
    for (const uint64_t word : words) {
      if (word != version) return ~uint64_t{0};
    }
    return version;
  }

  void Look(int tensor, uint64_t tile, uint64_t version, Seen& seen) {
    uint64_t& before = seen[static_cast<size_t>(tensor)][tile];
    const bool is_discarded = tensor == 1 && version == 0;
    if (version == ~uint64_t{0} || (!is_discarded && version < before)) ++wrong_;
    if (!is_discarded) before = version;
  }

  void Read(uint64_t seed, Seen& seen) {
    std::mt19937_64 random(seed);
    const std::unique_ptr<Stream> stream = *engine_->CreateStream();
    for (int i = 0; i < kLeasesOfStep; ++i) {
      const int tensor = static_cast<int>(random() % 2);
      const uint64_t tile = random() % kTiles;
      const bool on_host = random() % 3 == 0, on_stream = !on_host && random() % 2 == 0;
      auto lease =
          Take({ids_[tensor], tile}, Access::kRead, on_host, on_stream ? stream.get() : nullptr);
      if (!lease.ok()) return;
      const std::span<const uint64_t> words = lease->as<uint64_t>();
      if (on_stream) {
        const absl::Status launched = stream->Launch(
            [this, tensor, tile, words, &seen] { Look(tensor, tile, VersionOf(words), seen); });
        EXPECT_TRUE(launched.ok()) << launched;
        lease->Release();
        if (random() % 4 != 0) continue;
      } else {
        // Waits for the stream's reads first, so that two threads never use `seen` at once.
        EXPECT_TRUE(stream->Synchronize().ok());
        Look(tensor, tile, VersionOf(words), seen);
      }
      EXPECT_TRUE(stream->Synchronize().ok());
    }
    EXPECT_TRUE(stream->Synchronize().ok());
  }

  void Disturb(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < kLeasesOfStep; ++i) {
      const int tensor = static_cast<int>(random() % 2);
      const TileRef ref{ids_[tensor], random() % kTiles};
      switch (random() % 4) {
        case 0: (void)engine_->Evict(ref); break;  // refused if the tile is leased
        case 1: (void)engine_->Discard({ids_[1], ref.tile}); break;
        default: {
          const auto lease = Take(ref, random() % 2 == 0 ? Access::kReadWrite : Access::kDiscard,
                                  random() % 2 == 0, nullptr);
          if (!lease.ok()) return;
          const uint64_t version = ++versions_;
          for (uint64_t& word : lease->as<uint64_t>()) word = version;
          written_[static_cast<size_t>(tensor)][ref.tile] = version;
        }
      }
    }
  }

  void Run() {
    const uint64_t seed = test::Seed();
    std::array<Seen, kReaders> seen{};
    for (uint64_t step = 0; step < kSteps; ++step) {
      std::vector<std::thread> threads;
      for (uint64_t reader = 0; reader < kReaders; ++reader)
        threads.emplace_back([&, reader] { Read(seed + step * 100 + reader, seen[reader]); });
      if (GetParam().is_disturbed) threads.emplace_back([&] { Disturb(seed + step * 100 + 99); });
      for (std::thread& thread : threads) thread.join();
      ASSERT_TRUE(engine_->EndStep().ok());
      ASSERT_TRUE(engine_->WaitForPlan().ok());
      if (GetParam().has_store && step % 2 == 1) {
        const absl::Status committed = engine_->Commit("");
        ASSERT_TRUE(committed.ok()) << committed;
      }
    }
    EXPECT_EQ(wrong_, 0);
    EXPECT_EQ(engine_->Stats().acquires, leases_);
    for (uint64_t tile = 0; tile < kTiles; ++tile) {
      const auto lease = Take({ids_[0], tile}, Access::kRead, /*on_host=*/true, nullptr);
      ASSERT_TRUE(lease.ok());
      EXPECT_EQ(VersionOf(lease->as<uint64_t>()), written_[0][tile]);
    }
  }

  test::TempFolder folder_;
  std::unique_ptr<Engine> engine_;
  TensorId ids_[2];
  std::atomic<uint64_t> leases_ = 0;
  std::atomic<int> wrong_ = 0;
  Seen written_{};  // versions, by the thread that writes
  uint64_t versions_ = 0;
};

TEST_P(SharedLeases, FindOneVersionWhole) { Run(); }

INSTANTIATE_TEST_SUITE_P(Setups, SharedLeases,
                         testing::Values(Setup{"Planned", plan::Policy::kPlanned, 5, 8},
                                         Setup{"OnDemand", engine::kOnDemand, 5, 8},
                                         Setup{"AllFit", plan::Policy::kPlanned, 5, 12},
                                         Setup{"NoStore", plan::Policy::kPlanned, 5, 12, false},
                                         Setup{"ReadersAlone", plan::Policy::kPlanned, 5, 8, true,
                                               false}),
                         [](const auto& setup) { return setup.param.name; });

// While the plan is followed, the lease of "late" waits for the frame of "early", whose stream has
// not reached the end of its lease. A lease that is not in the plan is granted meanwhile and leaves
// the plan as it is. The step counts as a deviation only at its end.
TEST(SharedLease, ThatThePlanDoesNotHaveIsServedBesideIt) {
  EngineOptions options;
  options.device_bytes = 3 * kWords * 8;
  options.pinned_bytes = 8 * kWords * 8;
  const std::unique_ptr<Engine> engine = *Engine::Open(options);
  const TensorId id = *engine->Register({.name = "t", .shape = {4, kWords * 2}, .tile_rows = 1});
  // The first two tiles are read twice in a step, so that they are retained. The others take turns.
  const TileRef held{id, 0}, idle{id, 1}, early{id, 2}, late{id, 3};
  const std::unique_ptr<Stream> stream = *engine->CreateStream();
  const auto read = [&](TileRef tile) { ASSERT_TRUE(engine->Acquire(tile, Access::kRead).ok()); };
  const auto begin_step = [&] {
    read(held);
    read(idle);
    {
      const auto lease = engine->Acquire(early, Access::kRead, stream.get());
      ASSERT_TRUE(lease.ok()) << lease.status();
    }
    read(held);
    read(idle);
  };
  for (int step = 0; step < 4; ++step) {
    begin_step();
    read(late);
    ASSERT_TRUE(stream->Synchronize().ok());
    ASSERT_TRUE(engine->EndStep().ok());
    ASSERT_TRUE(engine->WaitForPlan().ok());
  }
  ASSERT_GT(engine->Stats().plan.steps, 0u);
  const uint64_t deviations = engine->Stats().plan.deviations;

  std::future<bool> waiting;
  std::promise<void> go_on;
  ASSERT_TRUE(stream->Launch([done = go_on.get_future().share()] { done.wait(); }).ok());
  begin_step();
  waiting =
      std::async(std::launch::async, [&] { return engine->Acquire(late, Access::kRead).ok(); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  EXPECT_EQ(engine->Stats().plan.deviations, deviations);
  {
    const auto lease = engine->Acquire(held, Access::kRead);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_EQ(engine->Stats().plan.deviations, deviations) << "now the engine hears of it";
  }
  go_on.set_value();
  EXPECT_TRUE(waiting.get());
  ASSERT_TRUE(engine->EndStep().ok());
  EXPECT_EQ(engine->Stats().plan.deviations, deviations + 1);
}

}  // namespace
}  // namespace spillway
