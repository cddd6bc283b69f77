// SPDX-License-Identifier: Apache-2.0

#include "src/engine/transfer_thread.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "io/checksum.h"
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
  copies_ = std::make_unique<TileCopies>(
      TileCopies::Parts{
          .runtime = &runtime(),
          .pinned = parts_.pinned->data(),
          .device = device_arena_,
          .page_bytes = parts_.store != nullptr ? parts_.store->page_bytes() : 0,
          .checksums = &checksums_,
          .read_again = std::bind_front(&TransferThread::ReadAgain, this),
      },
      static_cast<TileCopies::Listener*>(this));
  SPILLWAY_RETURN_IF_ERROR(copies_->Start());
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
  copies_.reset();
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
  for (const Transfer copy : {Transfer::kCopyIn, Transfer::kCopyOut})
    use.links[static_cast<size_t>(copy)] = copies_->busy(copy);
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
  for (io::PageIo::Result& result : results_) {
    const auto tile = static_cast<TileIndex>(result.tag);
    if (!result.checksums.empty())
      checksums_.Set(tile, TileChecksums::Kind::kExpected, std::move(result.checksums));
    ended.push_back({tile, std::move(result.status)});
  }
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
  if (action.kind == Action::Kind::kGrant) return copies_->Grant(action);
  if (has_timeline_) listener_.OnBegin(action);
  absl::Status status = parts_.pinned->EnsureUsable(action.pinned_offset, size_bytes);
  std::byte* frame = parts_.pinned->data() + action.pinned_offset;
  if (status.ok()) {
    const bool fills = action.transfer != Transfer::kWrite && action.transfer != Transfer::kCopyIn;
    if (fills) checksums_.Clear(action.tile);
    switch (action.transfer) {
      case Transfer::kRead: {
        const bool by_user = !work.tile->transient && checksums_.IsComparedByUser(action.tile);
        return pages_->Read(action.tile, place.tensor, place.first_page, size_bytes, frame,
                            by_user ? io::Verifier::kCaller : io::Verifier::kPageIo);
      }
      case Transfer::kWrite: {
        std::vector<uint64_t> known;
        if (checksums_.KindOf(action.tile) == TileChecksums::Kind::kComputed)
          known = checksums_.Of(action.tile);
        checksums_.NoteWrite(action.tile, !known.empty());
        return pages_->Write(action.tile, place.tensor, place.first_page, size_bytes, frame, known);
      }
      case Transfer::kZero: std::memset(frame, 0, size_bytes); break;
      default:
        if (action.transfer == Transfer::kCopyIn && copies_->MustCompareBefore(action.tile))
          status = Compare(action.tile, *work.tile, frame);
        if (status.ok()) return copies_->Copy(action, *work.tile);
    }
  }
  if (action.transfer == Transfer::kCopyIn) return copies_->Fail(action, status);
  OnCopied(action.tile, status);
}

void TransferThread::OnCopied(TileIndex tile, const absl::Status& status) {
  const TransferEnd ended{tile, status};
  listener_.OnEnded({&ended, 1});
}

namespace {

// Makes a damaged page equal to a good one. Other threads may be hashing the page meanwhile: they
// find it damaged, or good for ever. The thread sanitizer would report that.
ABSL_ATTRIBUTE_NO_SANITIZE_THREAD void Replace(volatile std::byte* page, const std::byte* good,
                                               uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; ++i)
    if (page[i] != good[i]) page[i] = good[i];
}

}  // namespace

// Compares a page with its checksum, and reads it again if it differs. The second read goes to
// memory of its own: another user may be comparing the page in the frame meanwhile, and must find
// it bad until it is good for ever. Other transfers that end meanwhile stay in results_.
absl::Status TransferThread::ComparePage(const Tile& tile, uint64_t page, uint64_t checksum,
                                         std::byte* frame) {
  const uint64_t begin = page * parts_.store->page_bytes();
  const uint64_t bytes = std::min(parts_.store->page_bytes(), tile.size_bytes - begin);
  if (io::Checksum({frame + begin, bytes}) == checksum) return absl::OkStatus();
  const uint64_t room = (bytes + io::kIoAlignment - 1) / io::kIoAlignment * io::kIoAlignment;
  const std::unique_ptr<std::byte, void (*)(void*)> again(
      static_cast<std::byte*>(std::aligned_alloc(io::kIoAlignment, room)), std::free);
  if (again == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "page ", page, " does not match its checksum, and there is no memory to read its ", bytes,
        " bytes again"));
  }
  constexpr uint64_t kTag = ~uint64_t{0};  // no tile has it
  pages_->Read(kTag, tile.place.tensor, tile.place.first_page + page, bytes, again.get());
  while (true) {
    const auto read = std::find_if(results_.begin(), results_.end(),
                                   [](const auto& result) { return result.tag == kTag; });
    if (read != results_.end()) {
      absl::Status status = std::move(read->status);
      results_.erase(read);
      if (status.ok()) Replace(frame + begin, again.get(), bytes);
      return status;
    }
    pages_->Reap(absl::InfiniteDuration(), &results_);
  }
}

// If two users compare a page, the one who comes second finds it as the first has read it again.
absl::Status TransferThread::ReadAgain(const Tile& tile, uint64_t page, uint64_t checksum,
                                       std::byte* frame) {
  absl::Status status;
  RunWithStore([&](io::Store*) { status = ComparePage(tile, page, checksum, frame); });
  return status;
}

// Compares a tile that its user was to compare, but that goes to the device instead.
absl::Status TransferThread::Compare(TileIndex index, const Tile& tile, std::byte* frame) {
  checksums_.NoteGoesToDevice(index);
  const std::vector<uint64_t> expected = checksums_.Of(index);
  for (uint64_t page = 0; page < expected.size(); ++page)
    SPILLWAY_RETURN_IF_ERROR(ComparePage(tile, page, expected[page], frame));
  checksums_.Clear(index);
  return absl::OkStatus();
}

}  // namespace spillway::engine
