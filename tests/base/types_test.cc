// SPDX-License-Identifier: Apache-2.0

#include "spillway/types.h"

#include <gtest/gtest.h>

#include <set>

namespace spillway {
namespace {

TEST(TensorSpec, AMatrixInTilesOfRowsHasAShorterLastTile) {
  const TensorSpec spec = {.name = "w", .dtype = DType::kF16, .shape = {10, 3}, .tile_rows = 4};
  EXPECT_EQ(spec.num_rows(), 10u);
  EXPECT_EQ(spec.row_bytes(), 6u);
  EXPECT_EQ(spec.size_bytes(), 60u);
  ASSERT_EQ(spec.num_tiles(), 3u);
  EXPECT_EQ(spec.tile_offset_bytes(2), 48u);
  EXPECT_EQ(spec.tile_bytes(0), 24u);
  EXPECT_EQ(spec.tile_bytes(2), 12u);
}

TEST(TensorSpec, TilesCoverTheTensorWithoutOverlap) {
  for (int64_t rows = 1; rows <= 9; ++rows) {
    for (int64_t tile_rows = 0; tile_rows <= 10; ++tile_rows) {
      const TensorSpec spec = {.name = "w", .shape = {rows, 5}, .tile_rows = tile_rows};
      uint64_t next = 0;
      for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
        EXPECT_EQ(spec.tile_offset_bytes(tile), next);
        EXPECT_GT(spec.tile_bytes(tile), 0u);
        next += spec.tile_bytes(tile);
      }
      EXPECT_EQ(next, spec.size_bytes()) << rows << " rows in tiles of " << tile_rows;
    }
  }
}

TEST(TensorSpec, WithoutTileRowsItIsOneTile) {
  const TensorSpec spec = {.name = "w", .shape = {7, 2, 3}};
  EXPECT_EQ(spec.num_tiles(), 1u);
  EXPECT_EQ(spec.tile_offset_bytes(0), 0u);
  EXPECT_EQ(spec.tile_bytes(0), 7u * 2 * 3 * 4);
}

TEST(TensorSpec, AScalarIsOneElement) {
  const TensorSpec spec = {.name = "s", .dtype = DType::kU8};
  EXPECT_EQ(spec.num_rows(), 1u);
  EXPECT_EQ(spec.size_bytes(), 1u);
  EXPECT_EQ(spec.num_tiles(), 1u);
}

TEST(TensorSpec, SizesPastFourGibibytesAreExact) {
  const TensorSpec spec = {.name = "w", .shape = {1 << 20, 1 << 14}, .tile_rows = 1 << 18};
  EXPECT_EQ(spec.size_bytes(), 64 * kGiB);
  EXPECT_EQ(spec.tile_offset_bytes(3), 48 * kGiB);
}

TEST(Names, AreDistinctAndOfWords) {
  std::set<std::string_view> names;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kU8})
    names.insert(Name(dtype));
  for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kNvme}) names.insert(Name(tier));
  for (const Role role :
       {Role::kParameter, Role::kGradient, Role::kMasterWeight, Role::kMoment, Role::kActivation})
    names.insert(Name(role));
  for (const Access access : {Access::kRead, Access::kWrite, Access::kReadWrite, Access::kDiscard})
    names.insert(Name(access));
  EXPECT_EQ(names.size(), 4u + kNumTiers + kNumRoles + 4u);
  EXPECT_EQ(names.count("unknown"), 0u);
}

TEST(Access, OnlyReadingDoesNotWrite) {
  EXPECT_FALSE(Writes(Access::kRead));
  EXPECT_TRUE(Writes(Access::kWrite));
  EXPECT_TRUE(Writes(Access::kReadWrite));
  EXPECT_TRUE(Writes(Access::kDiscard));
}

TEST(TileRef, ATensorAloneMeansItsFirstTile) {
  EXPECT_EQ(TileRef(TensorId{3}), TileRef(TensorId{3}, 0));
  EXPECT_LT(TileRef(TensorId{3}, 1), TileRef(TensorId{4}, 0));
}

}  // namespace
}  // namespace spillway
