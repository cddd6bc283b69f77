// SPDX-License-Identifier: Apache-2.0
//
// Tests that the pinned arena takes memory slab by slab, never more than its budget, and works
// where locking is refused.

#include "tiers/pinned_arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tiers/address_range.h"

namespace spillway::tiers {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

struct Slabs {
  std::vector<std::pair<uint64_t, uint64_t>> registered;  // offset, size
  std::vector<std::pair<uint64_t, uint64_t>> unregistered;
  std::vector<std::string> announced;
  absl::Status answer;
  const PinnedArena* arena = nullptr;
};

std::unique_ptr<PinnedArena> NewArena(uint64_t size_bytes, uint64_t slab_bytes, Slabs* slabs) {
  PinnedArenaOptions options;
  options.size_bytes = size_bytes;
  options.slab_bytes = slab_bytes;
  options.register_slab = [slabs](std::span<std::byte> slab) {
    slabs->registered.emplace_back(slab.data() - slabs->arena->data(), slab.size());
    return slabs->answer;
  };
  options.unregister_slab = [slabs](std::span<std::byte> slab) {
    slab.front() = std::byte{1};  // the slab is still mapped
    slabs->unregistered.emplace_back(slab.data() - slabs->arena->data(), slab.size());
  };
  options.announce = [slabs](std::string_view message) { slabs->announced.emplace_back(message); };
  auto arena = PinnedArena::Create(std::move(options));
  EXPECT_TRUE(arena.ok()) << arena.status();
  slabs->arena = arena->get();
  return *std::move(arena);
}

// Returns the locked memory of the process, in bytes.
uint64_t ProcessLockedBytes() {
  std::ifstream status("/proc/self/status");
  unsigned long kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (std::sscanf(line.c_str(), "VmLck: %lu kB", &kib) == 1) break;
  }
  return uint64_t{kib} * kKiB;
}

uint64_t ResidentBytes(std::byte* range, uint64_t size_bytes) {
  std::vector<unsigned char> pages(size_bytes / kSmallPageBytes);
  EXPECT_EQ(mincore(range, size_bytes, pages.data()), 0);
  return kSmallPageBytes * static_cast<uint64_t>(std::count_if(pages.begin(), pages.end(),
                                                               [](auto page) { return page & 1; }));
}

// Whether mlock works here. The sanitizers turn it into a no-op that succeeds, and a container may
// refuse it.
bool LockingWorks() {
  const auto range = MapAddressRange(kSmallPageBytes, "a probe");
  if (!range.ok()) return false;
  const bool works =
      mlock(*range, kSmallPageBytes) == 0 && ResidentBytes(*range, kSmallPageBytes) > 0;
  UnmapAddressRange(*range, kSmallPageBytes);
  return works;
}

TEST(PinnedArena, ReservesAlignedAddressesAndTouchesNothing) {
  Slabs slabs;
  const auto arena = NewArena(64 * kMiB, 16 * kMiB, &slabs);
  EXPECT_EQ(arena->size_bytes(), 64 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->data()) % (2 * kMiB), 0u);
  EXPECT_EQ(ResidentBytes(arena->data(), 64 * kMiB), 0u);
  EXPECT_TRUE(slabs.registered.empty());
  EXPECT_EQ(arena->locked_bytes() + arena->pageable_bytes(), 0u);
}

TEST(PinnedArena, ReservesMoreThanTheMachineHas) {
  Slabs slabs;
  const uint64_t machine_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * kSmallPageBytes;
  const auto arena = NewArena(4 * machine_bytes, uint64_t{1} << 30, &slabs);
  ASSERT_TRUE(arena->EnsureUsable(0, 0).ok());
  EXPECT_EQ(arena->locked_bytes() + arena->pageable_bytes(), 0u);
}

TEST(PinnedArena, PreparesEachSlabOnFirstUseAndOnce) {
  Slabs slabs;
  const auto arena = NewArena(10 * kMiB + 300, 4 * kMiB, &slabs);
  EXPECT_EQ(arena->size_bytes(), 10 * kMiB);  // whole pages only
  using Pairs = std::vector<std::pair<uint64_t, uint64_t>>;
  ASSERT_TRUE(arena->EnsureUsable(5 * kMiB, kMiB).ok());
  EXPECT_EQ(slabs.registered, (Pairs{{4 * kMiB, 4 * kMiB}}));
  ASSERT_TRUE(arena->EnsureUsable(4 * kMiB, 4 * kMiB).ok());
  EXPECT_EQ(slabs.registered.size(), 1u);
  EXPECT_EQ(arena->locked_bytes() + arena->pageable_bytes(), 4 * kMiB);
  ASSERT_TRUE(
      arena->EnsureUsable(4 * kMiB - 1, 6 * kMiB + 1).ok());  // across all three, to the last byte
  EXPECT_EQ(slabs.registered, (Pairs{{4 * kMiB, 4 * kMiB}, {0, 4 * kMiB}, {8 * kMiB, 2 * kMiB}}));
  EXPECT_EQ(arena->locked_bytes() + arena->pageable_bytes(), 10 * kMiB);
  std::memset(arena->data(), 1, arena->size_bytes());
}

TEST(PinnedArena, LocksWhatWasAskedAndNoMore) {
  if (!LockingWorks()) GTEST_SKIP() << "mlock is refused, or made a no-op by a sanitizer";
  Slabs slabs;
  const uint64_t before = ProcessLockedBytes();
  {
    const auto arena = NewArena(6 * kMiB, 2 * kMiB, &slabs);
    ASSERT_TRUE(arena->EnsureUsable(2 * kMiB, 1).ok());
    if (arena->pageable_bytes() > 0) GTEST_SKIP() << "the memlock limit is below 2 MiB";
    EXPECT_EQ(arena->locked_bytes(), 2 * kMiB);
    EXPECT_EQ(ProcessLockedBytes() - before, 2 * kMiB);
    EXPECT_EQ(ResidentBytes(arena->data(), 6 * kMiB), 2 * kMiB);
  }
  EXPECT_EQ(ProcessLockedBytes(), before);  // the arena's end unlocked its memory
}

TEST(PinnedArena, AnOddBudgetIsNotRoundedUpByHugePages) {
  Slabs slabs;
  const auto arena = NewArena(2 * kMiB + 64 * kKiB, 256 * kMiB, &slabs);
  ASSERT_TRUE(arena->EnsureUsable(0, arena->size_bytes()).ok());
  std::memset(arena->data(), 1, arena->size_bytes());
  std::vector<unsigned char> page(1);
  EXPECT_EQ(ResidentBytes(arena->data(), arena->size_bytes()), arena->size_bytes());
  // The next page is either not the arena's or not mapped. If it were slack of the arena, a huge
  // page could fill it.
  if (mincore(arena->data() + arena->size_bytes(), kSmallPageBytes, page.data()) != 0) {
    EXPECT_EQ(errno, ENOMEM);
  }
}

// Runs in its own process, because a lowered limit stays lowered. Root can lock memory beyond the
// limit, so the process drops the capability by becoming the user nobody.
TEST(PinnedArenaDeathTest, RefusedLockingIsAnnouncedOnceAndCounted) {
  if (!LockingWorks()) GTEST_SKIP() << "mlock is refused, or made a no-op by a sanitizer";
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto use_without_locking = [] {
    const rlimit limit = {64 * kKiB, 64 * kKiB};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) std::_Exit(1);
    if (geteuid() == 0 && setuid(65534) != 0) std::_Exit(2);
    Slabs slabs;
    const auto arena = NewArena(4 * kMiB, 2 * kMiB, &slabs);
    if (!arena->EnsureUsable(0, 4 * kMiB).ok()) std::_Exit(3);
    std::memset(arena->data(), 1, 4 * kMiB);
    if (arena->locked_bytes() != 0 || arena->pageable_bytes() != 4 * kMiB) std::_Exit(4);
    if (slabs.registered.size() != 2 || slabs.announced.size() != 1) std::_Exit(5);
    if (slabs.announced[0].find("ulimit -l") == std::string::npos) std::_Exit(6);
    if (ProcessLockedBytes() != 0) std::_Exit(7);
    std::_Exit(0);
  };
  EXPECT_EXIT(use_without_locking(), testing::ExitedWithCode(0), "");
}

TEST(PinnedArena, AFailedRegistrationIsReturnedAndRetried) {
  Slabs slabs;
  const auto arena = NewArena(4 * kMiB, 2 * kMiB, &slabs);
  const uint64_t before = ProcessLockedBytes();
  slabs.answer = absl::UnavailableError("no registration today");
  EXPECT_EQ(arena->EnsureUsable(0, 4 * kMiB), slabs.answer);
  EXPECT_EQ(slabs.registered.size(), 1u);
  EXPECT_EQ(arena->locked_bytes() + arena->pageable_bytes(), 0u);
  EXPECT_EQ(ProcessLockedBytes(), before);
  slabs.answer = absl::OkStatus();
  EXPECT_TRUE(arena->EnsureUsable(0, 4 * kMiB).ok());
  EXPECT_EQ(slabs.registered.size(), 3u);
  EXPECT_EQ(arena->locked_bytes() + arena->pageable_bytes(), 4 * kMiB);
}

TEST(PinnedArena, UnregistersWhatItRegisteredBeforeTheMemoryGoes) {
  Slabs slabs;
  auto arena = NewArena(5 * kMiB, 2 * kMiB, &slabs);
  ASSERT_TRUE(arena->EnsureUsable(0, 1).ok());
  ASSERT_TRUE(arena->EnsureUsable(4 * kMiB, kMiB).ok());
  slabs.answer = absl::UnavailableError("no");
  ASSERT_FALSE(arena->EnsureUsable(2 * kMiB, 1).ok());
  EXPECT_TRUE(slabs.unregistered.empty());
  arena.reset();
  const std::vector<std::pair<uint64_t, uint64_t>> expected = {{0, 2 * kMiB}, {4 * kMiB, kMiB}};
  EXPECT_EQ(slabs.unregistered, expected);
}

TEST(PinnedArena, WorksWithoutCallbacks) {
  const auto arena = PinnedArena::Create({.size_bytes = kMiB});
  ASSERT_TRUE(arena.ok());
  EXPECT_TRUE((*arena)->EnsureUsable(0, kMiB).ok());
}

TEST(PinnedArena, RefusesRangesOutsideIt) {
  Slabs slabs;
  const auto arena = NewArena(kMiB, kMiB, &slabs);
  for (const auto& [offset, size] : std::vector<std::pair<uint64_t, uint64_t>>{
           {kMiB, 1}, {0, kMiB + 1}, {kMiB - 1, 2}, {~uint64_t{0}, 2}, {1, ~uint64_t{0}}}) {
    EXPECT_EQ(arena->EnsureUsable(offset, size).code(), absl::StatusCode::kInvalidArgument)
        << offset;
  }
  EXPECT_TRUE(slabs.registered.empty());
}

TEST(PinnedArena, RefusesSizesThatCannotWork) {
  const auto create = [](uint64_t size_bytes, uint64_t slab_bytes) {
    return PinnedArena::Create({.size_bytes = size_bytes, .slab_bytes = slab_bytes})
        .status()
        .code();
  };
  EXPECT_EQ(create(0, kMiB), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(4095, kMiB), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(kMiB, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(kMiB, 4097), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(kMiB, 2048 * kMiB), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(~uint64_t{0}, kMiB), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace spillway::tiers
