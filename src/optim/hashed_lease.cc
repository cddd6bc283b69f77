// SPDX-License-Identifier: Apache-2.0

#include "src/optim/hashed_lease.h"

#include <algorithm>
#include <utility>

#include "io/checksum.h"
#include "src/base/status_macros.h"

namespace spillway::optim {

absl::StatusOr<HashedLease> HashedLease::Acquire(Engine* engine, TileRef tile, Access access) {
  HashedLease hashed;
  auto* const unchecked = dynamic_cast<engine::UncheckedLeases*>(engine);
  if (unchecked == nullptr) {
    SPILLWAY_ASSIGN_OR_RETURN(hashed.lease_, engine->AcquireHost(tile, access));
    return hashed;
  }
  SPILLWAY_ASSIGN_OR_RETURN(hashed.lease_,
                            unchecked->AcquireUnchecked(tile, access, &hashed.expected_));
  hashed.engine_ = unchecked;
  hashed.writes_ = Writes(access);
  hashed.page_bytes_ = engine->page_bytes();
  if (!hashed.writes_ || !hashed.is_hashed()) return hashed;
  hashed.computed_.resize(hashed.expected_.size());
  hashed.unwritten_ = std::make_unique<std::atomic<uint64_t>[]>(hashed.computed_.size());
  for (size_t page = 0; page < hashed.computed_.size(); ++page)
    hashed.unwritten_[page].store(hashed.PageAt(page).size(), std::memory_order_relaxed);
  return hashed;
}

HashedLease& HashedLease::operator=(HashedLease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  engine_ = other.engine_;
  lease_ = std::move(other.lease_);
  writes_ = other.writes_;
  page_bytes_ = other.page_bytes_;
  expected_ = std::move(other.expected_);
  computed_ = std::move(other.computed_);
  is_compared_ = other.is_compared_;
  unwritten_ = std::move(other.unwritten_);
  return *this;
}

void HashedLease::Release() {
  if (!lease_) return;
  if (!is_hashed()) return lease_.Release();
  if (!writes_) {
    if (is_compared_) engine_->SetChecked(lease_);
    lease_.Release();
  } else if (!is_compared_) {
    engine_->GiveUp(std::move(lease_));
  } else if (std::all_of(&unwritten_[0], &unwritten_[computed_.size()],
                         [](const auto& bytes) { return bytes == 0; })) {
    engine_->Release(std::move(lease_), std::move(computed_));
  } else {
    lease_.Release();
  }
  expected_.clear();
}

std::span<const std::byte> HashedLease::PageAt(uint64_t page) const {
  const uint64_t begin = page * page_bytes_;
  return {data() + begin, std::min(page_bytes_, size_bytes() - begin)};
}

absl::Status HashedLease::Compare(ThreadPool* pool, std::span<HashedLease> leases) {
  struct Page {
    HashedLease* lease = nullptr;
    uint64_t page = 0;
    bool differs = false;
  };
  std::vector<Page> pages;
  for (HashedLease& lease : leases) {
    if (!lease.is_hashed() || std::exchange(lease.is_compared_, true)) continue;
    for (uint64_t page = 0; page < lease.expected_.size(); ++page) pages.push_back({&lease, page});
  }
  pool->ParallelFor(static_cast<int64_t>(pages.size()), [&](int64_t i) {
    Page& page = pages[static_cast<size_t>(i)];
    page.differs = io::Checksum(page.lease->PageAt(page.page)) != page.lease->expected_[page.page];
  });
  absl::Status first;
  for (const Page& page : pages) {
    if (!page.differs) continue;
    HashedLease& lease = *page.lease;
    const absl::Status status =
        lease.engine_->ReadAgain(lease.lease_, page.page, lease.expected_[page.page]);
    if (!status.ok()) lease.is_compared_ = false;
    first.Update(status);
  }
  return first;
}

void HashedLease::Written(uint64_t begin, uint64_t end) {
  for (uint64_t page = begin / page_bytes_; page < computed_.size() && page * page_bytes_ < end;
       ++page) {
    const uint64_t page_begin = page * page_bytes_;
    const uint64_t bytes = std::min(end, page_begin + page_bytes_) - std::max(begin, page_begin);
    if (unwritten_[page].fetch_sub(bytes, std::memory_order_acq_rel) == bytes)
      computed_[page] = io::Checksum(PageAt(page));
  }
}

}  // namespace spillway::optim
