// SPDX-License-Identifier: Apache-2.0

#include "io/transfer.h"

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "src/base/errno_status.h"

namespace spillway::io {
namespace {

bool IsAligned(const IoRequest& request) {
  const auto address = reinterpret_cast<uintptr_t>(request.buffer);
  return (request.offset | request.size_bytes | address) % kIoAlignment == 0;
}

}  // namespace

Transfer::Transfer(const IoRequest& request, int fd, uint16_t device)
    : request_(request), fd_(fd), device_(device) {
  if (request.size_bytes == 0 || request.buffer == nullptr || !IsAligned(request)) {
    Fail(Failure::kBadRequest);
  } else if (fd < 0) {
    Fail(Failure::kErrno, EBADF);
  }
}

Transfer::State Transfer::Advance(int64_t result) {
  if (result == -EINTR || result == -EAGAIN)
    return Stall(Failure::kErrno, static_cast<int>(-result));
  if (result < 0) return Fail(Failure::kErrno, static_cast<int>(-result));
  const bool is_read = request_.op == IoOp::kRead;
  if (result == 0) return is_read ? Fail(Failure::kPastEnd) : Stall(Failure::kStalled);

  const uint32_t moved = static_cast<uint32_t>(std::min<int64_t>(result, size_bytes()));
  if (moved == size_bytes()) {
    done_bytes_ = request_.size_bytes;
    return state_ = State::kDone;
  }
  const uint32_t blocks = moved / kIoAlignment * kIoAlignment;
  // A file that ends inside a block returns the same few bytes on every try.
  if (blocks == 0) return Stall(is_read ? Failure::kPastEnd : Failure::kStalled);
  done_bytes_ += blocks;
  stalls_ = 0;
  return state_;
}

Transfer::State Transfer::Stall(Failure failure, int error) {
  if (++stalls_ > kMaxStalls) return Fail(failure, error);
  return state_;
}

Transfer::State Transfer::Fail(Failure failure, int error) {
  failure_ = failure;
  error_ = error;
  return state_ = State::kFailed;
}

std::string Transfer::Describe(std::string_view path) const {
  return absl::StrCat(request_.op == IoOp::kRead ? "read of " : "write of ", request_.size_bytes,
                      " B at offset ", request_.offset, " of ",
                      absl::string_view(path.data(), path.size()));
}

absl::Status Transfer::ToStatus(std::string_view path) const {
  if (state_ == State::kDone) return absl::OkStatus();
  const std::string what = Describe(path);
  switch (failure_) {
    case Failure::kBadRequest:
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": offset, size and buffer must be multiples of ", kIoAlignment,
                       " and the size not 0"));
    case Failure::kErrno: return base::ErrnoToStatus(error_, what);
    case Failure::kPastEnd:
      return absl::DataLossError(absl::StrCat(what, ": the file ends before ",
                                              offset() + size_bytes(), "; ", done_bytes_,
                                              " B could be read"));
    case Failure::kStalled:
    case Failure::kNone: break;
  }
  return absl::InternalError(absl::StrCat(what, ": the system took ", done_bytes_,
                                          " B and then none, without an error, ", stalls_,
                                          " times"));
}

}  // namespace spillway::io
