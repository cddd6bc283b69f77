// SPDX-License-Identifier: Apache-2.0

#include "io/ring.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "src/base/check.h"
#include "src/base/errno_status.h"
#include "src/base/forks.h"

namespace spillway::io {
namespace {

pid_t ThisThread() {
  static thread_local const pid_t tid = ::gettid();
  return tid;
}

absl::Status NoRing(int error, const char* call) {
  return absl::FailedPreconditionError(base::ErrnoToStatus(error, call).message());
}

// Maps the result of a submission to a status. Most errors are ok: the caller looks for completions
// and tries again.
absl::Status Submitted(int result) {
  // Interrupted, timed out, or the caller must take completions first.
  if (result >= 0 || result == -EINTR || result == -ETIME || result == -EBUSY) {
    return absl::OkStatus();
  }
  if (result != -EAGAIN) return NoRing(-result, "io_uring_enter");
  std::this_thread::sleep_for(std::chrono::milliseconds(1));  // no kernel memory for now
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ring>> Ring::Open(unsigned entries) {
  // Tries the set-ups from the best to the plainest. The kernel returns EINVAL for a flag that it
  // does not support.
  constexpr unsigned kSetups[] = {
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED,
      IORING_SETUP_COOP_TASKRUN, 0};
  std::unique_ptr<Ring> ring(new Ring);
  io_uring_params params;
  int result = -EINVAL;
  for (const unsigned flags : kSetups) {
    params = {};
    params.flags = flags;
    result = io_uring_queue_init_params(entries, &ring->ring_, &params);
    if (result != -EINVAL) break;
  }
  if (result < 0) return NoRing(-result, "io_uring_setup");
  ring->is_open_ = true;
  // If the mappings cannot be kept from children, a child only delays Close.
  (void)io_uring_ring_dontfork(&ring->ring_);
  base::CloseInChildren(ring->ring_.ring_fd);
  ring->single_issuer_ = (params.flags & IORING_SETUP_SINGLE_ISSUER) != 0;
  if ((params.features & IORING_FEAT_EXT_ARG) == 0) {
    return NoRing(ENOSYS, "io_uring_enter with a timeout (Linux 5.11)");
  }
  // The last entry, after the callers' files, is for the pipe that Watch makes.
  result = io_uring_register_files_sparse(&ring->ring_, kMaxFiles + 1);
  if (result < 0) return NoRing(-result, "io_uring_register (files, Linux 5.19)");
  result = ring->Watch();
  if (result < 0) return NoRing(-result, "a pipe for the end of the io_uring");
  // If this fails, the registration of every buffer fails and buffers are used unregistered.
  io_uring_register_buffers_sparse(&ring->ring_, kMaxBuffers);
  return ring;
}

// Makes the pipe that hangs up when the kernel is done with the ring, and leaves its write end to
// the ring alone. Returns 0 or a negative errno.
int Ring::Watch() {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) < 0) return -errno;
  gone_fd_ = pipe[0];
  const int result = io_uring_register_files_update(&ring_, kMaxFiles, &pipe[1], 1);
  ::close(pipe[1]);
  return std::min(result, 0);
}

void Ring::Close(std::unique_ptr<Ring> ring, Deadline deadline) {
  ring->Exit();
  pollfd gone = {ring->gone_fd_, 0, 0};  // POLLHUP is reported without a request
  while (!deadline.passed()) {
    // Rounded up, so that the loop does not spin in the last millisecond.
    const int64_t milliseconds =
        deadline.is_never() ? -1 : absl::ToInt64Milliseconds(deadline.left()) + 1;
    const int result = ::poll(&gone, 1, static_cast<int>(std::min<int64_t>(milliseconds, 1 << 30)));
    if (result > 0 || (result < 0 && errno != EINTR)) return;
  }
}

void Ring::Exit() {
  if (!is_open_) return;
  base::KeepInChildren(ring_.ring_fd);
  io_uring_queue_exit(&ring_);
  is_open_ = false;
}

Ring::~Ring() {
  Exit();
  if (gone_fd_ >= 0) ::close(gone_fd_);
}

bool Ring::IsForeign() const { return single_issuer_ && thread_ != 0 && thread_ != ThisThread(); }

absl::Status Ring::Enable() {
  if (!single_issuer_ || thread_ != 0) return absl::OkStatus();
  // liburing 2.3 declares io_uring_enable_rings but does not export it.
  if (::syscall(SYS_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0) <
      0) {
    return NoRing(errno, "io_uring_register (enable)");
  }
  thread_ = ThisThread();
  return absl::OkStatus();
}

bool Ring::RegisterFile(int index, int fd) {
  return index < kMaxFiles &&
         io_uring_register_files_update(&ring_, static_cast<unsigned>(index), &fd, 1) == 1;
}

bool Ring::RegisterBuffer(int index, std::span<std::byte> memory) {
  const iovec piece = {memory.data(), memory.size()};
  return index < kMaxBuffers && io_uring_register_buffers_update_tag(
                                    &ring_, static_cast<unsigned>(index), &piece, nullptr, 1) == 1;
}

io_uring_sqe* Ring::Prepare() {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  SPILLWAY_CHECK(sqe != nullptr);
  return sqe;
}

absl::Status Ring::Submit() { return Submitted(io_uring_submit_and_get_events(&ring_)); }

absl::Status Ring::SubmitAndWait(Deadline deadline) {
  const timespec left = absl::ToTimespec(deadline.left());
  __kernel_timespec timeout = {left.tv_sec, left.tv_nsec};
  io_uring_cqe* first;
  return Submitted(io_uring_submit_and_wait_timeout(
      &ring_, &first, 1, deadline.is_never() ? nullptr : &timeout, nullptr));
}

}  // namespace spillway::io
