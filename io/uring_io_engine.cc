// SPDX-License-Identifier: Apache-2.0
//
// The functions that open, claim, drain and close the ring come first, then those that process a
// request. A ring has one entry for each slot and one for the wake-up, which is a poll of the
// eventfd, so its completion queue cannot overflow.

#include "io/uring_io_engine.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/check.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr uint64_t kWakeUserData = uint64_t{1} << 62;

// How long an idle ring is waited for when it is closed, so that the locked memory of the ring that
// follows does not count at the same time. A process that was forked without notice may hold the
// ring for much longer.
constexpr absl::Duration kWaitForIdleRing = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<UringIoEngine>> UringIoEngine::Create(IoEngineOptions options) {
  std::unique_ptr<UringIoEngine> engine(new UringIoEngine(std::move(options)));
  engine->wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (engine->wake_fd_ < 0) return base::ErrnoToStatus(errno, "eventfd");
  SPILLWAY_RETURN_IF_ERROR(engine->OpenRing());
  return engine;
}

UringIoEngine::UringIoEngine(IoEngineOptions options)
    : options_(std::move(options)),
      queue_(DefaultDepths(options_.queue_depth), kMaxInFlight),
      slots_(kMaxInFlight) {
  for (int slot = kMaxInFlight - 1; slot >= 0; --slot) {
    free_slots_.push_back(static_cast<uint32_t>(slot));
  }
}

UringIoEngine::~UringIoEngine() {
  if (ring_ != nullptr) Drain();
  if (ring_ != nullptr) CloseRing();
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

// Waits for the transfers in flight and drops their completions. A ring of another thread cannot be
// drained; Ring::Close waits for it.
void UringIoEngine::Drain() {
  std::vector<IoCompletion> dropped;
  while (with_kernel() > 0 && !ring_->IsForeign()) {
    if (absl::Status status = ring_->SubmitAndWait(Deadline::Never()); !status.ok()) {
      return Break(std::move(status));
    }
    Harvest(&dropped);
  }
}

absl::Status UringIoEngine::OpenRing() {
  // One entry for each slot and one for the wake-up.
  SPILLWAY_ASSIGN_OR_RETURN(ring_, Ring::Open(static_cast<unsigned>(kMaxInFlight) + 1));
  wake_armed_ = false;
  for (int file = 0; file < files_.end(); ++file) RegisterFile(FileId{file});
  unregistered_buffers_ = 0;
  int index = 0;
  for (Buffer& buffer : buffers_) RegisterBuffer(buffer, index++);
  return absl::OkStatus();
}

// Closes the ring if it serves another thread: it takes no calls from this one.
void UringIoEngine::CloseForeign() {
  if (ring_ == nullptr || !ring_->IsForeign()) return;
  SPILLWAY_CHECK(with_kernel() == 0);  // contract: a new thread takes over only then
  Ring::Close(std::move(ring_), Deadline::After(kWaitForIdleRing));
}

absl::Status UringIoEngine::EnsureNotForeign() {
  SPILLWAY_RETURN_IF_ERROR(broken_);
  CloseForeign();
  return ring_ != nullptr ? absl::OkStatus() : OpenRing();
}

absl::Status UringIoEngine::ClaimRing() {
  SPILLWAY_RETURN_IF_ERROR(EnsureNotForeign());
  return ring_->Enable();
}

// Closes the ring. Waits until the kernel is done with the buffers.
void UringIoEngine::CloseRing() {
  const bool idle = with_kernel() == 0;
  Ring::Close(std::move(ring_), idle ? Deadline::After(absl::ZeroDuration()) : Deadline::Never());
}

// Closes the ring for good, because of `cause`. Moves the transfers in all used slots to orphaned_;
// FailAll completes them with the error.
void UringIoEngine::Break(absl::Status cause) {
  broken_ = std::move(cause);
  CloseRing();
  std::vector<bool> is_free(slots_.size());
  for (const uint32_t slot : free_slots_) is_free[slot] = true;
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (is_free[slot]) continue;
    orphaned_.push_back(slots_[slot]);
    queue_.Ended(slots_[slot]);
    free_slots_.push_back(slot);
  }
  resume_.clear();
}

absl::StatusOr<FileId> UringIoEngine::AddFile(int fd, std::string path, uint16_t device) {
  SPILLWAY_RETURN_IF_ERROR(EnsureNotForeign());
  SPILLWAY_ASSIGN_OR_RETURN(const FileId file, files_.Add(fd, std::move(path), device));
  RegisterFile(file);
  return file;
}

void UringIoEngine::RegisterFile(FileId file) {
  const auto index = static_cast<size_t>(file.value);
  if (file_registered_.size() <= index) file_registered_.resize(index + 1);
  // The descriptor of a free id is -1, which clears the entry.
  file_registered_[index] = ring_->RegisterFile(file.value, files_.fd(file));
}

absl::Status UringIoEngine::RemoveFile(FileId file) {
  SPILLWAY_RETURN_IF_ERROR(broken_);
  CloseForeign();
  SPILLWAY_RETURN_IF_ERROR(files_.Remove(file));
  if (ring_ != nullptr) RegisterFile(file);
  return absl::OkStatus();
}

void UringIoEngine::AddBuffer(std::span<std::byte> memory) {
  const absl::Status ring = EnsureNotForeign();
  int index = 0;
  for (const Buffer& buffer : buffers_) index = std::max(index, buffer.index + 1);
  const auto after = std::upper_bound(buffers_.begin(), buffers_.end(), memory.data(),
                                      [](const std::byte* address, const Buffer& buffer) {
                                        return address < buffer.memory.data();
                                      });
  const auto added = buffers_.insert(after, Buffer{memory});
  // If there is no ring now, the next one registers all buffers when it is opened.
  if (ring.ok()) RegisterBuffer(*added, index);
}

void UringIoEngine::RegisterBuffer(Buffer& buffer, int index) {
  buffer.index = ring_->RegisterBuffer(index, buffer.memory) ? index : -1;
  if (buffer.index < 0) ++unregistered_buffers_;
}

void UringIoEngine::RemoveBuffers() {
  CloseForeign();
  for (const Buffer& buffer : buffers_) {
    if (ring_ != nullptr && buffer.index >= 0) ring_->RegisterBuffer(buffer.index, {});
  }
  buffers_.clear();
  unregistered_buffers_ = 0;
}

void UringIoEngine::SetDepths(uint16_t device, const QueueDepths& depths) {
  queue_.SetDepths(device, ClampDepths(depths, kMaxQueueDepth));
}

void UringIoEngine::Submit(std::span<const IoRequest> requests) {
  for (const IoRequest& request : requests) {
    const Transfer transfer(request, files_.fd(request.file), files_.device(request.file));
    if (transfer.state() == Transfer::State::kFailed) {
      rejected_.push_back(transfer);
    } else {
      queue_.Add(transfer);
    }
  }
  in_flight_ += static_cast<int>(requests.size());
  if (!ClaimRing().ok()) return;  // Reap reports the error
  SubmitQueued();
}

void UringIoEngine::Reap(absl::Duration timeout, std::vector<IoCompletion>* done) {
  const Deadline deadline = Deadline::After(timeout);
  const size_t before = done->size();
  for (const Transfer& transfer : std::exchange(rejected_, {})) Finish(transfer, done);
  absl::Status ring = ClaimRing();
  while (ring.ok()) {
    ArmWake();
    IssueQueued();
    // A wait in the kernel sets a timer even if its timeout is 0, so Submit is used instead.
    const bool waits = done->size() == before && timeout > absl::ZeroDuration();
    ring = waits ? ring_->SubmitAndWait(deadline) : ring_->Submit();
    if (!ring.ok()) {
      Break(ring);
      break;
    }
    const bool woken = Harvest(done);
    if (woken || done->size() > before || deadline.passed()) {
      SubmitQueued();  // the kernel stays busy while the caller handles its completions
      return;
    }
  }
  FailAll(ring, done);
  if (done->size() == before) WaitForWakeAlone(deadline);
}

void UringIoEngine::SubmitQueued() {
  IssueQueued();
  if (!ring_->has_prepared()) return;
  if (absl::Status status = ring_->Submit(); !status.ok()) Break(std::move(status));
}

void UringIoEngine::Wake() {
  // The write fails only if 2^64 - 2 calls are pending, and then a wake-up is pending anyway.
  (void)::eventfd_write(wake_fd_, 1);
}

void UringIoEngine::IssueQueued() {
  while (!resume_.empty()) {
    Issue(resume_.front());
    resume_.pop_front();
  }
  while (const std::optional<Transfer> transfer = queue_.Take()) {
    const uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[slot] = *transfer;
    Issue(slot);
  }
}

void UringIoEngine::Issue(uint32_t slot) {
  const Transfer& transfer = slots_[slot];
  io_uring_sqe* sqe = ring_->Prepare();
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
  // A transfer that could not proceed without blocking goes to a kernel thread, which may block.
  if (transfer.stalls() > 0) flags |= IOSQE_ASYNC;
  io_uring_sqe_set_flags(sqe, flags);
  io_uring_sqe_set_data64(sqe, slot);
}

const UringIoEngine::Buffer* UringIoEngine::FindBuffer(const Transfer& transfer) const {
  const auto after = std::upper_bound(buffers_.begin(), buffers_.end(), transfer.buffer(),
                                      [](const std::byte* address, const Buffer& buffer) {
                                        return address < buffer.memory.data();
                                      });
  if (after == buffers_.begin()) return nullptr;
  const Buffer& buffer = *(after - 1);
  const std::byte* end = buffer.memory.data() + buffer.memory.size();
  if (buffer.index < 0 || transfer.buffer() + transfer.size_bytes() > end) return nullptr;
  return &buffer;
}

void UringIoEngine::ArmWake() {
  if (wake_armed_) return;
  io_uring_sqe* sqe = ring_->Prepare();
  io_uring_prep_poll_add(sqe, wake_fd_, POLLIN);
  io_uring_sqe_set_data64(sqe, kWakeUserData);
  wake_armed_ = true;
}

bool UringIoEngine::Harvest(std::vector<IoCompletion>* done) {
  bool woken = false;
  ring_->Harvest([&](uint64_t user_data, int result) {
    if (user_data != kWakeUserData) return Advance(static_cast<uint32_t>(user_data), result, done);
    ClearWake();
    wake_armed_ = false;
    woken = true;
  });
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
  queue_.Ended(transfer);
  free_slots_.push_back(slot);
}

void UringIoEngine::Finish(const Transfer& transfer, std::vector<IoCompletion>* done) {
  const IoRequest& request = transfer.request();
  done->push_back({request.tag, transfer.ToStatus(files_.path(request.file))});
  --in_flight_;
}

void UringIoEngine::FailAll(const absl::Status& status, std::vector<IoCompletion>* done) {
  std::vector<Transfer> failed = std::exchange(orphaned_, {});
  const std::vector<Transfer> waiting = queue_.TakeWaiting();
  failed.insert(failed.end(), waiting.begin(), waiting.end());
  for (const Transfer& transfer : failed) {
    const IoRequest& request = transfer.request();
    done->push_back(
        {request.tag,
         {status.code(),
          absl::StrCat(transfer.Describe(files_.path(request.file)), ": ", status.message(),
                       "; the ring serves no more requests: open the engine again, or with POSIX "
                       "calls instead of io_uring")}});
  }
  in_flight_ -= static_cast<int>(failed.size());
}

void UringIoEngine::WaitForWakeAlone(Deadline deadline) {
  pollfd wake = {wake_fd_, POLLIN, 0};
  // poll takes an int. A wait that ends early does no harm to the caller.
  const int64_t milliseconds =
      std::min<int64_t>(absl::ToInt64Milliseconds(deadline.left()), 1 << 30);
  if (::poll(&wake, 1, deadline.is_never() ? -1 : static_cast<int>(milliseconds)) == 1) ClearWake();
}

void UringIoEngine::ClearWake() {
  eventfd_t count;
  (void)::eventfd_read(wake_fd_, &count);  // EAGAIN: it was clear already
}

int UringIoEngine::with_kernel() const {
  return kMaxInFlight - static_cast<int>(free_slots_.size() + resume_.size());
}

}  // namespace spillway::io
