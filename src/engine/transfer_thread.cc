// SPDX-License-Identifier: Apache-2.0

#include "src/engine/transfer_thread.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "src/base/clock.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::engine {

using base::MutexLock;

absl::Status WithOption(const absl::Status& status, std::string_view option) {
  return absl::Status(
      status.code(), absl::StrCat(status.message(), " (EngineOptions::", std::string(option), ")"));
}

TransferThread::TransferThread(MoverParts parts, Listener* listener)
    : parts_(std::move(parts)), listener_(*listener), has_timeline_(parts_.timeline_events > 0) {
  if (parts_.store != nullptr)
    pages_ = std::make_unique<io::PageIo>(parts_.store.get(), parts_.io.get());
  const uint64_t slabs = (parts_.pinned->size_bytes() + parts_.slab_bytes - 1) / parts_.slab_bytes;
  for (uint64_t slab = 0; slab < slabs; ++slab) slab_ready_.emplace_back(false);
}

absl::Status TransferThread::Start() {
  if (parts_.device_bytes > 0) {
    absl::StatusOr<std::byte*> arena = runtime().AllocateArena(parts_.device_bytes);
    if (!arena.ok()) return WithOption(arena.status(), "device_bytes");
    device_arena_ = *arena;
  }
  for (tiers::StreamHandle& stream : copy_streams_) {
    SPILLWAY_ASSIGN_OR_RETURN(stream, runtime().CreateStream());
  }
  try {
    thread_ = std::thread(&TransferThread::Run, this);
  } catch (const std::system_error& error) {
    return base::ThreadErrorToStatus(error.code().value(), "the transfer thread");
  }
  return absl::OkStatus();
}

void TransferThread::Stop() {
  if (!thread_.joinable()) return;
  bool sleeps = false;
  {
    MutexLock lock(&mu_);
    stop_ = true;
    sleeps = std::exchange(sleeping_, false);
  }
  if (sleeps) Wake();
  thread_.join();
}

TransferThread::~TransferThread() {
  Stop();
  for (const tiers::StreamHandle stream : copy_streams_)
    if (stream.value != nullptr) runtime().DestroyStream(stream);
  if (parts_.io != nullptr) parts_.io->RemoveBuffers();
  if (device_arena_ != nullptr) runtime().FreeArena(device_arena_, parts_.device_bytes);
  parts_.store.reset();  // before the I/O engine, in which its files are registered
}

// --- Requests from other threads ---

bool TransferThread::Post(std::vector<Work>* work) {
  MutexLock lock(&mu_);
  if (work_.empty()) {
    work_.swap(*work);
  } else {
    std::move(work->begin(), work->end(), std::back_inserter(work_));
  }
  work->clear();
  has_work_.store(true, std::memory_order_release);
  return std::exchange(sleeping_, false);
}

void TransferThread::Wake() {
  if (parts_.io != nullptr) {
    parts_.io->Wake();
  } else {
    work_ready_.NotifyAll();
  }
}

void TransferThread::RunWithStore(const std::function<void(io::Store*)>& work) {
  bool is_done = false, sleeps = false;
  base::CondVar done;
  {
    MutexLock lock(&mu_);
    closures_.push_back([&] {
      work(parts_.store.get());
      MutexLock end(&mu_);
      is_done = true;
      done.NotifyAll();
    });
    sleeps = std::exchange(sleeping_, false);
  }
  if (sleeps) Wake();
  MutexLock lock(&mu_);
  while (!is_done) done.Wait(&mu_);
}

absl::Status TransferThread::PrepareFrame(uint64_t offset, uint64_t size_bytes) {
  const uint64_t last = (offset + size_bytes - 1) / parts_.slab_bytes;
  bool ready = true;
  for (uint64_t slab = offset / parts_.slab_bytes; slab <= last; ++slab) {
    ready &= slab_ready_[slab].load(std::memory_order_acquire);
  }
  if (ready) return absl::OkStatus();
  absl::Status status;
  RunWithStore([&](io::Store*) {
    status = parts_.pinned->EnsureUsable(offset, size_bytes);
    for (uint64_t slab = offset / parts_.slab_bytes; status.ok() && slab <= last; ++slab) {
      slab_ready_[slab].store(true, std::memory_order_release);
    }
  });
  return status;
}

void TransferThread::WaitFor(tiers::StreamHandle stream) {
  const absl::Status status = runtime().Synchronize(stream);
  if (!status.ok()) NoteFailedWait(status);
}

void TransferThread::NoteFailedWait(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (!failed_wait_.ok()) return;
  failed_wait_ = absl::AbortedError(absl::StrCat(
      "a wait for the GPU failed, and its work may still be running: ", status.message(),
      "; start the process again: the last commit is intact, and what came after it is gone"));
}

absl::Status TransferThread::CheckDevice() {
  SPILLWAY_RETURN_IF_ERROR(runtime().Check());
  MutexLock lock(&mu_);
  return failed_wait_;
}

LinkUse TransferThread::link_use() {
  MutexLock lock(&mu_);
  LinkUse use = link_use_;
  use.links[static_cast<size_t>(Transfer::kCopyIn)] = copies_[0].busy();
  use.links[static_cast<size_t>(Transfer::kCopyOut)] = copies_[1].busy();
  return use;
}

Occupancy TransferThread::store_room() {
  MutexLock lock(&mu_);
  return store_room_;
}

// --- The thread ---

void TransferThread::Run() {
  working_since_ns_ = base::NowNs();
  std::vector<Work> work;
  std::vector<std::function<void()>> closures;
  bool was_idle = true;
  while (TakeWork(&work, &closures)) {
    for (const Work& item : work) Execute(item);
    for (const std::function<void()>& closure : closures) closure();
    const bool idle = work.empty() && closures.empty();
    if (idle && !was_idle) listener_.OnIdle();
    was_idle = idle;
    Sleep(idle);
    work.clear();
    closures.clear();
  }
}

// Takes the posted work. Returns false when it is time to stop.
bool TransferThread::TakeWork(std::vector<Work>* work,
                              std::vector<std::function<void()>>* closures) {
  MutexLock lock(&mu_);
  work->swap(work_);
  closures->swap(closures_);
  has_work_.store(false, std::memory_order_release);
  if (!work->empty() || !closures->empty()) return true;
  sleeping_ = !stop_;
  return sleeping_;
}

void TransferThread::Sleep(bool idle) {
  const bool recorded = idle && has_timeline_;
  const int64_t sleep_ns = recorded ? base::NowNs() : 0;
  const int64_t cpu_ns = recorded ? base::ThreadCpuNs() : 0;
  const std::vector<TransferEnd> ended = Reap(idle);
  if (recorded) {
    listener_.OnWorked(working_since_ns_, sleep_ns);
    // The thread has also processed results since it woke; its CPU time says for how long.
    working_since_ns_ = std::max(sleep_ns, base::NowNs() - (base::ThreadCpuNs() - cpu_ns));
  }
  if (!ended.empty()) listener_.OnEnded(ended);
}

// Returns the transfers that have ended. If idle, waits for one, or for a wake-up.
std::vector<TransferThread::TransferEnd> TransferThread::Reap(bool idle) {
  std::vector<TransferEnd> ended;
  if (pages_ == nullptr) {
    MutexLock lock(&mu_);
    while (sleeping_) work_ready_.Wait(&mu_);
    return ended;
  }
  pages_->Reap(idle ? absl::InfiniteDuration() : absl::ZeroDuration(), &results_);
  for (io::PageIo::Result& result : results_)
    ended.push_back({static_cast<TileIndex>(result.tag), std::move(result.status)});
  results_.clear();
  MutexLock lock(&mu_);
  sleeping_ = false;
  const base::DuplexMeter& moved = pages_->moved();
  link_use_.links[static_cast<size_t>(Transfer::kRead)] = moved.busy(0);
  link_use_.links[static_cast<size_t>(Transfer::kWrite)] = moved.busy(1);
  link_use_.nvme_both = moved.both();
  link_use_.checksums = pages_->hashing();
  link_use_.checksums.seconds /= pages_->hash_threads();  // all of them may hash at once
  store_room_.now_bytes = parts_.store->used_bytes();
  store_room_.peak_bytes = std::max(store_room_.peak_bytes, store_room_.now_bytes);
  return ended;
}

void TransferThread::Execute(const Work& work) {
  const Action& action = work.action;
  if (action.kind == Action::Kind::kRunAgain) return listener_.OnEnded({});
  const StorePlace place = work.tile->place;
  const uint64_t size_bytes = work.tile->size_bytes;
  if (action.kind == Action::Kind::kForget) {
    if (pages_ != nullptr) pages_->Forget(place.tensor, place.first_page, size_bytes);
    return;
  }
  // The lease's copy was just launched. Marks its end, for which the caller's stream waits.
  if (action.kind == Action::Kind::kGrant) {
    const auto failed = not_launched_.find(action.tile);
    if (failed != not_launched_.end()) return listener_.OnLaunched(action, failed->second, {});
    absl::StatusOr<tiers::EventHandle> marked = MarkArrival();
    const tiers::EventHandle arrival = marked.value_or(tiers::EventHandle{});
    return listener_.OnLaunched(action, std::move(marked).status(), arrival);
  }
  if (has_timeline_) listener_.OnBegin(action);
  not_launched_.erase(action.tile);
  absl::Status status = parts_.pinned->EnsureUsable(action.pinned_offset, size_bytes);
  std::byte* frame = parts_.pinned->data() + action.pinned_offset;
  if (status.ok()) {
    switch (action.transfer) {
      case Transfer::kRead:
        return pages_->Read(action.tile, place.tensor, place.first_page, size_bytes, frame);
      case Transfer::kWrite:
        return pages_->Write(action.tile, place.tensor, place.first_page, size_bytes, frame);
      case Transfer::kZero: std::memset(frame, 0, size_bytes); break;
      default:
        status = Copy(action, size_bytes);
        if (status.ok()) return;
    }
  }
  if (!status.ok() && action.Is(Transfer::kCopyIn)) not_launched_[action.tile] = status;
  const TransferEnd ended{action.tile, status};
  listener_.OnEnded({&ended, 1});
}

absl::Status TransferThread::Copy(const Action& action, uint64_t size_bytes) {
  std::byte* const pinned = parts_.pinned->data() + action.pinned_offset;
  std::byte* const device = device_arena_ + action.device_offset;
  const bool in = action.Is(Transfer::kCopyIn);
  const size_t way = in ? 0 : 1;
  const tiers::StreamHandle stream = copy_streams_[way];
  const auto stop_meter = [this, way](uint64_t copied_bytes) {
    MutexLock lock(&mu_);
    copies_[way].End(base::Now(), copied_bytes);
  };
  {
    MutexLock lock(&mu_);
    copies_[way].Begin(base::Now());
  }
  absl::Status status = in ? runtime().CopyAsync(stream, tiers::CopyDirection::kHostToDevice,
                                                 device, pinned, size_bytes)
                           : runtime().CopyAsync(stream, tiers::CopyDirection::kDeviceToHost,
                                                 pinned, device, size_bytes);
  if (status.ok()) {
    status = runtime().Notify(
        stream, [this, stop_meter, tile = action.tile, size_bytes](const absl::Status& copied) {
          if (!copied.ok()) NoteFailedWait(copied);
          stop_meter(copied.ok() ? size_bytes : 0);
          const TransferEnd ended{tile, copied};
          listener_.OnEnded({&ended, 1});
        });
  }
  if (status.ok()) return status;
  // Parts of the copy may be in flight, and no notification would report their end.
  WaitFor(stream);
  stop_meter(0);
  return status;
}

// Marks the end of the copies to the device that were launched so far.
absl::StatusOr<tiers::EventHandle> TransferThread::MarkArrival() {
  SPILLWAY_ASSIGN_OR_RETURN(const tiers::EventHandle event, runtime().CreateEvent());
  const absl::Status status = runtime().Record(event, copy_streams_[0]);
  if (status.ok()) return event;
  runtime().DestroyEvent(event);
  return status;
}

}  // namespace spillway::engine
