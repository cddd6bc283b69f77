// SPDX-License-Identifier: Apache-2.0
//
// What is the host runtime's own: memory that is committed on first touch, handles that are
// checked, and the answer to a device that this build does not have.

#include "tiers/host_runtime.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "tiers/address_range.h"
#include "tiers/make_device_runtime.h"

namespace spillway::tiers {
namespace {

// Bytes of `range` that have memory behind them.
uint64_t ResidentBytes(std::byte* range, uint64_t size_bytes) {
  std::vector<unsigned char> pages(size_bytes / kSmallPageBytes);
  EXPECT_EQ(mincore(range, size_bytes, pages.data()), 0);
  return kSmallPageBytes * static_cast<uint64_t>(std::count_if(pages.begin(), pages.end(),
                                                               [](auto page) { return page & 1; }));
}

TEST(HostRuntime, AnArenaIsCommittedOnFirstTouch) {
  constexpr uint64_t kBytes = uint64_t{64} << 20;
  const auto runtime = CreateHostRuntime();
  const auto arena = runtime->AllocateArena(kBytes);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(ResidentBytes(*arena, kBytes), 0u);
  **arena = std::byte{1};
  const uint64_t resident = ResidentBytes(*arena, kBytes);
  EXPECT_GE(resident, kSmallPageBytes);
  EXPECT_LE(resident, kArenaAlignmentBytes);  // at most one huge page
  runtime->FreeArena(*arena, kBytes);
}

TEST(HostRuntime, AnArenaMayBeLargerThanTheMachine) {
  const auto runtime = CreateHostRuntime();
  const uint64_t bytes = 4 * runtime->total_bytes();
  const auto arena = runtime->AllocateArena(bytes);
  ASSERT_TRUE(arena.ok()) << arena.status();
  (*arena)[bytes - 1] = std::byte{1};
  runtime->FreeArena(*arena, bytes);
}

TEST(HostRuntimeDeathTest, HandlesThatAreNotLiveAreProgrammingErrors) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto runtime = CreateHostRuntime();
  const StreamHandle stream = *runtime->CreateStream();
  const EventHandle event = *runtime->CreateEvent();
  runtime->DestroyStream(stream);
  runtime->DestroyEvent(event);
  const StreamHandle next = *runtime->CreateStream();
  EXPECT_NE(next, stream);
  EXPECT_DEATH((void)runtime->Synchronize(stream), "streams_");
  EXPECT_DEATH((void)runtime->Query(event), "events_");
  EXPECT_DEATH(runtime->DestroyEvent(event), "events_");
  EXPECT_DEATH((void)runtime->Launch(StreamHandle{}, [] {}), "streams_");
  runtime->DestroyStream(next);
}

TEST(MakeDeviceRuntime, RefusesCudaAndSaysWhatToDo) {
  const auto runtime = MakeDeviceRuntime(Device::Cuda(3));
  EXPECT_EQ(runtime.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(runtime.status().message().find("CUDA device 3"), absl::string_view::npos);
  EXPECT_NE(runtime.status().message().find("use the host device"), absl::string_view::npos);
}

}  // namespace
}  // namespace spillway::tiers
