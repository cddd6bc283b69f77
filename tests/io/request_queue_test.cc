// SPDX-License-Identifier: Apache-2.0

#include "io/request_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "io/uring_io_engine.h"
#include "tests/seed.h"

namespace spillway::io {
namespace {

class RequestQueueTest : public ::testing::Test {
 protected:
  Transfer Make(IoOp op, uint64_t tag, uint16_t device = 0, uint32_t size_bytes = kIoAlignment) {
    return Transfer({op, FileId{0}, 0, memory_, size_bytes, tag}, /*fd=*/3, device);
  }
  void Add(RequestQueue& queue, IoOp op, uint64_t first_tag, int count, uint16_t device = 0) {
    for (int i = 0; i < count; ++i)
      queue.Add(Make(op, first_tag + static_cast<uint64_t>(i), device));
  }
  static std::vector<uint64_t> TakeAll(RequestQueue& queue) {
    std::vector<uint64_t> tags;
    while (const auto transfer = queue.Take()) tags.push_back(transfer->request().tag);
    return tags;
  }

  alignas(kIoAlignment) std::byte memory_[kIoAlignment];
};

using Tags = std::vector<uint64_t>;

TEST_F(RequestQueueTest, EachClassIsFirstInFirstOutAndReadsGoFirst) {
  RequestQueue queue({.read = 4, .write = 4, .mixed_write = 4}, 100);
  Add(queue, IoOp::kWrite, 10, 2);
  Add(queue, IoOp::kRead, 20, 2);
  Add(queue, IoOp::kWrite, 12, 1);
  EXPECT_EQ(TakeAll(queue), (Tags{20, 21, 10, 11, 12}));
  EXPECT_EQ(queue.in_flight(), 5);
  EXPECT_EQ(queue.num_waiting(), 0u);
}

TEST_F(RequestQueueTest, AReadNeverWaitsForWritesThatWait) {
  RequestQueue queue({.read = 2, .write = 8, .mixed_write = 1}, 100);
  Add(queue, IoOp::kWrite, 100, 1000);
  EXPECT_EQ(TakeAll(queue).size(), 8u);
  queue.Add(Make(IoOp::kRead, 1));
  EXPECT_EQ(TakeAll(queue), Tags{1});
  // No write starts until fewer writes than the mixed depth are in flight, or the read has ended.
  for (uint64_t tag = 100; tag < 107; ++tag) {
    queue.Ended(Make(IoOp::kWrite, tag));
    EXPECT_TRUE(TakeAll(queue).empty()) << tag;
  }
  queue.Ended(Make(IoOp::kWrite, 107));
  EXPECT_EQ(TakeAll(queue), Tags{108});
  queue.Ended(Make(IoOp::kRead, 1));
  EXPECT_EQ(TakeAll(queue).size(), 7u);
}

TEST_F(RequestQueueTest, WritesGoOnBesideReadsThatNeverEnd) {
  RequestQueue queue({.read = 2, .write = 8, .mixed_write = 3}, 100);
  Add(queue, IoOp::kRead, 1, 50);
  Add(queue, IoOp::kWrite, 100, 50);
  EXPECT_EQ(TakeAll(queue), (Tags{1, 2, 100, 101, 102}));
  queue.Ended(Make(IoOp::kWrite, 100));
  EXPECT_EQ(TakeAll(queue), Tags{103});
}

TEST_F(RequestQueueTest, DevicesTakeTurnsAndHaveDepthsOfTheirOwn) {
  RequestQueue queue({.read = 2, .write = 2, .mixed_write = 1}, 100);
  queue.SetDepths(1, {.read = 3, .write = 1, .mixed_write = 1});
  Add(queue, IoOp::kRead, 10, 5, 0);
  Add(queue, IoOp::kRead, 20, 5, 1);
  EXPECT_EQ(TakeAll(queue), (Tags{10, 20, 11, 21, 22}));
  // A device without reads writes at its full depth, whatever the other devices do.
  Add(queue, IoOp::kWrite, 30, 5, 2);
  EXPECT_EQ(TakeAll(queue), (Tags{30, 31}));
}

TEST_F(RequestQueueTest, SmallerRequestsCountAsPartsOfOne) {
  constexpr uint32_t kOne = 64 * kIoAlignment;
  RequestQueue queue({.read = 2, .write = 2, .mixed_write = 1, .request_bytes = kOne}, 100);
  const auto add = [&](IoOp op, uint32_t size_bytes, uint64_t first_tag, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) queue.Add(Make(op, first_tag + i, 0, size_bytes));
  };
  add(IoOp::kRead, kOne / 2, 1, 5);
  EXPECT_EQ(TakeAll(queue), (Tags{1, 2, 3, 4}));
  queue.Ended(Make(IoOp::kRead, 1, 0, kOne / 2));
  EXPECT_EQ(TakeAll(queue), (Tags{5}));
  add(IoOp::kWrite, kOne / 2, 10, 6);
  EXPECT_EQ(TakeAll(queue), (Tags{10, 11})) << "beside reads";
  for (uint64_t tag = 2; tag <= 5; ++tag) queue.Ended(Make(IoOp::kRead, tag, 0, kOne / 2));
  EXPECT_EQ(TakeAll(queue), (Tags{12, 13}));

  RequestQueue small({.read = 2, .write = 2, .mixed_write = 1, .request_bytes = kOne}, 100);
  Add(small, IoOp::kRead, 1, 50);
  EXPECT_EQ(TakeAll(small).size(), 4u) << "each counts as a half at least";
  small.SetDepths(0, {.read = 40, .write = 2, .mixed_write = 1});
  EXPECT_EQ(TakeAll(small).size(), 36u) << "each counts as one";

  RequestQueue large({.read = 1, .write = 1, .mixed_write = 1, .request_bytes = kOne}, 100);
  large.Add(Make(IoOp::kRead, 1, 0, kOne / 2));
  large.Add(Make(IoOp::kRead, 2, 0, kOne));
  large.Add(Make(IoOp::kRead, 3, 0, 4 * kOne));
  EXPECT_EQ(TakeAll(large), Tags{1}) << "the second would be more than the depth";
  large.Ended(Make(IoOp::kRead, 1, 0, kOne / 2));
  EXPECT_EQ(TakeAll(large), Tags{2});
  large.Ended(Make(IoOp::kRead, 2, 0, kOne));
  EXPECT_EQ(TakeAll(large), Tags{3}) << "one may always go alone";
}

TEST_F(RequestQueueTest, ReadsLeaveRoomToWrites) {
  RequestQueue queue({.read = 100, .write = 100, .mixed_write = 2}, 8);
  Add(queue, IoOp::kRead, 1, 50, 0);
  Add(queue, IoOp::kRead, 100, 50, 1);
  Add(queue, IoOp::kWrite, 200, 50, 0);
  EXPECT_EQ(TakeAll(queue), (Tags{1, 100, 2, 101, 3, 102, 200, 201}));
  queue.Ended(Make(IoOp::kRead, 1));
  queue.Ended(Make(IoOp::kWrite, 200));
  EXPECT_EQ(TakeAll(queue), (Tags{103, 202}));
}

// A calibration measures queues of up to kMaxQueueDepth requests of either kind.
TEST_F(RequestQueueTest, OneDeviceMayHaveTheLongestQueueOfEitherKind) {
  constexpr int kMost = kMaxQueueDepth;
  for (const IoOp op : {IoOp::kRead, IoOp::kWrite}) {
    RequestQueue queue({.read = kMost, .write = kMost, .mixed_write = kMost},
                       UringIoEngine::kMaxInFlight);
    Add(queue, op, 1, 2 * kMost, 0);
    EXPECT_EQ(TakeAll(queue).size(), size_t{kMost});
  }
}

TEST_F(RequestQueueTest, WritesOfAllDevicesLeaveHalfTheRoomToReads) {
  RequestQueue queue({.read = 100, .write = 100, .mixed_write = 100}, 8);
  Add(queue, IoOp::kWrite, 1, 50, 0);
  Add(queue, IoOp::kWrite, 100, 50, 1);
  EXPECT_EQ(TakeAll(queue).size(), 4u);
  Add(queue, IoOp::kRead, 200, 50, 2);
  EXPECT_EQ(TakeAll(queue), (Tags{200, 201, 202, 203}));
  RequestQueue one({.read = 1, .write = 1, .mixed_write = 1}, 1);
  Add(one, IoOp::kWrite, 1, 2);
  EXPECT_EQ(TakeAll(one), Tags{1});
}

TEST_F(RequestQueueTest, WhatWaitsCanBeTakenOut) {
  RequestQueue queue({.read = 1, .write = 1, .mixed_write = 1}, 8);
  Add(queue, IoOp::kRead, 1, 3);
  Add(queue, IoOp::kWrite, 10, 2);
  EXPECT_EQ(TakeAll(queue), (Tags{1, 10}));
  EXPECT_EQ(queue.TakeWaiting().size(), 3u);
  EXPECT_EQ(queue.num_waiting(), 0u);
  EXPECT_EQ(queue.in_flight(), 2);
}

TEST_F(RequestQueueTest, DepthsAreBroughtIntoBounds) {
  const QueueDepths depths = ClampDepths({.read = 0, .write = 5000, .mixed_write = -3}, 64);
  EXPECT_EQ(depths, (QueueDepths{.read = 1, .write = 64, .mixed_write = 1}));
}

// With random arrivals and ends, the bounds hold at every instant and every request is taken.
TEST_F(RequestQueueTest, BoundsHoldAndNothingStarves) {
  std::mt19937_64 random(test::Seed());
  constexpr uint32_t kOne = 16 * kIoAlignment;
  const QueueDepths depths = {
      .read = 5, .write = 7, .mixed_write = 2, .request_bytes = random() % 2 == 0 ? 0 : kOne};
  constexpr int kDevices = 3;
  RequestQueue queue(depths, 20);
  std::vector<Transfer> in_flight;
  int added = 0, taken = 0;
  int waiting_reads[kDevices] = {};
  // What the device has in flight, in requests of request_bytes.
  const auto used = [&](IoOp op, int device) {
    double sum = 0;
    for (const Transfer& transfer : in_flight) {
      if (transfer.request().op != op || transfer.device() != device) continue;
      sum += depths.request_bytes == 0 ? 1.0 : transfer.request().size_bytes / double{kOne};
    }
    return sum;
  };
  for (int step = 0; step < 20000 || taken < added; ++step) {
    if (step < 20000 && random() % 2 == 0) {
      const IoOp op = random() % 2 == 0 ? IoOp::kRead : IoOp::kWrite;
      const auto device = static_cast<uint16_t>(random() % kDevices);
      const auto size_bytes = static_cast<uint32_t>((1 + random() % 16) * kIoAlignment);
      queue.Add(Make(op, static_cast<uint64_t>(added++), device, size_bytes));
      if (op == IoOp::kRead) ++waiting_reads[device];
    } else if (const auto transfer = queue.Take()) {
      const uint16_t device = transfer->device();
      const IoOp op = transfer->request().op;
      const bool beside_reads = waiting_reads[device] > 0 || used(IoOp::kRead, device) > 0;
      if (op == IoOp::kRead) --waiting_reads[device];
      in_flight.push_back(*transfer);
      ++taken;
      if (op == IoOp::kWrite && beside_reads) {
        ASSERT_LE(used(IoOp::kWrite, device), depths.mixed_write);
      }
      ASSERT_LE(used(IoOp::kRead, device), depths.read);
      ASSERT_LE(used(IoOp::kWrite, device), depths.write);
      ASSERT_LE(in_flight.size(), 20u);
    } else if (!in_flight.empty()) {
      std::swap(in_flight[random() % in_flight.size()], in_flight.back());
      queue.Ended(in_flight.back());
      in_flight.pop_back();
    }
    ASSERT_EQ(queue.in_flight(), static_cast<int>(in_flight.size()));
  }
  EXPECT_EQ(taken, added);
}

}  // namespace
}  // namespace spillway::io
