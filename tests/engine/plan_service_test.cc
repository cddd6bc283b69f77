// SPDX-License-Identifier: Apache-2.0
//
// Plans that are made beside the run. A plan is the same as one that is made at once, and closing
// the service does not wait for a plan that is being made.

#include "src/engine/plan_service.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "spillway/interrupt.h"
#include "src/plan/bounds.h"
#include "src/plan/make_plan.h"
#include "tests/engine/no_new_threads.h"
#include "tests/exhaustive.h"

namespace spillway::engine {
namespace {

constexpr uint64_t kTileBytes = 4096;

// Returns a trace that reads all tiles on the device, one after the other, twice.
plan::Trace TilesTwice(plan::TileIndex num_tiles) {
  plan::TraceRecorder recorder;
  for (plan::TileIndex tile = 0; tile < num_tiles; ++tile)
    recorder.AddTile({.size_bytes = kTileBytes, .stored = true});
  recorder.Begin(0);
  for (int pass = 0; pass < 2; ++pass) {
    for (plan::TileIndex tile = 0; tile < num_tiles; ++tile) {
      recorder.Acquire(tile, Tier::kDevice, Access::kRead, 0, 0);
      recorder.Release(tile, Tier::kDevice, Access::kRead, 0);
    }
  }
  return recorder.End();
}

plan::PlanOptions HalfOf(plan::TileIndex num_tiles) {
  return {.device_bytes = num_tiles / 4 * kTileBytes, .pinned_bytes = num_tiles / 2 * kTileBytes};
}

TEST(PlanService, MakesThePlanThatIsMadeAtOnceToo) {
  const plan::Trace trace = TilesTwice(100);
  PlanService service(HalfOf(100));
  EXPECT_FALSE(service.is_busy());
  EXPECT_FALSE(service.Take().has_value());
  for (uint64_t request = 1; request <= 3; ++request) {
    ASSERT_TRUE(service.Make([&] { return trace; }).ok());
    EXPECT_TRUE(service.is_busy());
    ASSERT_TRUE(service.Wait().ok());
    EXPECT_TRUE(service.is_busy()) << "until it is taken";
    const std::optional<PlanService::Made> made = service.Take();
    ASSERT_TRUE(made.has_value());
    EXPECT_FALSE(service.is_busy());
    ASSERT_TRUE(made->ok()) << made->status();
    const auto at_once = plan::MakePlan(trace, HalfOf(100));
    ASSERT_TRUE(at_once.ok()) << at_once.status();
    const PlanFollower& follower = ***made;
    EXPECT_EQ(follower.step().plan.bytes, at_once->bytes);
    EXPECT_EQ(follower.step().plan.seam, at_once->seam);
  }
}

TEST(PlanService, TheBoundsOfAPlanAreComputedOnceForAllWhoAsk) {
  const plan::Trace trace = TilesTwice(100);
  PlanService service(HalfOf(100));
  ASSERT_TRUE(service.Make([&] { return trace; }).ok());
  ASSERT_TRUE(service.Wait().ok());
  const auto made = *service.Take();
  ASSERT_TRUE(made.ok()) << made.status();
  auto other = std::async(std::launch::async, [plan = *made] { return &plan->Bound(); });
  const plan::SecondsBound& bound = (*made)->Bound();
  EXPECT_EQ(other.get(), &bound);
  const plan::BytesBound bytes = plan::BoundBytes(trace, HalfOf(100));
  EXPECT_GT(bytes.nvme, 0u);
  EXPECT_EQ(bound.bytes().nvme, bytes.nvme);
  EXPECT_EQ(bound.bytes().device, bytes.device);
}

// A program that runs under `nice` lowers the priority of every thread.
TEST(PlanService, ItsThreadHasALowerPriorityThanItsCallers) {
  for (const int nicer : {0, 15}) {
    std::thread caller([nicer] {
      const auto priority = [] {
        return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()));
      };
      const int nice = std::min(priority() + nicer, 19);
      ASSERT_EQ(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), nice), 0);
      int planner = -1;
      PlanService service(HalfOf(100));
      const absl::Status asked = service.Make([&] {
        planner = priority();
        return TilesTwice(100);
      });
      ASSERT_TRUE(asked.ok()) << asked;
      ASSERT_TRUE(service.Wait().ok());
      EXPECT_EQ(planner, std::min(nice + 10, 19));
      EXPECT_EQ(priority(), nice);
    });
    caller.join();
  }
}

// Pinned memory has a frame for each tile, so each has a place of its own there, assigned from the
// arena's end down, except for a tile that rests on NVMe. Two threads lease, which asks for a
// reserve at that end.
TEST(PlanService, LeavesOutTheReserveIfReservedFramesTakeItsRoom) {
  constexpr plan::TileIndex kTiles = 20;
  plan::Trace trace = TilesTwice(kTiles);
  trace.tiles[0].rest = Tier::kNvme;
  for (plan::TileIndex tile = 1; tile < kTiles; ++tile)
    trace.tiles[tile].reserved_frame = plan::ReservedFrame{Tier::kPinned, tile * kTileBytes};
  for (size_t i = 0; i < trace.events.size(); ++i)
    trace.events[i].thread = static_cast<uint16_t>(i / 2 % 2);
  PlanService service({.device_bytes = 10 * kTileBytes, .pinned_bytes = kTiles * kTileBytes});
  ASSERT_TRUE(service.Make([&] { return trace; }).ok());
  ASSERT_TRUE(service.Wait().ok());
  const std::optional<PlanService::Made> made = service.Take();
  ASSERT_TRUE(made.has_value());
  ASSERT_TRUE(made->ok()) << made->status();
  EXPECT_EQ((**made)->step().plan.options.pinned_reserve_bytes, 0u);
}

TEST(PlanService, WithoutMemoryThereIsNoPlan) {
  PlanService service(HalfOf(100));
  ASSERT_TRUE(service.Make([]() -> plan::Trace { throw std::bad_alloc(); }).ok());
  ASSERT_TRUE(service.Wait().ok());
  EXPECT_TRUE(absl::IsUnavailable(service.Take()->status()));
  ASSERT_TRUE(service.Make([] { return TilesTwice(100); }).ok());
  ASSERT_TRUE(service.Wait().ok());
  EXPECT_TRUE(service.Take()->ok());
}

TEST(PlanService, WithoutAThreadThereIsNoPlanUntilOneCanBeStarted) {
  std::optional<PlanService> service;
  const auto held = std::make_shared<int>();
  {
    const NoNewThreads none;
    service.emplace(HalfOf(100));
    service->Start();
    bool is_called = false;
    const absl::Status asked = service->Make([&] {
      is_called = true;
      return TilesTwice(100);
    });
    EXPECT_TRUE(absl::IsResourceExhausted(asked)) << asked;
    EXPECT_TRUE(absl::StartsWith(asked.message(), "cannot start the thread that plans steps: "))
        << asked;
    EXPECT_TRUE(absl::EndsWith(asked.message(), "; the next EndStep tries again")) << asked;
    EXPECT_FALSE(is_called);
    EXPECT_FALSE(service->is_busy());
    EXPECT_TRUE(service->Wait().ok());
    EXPECT_FALSE(service->Take().has_value());
    service->Free(held);
  }
  EXPECT_EQ(held.use_count(), 2) << "it is not freed by the caller";
  service->Start();
  ASSERT_TRUE(service->Make([] { return TilesTwice(100); }).ok());
  ASSERT_TRUE(service->Wait().ok());
  EXPECT_TRUE(service->Take()->ok());
  EXPECT_EQ(held.use_count(), 1);
}

TEST(PlanService, SaysWhyThereIsNoPlan) {
  plan::PlanOptions none = HalfOf(100);
  none.device_bytes = kTileBytes - 1;
  PlanService service(none);
  ASSERT_TRUE(service.Make([] { return TilesTwice(100); }).ok());
  ASSERT_TRUE(service.Wait().ok());
  const std::optional<PlanService::Made> made = service.Take();
  ASSERT_TRUE(made.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(made->status())) << made->status();
}

TEST(PlanService, AnInterruptEndsAWaitAndThePlanIsStillMade) {
  PlanService service(HalfOf(100));
  std::promise<void> go_on;
  const absl::Status asked = service.Make([may_end = go_on.get_future().share()]() {
    may_end.wait();
    return TilesTwice(100);
  });
  ASSERT_TRUE(asked.ok()) << asked;
  SetInterrupt([] { return true; });
  const absl::Status status = service.Wait();
  SetInterrupt({});
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  go_on.set_value();
  ASSERT_TRUE(service.Wait().ok());
  const std::optional<PlanService::Made> made = service.Take();
  ASSERT_TRUE(made.has_value());
  EXPECT_TRUE(made->ok()) << made->status();
}

// The moments are spread over the time that a plan takes, and beyond.
TEST(PlanService, MakingAPlanMayBeStoppedAtAnyMoment) {
  const plan::TileIndex many = TriesOnePoint() ? 1'000 : 5'000;
  const plan::Trace trace = TilesTwice(many);
  std::atomic<bool> stop = false;
  plan::PlanOptions options = HalfOf(many);
  options.stop = &stop;
  const auto make = [&] {
    auto plan = plan::MakePlan(trace, options);
    if (!plan.ok()) return plan.status();
    const PlanFollower follower(StepPlan{trace, *std::move(plan)});
    return absl::OkStatus();
  };
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(make().ok());
  const auto time = std::chrono::steady_clock::now() - begin;
  constexpr int kMoments = 20;
  for (int moment = 0; moment < kMoments; ++moment) {
    stop = false;
    std::thread stopper([&] {
      std::this_thread::sleep_for(time * moment / kMoments);
      stop = true;
    });
    const absl::Status made = make();
    stopper.join();
    EXPECT_TRUE(made.ok() || absl::IsCancelled(made)) << made;
  }
}

TEST(PlanService, APlanThatIsStoppedIsWholeOrIsNotHandedOut) {
  const plan::TileIndex many = TriesOnePoint() ? 1'000 : 5'000;
  constexpr int kMoments = 20;
  std::chrono::steady_clock::duration time = {};
  for (int moment = kMoments; moment >= 0; --moment) {
    PlanService service(HalfOf(many));
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(service.Make([many] { return TilesTwice(many); }).ok());
    if (moment == kMoments) {
      ASSERT_TRUE(service.Wait().ok());
      time = std::chrono::steady_clock::now() - begin;
    }
    std::this_thread::sleep_for(time * (moment % kMoments) / kMoments);
    service.Stop();
    ASSERT_TRUE(service.Wait().ok());
    const std::optional<PlanService::Made> made = service.Take();
    ASSERT_TRUE(made.has_value());
    if (made->ok()) {
      EXPECT_EQ((**made)->tiles().num_tiles(), many);
    } else {
      EXPECT_TRUE(absl::IsCancelled(made->status())) << made->status();
      EXPECT_NE(moment, kMoments);
    }
  }
}

TEST(PlanService, StopDoesNotWaitAndTheStepIsNotBlamed) {
  PlanService service(HalfOf(100));
  std::promise<void> has_begun, go_on;
  const absl::Status asked = service.Make([&] {
    has_begun.set_value();
    go_on.get_future().wait();
    return TilesTwice(100);
  });
  ASSERT_TRUE(asked.ok()) << asked;
  has_begun.get_future().wait();
  service.Stop();
  EXPECT_TRUE(service.is_busy());
  go_on.set_value();
  ASSERT_TRUE(service.Wait().ok());
  const std::optional<PlanService::Made> made = service.Take();
  ASSERT_TRUE(made.has_value());
  EXPECT_TRUE(absl::IsCancelled(made->status())) << made->status();
}

TEST(PlanService, MayBeClosedWhileAPlanIsBeingMade) {
  constexpr plan::TileIndex kMany = 50'000;
  PlanService service(HalfOf(kMany));
  ASSERT_TRUE(service.Make([] { return TilesTwice(kMany); }).ok());
}

}  // namespace
}  // namespace spillway::engine
