// SPDX-License-Identifier: Apache-2.0
//
// The ring's life (open, claim, drain) first, then the way of a request. A ring holds one entry for each
// slot and one for the wake-up, a poll of the eventfd, so its completion queue cannot overflow.

#include "io/uring_io_engine.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/check.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr uint64_t kWakeUserData = uint64_t{1} << 62;
constexpr unsigned kFileTableSize = 256;     // files beyond it go by their descriptor
constexpr unsigned kBufferTableSize = 4096;  // buffers beyond it take the plain path

pid_t ThisThread() {
  static thread_local const pid_t tid = ::gettid();
  return tid;
}

absl::Status NoRing(int error, const char* call) {
  const absl::Status cause = base::ErrnoToStatus(error, call);
  return absl::FailedPreconditionError(absl::StrCat("io_uring: ", cause.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<UringIoEngine>> UringIoEngine::Create(IoEngineOptions options) {
  std::unique_ptr<UringIoEngine> engine(new UringIoEngine(std::move(options)));
  engine->wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (engine->wake_fd_ < 0) return NoRing(errno, "eventfd");
  SPILLWAY_RETURN_IF_ERROR(engine->OpenRing());
  return engine;
}

UringIoEngine::UringIoEngine(IoEngineOptions options) : options_(std::move(options)) {
  slots_.resize(static_cast<size_t>(options_.queue_depth));
  for (int slot = options_.queue_depth - 1; slot >= 0; --slot) {
    free_slots_.push_back(static_cast<uint32_t>(slot));
  }
}

UringIoEngine::~UringIoEngine() {
  if (ring_open_) {
    if (!IsForeign()) Drain();
    CloseRing();
  }
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

absl::Status UringIoEngine::OpenRing() {
  // From the best set-up to the plainest; a kernel that does not know a flag answers EINVAL.
  constexpr unsigned kSetups[] = {
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED,
      IORING_SETUP_COOP_TASKRUN, 0};
  io_uring_params params = {};
  int result = -EINVAL;
  for (unsigned flags : kSetups) {
    params = {};
    params.flags = flags;
    result = io_uring_queue_init_params(static_cast<unsigned>(options_.queue_depth) + 1, &ring_, &params);
    if (result != -EINVAL) break;
  }
  if (result < 0) return NoRing(-result, "io_uring_setup");
  ring_open_ = true;
  wake_armed_ = false;
  single_issuer_ = (params.flags & IORING_SETUP_SINGLE_ISSUER) != 0;
  ring_thread_ = 0;
  if ((params.features & IORING_FEAT_EXT_ARG) == 0) {
    CloseRing();
    return NoRing(ENOSYS, "io_uring_enter with a timeout (Linux 5.11)");
  }
  // Without these tables every registration below fails, and descriptors and plain buffers are used.
  io_uring_register_files_sparse(&ring_, kFileTableSize + 1);
  io_uring_register_buffers_sparse(&ring_, kBufferTableSize);
  if (single_issuer_) SPILLWAY_RETURN_IF_ERROR(WatchRing());
  for (int file = 0; file < files_.end(); ++file) RegisterFile(FileId{file});
  unregistered_buffers_ = 0;
  int index = 0;
  for (Buffer& buffer : buffers_) RegisterBuffer(buffer, index++);
  return absl::OkStatus();
}

// Another thread than the ring's is told of no completion, not even after the ring's thread has ended. But
// the kernel drops a ring's files only after its last transfer, and so hangs up a pipe that the ring alone
// holds open.
absl::Status UringIoEngine::WatchRing() {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) < 0) {
    const int error = errno;
    CloseRing();
    return NoRing(error, "pipe2");
  }
  ring_gone_fd_ = pipe[0];
  const bool held = io_uring_register_files_update(&ring_, kFileTableSize, &pipe[1], 1) == 1;
  ::close(pipe[1]);
  if (held) return absl::OkStatus();
  CloseRing();
  return NoRing(EOPNOTSUPP, "io_uring_register (files)");
}

void UringIoEngine::CloseRing() {
  const bool wait = IsForeign();
  io_uring_queue_exit(&ring_);
  ring_open_ = false;
  if (ring_gone_fd_ < 0) return;
  pollfd gone = {ring_gone_fd_, 0, 0};  // POLLHUP needs no asking
  while (wait && ::poll(&gone, 1, -1) < 0 && errno == EINTR) {
  }
  ::close(std::exchange(ring_gone_fd_, -1));
}

// Closing a ring does not wait for its transfers, which would go on to write into freed buffers.
void UringIoEngine::Drain() {
  std::vector<IoCompletion> dropped;
  while (with_kernel() > 0) {
    Enter(/*wait=*/true, Deadline::Never());
    Harvest(&dropped);
  }
}

bool UringIoEngine::IsForeign() const {
  return single_issuer_ && ring_thread_ != 0 && ring_thread_ != ThisThread();
}

absl::Status UringIoEngine::EnsureNotForeign() {
  if (ring_open_) {
    if (!IsForeign()) return absl::OkStatus();
    SPILLWAY_CHECK(with_kernel() == 0);  // the contract: no hand-over with requests in flight
    CloseRing();
  }
  return OpenRing();
}

absl::Status UringIoEngine::ClaimRing() {
  SPILLWAY_RETURN_IF_ERROR(EnsureNotForeign());
  if (!single_issuer_ || ring_thread_ != 0) return absl::OkStatus();
  // liburing 2.3 declares io_uring_enable_rings and does not export it.
  if (::syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0) < 0) {
    const int error = errno;
    CloseRing();
    return NoRing(error, "io_uring_register (enable)");
  }
  ring_thread_ = ThisThread();
  return absl::OkStatus();
}

absl::StatusOr<FileId> UringIoEngine::AddFile(int fd, std::string path) {
  SPILLWAY_RETURN_IF_ERROR(EnsureNotForeign());
  SPILLWAY_ASSIGN_OR_RETURN(const FileId file, files_.Add(fd, std::move(path)));
  RegisterFile(file);
  return file;
}

void UringIoEngine::RegisterFile(FileId file) {
  const auto index = static_cast<unsigned>(file.value);
  if (file_registered_.size() <= index) file_registered_.resize(index + 1);
  int fd = files_.fd(file);  // -1 for a free id: clears the table's entry
  const bool fits = index < kFileTableSize;
  file_registered_[index] = fits && io_uring_register_files_update(&ring_, index, &fd, 1) == 1;
}

absl::Status UringIoEngine::RemoveFile(FileId file) {
  SPILLWAY_RETURN_IF_ERROR(EnsureNotForeign());
  SPILLWAY_RETURN_IF_ERROR(files_.Remove(file));
  RegisterFile(file);
  return absl::OkStatus();
}

void UringIoEngine::AddBuffer(std::span<std::byte> memory) {
  const absl::Status ring = EnsureNotForeign();
  int index = 0;
  for (const Buffer& buffer : buffers_) index = std::max(index, buffer.index + 1);
  const auto after = std::upper_bound(
      buffers_.begin(), buffers_.end(), memory.data(),
      [](const std::byte* address, const Buffer& buffer) { return address < buffer.memory.data(); });
  const auto added = buffers_.insert(after, Buffer{memory});
  // Without a ring the next one registers all buffers.
  if (ring.ok()) RegisterBuffer(*added, index);
}

void UringIoEngine::RegisterBuffer(Buffer& buffer, int index) {
  const iovec piece = {buffer.memory.data(), buffer.memory.size()};
  const bool registered =
      index < static_cast<int>(kBufferTableSize) &&
      io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(index), &piece, nullptr, 1) == 1;
  buffer.index = registered ? index : -1;
  if (!registered) ++unregistered_buffers_;
}

void UringIoEngine::RemoveBuffers() {
  const bool ring = EnsureNotForeign().ok();
  const iovec none = {};
  for (const Buffer& buffer : buffers_) {
    if (!ring || buffer.index < 0) continue;
    io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(buffer.index), &none, nullptr, 1);
  }
  buffers_.clear();
  unregistered_buffers_ = 0;
}

void UringIoEngine::Submit(std::span<const IoRequest> requests) {
  for (const IoRequest& request : requests) {
    const Transfer transfer(request, files_.fd(request.file));
    if (transfer.state() == Transfer::State::kFailed) {
      rejected_.push_back(transfer);
    } else {
      queue_.push_back(transfer);
    }
  }
  in_flight_ += static_cast<int>(requests.size());
  if (!ClaimRing().ok()) return;  // Reap reports it
  IssueQueued();
  if (io_uring_sq_ready(&ring_) > 0) Enter(/*wait=*/false, Deadline::Never());
}

void UringIoEngine::Reap(absl::Duration timeout, std::vector<IoCompletion>* done) {
  const Deadline deadline = Deadline::After(timeout);
  const size_t before = done->size();
  for (const Transfer& transfer : std::exchange(rejected_, {})) Finish(transfer, done);
  if (const absl::Status ring = ClaimRing(); !ring.ok()) {
    FailQueued(ring, done);
    if (done->size() == before) WaitForWakeAlone(deadline);
    return;
  }
  for (;;) {
    ArmWake();
    IssueQueued();
    Enter(/*wait=*/done->size() == before, deadline);
    const bool woken = Harvest(done);
    if (woken || done->size() > before) break;
    if (deadline.passed()) break;
  }
  IssueQueued();  // the kernel's queue stays full while the caller looks at its completions
  if (io_uring_sq_ready(&ring_) > 0) Enter(/*wait=*/false, Deadline::Never());
}

void UringIoEngine::Wake() {
  // It fails only if 2^64 - 2 calls are outstanding, and then a wake-up is pending anyway.
  (void)::eventfd_write(wake_fd_, 1);
}

void UringIoEngine::IssueQueued() {
  while (!resume_.empty()) {
    Issue(resume_.front());
    resume_.pop_front();
  }
  while (!queue_.empty() && !free_slots_.empty()) {
    const uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[slot] = queue_.front();
    queue_.pop_front();
    Issue(slot);
  }
}

void UringIoEngine::Issue(uint32_t slot) {
  const Transfer& transfer = slots_[slot];
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  SPILLWAY_CHECK(sqe != nullptr);  // the ring has an entry for every slot

  const FileId file = transfer.request().file;
  const bool fixed_file = file_registered_[static_cast<size_t>(file.value)];
  const int fd = fixed_file ? file.value : transfer.fd();
  const bool is_read = transfer.request().op == IoOp::kRead;
  std::byte* const memory = transfer.buffer();
  const uint32_t size = transfer.size_bytes();
  const Buffer* const registered = FindBuffer(transfer);
  if (registered != nullptr && is_read) {
    io_uring_prep_read_fixed(sqe, fd, memory, size, transfer.offset(), registered->index);
  } else if (registered != nullptr) {
    io_uring_prep_write_fixed(sqe, fd, memory, size, transfer.offset(), registered->index);
  } else if (is_read) {
    io_uring_prep_read(sqe, fd, memory, size, transfer.offset());
  } else {
    io_uring_prep_write(sqe, fd, memory, size, transfer.offset());
  }
  unsigned flags = fixed_file ? IOSQE_FIXED_FILE : 0;
  // What could not be done without blocking goes to a kernel thread, which may block.
  if (transfer.stalls() > 0) flags |= IOSQE_ASYNC;
  io_uring_sqe_set_flags(sqe, flags);
  io_uring_sqe_set_data64(sqe, slot);
}

const UringIoEngine::Buffer* UringIoEngine::FindBuffer(const Transfer& transfer) const {
  const auto after = std::upper_bound(
      buffers_.begin(), buffers_.end(), transfer.buffer(),
      [](const std::byte* address, const Buffer& buffer) { return address < buffer.memory.data(); });
  if (after == buffers_.begin()) return nullptr;
  const Buffer& buffer = *(after - 1);
  const std::byte* end = buffer.memory.data() + buffer.memory.size();
  if (buffer.index < 0 || transfer.buffer() + transfer.size_bytes() > end) return nullptr;
  return &buffer;
}

void UringIoEngine::ArmWake() {
  if (wake_armed_) return;
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  SPILLWAY_CHECK(sqe != nullptr);  // the ring has an entry for it
  io_uring_prep_poll_add(sqe, wake_fd_, POLLIN);
  io_uring_sqe_set_data64(sqe, kWakeUserData);
  wake_armed_ = true;
}

void UringIoEngine::Enter(bool wait, Deadline deadline) {
  int result;
  if (!wait) {
    result = io_uring_submit_and_get_events(&ring_);
  } else {
    const timespec left = absl::ToTimespec(deadline.left());
    __kernel_timespec timeout = {left.tv_sec, left.tv_nsec};
    io_uring_cqe* first;
    result = io_uring_submit_and_wait_timeout(&ring_, &first, 1, deadline.is_never() ? nullptr : &timeout,
                                              nullptr);
  }
  // Interrupted, timed out, or completions to take first: the caller's loop goes on.
  if (result >= 0 || result == -EINTR || result == -ETIME || result == -EBUSY) return;
  // No kernel memory for now. Any other error means that the ring is not ours any more (somebody closed its
  // descriptor), and then nobody can say when the kernel is done with the buffers.
  SPILLWAY_CHECK(result == -EAGAIN);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool UringIoEngine::Harvest(std::vector<IoCompletion>* done) {
  bool woken = false;
  unsigned taken = 0;
  unsigned head;
  io_uring_cqe* cqe;
  io_uring_for_each_cqe(&ring_, head, cqe) {
    ++taken;
    if (cqe->user_data == kWakeUserData) {
      ClearWake();
      wake_armed_ = false;
      woken = true;
    } else {
      Advance(static_cast<uint32_t>(cqe->user_data), cqe->res, done);
    }
  }
  io_uring_cq_advance(&ring_, taken);
  return woken;
}

void UringIoEngine::Advance(uint32_t slot, int64_t result, std::vector<IoCompletion>* done) {
  Transfer& transfer = slots_[slot];
  if (options_.result_hook) result = options_.result_hook(transfer.request(), result);
  if (transfer.Advance(result) == Transfer::State::kMoving) {
    resume_.push_back(slot);
    return;
  }
  Finish(transfer, done);
  free_slots_.push_back(slot);
}

void UringIoEngine::Finish(const Transfer& transfer, std::vector<IoCompletion>* done) {
  const IoRequest& request = transfer.request();
  done->push_back({request.tag, transfer.ToStatus(files_.path(request.file))});
  --in_flight_;
}

void UringIoEngine::FailQueued(const absl::Status& status, std::vector<IoCompletion>* done) {
  for (const Transfer& transfer : std::exchange(queue_, {})) {
    done->push_back({transfer.request().tag, status});
    --in_flight_;
  }
}

void UringIoEngine::WaitForWakeAlone(Deadline deadline) {
  pollfd wake = {wake_fd_, POLLIN, 0};
  // poll takes an int; a wait that ends early is no harm to the caller.
  const int64_t milliseconds = std::min<int64_t>(absl::ToInt64Milliseconds(deadline.left()), 1 << 30);
  if (::poll(&wake, 1, deadline.is_never() ? -1 : static_cast<int>(milliseconds)) == 1) ClearWake();
}

void UringIoEngine::ClearWake() {
  eventfd_t count;
  (void)::eventfd_read(wake_fd_, &count);  // EAGAIN: it was clear
}

int UringIoEngine::with_kernel() const {
  return options_.queue_depth - static_cast<int>(free_slots_.size() + resume_.size());
}

}  // namespace spillway::io
