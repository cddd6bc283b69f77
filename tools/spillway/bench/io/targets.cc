// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/io/targets.h"

#include <utility>

#include "absl/time/time.h"

namespace spillway::bench_io {
namespace {

constexpr uint64_t kStripeBytes = 4 << 20;  // a multiple of every block size

}  // namespace

void FileTarget::Start(std::span<const Move> moves) {
  requests_.clear();
  for (const Move& move : moves) {
    const uint64_t place = move.block * block_bytes_;
    const uint64_t stripe = place / kStripeBytes;
    requests_.push_back({.op = move.op,
                         .file = files_[stripe % files_.size()],
                         .offset = stripe / files_.size() * kStripeBytes + place % kStripeBytes,
                         .buffer = move.memory,
                         .size_bytes = block_bytes_,
                         .tag = move.tag});
  }
  engine_->Submit(requests_);
}

void FileTarget::Reap(std::vector<Moved>* moved) {
  completions_.clear();
  while (completions_.empty()) engine_->Reap(absl::InfiniteDuration(), &completions_);
  for (io::IoCompletion& completion : completions_) {
    moved->push_back({completion.tag, std::move(completion.status)});
  }
}

void StoreTarget::Start(std::span<const Move> moves) {
  for (const Move& move : moves) {
    const uint64_t first_page = move.block * pages_per_block_;
    if (move.op == io::IoOp::kRead) {
      pages_.Read(move.tag, tensor_, first_page, block_bytes_, move.memory);
    } else {
      pages_.Write(move.tag, tensor_, first_page, block_bytes_, move.memory);
    }
  }
}

void StoreTarget::Reap(std::vector<Moved>* moved) {
  results_.clear();
  while (results_.empty()) pages_.Reap(absl::InfiniteDuration(), &results_);
  for (io::PageIo::Result& result : results_) {
    moved->push_back({result.tag, std::move(result.status)});
  }
}

}  // namespace spillway::bench_io
