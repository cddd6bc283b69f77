// SPDX-License-Identifier: Apache-2.0
//
// Tests the meaning of each result of the kernel, without a call of the kernel.

#include "io/transfer.h"

#include <cerrno>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/io/io_test_util.h"

namespace spillway::io {
namespace {

using State = Transfer::State;
using testing::HasSubstr;

class TransferTest : public testing::Test {
 protected:
  Transfer Make(IoOp op, uint32_t size_bytes) const {
    return Transfer({op, FileId{0}, 65536, memory_.data(), size_bytes, 1}, /*fd=*/3, /*device=*/0);
  }
  const AlignedBuffer memory_{65536};
};

TEST_F(TransferTest, AFullCountIsDone) {
  Transfer transfer = Make(IoOp::kRead, 8192);
  EXPECT_EQ(transfer.Advance(8192), State::kDone);
  EXPECT_TRUE(transfer.ToStatus("f").ok());
}

TEST_F(TransferTest, AShortCountGoesOnFromTheLastWholeBlock) {
  Transfer transfer = Make(IoOp::kWrite, 65536);
  EXPECT_EQ(transfer.Advance(4096 * 3 + 17), State::kMoving);
  EXPECT_EQ(transfer.offset(), 65536u + 4096 * 3);
  EXPECT_EQ(transfer.buffer(), memory_.data() + 4096 * 3);
  EXPECT_EQ(transfer.size_bytes(), 65536u - 4096 * 3);
  EXPECT_EQ(transfer.stalls(), 0);
  EXPECT_EQ(transfer.Advance(65536 - 4096 * 3), State::kDone);
}

TEST_F(TransferTest, ProgressForgetsEarlierStalls) {
  Transfer transfer = Make(IoOp::kRead, 65536);
  for (int block = 0; block < 15; ++block) {
    for (int i = 0; i < Transfer::kMaxStalls; ++i)
      ASSERT_EQ(transfer.Advance(-EAGAIN), State::kMoving);
    ASSERT_EQ(transfer.Advance(4096), State::kMoving);
  }
  EXPECT_EQ(transfer.Advance(4096), State::kDone);
}

TEST_F(TransferTest, StallsAreBounded) {
  struct Case {
    IoOp op;
    int64_t result;
    absl::StatusCode code;
  };
  for (const Case& c : {Case{IoOp::kRead, 100, absl::StatusCode::kDataLoss},
                        Case{IoOp::kWrite, 100, absl::StatusCode::kInternal},
                        Case{IoOp::kWrite, 0, absl::StatusCode::kInternal}}) {
    Transfer transfer = Make(c.op, 8192);
    int results = 0;
    while (transfer.state() == State::kMoving && results < 1000) {
      transfer.Advance(c.result);
      ++results;
    }
    EXPECT_EQ(results, Transfer::kMaxStalls + 1);
    EXPECT_EQ(transfer.ToStatus("f").code(), c.code) << transfer.ToStatus("f");
  }
}

TEST_F(TransferTest, NothingReadIsTheEndOfTheFile) {
  Transfer transfer = Make(IoOp::kRead, 8192);
  EXPECT_EQ(transfer.Advance(4096), State::kMoving);
  EXPECT_EQ(transfer.Advance(0), State::kFailed);
  const absl::Status status = transfer.ToStatus("store/segment-0000");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("read of 8192 B at offset 65536 of store/segment-0000"));
  EXPECT_THAT(status.message(), HasSubstr("4096 B could be read"));
}

TEST_F(TransferTest, AnErrorAfterProgressFails) {
  Transfer transfer = Make(IoOp::kWrite, 8192);
  EXPECT_EQ(transfer.Advance(4096), State::kMoving);
  EXPECT_EQ(transfer.Advance(-ENOSPC), State::kFailed);
  EXPECT_EQ(transfer.ToStatus("f").code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(TransferTest, ACountBeyondWhatWasAskedIsNoMoreThanDone) {
  Transfer transfer = Make(IoOp::kRead, 4096);
  EXPECT_EQ(transfer.Advance(1 << 30), State::kDone);
}

}  // namespace
}  // namespace spillway::io
