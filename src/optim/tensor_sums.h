// SPDX-License-Identifier: Apache-2.0
//
// Sums of squares over the elements of a tensor, one segment after another, each on all threads.
// The one idea: a row is cut into blocks of a fixed size, each block has its own sum
// (sum_of_squares.h), and the sums are handed on in the order of the blocks. So their bits depend
// on the tensor's shape alone, and the memory that they take does not grow with the tensor.

#ifndef SPILLWAY_OPTIM_TENSOR_SUMS_H_
#define SPILLWAY_OPTIM_TENSOR_SUMS_H_

#include <cstdint>
#include <functional>

#include "spillway/thread_pool.h"
#include "src/optim/sum_of_squares.h"

namespace spillway::optim {

// Elements of a block: the least work that is worth handing to another thread.
inline constexpr uint64_t kSumBlockElements = 16384;

// Thread-compatible.
class TensorBlocks {
 public:
  static constexpr int kSums = 2;  // computed side by side

  // Adds the elements [begin, end) to each of kSums sums. They lie in one block, and the first is
  // that block's element `first`. Called on any thread.
  using AddTo = std::function<void(uint64_t begin, uint64_t end, uint64_t first, SumLanes* sums)>;
  // Takes kSums sums of the block that ends before element `end`. Called in the order of blocks.
  using TakeSums = std::function<void(uint64_t end, const double* sums)>;

  explicit TensorBlocks(uint64_t row_elements)
      : row_elements_(row_elements),
        row_blocks_((row_elements + kSumBlockElements - 1) / kSumBlockElements) {}

  // Sums the segment [begin, end), which begins where the previous one ended, or with a row.
  void Sum(ThreadPool* pool, uint64_t begin, uint64_t end, const AddTo& add_to,
           const TakeSums& take_sums);

 private:
  uint64_t BlockAt(uint64_t element) const {
    return element / row_elements_ * row_blocks_ + element % row_elements_ / kSumBlockElements;
  }
  uint64_t Begin(uint64_t block) const {
    return block / row_blocks_ * row_elements_ + block % row_blocks_ * kSumBlockElements;
  }
  uint64_t End(uint64_t block) const { return Begin(block + 1); }

  const uint64_t row_elements_;
  const uint64_t row_blocks_;
  SumLanes open_[kSums];  // of the block in which the last segment ended
};

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_TENSOR_SUMS_H_
