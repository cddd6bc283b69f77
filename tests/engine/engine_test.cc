// SPDX-License-Identifier: Apache-2.0
//
// Tests of the public engine, with real files and both I/O engines.

#include "spillway/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/io/store/store_test_util.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"

namespace spillway {
namespace {

std::unique_ptr<Engine> OpenOrDie(const EngineOptions& options) {
  auto engine = Engine::Open(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

// Returns a 32-bit number that is determined by tensor, position and version.
uint32_t Value(uint32_t tensor, uint64_t position, uint32_t version) {
  return static_cast<uint32_t>(position * 2654435761u) ^ (tensor << 20) ^ version;
}

void Write(std::span<uint32_t> out, uint32_t tensor, uint64_t first, uint32_t version) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = Value(tensor, first + i, version);
}

bool Holds(std::span<const uint32_t> in, uint32_t tensor, uint64_t first, uint32_t version) {
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i] != Value(tensor, first + i, version)) return false;
  }
  return true;
}

TensorSpec Spec(const std::string& name, int64_t rows, int64_t columns, int64_t tile_rows) {
  TensorSpec spec;
  spec.name = name;
  spec.shape = {rows, columns};
  spec.tile_rows = tile_rows;
  return spec;
}

Reader Filler(uint32_t tensor) {
  return [tensor](uint64_t offset, std::span<std::byte> out) {
    Write({reinterpret_cast<uint32_t*>(out.data()), out.size() / 4}, tensor, offset / 4, 0);
    return absl::OkStatus();
  };
}

struct Variant {
  std::string name;
  int folders = 1;
  IoKind io = IoKind::kAuto;
  uint64_t page_bytes = 64 * kKiB;
};

class EngineWithStore : public testing::TestWithParam<Variant> {
 protected:
  EngineOptions Options(uint64_t device_bytes, uint64_t pinned_bytes) {
    EngineOptions options;
    for (int i = 0; i < GetParam().folders; ++i)
      options.store.push_back(folder_ / std::to_string(i));
    options.mode = OpenMode::kOpenOrCreate;
    options.device_bytes = device_bytes;
    options.pinned_bytes = pinned_bytes;
    options.page_bytes = GetParam().page_bytes;
    options.io = GetParam().io;
    return options;
  }
  test::TempFolder folder_;
};

TEST_P(EngineWithStore, StateManyTimesTheBudgetsKeepsEveryValue) {
  auto engine = OpenOrDie(Options(700 * kKiB, 900 * kKiB));
  ASSERT_NE(engine, nullptr);
  constexpr int kTensors = 8;
  constexpr uint64_t kRows = 37, kColumns = 1000,
                     kTileRows = 10;  // 40,000 bytes a tile, not a multiple of the sector size
  std::vector<TensorId> ids;
  for (uint32_t t = 0; t < kTensors; ++t) {
    auto id =
        engine->Register(Spec("w" + std::to_string(t), kRows * 10, kColumns, kTileRows), Filler(t));
    ASSERT_TRUE(id.ok()) << id.status();
    ids.push_back(*id);
  }
  const uint64_t tiles = engine->Spec(ids[0]).num_tiles();
  std::mt19937_64 random(test::Seed());
  std::vector<std::vector<uint32_t>> versions(kTensors, std::vector<uint32_t>(tiles, 0));
  for (int round = 0; round < 2000; ++round) {
    const uint32_t t = random() % kTensors;
    const uint64_t tile = random() % tiles;
    const bool write = random() % 2 == 0, host = random() % 2 == 0;
    if (round % 50 == 0) {
      std::vector<Use> uses;
      for (uint64_t next = 0; next < 20; ++next) uses.push_back({{ids[t], next % tiles}});
      ASSERT_TRUE(engine->Prefetch(uses).ok());
    }
    const TileRef ref{ids[t], tile};
    const Access access = write ? Access::kReadWrite : Access::kRead;
    auto lease = host ? engine->AcquireHost(ref, access) : engine->Acquire(ref, access);
    ASSERT_TRUE(lease.ok()) << lease.status();
    const uint64_t first = tile * kTileRows * kColumns;
    ASSERT_TRUE(Holds(lease->as<uint32_t>(), t, first, versions[t][tile])) << "round " << round;
    if (write) Write(lease->as<uint32_t>(), t, first, ++versions[t][tile]);
  }
  const EngineStats stats = engine->Stats();
  EXPECT_GT(stats.nvme.read_bytes, 0u);
  EXPECT_GT(stats.nvme.written_bytes, 0u);
  EXPECT_LE(stats.tiers[0].peak_bytes, 700 * kKiB);
  EXPECT_LE(stats.tiers[1].peak_bytes, 900 * kKiB);
}

TEST_P(EngineWithStore, ReopeningGivesTheLastCommitAndNothingLater) {
  for (uint32_t version = 0; version < 3; ++version) {
    auto engine = OpenOrDie(Options(kMiB, kMiB));
    ASSERT_NE(engine, nullptr);
    bool filled = false;
    auto filler = [&](uint64_t offset, std::span<std::byte> out) {
      filled = true;
      return Filler(0)(offset, out);
    };
    auto id = engine->Register(Spec("w", 300, 1000, 64), filler);
    auto zeros = engine->Register(Spec("zeros", 300, 100, 64));
    ASSERT_TRUE(id.ok() && zeros.ok()) << id.status() << zeros.status();
    EXPECT_EQ(filled, version == 0);
    if (version > 0) {
      EXPECT_EQ(engine->UserState(), "step " + std::to_string(version - 1));
    }
    for (uint64_t tile = 0; tile < engine->Spec(*id).num_tiles(); ++tile) {
      auto lease = engine->Acquire({*id, tile}, Access::kReadWrite);
      ASSERT_TRUE(lease.ok()) << lease.status();
      ASSERT_TRUE(Holds(lease->as<uint32_t>(), 0, tile * 64 * 1000, version));
      Write(lease->as<uint32_t>(), 0, tile * 64 * 1000, version + 1);
    }
    ASSERT_TRUE(engine->Commit("step " + std::to_string(version)).ok());
    auto lease = engine->Acquire(*id, Access::kDiscard);  // after the commit, so it must be lost
    ASSERT_TRUE(lease.ok());
    std::memset(lease->data(), 0x55, lease->size_bytes());
    lease->Release();
    ASSERT_TRUE(engine->Evict(*id).ok());
    auto zero = engine->AcquireHost(*zeros, Access::kRead);
    ASSERT_TRUE(zero.ok());
    for (uint32_t value : zero->as<uint32_t>()) ASSERT_EQ(value, 0u);
  }
}

TEST_P(EngineWithStore, AnotherSpecUnderAStoredNameIsAnError) {
  {
    auto engine = OpenOrDie(Options(kMiB, kMiB));
    ASSERT_TRUE(engine->Register(Spec("w", 10, 10, 0), Filler(0)).ok());
    ASSERT_TRUE(engine->Commit("").ok());
  }
  auto engine = OpenOrDie(Options(kMiB, kMiB));
  auto id = engine->Register(Spec("w", 10, 11, 0), Filler(0));
  EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(id.status().message().find("'w'"), absl::string_view::npos) << id.status();
}

TEST_P(EngineWithStore, AnotherNumberOfPagesUnderAStoredNameIsDamage) {
  {
    auto engine = OpenOrDie(Options(kMiB, kMiB));
    ASSERT_TRUE(engine->Register(Spec("w", 10, 10, 1), Filler(0)).ok());
    ASSERT_TRUE(engine->Commit("").ok());
  }
  for (const char* change : {"- 1", "+ 1000000000000"}) {
    io::RunSql(folder_ / "0/spillway-catalog.sqlite",
               absl::StrCat("UPDATE tensors SET num_pages = 10 ", change));
    auto engine = OpenOrDie(Options(kMiB, kMiB));
    const auto id = engine->Register(Spec("w", 10, 10, 1), Filler(0));
    EXPECT_EQ(id.status().code(), absl::StatusCode::kDataLoss) << id.status();
  }
}

TEST_P(EngineWithStore, ManyThreadsAtOnce) {
  auto engine = OpenOrDie(Options(400 * kKiB, 400 * kKiB));
  ASSERT_NE(engine, nullptr);
  auto id = engine->Register(Spec("w", 64, 2500, 4), Filler(0));  // 16 tiles of 40 KB
  ASSERT_TRUE(id.ok()) << id.status();
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  const uint64_t seed = test::Seed();
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      for (int round = 0; round < 300; ++round) {
        const uint64_t tile = random() % 16;
        const bool write = random() % 3 == 0;
        const Access access = write ? Access::kReadWrite : Access::kRead;
        auto lease = random() % 2 ? engine->Acquire({*id, tile}, access)
                                  : engine->AcquireHost({*id, tile}, access);
        if (!lease.ok()) {
          ++failures;
          continue;
        }
        // Every element of a tile was written with one version: readers never see a half-written
        // tile.
        auto values = lease->as<uint32_t>();
        const uint32_t version = values[0] ^ Value(0, tile * 10000, 0);
        if (!Holds(values, 0, tile * 10000, version)) ++failures;
        if (write) Write(values, 0, tile * 10000, version + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

TEST_P(EngineWithStore, AStreamWaitsForTheBytesAndTheEngineForTheStream) {
  auto engine = OpenOrDie(Options(300 * kKiB, kMiB));
  ASSERT_NE(engine, nullptr);
  auto id = engine->Register(Spec("w", 64, 2500, 4), Filler(0));
  ASSERT_TRUE(id.ok()) << id.status();
  auto stream = engine->CreateStream();
  ASSERT_TRUE(stream.ok());
  std::vector<uint32_t> versions(16, 0);
  std::atomic<int> failures{0};
  std::mt19937_64 random(test::Seed());
  for (int round = 0; round < 400; ++round) {
    const uint64_t tile = random() % 16;
    const bool write = random() % 2 == 0;
    auto lease =
        engine->Acquire({*id, tile}, write ? Access::kReadWrite : Access::kRead, stream->get());
    ASSERT_TRUE(lease.ok()) << lease.status();
    const uint32_t version = versions[tile];
    if (write) ++versions[tile];
    ASSERT_TRUE((*stream)
                    ->Launch([&failures, values = lease->as<uint32_t>(), tile, version, write] {
                      if (!Holds(values, 0, tile * 10000, version)) ++failures;
                      if (write) Write(values, 0, tile * 10000, version + 1);
                    })
                    .ok());
  }
  ASSERT_TRUE((*stream)->Synchronize().ok());
  EXPECT_EQ(failures, 0);
}

INSTANTIATE_TEST_SUITE_P(Stores, EngineWithStore,
                         testing::Values(Variant{"Auto"}, Variant{"TwoFolders", 2},
                                         Variant{"Posix", 1, IoKind::kPosix},
                                         Variant{"SmallPages", 1, IoKind::kAuto, 4096},
                                         Variant{"LargePages", 2, IoKind::kAuto, 8 * kMiB}),
                         [](const auto& each) { return each.param.name; });

TEST(Engine, WithoutAStoreEverythingRestsInPinnedMemory) {
  auto engine = OpenOrDie({.device_bytes = 100 * kKiB});
  auto id = engine->Register(Spec("w", 64, 2500, 4), Filler(0));
  ASSERT_TRUE(id.ok()) << id.status();
  for (int pass = 0; pass < 3; ++pass) {
    for (uint64_t tile = 0; tile < 16; ++tile) {
      auto lease = engine->Acquire({*id, tile}, Access::kReadWrite);
      ASSERT_TRUE(lease.ok()) << lease.status();
      ASSERT_TRUE(Holds(lease->as<uint32_t>(), 0, tile * 10000, pass));
      Write(lease->as<uint32_t>(), 0, tile * 10000, pass + 1);
    }
  }
  EXPECT_EQ(engine->Commit("").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine->Stats().nvme.read_bytes, 0u);
}

TEST(Engine, NamesTheLeasesThatKeepTheRoom) {
  auto engine = OpenOrDie({.device_bytes = 100 * kKiB});
  auto a = engine->Register(Spec("held", 1, 20000, 0)),
       b = engine->Register(Spec("asked", 1, 20000, 0));
  ASSERT_TRUE(a.ok() && b.ok());
  auto held = engine->Acquire(*a, Access::kRead);
  ASSERT_TRUE(held.ok());
  auto asked = engine->Acquire(*b, Access::kRead);
  ASSERT_EQ(asked.status().code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"asked", "held", "device"}) {
    EXPECT_NE(asked.status().message().find(part), absl::string_view::npos) << asked.status();
  }
  held->Release();
  EXPECT_TRUE(engine->Acquire(*b, Access::kRead).ok());
}

TEST(Engine, ATileLargerThanTheBudgetIsToldWithTheSizeThatWorks) {
  auto engine = OpenOrDie({.device_bytes = 64 * kKiB});
  auto id = engine->Register(Spec("w", 1, 20000, 0));
  ASSERT_TRUE(id.ok());
  auto lease = engine->Acquire(*id, Access::kRead);
  ASSERT_EQ(lease.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(lease.status().message().find("at least 80.0 KiB"), absl::string_view::npos)
      << lease.status();
}

TEST(Engine, CommitWithLeasesNamesThem) {
  test::TempFolder folder;
  auto engine = OpenOrDie({.store = {folder / "s"}, .device_bytes = kMiB, .pinned_bytes = kMiB});
  ASSERT_NE(engine, nullptr);
  auto id = engine->Register(Spec("w", 4, 100, 0), Filler(0));
  auto lease = engine->Acquire(*id, Access::kRead);
  ASSERT_TRUE(lease.ok());
  const absl::Status status = engine->Commit("");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("'w'"), absl::string_view::npos) << status;
  lease->Release();
  EXPECT_TRUE(engine->Commit("").ok());
}

TEST(Engine, ADiscardedTransientIsNeverWrittenAndReadsAsZeros) {
  test::TempFolder folder;
  auto engine =
      OpenOrDie({.store = {folder / "s"}, .device_bytes = 100 * kKiB, .pinned_bytes = 100 * kKiB});
  ASSERT_NE(engine, nullptr);
  TensorSpec spec = Spec("gradient", 64, 2500, 4);
  spec.transient = true;
  auto id = engine->Register(spec);
  ASSERT_TRUE(id.ok());
  for (uint64_t tile = 0; tile < 16; ++tile) {
    auto lease = engine->Acquire({*id, tile}, Access::kDiscard);
    ASSERT_TRUE(lease.ok()) << lease.status();
    std::memset(lease->data(), 1, lease->size_bytes());
    EXPECT_FALSE(engine->Discard({*id, tile}).ok()) << "leased";
    lease->Release();
    ASSERT_TRUE(engine->Discard({*id, tile}).ok());
  }
  EXPECT_EQ(engine->Stats().nvme.written_bytes, 0u);
  auto lease = engine->Acquire(*id, Access::kRead);
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(lease->as<uint32_t>()[0], 0u);
}

TEST(Engine, ClosingRightAfterADiscardDoesNotWaitForEver) {
  test::TempFolder folder;
  for (int round = 0; round < 50; ++round) {
    auto engine = OpenOrDie({.store = {folder / "s"},
                             .mode = OpenMode::kScratch,
                             .device_bytes = 100 * kKiB,
                             .pinned_bytes = 100 * kKiB});
    ASSERT_NE(engine, nullptr);
    TensorSpec spec = Spec("gradient", 1, 2500, 0);
    spec.transient = true;
    auto id = engine->Register(spec, Filler(0));
    ASSERT_TRUE(id.ok());
    ASSERT_TRUE(engine->Evict(*id).ok());
    while (engine->Stats().nvme.written_bytes == 0) std::this_thread::yield();
    ASSERT_TRUE(engine->Discard(*id).ok());
  }
}

TEST(Engine, AnExistingStoreIsRefusedUnlessAskedFor) {
  test::TempFolder folder;
  {
    ASSERT_TRUE(OpenOrDie({.store = {folder / "s"}, .pinned_bytes = kMiB})->Commit("").ok());
  }
  EXPECT_EQ(Engine::Open({.store = {folder / "s"}, .pinned_bytes = kMiB}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Engine, AScratchStoreLeavesNothing) {
  test::TempFolder folder;
  {
    auto engine =
        OpenOrDie({.store = {folder / "s"}, .mode = OpenMode::kScratch, .pinned_bytes = kMiB});
    ASSERT_NE(engine, nullptr);
    ASSERT_TRUE(engine->Register(Spec("w", 100, 10000, 10), Filler(0)).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "s"));
}

TEST(Engine, AFailingReaderIsReported) {
  auto engine = OpenOrDie({.pinned_bytes = kMiB});
  auto id = engine->Register(Spec("w", 4, 4, 0), [](uint64_t, std::span<std::byte>) {
    return absl::DataLossError("torn");
  });
  EXPECT_EQ(id.status().code(), absl::StatusCode::kDataLoss);
}

TEST(Engine, RefusesNonsense) {
  for (const EngineOptions& options :
       {EngineOptions{.page_bytes = 1000}, {.queue_depth = 0}, {.device_bytes = 10}}) {
    const absl::Status status = Engine::Open(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
  const absl::Status no_device = Engine::Open({.device = Device::Cuda(999)}).status();
  EXPECT_TRUE(absl::IsNotFound(no_device) || absl::IsUnimplemented(no_device)) << no_device;
  auto engine = OpenOrDie({.pinned_bytes = kMiB});
  EXPECT_FALSE(engine->Register(Spec("", 1, 1, 0)).ok());
  EXPECT_FALSE(engine->Register(Spec("a", 0, 1, 0)).ok());
  EXPECT_FALSE(engine->Register(Spec("a", int64_t{1} << 40, int64_t{1} << 40, 0)).ok());
  EXPECT_FALSE(engine->Register(Spec("a", 1, 1, -1)).ok());
  EXPECT_FALSE(engine->Acquire(TensorId{5}, Access::kRead).ok());
  auto id = engine->Register(Spec("a", 10, 1, 5));
  ASSERT_TRUE(id.ok());
  EXPECT_FALSE(engine->Acquire({*id, 2}, Access::kRead).ok());
  EXPECT_EQ(engine->Discard(*id).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*engine->Register(Spec("a", 10, 1, 5)), *id);
  EXPECT_FALSE(engine->Register(Spec("a", 10, 2, 5)).ok());
  EXPECT_EQ(*engine->Find("a"), *id);
  EXPECT_EQ(engine->Find("b").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace spillway
