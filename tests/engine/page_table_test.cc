// SPDX-License-Identifier: Apache-2.0
//
// Tests of what the pager queries before it moves or drops bytes.

#include "src/engine/pager/page_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "src/engine/pager/transfers.h"
#include "tests/engine/pager_options.h"

namespace spillway::engine {
namespace {

constexpr uint64_t kTileBytes = kFrameAlignment;

PagerOptions Options() { return WithStore(4 * kTileBytes, 4 * kTileBytes); }

TileIndex AddTile(PageTable& pages, bool stored) {
  return pages.AddTile(kTileBytes, Role::kParameter, /*transient=*/false, stored, {});
}

// Allocates a frame for the tile. The frame has no bytes yet.
Copy& Hold(PageTable& pages, TileIndex tile, Tier tier) {
  const std::optional<uint64_t> offset = pages.arena(tier).Allocate(kTileBytes, tile);
  EXPECT_TRUE(offset);
  pages.HoldFrame(tile, tier, offset.value_or(0), /*holder=*/nullptr);
  return pages[tile].copy(tier);
}

Copy& Bring(PageTable& pages, TileIndex tile, Tier tier) {
  Copy& copy = Hold(pages, tile, tier);
  copy.SetReady();
  return copy;
}

TEST(PageTable, ACopyMayBeForgottenIfItsBytesAreElsewhere) {
  PageTable pages(Options());
  const TileIndex stored = AddTile(pages, true);
  Bring(pages, stored, Tier::kDevice);
  EXPECT_TRUE(pages[stored].MayForget(Tier::kDevice)) << "NVMe has them";
  const TileIndex never_written = AddTile(pages, false);
  Bring(pages, never_written, Tier::kPinned);
  EXPECT_TRUE(pages[never_written].MayForget(Tier::kPinned)) << "there are none";

  pages.VoidOtherCopies(stored, Tier::kDevice);  // as a writer on the device does
  EXPECT_FALSE(pages[stored].MayForget(Tier::kDevice)) << "they are nowhere else";
  Copy& below = Hold(pages, stored, Tier::kPinned);
  EXPECT_FALSE(pages[stored].MayForget(Tier::kDevice)) << "the frame below has none yet";
  EXPECT_TRUE(pages[stored].MayForget(Tier::kPinned));
  below.SetReady();
  EXPECT_TRUE(pages[stored].MayForget(Tier::kDevice));
}

// A caller that found no room, or waits for a tile, tries again when one of these has happened, and
// only then.
TEST(PageTable, WhatEndsIsCounted) {
  PageTable pages(Options());
  Transfers transfers(&pages);
  const TileIndex tile = AddTile(pages, true);
  const int stream = 0;
  uint64_t before = pages.num_endings();
  const auto has_ended = [&] { return std::exchange(before, pages.num_endings()) != before; };

  Hold(pages, tile, Tier::kPinned);
  transfers.Start(tile, Transfer::kRead, MoveReason::kLease, /*job=*/nullptr);
  EXPECT_FALSE(has_ended());
  transfers.End(tile);
  EXPECT_TRUE(has_ended()) << "a transfer";
  transfers.Arrive(tile, {.transfer = Transfer::kRead});
  pages.leases().Take(tile, Tier::kPinned, Access::kReadWrite);
  EXPECT_FALSE(has_ended());
  pages.leases().BeginDrain(tile, Tier::kPinned, Access::kReadWrite, &stream);
  EXPECT_TRUE(has_ended()) << "a holder let go";
  pages.leases().End(tile, Tier::kPinned, Access::kReadWrite, /*drained=*/true);
  EXPECT_TRUE(has_ended()) << "a drain";
  pages[tile].copy(Tier::kPinned).leaving = true;
  pages.Stay(tile, Tier::kPinned);
  EXPECT_TRUE(has_ended()) << "what was to leave stays";
  EXPECT_FALSE(pages[tile].copy(Tier::kPinned).leaving);
  pages.DropFrame(tile, Tier::kPinned);
  EXPECT_TRUE(has_ended()) << "a frame is free";
  pages.Discard(tile);
  EXPECT_FALSE(has_ended());
  EXPECT_TRUE(pages.DropIfDiscarded(tile));
  EXPECT_TRUE(has_ended()) << "a discard";
}

// If two copies leave, one has to stay until the bytes are on NVMe.
TEST(PageTable, OfTwoCopiesThatLeaveTheOneInPinnedMemoryIsMoved) {
  PageTable pages(Options());
  const TileIndex tile = AddTile(pages, false);
  Copy& on_device = Bring(pages, tile, Tier::kDevice);
  pages.VoidOtherCopies(tile, Tier::kDevice);
  Copy& in_pinned = Bring(pages, tile, Tier::kPinned);
  EXPECT_TRUE(pages[tile].MayForget(Tier::kPinned));
  on_device.leaving = in_pinned.leaving = true;
  EXPECT_TRUE(pages[tile].MayForget(Tier::kDevice));
  EXPECT_FALSE(pages[tile].MayForget(Tier::kPinned));
}

// If a plan dropped such a copy, the tile would be read back from NVMe.
TEST(PageTable, WhatRestsInMemoryGoesToItsReservedFrameThoughNvmeHasItsBytes) {
  for (const Tier rest : {Tier::kDevice, Tier::kPinned}) {
    PagerOptions options = Options();
    options.placement[static_cast<size_t>(Role::kParameter)] = rest;
    PageTable pages(options);
    const TileIndex tile = AddTile(pages, true);
    Copy& reserved_frame = Hold(pages, tile, rest);
    Bring(pages, tile, Other(rest));
    EXPECT_TRUE(pages[tile].GoesToReservedFrame(Other(rest)));
    EXPECT_FALSE(pages[tile].MayForget(Other(rest))) << "reserved: " << Name(rest);
    reserved_frame.SetReady();
    EXPECT_FALSE(pages[tile].GoesToReservedFrame(Other(rest)));
    EXPECT_TRUE(pages[tile].MayForget(Other(rest))) << "reserved: " << Name(rest);
  }
}

TEST(PageTable, ACommitNeedsWhatHasBytesThatNvmeHasNot) {
  PageTable pages(Options());
  const TileIndex stored = AddTile(pages, true), fresh = AddTile(pages, false);
  const TileIndex transient = pages.AddTile(kTileBytes, Role::kGradient, true, false, {});
  EXPECT_EQ(pages.to_commit().Next(0), std::nullopt);
  for (const TileIndex tile : {stored, fresh, transient}) {
    Bring(pages, tile, Tier::kPinned);
    pages.VoidOtherCopies(tile, Tier::kPinned);  // as a writer does
  }
  EXPECT_EQ(pages.to_commit().Next(0), stored);
  EXPECT_EQ(pages.to_commit().Next(stored + 1), fresh);
  EXPECT_EQ(pages.to_commit().Next(fresh + 1), std::nullopt) << "the last tile is transient";
  pages.SetStored(stored, true);
  EXPECT_EQ(pages.to_commit().Next(0), fresh);
  pages.Discard(fresh);
  EXPECT_TRUE(pages.DropIfDiscarded(fresh));
  EXPECT_EQ(pages.to_commit().Next(0), std::nullopt);
}

}  // namespace
}  // namespace spillway::engine
