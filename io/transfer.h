// SPDX-License-Identifier: Apache-2.0
//
// One request on its way: what the kernel has still to move, and what each of its answers means. A
// pure function of results, shared by the engines, so that short transfers, retries and the end of
// a file are treated alike and tested without a disk.

#ifndef SPILLWAY_IO_TRANSFER_H_
#define SPILLWAY_IO_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "io/io_engine.h"

namespace spillway::io {

class Transfer {
 public:
  // What to do after a result.
  enum class State : uint8_t {
    kMoving,  // issue what remains: [offset, offset + size) of the file, at buffer
    kDone,
    kFailed,
  };

  // EINTR, EAGAIN and results that moved no whole block are tried again this often in a row.
  static constexpr int kMaxStalls = 32;

  Transfer() = default;
  // A request that breaks the rules of IoRequest (a size of 0, alignment) is born failed.
  Transfer(const IoRequest& request, int fd, uint16_t device);

  // Takes the kernel's answer for the remaining piece. A short count is resumed from the last
  // multiple of kIoAlignment that it reached, because O_DIRECT takes no other.
  State Advance(int64_t result);

  const IoRequest& request() const { return request_; }
  int fd() const { return fd_; }
  uint16_t device() const { return device_; }
  State state() const { return state_; }

  // The piece that remains.
  uint64_t offset() const { return request_.offset + done_bytes_; }
  std::byte* buffer() const { return request_.buffer + done_bytes_; }
  uint32_t size_bytes() const { return request_.size_bytes - done_bytes_; }

  // Results in a row that moved nothing; from one on, the next try should be able to block or back
  // off.
  int stalls() const { return stalls_; }

  // How it ended; `path` names the file. REQUIRES: not kMoving.
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
