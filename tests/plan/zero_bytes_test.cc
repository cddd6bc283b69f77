// SPDX-License-Identifier: Apache-2.0
//
// Compares bytes of a rank with those that ZeRO's authors print, and with the table of
// tools/python/README.md, "More than one GPU".

#include "src/plan/zero_bytes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace spillway::plan {
namespace {

constexpr double kGB = 1e9;

// Figure 1 of arXiv:1910.02054: 7.5 billion parameters on 64 GPUs.
TEST(ZeroBytes, AreThoseOfZerosFigure1) {
  RankSetup setup{.parameters = 7.5e9, .ranks = 64};
  const auto gigabytes = [&](Divided divided) {
    setup.divided = divided;
    return BytesOfRank(setup).gpu / kGB;
  };
  EXPECT_NEAR(gigabytes(Divided::kNothing), 120, 0.05);
  EXPECT_NEAR(gigabytes(Divided::kState), 31.4, 0.05);
  EXPECT_NEAR(gigabytes(Divided::kGradients), 16.6, 0.05);
  EXPECT_NEAR(gigabytes(Divided::kWeights), 1.9, 0.05);
}

TEST(ZeroBytes, OnOneRankTheWaysAreEqual) {
  for (const Divided divided :
       {Divided::kNothing, Divided::kState, Divided::kGradients, Divided::kWeights}) {
    const RankBytes bytes = BytesOfRank({.parameters = 1, .divided = divided});
    EXPECT_EQ(bytes.gpu, 16);
    EXPECT_EQ(bytes.memory, 0);
    EXPECT_EQ(bytes.nvme, 0);
  }
}

TEST(ZeroBytes, EachPartRestsInItsTier) {
  RankSetup setup{.parameters = 8, .divided = Divided::kWeights, .ranks = 4};
  setup.weights = Resting::kMemory;
  setup.gradients = setup.state = Resting::kNvme;
  setup.gathered_parameters = 3;
  RankBytes bytes = BytesOfRank(setup);
  EXPECT_EQ(bytes.gpu, 2 * 3);  // whole weights of what is computed
  EXPECT_EQ(bytes.memory, 2 * 2);
  EXPECT_EQ(bytes.nvme, 2 * (2 + 12));
  setup.copies_on_nvme = 2;  // with commits
  EXPECT_EQ(BytesOfRank(setup).nvme, 2 * (2 + 2 * 12));
  setup.divided = Divided::kGradients;  // whole weights are there anyhow
  bytes = BytesOfRank(setup);
  EXPECT_EQ(bytes.gpu, 0);
  EXPECT_EQ(bytes.memory, 8 * 2);
}

// The table of tools/python/README.md, by the parameters that are gathered at once: u of each.
TEST(ZeroBytes, WithSpillwayTheyAreThoseOfTheGuide) {
  constexpr double kRanks = 64, kGathered = 1.0 / 40;
  const auto bytes_of = [](RankSetup setup) {
    setup.parameters = 1;
    setup.ranks = static_cast<uint32_t>(kRanks);
    setup.state = Resting::kNvme;
    return BytesOfRank(setup);
  };
  const auto expect = [](const RankBytes& bytes, double gpu, double memory, double nvme) {
    EXPECT_NEAR(bytes.gpu, gpu, 1e-12);
    EXPECT_NEAR(bytes.memory, memory, 1e-12);
    EXPECT_NEAR(bytes.nvme, nvme, 1e-12);
  };
  expect(bytes_of({.divided = Divided::kNothing}), 4, 0, 12);
  expect(bytes_of({.divided = Divided::kState}), 4, 0, 12 / kRanks);
  // fully_shard, the whole model gathered from forward to backward.
  expect(bytes_of({.divided = Divided::kWeights, .gathered_parameters = 1}), 2 + 4 / kRanks, 0,
         12 / kRanks);
  // fully_shard, two layers gathered.
  RankSetup sharded{.divided = Divided::kWeights, .gathered_parameters = kGathered};
  expect(bytes_of(sharded), 4 / kRanks + 2 * kGathered, 0, 12 / kRanks);
  RankSetup setup = sharded;
  setup.gradients = Resting::kNvme;
  expect(bytes_of(setup), 2 / kRanks + 2 * kGathered, 0, 14 / kRanks);
  setup.gradients = setup.weights = Resting::kMemory;
  expect(bytes_of(setup), 2 * kGathered, 4 / kRanks, 12 / kRanks);
  // Shards in fp32, without a master weight.
  setup = sharded;
  setup.weight_bytes = setup.gradient_bytes = 4;
  setup.state_bytes = StateBytes(StateFormat::kF32, 2, 4);
  expect(bytes_of(setup), 8 / kRanks + 2 * kGathered, 0, 8 / kRanks);
  // 16-bit shards with fp32 gradients.
  setup = sharded;
  setup.gradient_bytes = 4;
  expect(bytes_of(setup), 6 / kRanks + 2 * kGathered, 0, 12 / kRanks);
}

TEST(ZeroBytes, WithSpillwayADriveTakesTheStateOf7_5BillionParameters) {
  RankSetup setup{.parameters = 7.5e9, .ranks = 64, .state = Resting::kNvme};
  const auto expect = [&](Divided divided, double gathered, double gpu, double nvme) {
    setup.divided = divided;
    setup.gathered_parameters = gathered;
    const RankBytes bytes = BytesOfRank(setup);
    EXPECT_NEAR(bytes.gpu / kGB, gpu, 0.05);
    EXPECT_NEAR(bytes.nvme / kGB, nvme, 0.05);
  };
  expect(Divided::kNothing, 0, 30, 90);
  expect(Divided::kState, 0, 30, 1.4);
  expect(Divided::kWeights, 7.5e9, 15.5, 1.4);
  expect(Divided::kWeights, 0, 0.5, 1.4);  // and two layers
}

TEST(ZeroBytes, StateIsThatOfTheFormats) {
  EXPECT_EQ(StateBytes(StateFormat::kF32, 2, 2), 12);
  EXPECT_EQ(StateBytes(StateFormat::kF32, 2, 4), 8);
  EXPECT_EQ(StateBytes(StateFormat::kBf16, 2, 2), 8);
  EXPECT_NEAR(StateBytes(StateFormat::k8Bit, 2, 2), 6.03, 0.005);
  EXPECT_NEAR(StateBytes(StateFormat::kCompact, 2, 2), 3.06, 0.005);
}

TEST(ZeroBytes, RowsAreCutAsChunksAre) {
  const auto shards = [](uint64_t rows, uint32_t ranks) {
    std::vector<uint64_t> of;
    for (uint32_t rank = 0; rank < ranks; ++rank) of.push_back(ShardRows(rows, ranks, rank));
    EXPECT_EQ(std::accumulate(of.begin(), of.end(), uint64_t{0}), rows);
    return of;
  };
  // As torch.arange(rows).chunk(ranks) is cut, with empty shards after the last.
  EXPECT_EQ(shards(8, 4), (std::vector<uint64_t>{2, 2, 2, 2}));
  EXPECT_EQ(shards(10, 4), (std::vector<uint64_t>{3, 3, 3, 1}));
  EXPECT_EQ(shards(9, 4), (std::vector<uint64_t>{3, 3, 3, 0}));
  EXPECT_EQ(shards(5, 4), (std::vector<uint64_t>{2, 2, 1, 0}));
  EXPECT_EQ(shards(1, 3), (std::vector<uint64_t>{1, 0, 0}));
  EXPECT_EQ(shards(0, 2), (std::vector<uint64_t>{0, 0}));
}

TEST(ZeroBytes, A1F1BStageHoldsFewerMicroBatchesTheLaterItIs) {
  const auto in_flight = [](PipelineSchedule schedule, uint32_t micro_batches) {
    std::vector<uint32_t> of;
    for (uint32_t stage = 0; stage < 4; ++stage)
      of.push_back(MicroBatchesInFlight(schedule, 4, stage, micro_batches));
    return of;
  };
  EXPECT_EQ(in_flight(PipelineSchedule::k1F1B, 8), (std::vector<uint32_t>{4, 3, 2, 1}));
  EXPECT_EQ(in_flight(PipelineSchedule::k1F1B, 2), (std::vector<uint32_t>{2, 2, 2, 1}));
  EXPECT_EQ(in_flight(PipelineSchedule::kGPipe, 8), (std::vector<uint32_t>{8, 8, 8, 8}));
}

}  // namespace
}  // namespace spillway::plan
