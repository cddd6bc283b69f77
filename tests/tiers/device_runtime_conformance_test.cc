// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of DeviceRuntime, run on each implementation that this build has. Gates
// hold streams up, never sleeps: a gate that is still closed proves what cannot have happened yet.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "spillway/engine.h"
#include "tests/tiers/no_device.h"
#include "tiers/device_runtime.h"
#include "tiers/make_device_runtime.h"

namespace spillway::tiers {
namespace {

// Holds a stream until it is opened.
class Gate {
 public:
  std::function<void()> Waiter() {
    return [future = open_.get_future().share()] { future.wait(); };
  }
  void Open() { open_.set_value(); }

 private:
  std::promise<void> open_;
};

// Zeroed host memory in its own pages, registered in `ranges` ranges of equal size.
class HostMemory {
 public:
  HostMemory(DeviceRuntime* runtime, uint64_t size_bytes, uint64_t ranges = 1)
      : runtime_(runtime), size_bytes_(size_bytes), range_bytes_(size_bytes / ranges) {
    void* const mapped =
        ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    data_ = static_cast<std::byte*>(mapped);
    for (uint64_t at = 0; at < size_bytes_; at += range_bytes_) {
      EXPECT_TRUE(runtime_->RegisterHostMemory(span().subspan(at, range_bytes_)).ok());
    }
  }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory() {
    for (uint64_t at = 0; at < size_bytes_; at += range_bytes_) {
      runtime_->UnregisterHostMemory(span().subspan(at, range_bytes_));
    }
    ::munmap(data_, size_bytes_);
  }
  std::byte* data() const { return data_; }
  std::span<std::byte> span() const { return {data_, size_bytes_}; }

 private:
  DeviceRuntime* const runtime_;
  const uint64_t size_bytes_, range_bytes_;
  std::byte* data_ = nullptr;
};

struct RuntimeCase {
  std::string name;
  Device device;
  friend std::ostream& operator<<(std::ostream& out, const RuntimeCase& c) { return out << c.name; }
};

class DeviceRuntimeTest : public testing::TestWithParam<RuntimeCase> {
 protected:
  void SetUp() override {
    auto runtime = MakeDeviceRuntime(GetParam().device);
    const std::string why = test::WhyNoDevice(GetParam().device, runtime.status());
    if (!why.empty()) GTEST_SKIP() << why;
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
  }

  StreamHandle NewStream() { return *runtime_->CreateStream(); }
  EventHandle NewEvent() { return *runtime_->CreateEvent(); }
  void Launch(StreamHandle stream, std::function<void()> work) {
    ASSERT_TRUE(runtime_->Launch(stream, std::move(work)).ok());
  }

  std::unique_ptr<DeviceRuntime> runtime_;
};

TEST_P(DeviceRuntimeTest, SaysWhatItIs) {
  EXPECT_FALSE(runtime_->name().empty());
  EXPECT_GT(runtime_->usable_bytes(), 0u);
  EXPECT_TRUE(runtime_->Check().ok());
}

TEST_P(DeviceRuntimeTest, WorkOnAStreamRunsInLaunchOrder) {
  const StreamHandle stream = NewStream();
  std::vector<int> seen;
  for (int i = 0; i < 1000; ++i) Launch(stream, [&seen, i] { seen.push_back(i); });
  ASSERT_TRUE(runtime_->Synchronize(stream).ok());
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
  runtime_->DestroyStream(stream);
}

TEST_P(DeviceRuntimeTest, LaunchDoesNotWaitForTheWork) {
  const StreamHandle stream = NewStream();
  Gate gate;
  std::atomic<bool> ran = false;
  Launch(stream, gate.Waiter());
  Launch(stream, [&ran] { ran = true; });
  EXPECT_FALSE(ran);  // reached with the gate closed: neither Launch blocked
  gate.Open();
  ASSERT_TRUE(runtime_->Synchronize(stream).ok());
  EXPECT_TRUE(ran);
  runtime_->DestroyStream(stream);
}

TEST_P(DeviceRuntimeTest, AStreamDoesNotWaitForAnother) {
  const HostMemory memory(runtime_.get(), 4096);
  auto arena = runtime_->AllocateArena(4096);
  ASSERT_TRUE(arena.ok()) << arena.status();
  const StreamHandle held = NewStream();
  const StreamHandle free = NewStream();
  Gate gate;
  Launch(held, gate.Waiter());
  ASSERT_TRUE(
      runtime_->CopyAsync(free, CopyDirection::kHostToDevice, *arena, memory.data(), 4096).ok());
  ASSERT_TRUE(runtime_->Synchronize(free).ok());  // with the gate closed
  gate.Open();
  runtime_->DestroyStream(held);
  runtime_->DestroyStream(free);
  runtime_->FreeArena(*arena, 4096);
}

TEST_P(DeviceRuntimeTest, ANotificationComesOnceWhatWasLaunchedBeforeHasEnded) {
  const StreamHandle stream = NewStream();
  Gate gate;
  std::atomic<int> told = 0;
  std::promise<absl::Status> answer;
  Launch(stream, gate.Waiter());
  ASSERT_TRUE(runtime_
                  ->Notify(stream,
                           [&](const absl::Status& status) {
                             ++told;
                             answer.set_value(status);
                           })
                  .ok());
  EXPECT_EQ(told, 0);  // the gate is closed
  gate.Open();
  EXPECT_TRUE(answer.get_future().get().ok());
  runtime_->DestroyStream(stream);
  EXPECT_EQ(told, 1);
}

TEST_P(DeviceRuntimeTest, SynchronizeWaitsForNotifications) {
  const StreamHandle stream = NewStream();
  std::atomic<int> told = 0;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(runtime_->Notify(stream, [&told](const absl::Status&) { ++told; }).ok());
    ASSERT_TRUE(runtime_->Synchronize(stream).ok());
    ASSERT_EQ(told, i + 1);
  }
  runtime_->DestroyStream(stream);
}

TEST_P(DeviceRuntimeTest, NotificationsComeInOrderAndBeforeTheirStreamGoes) {
  const StreamHandle stream = NewStream();
  std::vector<int> seen;
  for (int i = 0; i < 200; ++i) {
    Launch(stream, [] {});
    ASSERT_TRUE(runtime_
                    ->Notify(stream,
                             [&seen, i](const absl::Status& status) {
                               EXPECT_TRUE(status.ok()) << status;
                               seen.push_back(i);
                             })
                    .ok());
  }
  runtime_->DestroyStream(stream);
  ASSERT_EQ(seen.size(), 200u);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST_P(DeviceRuntimeTest, SynchronizeOfAnIdleStreamReturns) {
  const StreamHandle stream = NewStream();
  EXPECT_TRUE(runtime_->Synchronize(stream).ok());
  EXPECT_TRUE(runtime_->Synchronize(stream).ok());
  runtime_->DestroyStream(stream);
}

TEST_P(DeviceRuntimeTest, DestroyingAStreamRunsWhatWasLaunched) {
  const StreamHandle stream = NewStream();
  Gate gate;
  std::atomic<int> ran = 0;
  Launch(stream, gate.Waiter());
  for (int i = 0; i < 10; ++i) Launch(stream, [&ran] { ++ran; });
  std::thread opener([&gate] { gate.Open(); });
  runtime_->DestroyStream(stream);
  EXPECT_EQ(ran, 10);
  opener.join();
}

TEST_P(DeviceRuntimeTest, DestroyingTheRuntimeRunsWhatWasLaunched) {
  std::atomic<int> ran = 0;
  const StreamHandle first = NewStream();
  const StreamHandle second = NewStream();
  const EventHandle event = NewEvent();
  Gate gate;
  Launch(second, gate.Waiter());
  ASSERT_TRUE(runtime_->Record(event, second).ok());
  ASSERT_TRUE(runtime_->Wait(first, event).ok());
  Launch(first, [&ran] { ++ran; });
  std::thread opener([&gate] { gate.Open(); });
  runtime_.reset();
  EXPECT_EQ(ran, 1);
  opener.join();
}

TEST_P(DeviceRuntimeTest, AnEventNeverRecordedIsComplete) {
  const EventHandle event = NewEvent();
  const StreamHandle stream = NewStream();
  EXPECT_TRUE(*runtime_->Query(event));
  EXPECT_TRUE(runtime_->Synchronize(event).ok());
  ASSERT_TRUE(runtime_->Wait(stream, event).ok());
  EXPECT_TRUE(runtime_->Synchronize(stream).ok());
  runtime_->DestroyEvent(event);
  runtime_->DestroyStream(stream);
}

TEST_P(DeviceRuntimeTest, AnEventCompletesWhenTheWorkBeforeItHasRun) {
  const EventHandle event = NewEvent();
  const StreamHandle stream = NewStream();
  Gate before, after;
  Launch(stream, before.Waiter());
  ASSERT_TRUE(runtime_->Record(event, stream).ok());
  Launch(stream, after.Waiter());
  EXPECT_FALSE(*runtime_->Query(event));
  before.Open();
  EXPECT_TRUE(runtime_->Synchronize(event).ok());  // later work still holds the stream
  EXPECT_TRUE(*runtime_->Query(event));
  after.Open();
  runtime_->DestroyStream(stream);
  EXPECT_TRUE(*runtime_->Query(event));  // the event outlives its stream
  runtime_->DestroyEvent(event);
}

TEST_P(DeviceRuntimeTest, AnEventOnAnIdleStreamCompletes) {
  const EventHandle event = NewEvent();
  const StreamHandle stream = NewStream();
  ASSERT_TRUE(runtime_->Record(event, stream).ok());
  EXPECT_TRUE(runtime_->Synchronize(event).ok());
  EXPECT_TRUE(*runtime_->Query(event));
  runtime_->DestroyEvent(event);
  runtime_->DestroyStream(stream);
}

TEST_P(DeviceRuntimeTest, RecordingAgainMovesTheMark) {
  const EventHandle event = NewEvent();
  const StreamHandle stream = NewStream();
  ASSERT_TRUE(runtime_->Record(event, stream).ok());
  ASSERT_TRUE(runtime_->Synchronize(event).ok());
  Gate gate;
  Launch(stream, gate.Waiter());
  ASSERT_TRUE(runtime_->Record(event, stream).ok());
  EXPECT_FALSE(*runtime_->Query(event));
  gate.Open();
  EXPECT_TRUE(runtime_->Synchronize(event).ok());
  runtime_->DestroyEvent(event);
  runtime_->DestroyStream(stream);
}

TEST_P(DeviceRuntimeTest, RecordingOnAnotherStreamMovesTheMarkThere) {
  const EventHandle event = NewEvent();
  const StreamHandle held = NewStream();
  const StreamHandle free = NewStream();
  Gate gate;
  Launch(held, gate.Waiter());
  ASSERT_TRUE(runtime_->Record(event, held).ok());
  EXPECT_FALSE(*runtime_->Query(event));
  ASSERT_TRUE(runtime_->Record(event, free).ok());
  EXPECT_TRUE(runtime_->Synchronize(event).ok());
  gate.Open();
  runtime_->DestroyStream(held);
  runtime_->DestroyStream(free);
  runtime_->DestroyEvent(event);
}

TEST_P(DeviceRuntimeTest, WaitHoldsLaterWorkAndNotTheCaller) {
  const EventHandle event = NewEvent();
  const StreamHandle producer = NewStream();
  const StreamHandle consumer = NewStream();
  Gate gate;
  int value = 0, seen_before = -1, seen_after = -1;
  Launch(producer, gate.Waiter());
  Launch(producer, [&value] { value = 42; });
  ASSERT_TRUE(runtime_->Record(event, producer).ok());
  Launch(consumer, [&] { seen_before = 0; });
  ASSERT_TRUE(runtime_->Wait(consumer, event).ok());
  Launch(consumer, [&] { seen_after = value; });
  gate.Open();  // opened only here, so Wait did not block
  ASSERT_TRUE(runtime_->Synchronize(consumer).ok());
  EXPECT_EQ(seen_before, 0);
  EXPECT_EQ(seen_after, 42);
  runtime_->DestroyStream(producer);
  runtime_->DestroyStream(consumer);
  runtime_->DestroyEvent(event);
}

TEST_P(DeviceRuntimeTest, AWaitKeepsTheMarkThatItSaw) {
  const EventHandle event = NewEvent();
  const StreamHandle producer = NewStream();
  const StreamHandle consumer = NewStream();
  Gate first, second;
  Launch(producer, first.Waiter());
  ASSERT_TRUE(runtime_->Record(event, producer).ok());
  ASSERT_TRUE(runtime_->Wait(consumer, event).ok());
  Launch(producer, second.Waiter());
  ASSERT_TRUE(runtime_->Record(event, producer).ok());
  first.Open();
  ASSERT_TRUE(runtime_->Synchronize(consumer).ok());  // the second mark is still held
  EXPECT_FALSE(*runtime_->Query(event));
  second.Open();
  ASSERT_TRUE(runtime_->Synchronize(event).ok());
  runtime_->DestroyStream(producer);
  runtime_->DestroyStream(consumer);
  runtime_->DestroyEvent(event);
}

TEST_P(DeviceRuntimeTest, AWaitOutlivesItsEvent) {
  const EventHandle event = NewEvent();
  const StreamHandle producer = NewStream();
  const StreamHandle consumer = NewStream();
  Gate gate;
  int value = 0, seen = -1;
  Launch(producer, gate.Waiter());
  Launch(producer, [&value] { value = 7; });
  ASSERT_TRUE(runtime_->Record(event, producer).ok());
  ASSERT_TRUE(runtime_->Wait(consumer, event).ok());
  Launch(consumer, [&] { seen = value; });
  runtime_->DestroyEvent(event);
  gate.Open();
  ASSERT_TRUE(runtime_->Synchronize(consumer).ok());
  EXPECT_EQ(seen, 7);
  runtime_->DestroyStream(producer);
  runtime_->DestroyStream(consumer);
}

TEST_P(DeviceRuntimeTest, AStreamMayWaitForItself) {
  const EventHandle event = NewEvent();
  const StreamHandle stream = NewStream();
  ASSERT_TRUE(runtime_->Record(event, stream).ok());
  ASSERT_TRUE(runtime_->Wait(stream, event).ok());
  EXPECT_TRUE(runtime_->Synchronize(stream).ok());
  runtime_->DestroyStream(stream);
  runtime_->DestroyEvent(event);
}

TEST_P(DeviceRuntimeTest, StreamsPassABatonAroundARing) {
  constexpr size_t kStreams = 4;
  constexpr int kRounds = 200;
  std::vector<StreamHandle> streams;
  std::vector<EventHandle> events;
  for (size_t i = 0; i < kStreams; ++i) {
    streams.push_back(NewStream());
    events.push_back(NewEvent());
  }
  int baton = 0;  // not atomic: the events alone order its accesses
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kStreams; ++i) {
      ASSERT_TRUE(runtime_->Wait(streams[i], events[(i + kStreams - 1) % kStreams]).ok());
      const int expected = round * static_cast<int>(kStreams) + static_cast<int>(i);
      Launch(streams[i], [&baton, expected] {
        EXPECT_EQ(baton, expected);
        ++baton;
      });
      ASSERT_TRUE(runtime_->Record(events[i], streams[i]).ok());
    }
  }
  ASSERT_TRUE(runtime_->Synchronize(events[kStreams - 1]).ok());
  EXPECT_EQ(baton, kRounds * static_cast<int>(kStreams));
  for (StreamHandle stream : streams) runtime_->DestroyStream(stream);
  for (EventHandle event : events) runtime_->DestroyEvent(event);
}

TEST_P(DeviceRuntimeTest, ManyThreadsLaunch) {
  constexpr int kThreads = 4;
  constexpr int kLaunches = 500;
  const StreamHandle stream = NewStream();
  int count = 0;  // not atomic: the stream alone orders its accesses
  std::vector<std::vector<int>> seen(kThreads);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const EventHandle event = *runtime_->CreateEvent();
      for (int i = 0; i < kLaunches; ++i) {
        EXPECT_TRUE(runtime_->Launch(stream, [&, t, i] { ++count, seen[t].push_back(i); }).ok());
        if (i % 50 == 0) {
          EXPECT_TRUE(runtime_->Record(event, stream).ok());
          EXPECT_TRUE(runtime_->Synchronize(event).ok());
          EXPECT_TRUE(*runtime_->Query(event));
        }
      }
      EXPECT_TRUE(runtime_->Synchronize(stream).ok());
      runtime_->DestroyEvent(event);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, kThreads * kLaunches);
  for (const std::vector<int>& order : seen) {
    ASSERT_EQ(order.size(), static_cast<size_t>(kLaunches));
    for (int i = 0; i < kLaunches; ++i)
      EXPECT_EQ(order[static_cast<size_t>(i)], i);  // each thread's own order
  }
  runtime_->DestroyStream(stream);
}

TEST_P(DeviceRuntimeTest, ManyThreadsMakeAndDestroyStreams) {
  std::vector<std::thread> threads;
  std::atomic<int> ran = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        const StreamHandle stream = *runtime_->CreateStream();
        EXPECT_TRUE(runtime_->Launch(stream, [&ran] { ++ran; }).ok());
        runtime_->DestroyStream(stream);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, 80);
}

TEST_P(DeviceRuntimeTest, AnEmptyClosureIsAnError) {
  const StreamHandle stream = NewStream();
  EXPECT_EQ(runtime_->Notify(stream, nullptr).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(runtime_->Launch(stream, nullptr).code(), absl::StatusCode::kInvalidArgument);
  runtime_->DestroyStream(stream);
}

TEST_P(DeviceRuntimeTest, CopiesGoToTheDeviceAndBack) {
  constexpr uint64_t kBytes = (uint64_t{3} << 20) + 13;
  const HostMemory source(runtime_.get(), kBytes), back(runtime_.get(), kBytes);
  uint64_t state = 1;
  for (std::byte& byte : source.span()) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  auto arena = runtime_->AllocateArena(kBytes + 7);
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(*arena) % (uintptr_t{2} << 20), 0u);
  const StreamHandle stream = NewStream();
  using enum CopyDirection;
  ASSERT_TRUE(runtime_->CopyAsync(stream, kHostToDevice, *arena + 7, source.data(), kBytes).ok());
  ASSERT_TRUE(runtime_->CopyAsync(stream, kDeviceToHost, back.data(), *arena + 7, kBytes).ok());
  ASSERT_TRUE(runtime_->CopyAsync(stream, kDeviceToHost, nullptr, nullptr, 0).ok());
  ASSERT_TRUE(runtime_->Synchronize(stream).ok());
  EXPECT_EQ(std::memcmp(source.data(), back.data(), kBytes), 0);
  runtime_->DestroyStream(stream);
  runtime_->FreeArena(*arena, kBytes + 7);
}

// A tile that crosses the end of a slab of the pinned arena needs such copies.
TEST_P(DeviceRuntimeTest, CopiesGoOverTheEndsOfRegisteredRanges) {
  constexpr uint64_t kBytes = uint64_t{3} << 20, kBegin = 12345, kCopied = kBytes - 2 * kBegin;
  const HostMemory source(runtime_.get(), kBytes, /*ranges=*/3),
      back(runtime_.get(), kBytes, /*ranges=*/3);
  for (uint64_t i = 0; i < kBytes; ++i) source.data()[i] = static_cast<std::byte>(i * i >> 8);
  auto arena = runtime_->AllocateArena(kCopied);
  ASSERT_TRUE(arena.ok()) << arena.status();
  const StreamHandle stream = NewStream();
  using enum CopyDirection;
  absl::Status status =
      runtime_->CopyAsync(stream, kHostToDevice, *arena, source.data() + kBegin, kCopied);
  EXPECT_TRUE(status.ok()) << status;
  status = runtime_->CopyAsync(stream, kDeviceToHost, back.data() + kBegin, *arena, kCopied);
  EXPECT_TRUE(status.ok()) << status;
  ASSERT_TRUE(runtime_->Synchronize(stream).ok());
  EXPECT_EQ(std::memcmp(source.data() + kBegin, back.data() + kBegin, kCopied), 0);
  runtime_->DestroyStream(stream);
  runtime_->FreeArena(*arena, kCopied);
}

TEST_P(DeviceRuntimeTest, ACopyRunsInStreamOrder) {
  auto arena = runtime_->AllocateArena(4096);
  ASSERT_TRUE(arena.ok());
  const StreamHandle stream = NewStream();
  const HostMemory host(runtime_.get(), 4096);
  auto* const values = reinterpret_cast<int*>(host.data());
  Gate gate;
  using enum CopyDirection;
  Launch(stream, gate.Waiter());
  Launch(stream, [values] { values[0] = 5; });
  ASSERT_TRUE(runtime_->CopyAsync(stream, kHostToDevice, *arena, &values[0], sizeof(int)).ok());
  ASSERT_TRUE(runtime_->CopyAsync(stream, kDeviceToHost, &values[1], *arena, sizeof(int)).ok());
  gate.Open();
  ASSERT_TRUE(runtime_->Synchronize(stream).ok());
  EXPECT_EQ(values[1], 5);
  runtime_->DestroyStream(stream);
  runtime_->FreeArena(*arena, 4096);
}

TEST_P(DeviceRuntimeTest, AnArenaBeyondAllMemoryIsRefused) {
  const auto arena = runtime_->AllocateArena(uint64_t{1} << 62);
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(arena.status().message().find("4.0 EiB"), absl::string_view::npos) << arena.status();
  EXPECT_EQ(runtime_->AllocateArena(kUnlimited).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(runtime_->AllocateArena(0).status().code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Runtimes, DeviceRuntimeTest,
                         testing::Values(RuntimeCase{"host", Device::Host()},
                                         RuntimeCase{"cuda", Device::Cuda(0)}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace spillway::tiers
