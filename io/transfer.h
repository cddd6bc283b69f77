// SPDX-License-Identifier: Apache-2.0
//
// The progress of one request: which piece the kernel still has to move, and what each of its
// results means. It is a pure function of the results and is shared by the engines, so that short
// transfers, retries and the end of a file are handled alike and are tested without a disk.

#ifndef SPILLWAY_IO_TRANSFER_H_
#define SPILLWAY_IO_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "io/io_engine.h"

namespace spillway::io {

class Transfer {
 public:
  // The state after a result.
  enum class State : uint8_t {
    kMoving,  // the rest must be issued: [offset, offset + size) of the file, at buffer
    kDone,
    kFailed,
  };

  // The largest number of retries in a row after EINTR, EAGAIN or a result that moved no whole
  // block. A read that returns 0 bytes fails at once.
  static constexpr int kMaxStalls = 32;

  Transfer() = default;
  // A request that breaks the rules of IoRequest (a size of 0, alignment), or whose fd is negative,
  // is kFailed from the start.
  Transfer(const IoRequest& request, int fd, uint16_t device);

  // Applies the kernel's result for the remaining piece. A short transfer is resumed from the last
  // multiple of kIoAlignment that it reached, because O_DIRECT accepts no other offset.
  State Advance(int64_t result);

  const IoRequest& request() const { return request_; }
  int fd() const { return fd_; }
  uint16_t device() const { return device_; }
  State state() const { return state_; }

  // The piece that remains.
  uint64_t offset() const { return request_.offset + done_bytes_; }
  std::byte* buffer() const { return request_.buffer + done_bytes_; }
  uint32_t size_bytes() const { return request_.size_bytes - done_bytes_; }

  // The number of results in a row without progress. If it is not 0, the next try should be allowed
  // to block, or should wait first.
  int stalls() const { return stalls_; }

  // Describes the request: "read of 4096 B at offset 0 of PATH".
  std::string Describe(std::string_view path) const;
  // Returns the final status, with `path` as the name of the file. REQUIRES: not kMoving.
  absl::Status ToStatus(std::string_view path) const;

 private:
  enum class Failure : uint8_t { kNone, kBadRequest, kErrno, kPastEnd, kStalled };

  State Fail(Failure failure, int error = 0);
  State Stall(Failure failure, int error = 0);

  IoRequest request_;
  int fd_ = -1;
  uint16_t device_ = 0;
  uint32_t done_bytes_ = 0;
  int stalls_ = 0;
  State state_ = State::kMoving;
  Failure failure_ = Failure::kNone;
  int error_ = 0;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_TRANSFER_H_
