// SPDX-License-Identifier: Apache-2.0
//
// Question: what do page-table operations cost in time and memory, and does that grow with the
// number of tiles? Limit: a small share of the transfer that they manage. Reading a tile of 2 MiB
// takes 700 µs from a drive of 3 GB/s. So a lease on a resident tile must stay below 1 µs, an
// eviction with the claim of its room below 35 µs (5%), and a tile's entry below 512 bytes
// (0.025%), both at 1,000 tiles and at 10 million.
//
// "Pager" drives the state machine alone; its transfers end at once and need no memory. "Engine"
// adds locks, waiting callers, the transfer thread and, for an eviction, the copy of a tile. Tiles
// have 4 KiB, so that a million of them fit in memory. Leases of resident tiles jump from tile to
// tile. Evictions walk the tiles in a circle, so that every lease misses.
//
//   build/release/bin/pager_bench [--benchmark_filter=Evict] [--benchmark_out=FILE]

#include <benchmark/benchmark.h>
#include <malloc.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bench/engine/environment.h"
#include "spillway/engine.h"
#include "src/engine/pager/pager.h"

namespace spillway::bench {
namespace {

using engine::Action;
using engine::Pager;
using engine::PagerOptions;
using engine::TileIndex;

constexpr uint64_t kTileBytes = 4 * kKiB;

uint64_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Returns a tile far from `tile`. Repeated jumps visit every tile, because the distance is coprime
// to the numbers of tiles, which are powers of ten.
TileIndex Jump(TileIndex tile, uint64_t num_tiles) {
  return static_cast<TileIndex>((tile + 7919) % num_tiles);
}

// Ends every transfer as soon as it starts. Returns whether a lease was granted and nothing failed.
bool Settle(Pager& pager) {
  bool granted = false;
  for (auto actions = pager.TakeActions(); !actions.empty(); actions = pager.TakeActions()) {
    for (const Action& action : actions) {
      switch (action.kind) {
        case Action::Kind::kGrant: granted = true; break;
        case Action::Kind::kFail: return false;
        case Action::Kind::kForget: break;
        default: pager.TransferDone(action.tile, absl::OkStatus());
      }
    }
  }
  return granted;
}

bool LeaseOnce(Pager& pager, TileIndex tile) {
  pager.Acquire(/*ticket=*/1, tile, Tier::kPinned, Access::kRead, /*stream=*/nullptr);
  if (!Settle(pager)) return false;
  pager.EndLease(tile, Tier::kPinned, Access::kRead, /*drained=*/false);
  Settle(pager);
  return true;
}

// Makes a pager with `num_tiles` tiles that are stored on NVMe, and pinned memory for `num_frames`
// of them.
std::unique_ptr<Pager> MakePager(uint64_t num_tiles, uint64_t num_frames,
                                 std::optional<Tier> rest = std::nullopt) {
  PagerOptions options;
  options.pinned_bytes = num_frames * kTileBytes;
  options.has_store = true;
  options.placement[static_cast<size_t>(Role::kParameter)] = rest;
  options.describe = [](TileIndex) { return std::string("a tile"); };
  auto pager = std::make_unique<Pager>(std::move(options));
  for (uint64_t i = 0; i < num_tiles; ++i) {
    pager->AddTile(kTileBytes, Role::kParameter, /*transient=*/false, /*stored=*/true);
  }
  return pager;
}

void BM_PagerAddTile(benchmark::State& state) {
  const auto num_tiles = static_cast<uint64_t>(state.range(0));
  double bytes = 0;
  for (auto _ : state) {
    const uint64_t before = AllocatedBytes();
    const auto start = std::chrono::steady_clock::now();
    const auto pager = MakePager(num_tiles, num_tiles);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(seconds.count() / static_cast<double>(num_tiles));  // for one tile
    bytes = static_cast<double>(AllocatedBytes() - before);
  }
  state.counters["bytes/tile"] = bytes / static_cast<double>(num_tiles);
}

void BM_PagerLease(benchmark::State& state) {
  const auto num_tiles = static_cast<uint64_t>(state.range(0));
  const uint64_t before = AllocatedBytes();
  const auto owner = MakePager(num_tiles, num_tiles);
  Pager& pager = *owner;
  for (TileIndex tile = 0; tile < num_tiles; ++tile) {
    if (!LeaseOnce(pager, tile)) return state.SkipWithError("no lease");
  }
  // Every tile has a frame here.
  state.counters["bytes/tile"] =
      static_cast<double>(AllocatedBytes() - before) / static_cast<double>(num_tiles);
  TileIndex tile = 0;
  for (auto _ : state) {
    if (!LeaseOnce(pager, tile)) return state.SkipWithError("no lease");
    tile = Jump(tile, num_tiles);
  }
}

// Times a lease on an absent tile, with room for half of the tiles. The least recently used tile is
// dropped to make room.
void BM_PagerEvict(benchmark::State& state) {
  const auto num_tiles = static_cast<uint64_t>(state.range(0));
  const auto owner = MakePager(num_tiles, num_tiles / 2);
  Pager& pager = *owner;
  for (TileIndex tile = 0; tile < num_tiles / 2; ++tile) {
    if (!LeaseOnce(pager, tile)) return state.SkipWithError("no lease");
  }
  auto tile = static_cast<TileIndex>(num_tiles / 2);
  for (auto _ : state) {
    if (!LeaseOnce(pager, tile)) return state.SkipWithError("no lease");
    tile = static_cast<TileIndex>((tile + 1) % num_tiles);
  }
}

// Times the first lease of a tile that rests in pinned memory. The lease claims the tile's reserved
// frame, beside those claimed before.
void BM_PagerReserved(benchmark::State& state) {
  const auto num_tiles = static_cast<uint64_t>(state.range(0));
  for (auto _ : state) {
    const auto owner = MakePager(num_tiles, num_tiles, /*rest=*/Tier::kPinned);
    Pager& pager = *owner;
    const auto start = std::chrono::steady_clock::now();
    for (TileIndex tile = 0; tile < num_tiles; ++tile) {
      if (!LeaseOnce(pager, tile)) return state.SkipWithError("no lease");
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(seconds.count() / static_cast<double>(num_tiles));  // for one tile
  }
}

// A tensor of `num_tiles` tiles. The device holds `num_frames` of them, pinned memory holds all.
struct Tensor {
  std::unique_ptr<Engine> engine;
  TensorId id;
  double register_seconds = 0;
};

absl::StatusOr<Tensor> MakeTensor(uint64_t num_tiles, uint64_t num_frames) {
  EngineOptions options;
  options.device_bytes = num_frames * kTileBytes;
  options.pinned_bytes = num_tiles * kTileBytes;
  auto opened = Engine::Open(std::move(options));
  if (!opened.ok()) return opened.status();
  TensorSpec spec;
  spec.name = "t";
  spec.shape = {static_cast<int64_t>(num_tiles), kTileBytes / 4};
  spec.tile_rows = 1;
  const auto start = std::chrono::steady_clock::now();
  auto id = (*opened)->Register(spec);
  if (!id.ok()) return id.status();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return Tensor{std::move(*opened), *id, seconds.count()};
}

void BM_EngineAddTile(benchmark::State& state) {
  const auto num_tiles = static_cast<uint64_t>(state.range(0));
  double bytes = 0;
  for (auto _ : state) {
    const uint64_t before = AllocatedBytes();
    auto tensor = MakeTensor(num_tiles, num_tiles);
    if (!tensor.ok()) return state.SkipWithError(std::string(tensor.status().message()).c_str());
    state.SetIterationTime(tensor->register_seconds / static_cast<double>(num_tiles));
    bytes = static_cast<double>(AllocatedBytes() - before);
  }
  state.counters["bytes/tile"] = bytes / static_cast<double>(num_tiles);
}

void BM_EngineLease(benchmark::State& state) {
  const auto num_tiles = static_cast<uint64_t>(state.range(0));
  auto tensor = MakeTensor(num_tiles, num_tiles);
  bool ok = tensor.ok();
  const auto lease = [&](TileIndex tile, Access access) {
    return tensor->engine->Acquire(TileRef(tensor->id, tile), access).ok();
  };
  for (TileIndex tile = 0; ok && tile < num_tiles; ++tile) ok = lease(tile, Access::kDiscard);
  TileIndex tile = 0;
  for (auto _ : state) {
    ok = ok && lease(tile, Access::kRead);
    if (!ok) return state.SkipWithError("no lease");
    tile = Jump(tile, num_tiles);
  }
}

// Times Acquire alone, without the end of the lease. It takes 64 read leases at a time, of tiles on
// the device.
void BM_EngineAcquire(benchmark::State& state) {
  constexpr int kTogether = 64;
  const auto num_tiles = static_cast<uint64_t>(state.range(0));
  auto tensor = MakeTensor(num_tiles, num_tiles);
  bool ok = tensor.ok();
  const auto lease = [&](TileIndex tile, Access access) {
    return tensor->engine->Acquire(TileRef(tensor->id, tile), access);
  };
  for (TileIndex tile = 0; ok && tile < num_tiles; ++tile) ok = lease(tile, Access::kDiscard).ok();
  std::vector<absl::StatusOr<Lease>> leases;
  leases.reserve(kTogether);
  TileIndex tile = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kTogether; ++i) {
      leases.push_back(lease(tile, Access::kRead));
      tile = Jump(tile, num_tiles);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(seconds.count() / kTogether);
    for (const auto& taken : leases) ok = ok && taken.ok();
    if (!ok) return state.SkipWithError("no lease");
    leases.clear();
  }
}

void BM_EngineEvict(benchmark::State& state) {
  const auto num_tiles = static_cast<uint64_t>(state.range(0));
  auto tensor = MakeTensor(num_tiles, num_tiles / 2);
  bool ok = tensor.ok();
  // Writes every tile in pinned memory, where its bytes stay. The leases below then fill the
  // device, which holds half of the tiles.
  for (TileIndex tile = 0; ok && tile < num_tiles; ++tile) {
    ok = tensor->engine->AcquireHost(TileRef(tensor->id, tile), Access::kDiscard).ok();
  }
  const auto lease = [&](TileIndex tile) {
    return tensor->engine->Acquire(TileRef(tensor->id, tile), Access::kRead).ok();
  };
  for (TileIndex tile = 0; ok && tile < num_tiles / 2; ++tile) ok = lease(tile);
  auto tile = static_cast<TileIndex>(num_tiles / 2);
  for (auto _ : state) {
    ok = ok && lease(tile);
    if (!ok) return state.SkipWithError("no lease");
    tile = static_cast<TileIndex>((tile + 1) % num_tiles);
  }
}

// Times the end of a known step that follows its plan. The counters have the first lease of a step
// and a lease in its middle.
void BM_EngineEndStep(benchmark::State& state) {
  const auto num_tiles = static_cast<uint64_t>(state.range(0));
  auto tensor = MakeTensor(num_tiles, num_tiles);
  bool ok = tensor.ok();
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  Clock::time_point end_of_step = Clock::now();
  double first_lease = 0, middle_lease = 0;
  const auto step = [&] {
    for (TileIndex tile = 0; ok && tile < num_tiles; ++tile) {
      const bool is_timed = tile == 0 || tile == num_tiles / 2;
      if (is_timed) end_of_step = Clock::now();
      const auto lease = tensor->engine->Acquire(TileRef(tensor->id, tile), Access::kRead);
      if (is_timed)
        (tile == 0 ? first_lease : middle_lease) += Seconds(Clock::now() - end_of_step).count();
      ok = lease.ok();
    }
  };
  for (int unplanned = 0; ok && unplanned < 3; ++unplanned) {
    step();
    ok = ok && tensor->engine->EndStep().ok() && tensor->engine->WaitForPlan().ok();
  }
  first_lease = middle_lease = 0;
  for (auto _ : state) {
    step();
    const auto start = Clock::now();
    ok = ok && tensor->engine->EndStep().ok();
    state.SetIterationTime(Seconds(Clock::now() - start).count());
    if (!ok) return state.SkipWithError("no lease");
  }
  const auto steps = static_cast<double>(state.iterations());
  state.counters["first_lease_ns"] = first_lease / steps * 1e9;
  state.counters["middle_lease_ns"] = middle_lease / steps * 1e9;
}

constexpr int64_t kMillions = 10'000'000, kInMemory = 1'000'000;

struct Bench {
  const char* name;
  void (*function)(benchmark::State&);
  int64_t iterations;
  int64_t most_tiles;
  bool times_itself = false;
};

// Sets the numbers of iterations, because each run of a function builds its tiles first.
void RegisterBenchmarks() {
  for (const Bench& bench : {Bench{"Pager/add_tile", BM_PagerAddTile, 3, kMillions, true},
                             Bench{"Pager/lease", BM_PagerLease, 100'000, kMillions},
                             Bench{"Pager/evict", BM_PagerEvict, 3'000, kMillions},
                             Bench{"Pager/reserved", BM_PagerReserved, 1, kMillions, true},
                             Bench{"Engine/add_tile", BM_EngineAddTile, 3, kInMemory, true},
                             Bench{"Engine/acquire", BM_EngineAcquire, 3'000, kInMemory, true},
                             Bench{"Engine/lease", BM_EngineLease, 1'000'000, kInMemory},
                             Bench{"Engine/evict", BM_EngineEvict, 1'000, kInMemory},
                             Bench{"Engine/end_step", BM_EngineEndStep, 10, kInMemory, true}}) {
    auto* registered = benchmark::RegisterBenchmark(bench.name, bench.function);
    for (int64_t num_tiles = 1'000; num_tiles <= bench.most_tiles; num_tiles *= 10) {
      registered->Arg(num_tiles);
    }
    registered->ArgName("tiles")->Iterations(bench.iterations);
    if (bench.times_itself) {
      registered->UseManualTime();
    } else {
      registered->UseRealTime();
    }
    registered->Repetitions(5)->ReportAggregatesOnly(true);
  }
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  spillway::bench::DescribeMachine("");
  spillway::bench::RegisterBenchmarks();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
