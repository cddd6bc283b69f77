// SPDX-License-Identifier: Apache-2.0
//
// Tests what only the host runtime does: it commits memory on first touch and checks handles. Also
// tests the error for a device that this build does not have.

#include "tiers/host_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <future>
#include <string>
#include <vector>

#include "tiers/address_range.h"
#include "tiers/make_device_runtime.h"

namespace spillway::tiers {
namespace {

// Returns how many bytes of `range` are resident.
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
  const uint64_t bytes = 4 * runtime->usable_bytes();
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

// On the host runtime closures do the computing, so streams must run theirs concurrently. A GPU's
// streams need not.
TEST(HostRuntime, ClosuresOfTwoStreamsRunConcurrently) {
  const auto runtime = CreateHostRuntime();
  const StreamHandle held = *runtime->CreateStream();
  const StreamHandle free = *runtime->CreateStream();
  std::promise<void> gate;
  ASSERT_TRUE(runtime->Launch(held, [open = gate.get_future().share()] { open.wait(); }).ok());
  // The second stream opens the first one's gate. If they were one queue, this would never end.
  ASSERT_TRUE(runtime->Launch(free, [&gate] { gate.set_value(); }).ok());
  EXPECT_TRUE(runtime->Synchronize(held).ok());
  runtime->DestroyStream(held);
  runtime->DestroyStream(free);
}

TEST(MakeDeviceRuntime, WhatIsNotHereSaysWhatToDo) {
  const absl::Status status = MakeDeviceRuntime(Device::Cuda(999)).status();
  EXPECT_EQ(status.code(),
            HasCuda() ? absl::StatusCode::kNotFound : absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("CUDA device 999"));
  // The reasons: no CUDA in the build, no driver, a driver that is too old, no device, too few
  // devices.
  EXPECT_THAT(
      std::string(status.message()),
      testing::AnyOf(testing::HasSubstr("use the host device"), testing::HasSubstr("install it"),
                     testing::HasSubstr("update the"), testing::HasSubstr("nvidia-smi"),
                     testing::HasSubstr("CUDA_VISIBLE_DEVICES")));
}

}  // namespace
}  // namespace spillway::tiers
