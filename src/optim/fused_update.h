// SPDX-License-Identifier: Apache-2.0
//
// Decode, rule, encode, in pieces that stay in the first level of cache: each byte of a parameter
// passes through memory once, whatever its format.

#ifndef SPILLWAY_OPTIM_FUSED_UPDATE_H_
#define SPILLWAY_OPTIM_FUSED_UPDATE_H_

#include <cstddef>
#include <cstdint>

#include "spillway/optimizer.h"
#include "src/optim/block_codec.h"
#include "src/optim/rule_kernels.h"
#include "src/optim/state_format.h"
#include "src/optim/sum_of_squares.h"

namespace spillway::optim {

// Moments in blocks with scales, and residuals if the format has them: the row in which the run
// lies, from one of its blocks on.
struct EncodedMoments {
  std::byte* row = nullptr;
  EncodedRow layout;
  uint64_t first_block = 0;
  CodeMap maps[kMostMoments] = {};
};

// A run of a parameter's elements as they rest, each operand from the run's first element on. None
// overlap. Encoded moments lie beside those of other runs: a run begins with a block, and ends with
// one or with its row.
struct FusedRun {
  int64_t num_elements = 0;
  uint64_t first_element = 0;  // in the tensor
  const void* gradient = nullptr;
  DType gradient_dtype = DType::kF32;
  float* master = nullptr;  // updated in place, as are the moments; null: it is split
  // The new master, rounded to nearest even; null: not wanted. Of a master that is split, the
  // weight is updated in place, with the residuals in the encoded row.
  void* weight = nullptr;
  DType weight_dtype = DType::kF16;
  // The same weight where the caller may have written it (given_weight.h); null: it has not.
  const void* given_weight = nullptr;
  StateFormat format = StateFormat::kF32;
  int num_moments = 0;
  void* moments[kMostMoments] = {};  // unless they are encoded
  // Of moments that are rounded at random; the first, of all of a state that is compact.
  uint64_t rounding_keys[kMostMoments] = {};
  EncodedMoments encoded;  // if they are
};

void UpdateFused(const RuleFactors& factors, const FusedRun& run);

// Adds the squares of the master weight and of DirectionOfElements to sums[0] and sums[1]; the run
// lies in one block of theirs, from its element `first` on, and is not changed. Moments may be
// absent where the direction needs none.
void AddSquaresFused(const RuleFactors& factors, const FusedRun& run, uint64_t first,
                     SumLanes* sums);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_FUSED_UPDATE_H_
