// SPDX-License-Identifier: Apache-2.0
//
// One io_uring: its set-up, the one thread that the kernel serves, the tables of registered files
// and buffers, and a close that waits for the kernel. UringIoEngine decides what is submitted.

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

// In the best set-up (SINGLE_ISSUER and DEFER_TASKRUN) the kernel serves only the thread that
// enabled the ring. Such a ring therefore starts disabled: until Enable, any one thread may
// register files and buffers. Thread-compatible.
//
// Closing a ring in the kernel does not wait for the ring's transfers, which would then write into
// freed buffers. A thread other than the ring's receives no completions, not even after the ring's
// thread has ended. But the kernel drops a ring's registered files only after the ring's last
// transfer. One of these files is the write end of a pipe that is open nowhere else, so the pipe
// hangs up when the kernel is done. Close waits for that. A forked child process does not have the
// ring. (Only one that is forked by the system call itself has, and then the ring lasts until that
// process ends.)
class Ring {
 public:
  static constexpr int kMaxFiles = 256;
  static constexpr int kMaxBuffers = 4096;

  // Opens a ring with room for `entries` requests at once. FailedPrecondition, naming the system
  // call and the errno, if the kernel cannot set up such a ring.
  static absl::StatusOr<std::unique_ptr<Ring>> Open(unsigned entries);
  // Closes the ring. Returns when the kernel has dropped the ring, and so is done with all that was
  // submitted, or when the deadline has passed.
  static void Close(std::unique_ptr<Ring> ring, Deadline deadline);
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring();

  // Whether the ring serves a thread other than the calling one.
  bool IsForeign() const;
  // Makes the ring serve the calling thread if it serves none yet. REQUIRES: !IsForeign().
  absl::Status Enable();

  // Both return false if the table has no room or the kernel refuses. A file or buffer that is not
  // registered is used by its descriptor or address. fd -1 and empty memory clear the entry.
  // REQUIRES: !IsForeign().
  bool RegisterFile(int index, int fd);
  bool RegisterBuffer(int index, std::span<std::byte> memory);

  // Returns an empty submission entry. REQUIRES: fewer than `entries` requests are prepared or in
  // flight.
  io_uring_sqe* Prepare();
  bool has_prepared() const { return io_uring_sq_ready(&ring_) > 0; }
  // Submits the prepared entries and makes completions visible to Harvest.
  absl::Status Submit();
  // Does the same and waits until there is a completion or the deadline passes. It may also return
  // early, so callers wait in a loop. An error (FailedPrecondition) of either function means that
  // the kernel no longer serves this ring.
  absl::Status SubmitAndWait(Deadline deadline);

  // Removes all available completions and calls take(user_data, result) for each of them.
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
  void Exit();

  io_uring ring_ = {};
  bool is_open_ = false;
  bool single_issuer_ = false;
  pid_t thread_ = 0;  // 0: not enabled yet
  int gone_fd_ = -1;  // read end of the pipe that hangs up when the kernel is done
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_RING_H_
