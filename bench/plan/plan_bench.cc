// SPDX-License-Identifier: Apache-2.0
//
// Question: what does planning a step cost, in time and memory, and does that grow with the number
// of tiles? Limit: 5 s for a step of 1 million tiles, once for each step that repeats. "EndStep"
// times all that is done for such a step at its end and beside the run; the bounds, which "Bound"
// times, are computed when statistics are asked for. Second question: how long does it take to stop
// a plan that is no longer needed? Limit: 0.5 s for 100,000 tiles, whenever it is stopped.
// "StopReserved" asks that of a step all of whose tiles have reserved frames in pinned memory.
//
// Method: the step is that of a model with tiles of at most 1 MiB (fp16 weights and gradients, fp32
// master weights and moments, 70 tiles of each in a layer). Pinned memory is 10% or 50% of the
// model's state. "bytes/tile" is the memory that the plan holds.
//
//   build/release/bin/plan_bench [--benchmark_filter=Plan] [--benchmark_out=FILE]

#include <benchmark/benchmark.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/engine/environment.h"
#include "src/base/bytes.h"
#include "src/base/clock.h"
#include "src/engine/step_planner.h"
#include "src/plan/bounds.h"
#include "src/plan/make_plan.h"
#include "tests/plan/bound_seconds.h"
#include "tests/plan/model_step.h"

namespace spillway::bench {
namespace {

uint64_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Makes the trace of a step with about `num_tiles` tiles. Tiles come in groups of five: weight,
// gradient, master weight and two moments.
plan::Trace MakeTrace(int64_t num_tiles) {
  plan::StepShape shape;
  shape.tiles_per_layer = static_cast<int>(std::min<int64_t>(70, num_tiles / 5));
  shape.layers = static_cast<int>(num_tiles / 5 / shape.tiles_per_layer);
  shape.weight_bytes = shape.gradient_bytes = 512 * kKiB;
  shape.master_bytes = kMiB;
  shape.checkpoint_bytes = kMiB;
  shape.forward_seconds = 0.01;
  shape.update_seconds = 0.01;
  return plan::StepTrace(shape);
}

plan::PlanOptions Budgets(const plan::Trace& trace, int64_t percent) {
  uint64_t state = 0;
  for (const plan::TraceTile& tile : trace.tiles) state += tile.transient ? 0 : tile.size_bytes;
  plan::PlanOptions options;
  options.pinned_bytes = std::max(state / 100 * static_cast<uint64_t>(percent), 64 * kMiB);
  options.device_bytes = std::max(state / 20, 32 * kMiB);
  return options;
}

void BM_Plan(benchmark::State& state) {
  const plan::Trace trace = MakeTrace(state.range(0));
  const plan::PlanOptions options = Budgets(trace, state.range(1));
  double bytes = 0, ops = 0;
  for (auto _ : state) {
    const uint64_t before = AllocatedBytes();
    const auto plan = plan::MakePlan(trace, options);
    if (!plan.ok()) return state.SkipWithError(std::string(plan.status().message()).c_str());
    bytes = static_cast<double>(AllocatedBytes() - before);
    ops = static_cast<double>(plan->ops.size());
  }
  const auto tiles = static_cast<double>(trace.tiles.size());
  state.counters["tiles"] = tiles;
  state.counters["events"] = static_cast<double>(trace.events.size());
  state.counters["ops/tile"] = ops / tiles;
  state.counters["bytes/tile"] = bytes / tiles;
}

void BM_Bound(benchmark::State& state) {
  const plan::Trace trace = MakeTrace(state.range(0));
  const plan::PlanOptions options = Budgets(trace, state.range(1));
  const auto plan = plan::MakePlan(trace, options);
  if (!plan.ok()) return state.SkipWithError(std::string(plan.status().message()).c_str());
  plan::BytesBound bound;
  for (auto _ : state) {
    bound = plan::BoundBytes(trace, options);
    benchmark::DoNotOptimize(plan::BoundSeconds(trace, options, bound, plan::Rates()));
  }
  state.counters["planned/bound"] =
      static_cast<double>(plan->bytes.nvme()) / static_cast<double>(bound.nvme);
}

// Times what the engine does for a step that it has not seen before: its end and, beside the run,
// the plan.
void BM_EndStep(benchmark::State& state) {
  const plan::Trace trace = MakeTrace(state.range(0));
  engine::TileTable tiles;
  plan::TileBits with_bytes;
  for (const plan::TraceTile& of : trace.tiles) {
    with_bytes.Set(tiles.size(), of.stored);
    engine::Tile& tile = tiles.emplace_back();
    tile.size_bytes = of.size_bytes;
    tile.role = of.role;
    tile.transient = of.transient;
  }
  for (auto _ : state) {
    state.PauseTiming();
    engine::PlanService service(Budgets(trace, state.range(1)));
    engine::StepPlanner planner(Budgets(trace, state.range(1)), &tiles, &service);
    for (engine::TileIndex tile = 0; tile < tiles.size(); ++tile) planner.AddTile(tile, /*now=*/0);
    plan::StepRecorder& recorder = *planner.Recording();
    for (const plan::TraceEvent& event : trace.events) {
      switch (event.kind) {
        case plan::TraceEvent::Kind::kAcquire:
          recorder.Acquire(event.tile, event.tier, event.access, 0, 0);
          break;
        case plan::TraceEvent::Kind::kRelease:
          recorder.Release(event.tile, event.tier, event.access, 0);
          break;
        case plan::TraceEvent::Kind::kDiscard: recorder.Discard(event.tile, 0); break;
      }
    }
    state.ResumeTiming();
    if (!planner.EndStep(0).ok()) return state.SkipWithError("the step did not end");
    (void)planner.Next({.with_bytes = with_bytes});
    (void)service.Wait();
    const auto plan = planner.Next({.with_bytes = with_bytes});
    if (!plan.ok()) return state.SkipWithError(std::string(plan.status().message()).c_str());
  }
}

// Destroys the service at moments spread over the time that a plan takes, and reports the longest
// wait.
void StopPlanning(benchmark::State& state, const plan::Trace& trace,
                  const plan::PlanOptions& budgets) {
  constexpr int kMoments = 20;
  plan::Trace copy = trace;  // the service's thread takes it: a copy made there cannot be stopped
  const auto take = [&copy] { return std::move(copy); };
  const double begin = base::Now();
  {
    engine::PlanService service(budgets);
    (void)service.Make(take);
    (void)service.Wait();
    const auto made = service.Take();
    if (!made->ok()) return state.SkipWithError(std::string(made->status().message()).c_str());
  }
  const double seconds = base::Now() - begin;
  double longest = 0, at = 0;
  for (auto _ : state) {
    for (int moment = 0; moment < kMoments; ++moment) {
      copy = trace;
      std::optional<engine::PlanService> service(std::in_place, budgets);
      (void)service->Make(take);
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds * moment / kMoments));
      const double stop = base::Now();
      service.reset();
      const double stopping = base::Now() - stop;
      if (stopping <= longest) continue;
      longest = stopping;
      at = static_cast<double>(moment) / kMoments;
    }
  }
  state.counters["plan_ms"] = seconds * 1e3;
  state.counters["longest_stop_ms"] = longest * 1e3;
  state.counters["stopped_at"] = at;
}

void BM_Stop(benchmark::State& state) {
  const plan::Trace trace = MakeTrace(state.range(0));
  StopPlanning(state, trace, Budgets(trace, state.range(1)));
}

void BM_StopReserved(benchmark::State& state) {
  plan::Trace trace = MakeTrace(state.range(0));
  plan::PlanOptions budgets = Budgets(trace, state.range(1));
  budgets.pinned_bytes = 0;
  for (plan::TraceTile& tile : trace.tiles) {
    tile.reserved_frame = plan::ReservedFrame{.offset = budgets.pinned_bytes};
    budgets.pinned_bytes += base::RoundUp(tile.size_bytes, budgets.frame_alignment);
  }
  StopPlanning(state, trace, budgets);
}

void RegisterBenchmarks() {
  constexpr std::pair<const char*, void (*)(benchmark::State&)> kBenchmarks[] = {
      {"Plan", BM_Plan},
      {"Bound", BM_Bound},
      {"EndStep", BM_EndStep},
      {"Stop", BM_Stop},
      {"StopReserved", BM_StopReserved}};
  for (const auto& [name, benchmark] : kBenchmarks) {
    auto* registered = benchmark::RegisterBenchmark(name, benchmark);
    for (int64_t num_tiles : {1'000, 10'000, 100'000, 1'000'000}) {
      for (int64_t percent : {10, 50}) registered->Args({num_tiles, percent});
    }
    registered->ArgNames({"tiles", "pinned%"})->Iterations(1)->Repetitions(3);
    registered->ReportAggregatesOnly(true)->Unit(benchmark::kMillisecond);
    registered->MeasureProcessCPUTime()->UseRealTime();
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
