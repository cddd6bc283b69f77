// SPDX-License-Identifier: Apache-2.0

#include "src/optim/tensor_sums.h"

#include <algorithm>
#include <array>
#include <vector>

namespace spillway::optim {
namespace {

// Blocks whose sums are kept at a time, 64 KiB in all. The number is limited because rows may be as
// short as one element.
constexpr uint64_t kMostBlocks = 4096;

}  // namespace

void TensorBlocks::Sum(ThreadPool* pool, uint64_t begin, uint64_t end, const AddTo& add_to,
                       const TakeSums& take_sums) {
  const uint64_t last = BlockAt(end - 1) + 1;
  const auto grain =
      static_cast<int64_t>(kSumBlockElements / std::min(row_elements_, kSumBlockElements));
  std::vector<std::array<double, kSums>> sums(std::min(kMostBlocks, last - BlockAt(begin)));
  SumLanes next_open[kSums];
  for (uint64_t first = BlockAt(begin); first < last; first += sums.size()) {
    const uint64_t count = std::min<uint64_t>(sums.size(), last - first);
    pool->ParallelRanges(static_cast<int64_t>(count), grain, [&](int64_t from, int64_t to) {
      for (auto i = static_cast<uint64_t>(from); i < static_cast<uint64_t>(to); ++i) {
        const uint64_t block_begin = Begin(first + i), block_end = End(first + i);
        const uint64_t piece_begin = std::max(begin, block_begin);
        const uint64_t piece_end = std::min(end, block_end);
        SumLanes lanes[kSums];
        if (piece_begin != block_begin) std::copy_n(open_, kSums, lanes);
        add_to(piece_begin, piece_end, piece_begin - block_begin, lanes);
        if (piece_end != block_end) std::copy_n(lanes, kSums, next_open);
        for (int sum = 0; sum < kSums; ++sum) sums[i][static_cast<size_t>(sum)] = Total(lanes[sum]);
      }
    });
    for (uint64_t i = 0; i < count; ++i) {
      if (End(first + i) <= end) take_sums(End(first + i), sums[i].data());
    }
  }
  std::copy_n(next_open, kSums, open_);
}

}  // namespace spillway::optim
