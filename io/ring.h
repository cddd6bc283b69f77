// SPDX-License-Identifier: Apache-2.0
//
// One io_uring: its set-up, the one thread that the kernel serves it to, its tables of registered
// files and buffers, and an end that waits for the kernel. What goes through it is UringIoEngine's.

#ifndef SPILLWAY_IO_RING_H_
#define SPILLWAY_IO_RING_H_

#include <liburing.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/deadline.h"

namespace spillway::io {

// The best set-up of a ring (SINGLE_ISSUER and DEFER_TASKRUN) is served to the thread that enabled
// it and to no other, so it starts disabled: until Enable any one thread may register.
// Thread-compatible.
//
// Closing a ring does not wait for its transfers, which would go on to write into freed buffers,
// and another thread than the ring's is told of no completion, not even after the ring's thread has
// ended. But the kernel drops a ring's files only after its last transfer, and so hangs up a pipe
// that the ring alone holds open: Close waits for that.
class Ring {
 public:
  static constexpr int kMaxFiles = 256;
  static constexpr int kMaxBuffers = 4096;

  // With room for `entries` requests at once. FailedPrecondition naming the system call and the
  // errno if the kernel gives no such ring.
  static absl::StatusOr<std::unique_ptr<Ring>> Open(unsigned entries);
  // Returns when the kernel is done with all that was submitted, or at once if the caller knows
  // that it is.
  static void Close(std::unique_ptr<Ring> ring, bool idle);
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring();

  // Does the ring serve another thread than this?
  bool IsForeign() const;
  // Makes it this thread's, if it is nobody's yet. REQUIRES: !IsForeign().
  absl::Status Enable();

  // Both return false if the table has no room or the kernel refuses; what is not registered goes
  // by its descriptor or address. fd -1 and empty memory clear the entry. REQUIRES: !IsForeign().
  bool RegisterFile(int index, int fd);
  bool RegisterBuffer(int index, std::span<std::byte> memory);

  // An empty entry. REQUIRES: fewer than `entries` are prepared or with the kernel.
  io_uring_sqe* Prepare();
  bool has_prepared() const { return io_uring_sq_ready(&ring_) > 0; }
  // Submits what is prepared and takes note of completions.
  absl::Status Submit();
  // The same, and waits until there is a completion, the deadline, or for no reason: wait in a
  // loop. An error (FailedPrecondition) means that the kernel serves this ring no more.
  absl::Status SubmitAndWait(Deadline deadline);

  // Calls take(user_data, result) for each completion that there is.
  template <typename Take>
  void Harvest(const Take& take) {
    unsigned taken = 0;
    unsigned head;
    io_uring_cqe* cqe;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      ++taken;
      take(cqe->user_data, cqe->res);
    }
    io_uring_cq_advance(&ring_, taken);
  }

 private:
  Ring() = default;
  int Watch();

  io_uring ring_ = {};
  bool is_open_ = false;
  bool single_issuer_ = false;
  pid_t thread_ = 0;  // 0: not enabled yet
  int gone_fd_ = -1;  // hangs up when the kernel is done with the ring
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_RING_H_
