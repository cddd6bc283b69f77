// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/io/nop_io_engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "src/base/clock.h"
#include "src/base/status_macros.h"

namespace spillway::bench_io {
namespace {

constexpr unsigned kEntries = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<NopIoEngine>> NopIoEngine::Create() {
  SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<io::Ring> ring, io::Ring::Open(kEntries));
  SPILLWAY_RETURN_IF_ERROR(ring->Enable());
  return std::unique_ptr<NopIoEngine>(new NopIoEngine(std::move(ring)));
}

NopIoEngine::~NopIoEngine() {
  io::Ring::Close(std::move(ring_), io::Deadline::After(absl::ZeroDuration()));
}

absl::StatusOr<io::FileId> NopIoEngine::AddFile(int, std::string, uint16_t) {
  return io::FileId{next_file_++};
}

absl::Status NopIoEngine::RemoveFile(io::FileId) { return absl::OkStatus(); }

// Submits the prepared NOPs and takes their completions. A NOP has completed when its submission
// returns.
void NopIoEngine::Harvest() {
  ring_status_.Update(ring_->Submit());
  ring_->Harvest([this](uint64_t tag, int) { completions_.push_back({tag, absl::OkStatus()}); });
}

void NopIoEngine::Submit(std::span<const io::IoRequest> requests) {
  const int64_t start = base::ThreadCpuNs();
  unsigned prepared = 0;
  for (const io::IoRequest& request : requests) {
    ++in_flight_;
    if (!ring_status_.ok()) {
      completions_.push_back({request.tag, ring_status_});
      continue;
    }
    io_uring_sqe* const entry = ring_->Prepare();
    io_uring_prep_nop(entry);
    io_uring_sqe_set_data64(entry, request.tag);
    if (++prepared % kEntries == 0) Harvest();
  }
  if (prepared % kEntries != 0) Harvest();
  cpu_ns_ += base::ThreadCpuNs() - start;
}

void NopIoEngine::Reap(absl::Duration timeout, std::vector<io::IoCompletion>* done) {
  const int64_t start = base::ThreadCpuNs();
  in_flight_ -= static_cast<int>(completions_.size());
  const bool any = !completions_.empty();
  for (io::IoCompletion& completion : completions_) done->push_back(std::move(completion));
  completions_.clear();
  cpu_ns_ += base::ThreadCpuNs() - start;
  base::MutexLock lock(&mu_);
  if (!any && timeout > absl::ZeroDuration()) {
    const auto until = std::chrono::steady_clock::now() +
                       absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(1)));
    while (!wake_ && woken_.WaitUntil(&mu_, until)) {
    }
  }
  wake_ = false;
}

void NopIoEngine::Wake() {
  base::MutexLock lock(&mu_);
  wake_ = true;
  woken_.NotifyOne();
}

}  // namespace spillway::bench_io
