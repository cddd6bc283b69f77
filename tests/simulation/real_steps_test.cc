// SPDX-License-Identifier: Apache-2.0
//
// A simulation against the engine itself: the same steps, with real threads, a real store and real
// bytes, move what the simulation says.

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "spillway/engine.h"
#include "src/base/status_macros.h"
#include "src/engine/recorded_step.h"
#include "src/simulation/virtual_engine.h"
#include "tests/exhaustive.h"
#include "tests/plan/model_step.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"

namespace spillway::simulation {
namespace {

using plan::TraceEvent;

constexpr int kSteps = 8;
constexpr int kFirstCompared = 4;

struct RealStep {
  engine::RecordedStep recorded;
  PlanStats plan;
};

// An engine whose tensors are the tiles of a trace.
class RealEngine {
 public:
  absl::Status Open(const plan::Trace& trace, EngineOptions options) {
    SPILLWAY_ASSIGN_OR_RETURN(engine_, Engine::Open(std::move(options)));
    for (size_t tile = 0; tile < trace.tiles.size(); ++tile) {
      const plan::TraceTile& of = trace.tiles[tile];
      const TensorSpec spec = {.name = std::to_string(tile),
                               .dtype = DType::kU8,
                               .shape = {1, static_cast<int64_t>(of.size_bytes)},
                               .role = of.role,
                               .tile_rows = 1,
                               .transient = of.transient};
      const auto zeros = [](uint64_t, std::span<std::byte> out) {
        std::ranges::fill(out, std::byte{0});
        return absl::OkStatus();
      };
      SPILLWAY_ASSIGN_OR_RETURN(tensors_.emplace_back(),
                                engine_->Register(spec, of.stored ? Reader(zeros) : Reader()));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RealStep> Step(const std::vector<TraceEvent>& events) {
    std::multimap<std::pair<plan::TileIndex, Tier>, Lease> held;
    for (const TraceEvent& event : events) {
      const TileRef tile = {tensors_[event.tile], 0};
      switch (event.kind) {
        case TraceEvent::Kind::kAcquire: {
          SPILLWAY_ASSIGN_OR_RETURN(Lease lease, event.tier == Tier::kDevice
                                                     ? engine_->Acquire(tile, event.access)
                                                     : engine_->AcquireHost(tile, event.access));
          if (Writes(event.access)) lease.as<std::byte>()[0] ^= std::byte{1};
          held.emplace(std::pair(event.tile, event.tier), std::move(lease));
          break;
        }
        case TraceEvent::Kind::kRelease: held.erase(held.find({event.tile, event.tier})); break;
        case TraceEvent::Kind::kDiscard: SPILLWAY_RETURN_IF_ERROR(engine_->Discard(tile)); break;
      }
    }
    SPILLWAY_RETURN_IF_ERROR(engine_->EndStep());
    SPILLWAY_RETURN_IF_ERROR(engine_->WaitForPlan());
    SPILLWAY_ASSIGN_OR_RETURN(engine::RecordedStep recorded,
                              engine::LastStep(engine_.get(), SIZE_MAX));
    return RealStep{std::move(recorded), engine_->Stats().plan};
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::vector<TensorId> tensors_;
};

plan::StepShape DrawShape(std::mt19937_64& random) {
  plan::StepShape shape;
  shape.layers = 2 + static_cast<int>(random() % 8);
  shape.micro_batches = 1 + static_cast<int>(random() % 3);
  shape.by_layer = random() % 2 == 0;
  shape.tiles_per_layer = 1 + static_cast<int>(random() % 4);
  shape.weight_bytes = 4096 * (1 + random() % 12);
  shape.gradient_bytes = shape.weight_bytes;
  shape.master_bytes = 2 * shape.weight_bytes;
  shape.checkpoint_bytes = 4096 * (1 + random() % 6);
  return shape;
}

std::vector<uint64_t> BytesOf(const PlanStats& plan) {
  return {plan.nvme.read_bytes, plan.nvme.written_bytes, plan.pinned.read_bytes,
          plan.pinned.written_bytes};
}

TEST(RealSteps, MoveTheBytesOfTheirSimulation) {
  const uint64_t first = test::Seed();
  const uint64_t rounds = IsExhaustive() ? 200 : 8;
  uint64_t compared = 0;
  for (uint64_t seed = first; seed != first + rounds; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    std::mt19937_64 random(seed);
    const plan::Trace trace = plan::StepTrace(DrawShape(random));
    const uint64_t state = plan::StateBytes(trace);
    const test::TempFolder folder;
    EngineOptions options;
    options.store = {folder / "store"};
    options.mode = OpenMode::kScratch;
    options.device_bytes = state / (2 + random() % 10) + (1 << 19);
    options.pinned_bytes = state / (1 + random() % 10) + (1 << 19);
    options.page_bytes = uint64_t{4096} << random() % 9;
    if (random() % 3 == 0) options.placement[static_cast<size_t>(Role::kMoment)] = Tier::kNvme;
    RealEngine real;
    const absl::Status opened = real.Open(trace, options);
    ASSERT_TRUE(opened.ok()) << opened;
    std::vector<RealStep> steps;
    for (int step = 0; step < kSteps; ++step) {
      absl::StatusOr<RealStep> done = real.Step(trace.events);
      ASSERT_TRUE(done.ok()) << done.status();
      steps.push_back(*std::move(done));
    }
    const SimulationOptions simulated = OptionsOf(steps.back().recorded);
    const auto engine = VirtualEngine::Open(trace.tiles, simulated);
    ASSERT_TRUE(engine.ok()) << engine.status();
    for (int step = 1; step <= kSteps; ++step) {
      const RealStep& was = steps[static_cast<size_t>(step - 1)];
      ASSERT_EQ(was.recorded.trace.events.size(), trace.events.size());
      const auto result = (*engine)->Step(was.recorded.trace.events);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_GE(result->seconds * (1 + 1e-9), result->compute_seconds);
      if (step == 1) {
        const auto plan = (*engine)->Plan(was.recorded.trace.events);
        ASSERT_TRUE(plan.ok()) << plan.status();
      }
      if (step < kFirstCompared) continue;
      const PlanStats& is = (*engine)->stats().plan;
      EXPECT_EQ(was.plan.planned_bytes, is.planned_bytes) << "step " << step;
      // Seldom, a lease that is pulled makes a transfer of the plan needless, which depends on the
      // microseconds between two leases.
      const bool both_follow =
          was.plan.moved_bytes() == was.plan.planned_bytes && is.moved_bytes() == is.planned_bytes;
      if (!both_follow) continue;
      EXPECT_EQ(BytesOf(was.plan), BytesOf(is)) << "step " << step;
      ++compared;
    }
  }
  EXPECT_GE(compared, rounds * (kSteps - kFirstCompared + 1) * 3 / 4);
}

}  // namespace
}  // namespace spillway::simulation
