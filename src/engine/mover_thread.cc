// SPDX-License-Identifier: Apache-2.0
//
// The mover's own thread: it does the work that Pager decided on, and sleeps in the I/O engine.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/clock.h"
#include "src/base/status_macros.h"
#include "src/engine/mover.h"

namespace spillway::engine {

using base::MutexLock;

void Mover::Run() {
  working_since_ns_ = base::NowNs();
  std::vector<Work> work;
  std::vector<std::function<void()>> closures;
  while (TakeWork(&work, &closures)) {
    for (const std::function<void()>& closure : closures) closure();
    for (const Work& item : work) Execute(item);
    Sleep(work.empty() && closures.empty());
    work.clear();
    closures.clear();
  }
}

// False when it is time to stop.
bool Mover::TakeWork(std::vector<Work>* work, std::vector<std::function<void()>>* closures) {
  MutexLock lock(&mu_);
  work->swap(work_);
  closures->swap(closures_);
  if (!work->empty() || !closures->empty()) return true;
  // The last work may have been of a kind that ends without an event (kForget).
  NotifyIfQuiet();
  if (stop_) return false;
  sleeping_ = true;
  return true;
}

// Takes ended transfers, waiting for one or a wake-up if there is nothing else to do.
void Mover::Sleep(bool idle) {
  const bool recorded = idle && recorder_ != nullptr;
  const int64_t sleep_ns = recorded ? base::NowNs() : 0;
  if (pages_ == nullptr) {
    if (!idle) return;
    MutexLock lock(&mu_);
    while (sleeping_) work_ready_.Wait(&mu_);
    if (recorded) RecordWork(sleep_ns, 0);
    return;
  }
  const int64_t cpu_ns = recorded ? base::ThreadCpuNs() : 0;
  std::vector<io::PageIo::Result> results;
  pages_->Reap(idle ? absl::InfiniteDuration() : absl::ZeroDuration(), &results);
  const Entry entry(this);
  sleeping_ = false;
  if (recorded) RecordWork(sleep_ns, base::ThreadCpuNs() - cpu_ns);
  const base::DuplexMeter& moved = pages_->moved();
  link_use_.links[static_cast<size_t>(plan::Transfer::kRead)] = moved.busy(0);
  link_use_.links[static_cast<size_t>(plan::Transfer::kWrite)] = moved.busy(1);
  link_use_.nvme_both = moved.both();
  link_use_.checksums = pages_->hashing();
  store_room_.now_bytes = parts_.store->used_bytes();
  store_room_.peak_bytes = std::max(store_room_.peak_bytes, store_room_.now_bytes);
  for (const io::PageIo::Result& result : results) {
    EndTransfer(static_cast<TileIndex>(result.tag), result.status);
  }
  if (!results.empty()) Dispatch();
}

absl::Status Mover::Describe(TileIndex tile, const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(describe_(tile), ": ", status.message()));
}

void Mover::OnTransferDone(TileIndex tile, const absl::Status& status) {
  const Entry entry(this);
  EndTransfer(tile, status);
  Dispatch();
}

void Mover::Execute(const Work& work) {
  const Action& action = work.action;
  const StorePlace place = work.tile->place;
  const uint64_t size_bytes = work.tile->size_bytes;
  if (action.kind == Action::Kind::kForget) {
    if (pages_ != nullptr) pages_->Forget(place.tensor, place.first_page, size_bytes);
    return;
  }
  if (action.kind == Action::Kind::kGrant) return GrantAfterCopy(action);

  if (recorder_ != nullptr) {
    const Entry entry(this);
    recorder_->BeginTransfer(action, base::NowNs());
  }
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
  OnTransferDone(action.tile, status);
}

absl::Status Mover::Copy(const Action& action, uint64_t size_bytes) {
  std::byte* pinned = parts_.pinned->data() + action.pinned_offset;
  std::byte* device = device_arena_ + action.device_offset;
  const bool in = action.Is(Transfer::kCopyIn);
  const tiers::StreamHandle stream = in ? copy_in_ : copy_out_;
  const size_t way = in ? 0 : 1;
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
        stream, [this, tile = action.tile, way, size_bytes](const absl::Status& copied) {
          const Entry entry(this);
          copies_[way].End(base::Now(), copied.ok() ? size_bytes : 0);
          EndTransfer(tile, copied);
          Dispatch();
        });
  }
  if (status.ok()) return status;
  MutexLock lock(&mu_);
  copies_[way].End(base::Now(), 0);
  return status;
}

// The copy was just launched; its end is marked for the caller's stream to wait for.
absl::Status Mover::MarkArrival(tiers::EventHandle* arrival) {
  SPILLWAY_ASSIGN_OR_RETURN(const tiers::EventHandle event, runtime().CreateEvent());
  absl::Status status = runtime().Record(event, copy_in_);
  if (status.ok()) {
    *arrival = event;
  } else {
    runtime().DestroyEvent(event);
  }
  return status;
}

void Mover::GrantAfterCopy(const Action& action) {
  Action done = action;
  tiers::EventHandle arrival;
  done.status = MarkArrival(&arrival);
  MutexLock lock(&mu_);
  Complete(std::move(done), arrival);
}

void Mover::EndTransfer(TileIndex tile, const absl::Status& status) {
  if (recorder_ != nullptr) {
    recorder_->EndTransfer(tile, pager_.pages()[tile].size_bytes(), status.ok(), base::NowNs());
  }
  pager_.TransferDone(tile, Describe(tile, status));
}

}  // namespace spillway::engine
