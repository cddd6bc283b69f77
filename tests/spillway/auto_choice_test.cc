// SPDX-License-Identifier: Apache-2.0
//
// What --auto chooses on a machine of given rates.

#include "tools/spillway/train/auto_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/seed.h"
#include "tests/spillway/tiny_model.h"
#include "tools/hf/config.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/step/timed_step.h"
#include "tools/trainer/gpu_needs.h"

namespace spillway::command {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

hf::ModelConfig Config() { return *hf::ParseModelConfig(test::TinyConfig().dump(), "tiny"); }

absl::StatusOr<ThisMachine> SomeMachine() {
  ThisMachine machine;
  machine.rates = {.drive = simulation::Drive{},
                   .copy_in = 5e9,
                   .copy_out = 5e9,
                   .checksum = 1e10,
                   .memory = 2e10,
                   .flops = 1e11,
                   .update = {1e10, 1e10, 1e10, 1e10}};
  machine.links.copy_in = machine.links.copy_out = 5e9;
  return machine;
}

TrainFlags SomeFlags(int64_t tokens) {
  TrainFlags flags;
  flags.automatic.is_on = true;
  flags.automatic.tokens = tokens;
  flags.engine.store = {"store"};
  flags.engine.threads = 1;
  flags.trainer.model.sequence = 16;
  flags.trainer.model.training = true;
  return flags;
}

constexpr uint64_t kEnough = uint64_t{256} << 20;

// What a run needs with micro-batches of one sequence; the scratch depends on the machine's
// instructions.
absl::StatusOr<uint64_t> LeastMemory(const TrainFlags& flags) {
  constexpr uint64_t kProcess = uint64_t{64} << 20;
  trainer::ModelOptions model = flags.trainer.model;
  model.micro_batch = 1;
  model.accumulate = *flags.automatic.tokens / model.sequence;
  const auto scratch = HostWorkspaceBytes(Config(), model, 1);
  const auto placement = PlacementOf(flags.engine.placement);
  if (!scratch.ok() || !placement.ok()) return absl::UnknownError("the least memory is unknown");
  const trainer::MinimumBudgets least = trainer::SmallestBudgets(Config(), model, *placement);
  return kProcess + *scratch + least.device_bytes + least.pinned_bytes;
}

TEST(AutoChoice, DividesTokensAndMemory) {
  std::mt19937_64 random(test::Seed());
  SCOPED_TRACE(test::SeedLine(test::Seed()));
  for (int i = 0; i < 6; ++i) {
    TrainFlags flags = SomeFlags(16 * static_cast<int64_t>(1 + random() % 24));
    const auto least_memory = LeastMemory(flags);
    ASSERT_TRUE(least_memory.ok()) << least_memory.status();
    flags.automatic.memory_bytes = *least_memory + (i == 0 ? 0 : random() % (32 << 20));
    const auto choice = ChooseFlags(Config(), &SomeMachine, 0, std::nullopt, std::nullopt, &flags);
    ASSERT_TRUE(choice.ok()) << choice.status();
    const trainer::ModelOptions& model = flags.trainer.model;
    EXPECT_EQ(model.micro_batch * model.accumulate * model.sequence, *flags.automatic.tokens);
    const auto scratch = HostWorkspaceBytes(Config(), model, 1);
    ASSERT_TRUE(scratch.ok()) << scratch.status();
    EXPECT_LE(flags.engine.device_bytes + flags.engine.pinned_bytes + *scratch,
              *flags.automatic.memory_bytes);
    const trainer::MinimumBudgets least =
        trainer::SmallestBudgets(Config(), model, *PlacementOf(flags.engine.placement));
    EXPECT_GE(flags.engine.device_bytes, least.device_bytes);
    EXPECT_GE(flags.engine.pinned_bytes, least.pinned_bytes);
    EXPECT_GT(choice->step_seconds, 0);
    EXPECT_THAT(choice->why, HasSubstr("--batch " + std::to_string(model.micro_batch)));
  }
}

TEST(AutoChoice, LeavesWhatWasGiven) {
  TrainFlags flags = SomeFlags(16 * 12);
  flags.automatic.has_batch = flags.automatic.has_device_bytes = true;
  flags.automatic.has_places = flags.automatic.has_page_bytes = true;
  flags.trainer.model.micro_batch = 3;
  flags.engine.device_bytes = 3 << 20;
  flags.engine.page_bytes = 8192;
  flags.engine.placement.places = *ParsePlaces("optimizer=nvme");
  flags.accumulation_order = trainer::AccumulationOrder::kLayer;
  const auto choice =
      ChooseFlags(Config(), &SomeMachine, kEnough, std::nullopt, std::nullopt, &flags);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(flags.trainer.model.micro_batch, 3);
  EXPECT_EQ(flags.trainer.model.accumulate, 4);
  EXPECT_EQ(flags.trainer.model.accumulation_order, trainer::AccumulationOrder::kLayer);
  EXPECT_EQ(flags.engine.device_bytes, uint64_t{3} << 20);
  EXPECT_EQ(flags.engine.page_bytes, 8192U);
  EXPECT_EQ(flags.engine.placement.places, *ParsePlaces("optimizer=nvme"));
}

TEST(AutoChoice, AResumedRunKeepsItsMicroBatches) {
  trainer::TrainState state;
  state.fixed = {{"--seq", "16"}, {"--batch", "2"}, {"--accumulate", "3"}};
  TrainFlags flags = SomeFlags(16 * 6);
  auto choice = ChooseFlags(Config(), &SomeMachine, kEnough, std::nullopt, state, &flags);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(flags.trainer.model.micro_batch, 2);
  EXPECT_EQ(flags.trainer.model.accumulate, 3);
  EXPECT_EQ(flags.engine.page_bytes, 0U) << "the store's own";
  flags = SomeFlags(16 * 12);
  choice = ChooseFlags(Config(), &SomeMachine, kEnough, std::nullopt, state, &flags);
  EXPECT_EQ(ExitCodeOf(choice.status()), ExitCode::kUsage);
  EXPECT_THAT(choice.status().message(), HasSubstr("as the store's run has"));
}

TEST(AutoChoice, ContradictionsAreSaid) {
  TrainFlags flags = SomeFlags(100);
  const auto uneven =
      ChooseFlags(Config(), &SomeMachine, kEnough, std::nullopt, std::nullopt, &flags);
  EXPECT_EQ(ExitCodeOf(uneven.status()), ExitCode::kUsage);
  EXPECT_THAT(uneven.status().message(), HasSubstr("give 96 or 112"));
  flags = SomeFlags(16 * 8);
  flags.automatic.has_batch = true;
  flags.trainer.model.micro_batch = 3;
  const auto batch =
      ChooseFlags(Config(), &SomeMachine, kEnough, std::nullopt, std::nullopt, &flags);
  EXPECT_EQ(ExitCodeOf(batch.status()), ExitCode::kUsage);
  EXPECT_THAT(batch.status().message(), HasSubstr("multiples of 3"));
}

TEST(AutoChoice, TooLittleMemoryIsSaidWithWhatIsNeeded) {
  TrainFlags flags = SomeFlags(64);
  const auto machine =
      ChooseFlags(Config(), &SomeMachine, 1 << 20, std::nullopt, std::nullopt, &flags);
  EXPECT_EQ(ExitCodeOf(machine.status()), ExitCode::kCannot) << machine.status();
  EXPECT_THAT(machine.status().message(), HasSubstr("are needed at least"));
  flags.automatic.memory_bytes = 1 << 20;
  const auto given =
      ChooseFlags(Config(), &SomeMachine, kEnough, std::nullopt, std::nullopt, &flags);
  EXPECT_EQ(ExitCodeOf(given.status()), ExitCode::kUsage) << given.status();
  EXPECT_THAT(given.status().message(), HasSubstr("--memory"));
}

constexpr trainer::gpu::DeviceRates kRatesOfGpu = {
    .flops = 4e14, .copy = 3e12, .from_pinned = 5e10, .to_pinned = 5e10};

TEST(AutoChoice, AGpuUpdatesStateThatFitsThere) {
  const GpuAtHand gpu = {.name = "some GPU", .rates = kRatesOfGpu, .free_bytes = kEnough};
  for (const bool has_store : {true, false}) {
    TrainFlags flags = SomeFlags(64);
    flags.trainer.model.on_gpu = true;
    if (!has_store) flags.engine.store.clear();
    flags.automatic.memory_bytes = uint64_t{1} << 30;
    const auto choice = ChooseFlags(Config(), &SomeMachine, 0, gpu, std::nullopt, &flags);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_THAT(choice->why, HasSubstr("some GPU; "));
    EXPECT_THAT(choice->why, HasSubstr("optimizer=device"));
    const trainer::ModelOptions& model = flags.trainer.model;
    const auto scratch = trainer::GpuScratchBytes(Config(), model);
    ASSERT_TRUE(scratch.ok()) << scratch.status();
    EXPECT_LE(flags.engine.device_bytes + *scratch, gpu.free_bytes / 16 * 15);
    const trainer::MinimumBudgets least =
        trainer::SmallestBudgets(Config(), model, *PlacementOf(flags.engine.placement));
    EXPECT_GE(flags.engine.device_bytes, least.device_bytes);
    EXPECT_GE(flags.engine.pinned_bytes, least.pinned_bytes);
  }
}

// The whole state is larger than the GPU, so the processor updates it.
TEST(AutoChoice, ASmallGpuHasRoomForTilesAlone) {
  TrainFlags flags = SomeFlags(32);
  flags.trainer.model.on_gpu = true;
  const uint64_t state = trainer::ModelStateBytes(Config(), flags.trainer.model).committed;
  const auto scratch = trainer::GpuScratchBytes(Config(), flags.trainer.model);
  ASSERT_TRUE(scratch.ok()) << scratch.status();
  const GpuAtHand gpu = {
      .name = "small", .rates = kRatesOfGpu, .free_bytes = 3 * *scratch + state / 2};
  const auto choice =
      ChooseFlags(Config(), &SomeMachine, uint64_t{1} << 30, gpu, std::nullopt, &flags);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(choice->why, Not(HasSubstr("optimizer=device")));
  EXPECT_LT(flags.engine.device_bytes, gpu.free_bytes);
}

TEST(AutoChoice, WhatAGpuLacksIsSaid) {
  TrainFlags flags = SomeFlags(64);
  flags.trainer.model.on_gpu = true;
  GpuAtHand gpu = {.name = "tiny", .rates = kRatesOfGpu, .free_bytes = 1000};
  const auto tiny =
      ChooseFlags(Config(), &SomeMachine, uint64_t{1} << 30, gpu, std::nullopt, &flags);
  EXPECT_EQ(ExitCodeOf(tiny.status()), ExitCode::kCannot) << tiny.status();
  EXPECT_THAT(tiny.status().message(), HasSubstr("of the GPU's memory are needed at least"));
  gpu = {.name = "mute", .rates = {}, .free_bytes = kEnough};
  const auto mute =
      ChooseFlags(Config(), &SomeMachine, uint64_t{1} << 30, gpu, std::nullopt, &flags);
  EXPECT_EQ(mute.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(mute.status().message(), HasSubstr("rates of mute"));
}

TEST(AutoChoice, ManyMicroBatchesAreChosenSoon) {
  TrainFlags flags = SomeFlags(int64_t{16} << 20);
  const auto choice =
      ChooseFlags(Config(), &SomeMachine, kEnough, std::nullopt, std::nullopt, &flags);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(flags.trainer.model.micro_batch * flags.trainer.model.accumulate, 1 << 20);
}

}  // namespace
}  // namespace spillway::command
