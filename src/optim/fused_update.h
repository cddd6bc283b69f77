// SPDX-License-Identifier: Apache-2.0
//
// Decodes, updates and encodes a run of elements in pieces that stay in the first-level cache, so
// that each byte of a parameter passes through memory once, whatever its format. rule_kernels.h has
// the arithmetic, and update_pass.cc chooses the runs.

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

// A moment that an update uses.
struct FusedMoment {
  size_t slot = 0;       // in RuleRun::moments
  void* data = nullptr;  // unused if the moments are encoded
  uint64_t index = 0;    // among the moments of an encoded row
  CodeMap map = CodeMap::kSigned;
  uint64_t rounding_key = 0;  // if the format rounds at random
};

// The encoded moments of a run: the row that holds the run, and the block of that row with which
// the run begins. The row has residuals if the format has them.
struct EncodedMoments {
  std::byte* row = nullptr;
  EncodedRow layout;
  uint64_t first_block = 0;
};

// A run of a parameter's elements in the formats in which they rest. Each operand begins with the
// run's first element. Operands do not overlap. A row of encoded moments also holds those of other
// runs, so a run begins with a block, and ends with a block or with its row.
struct FusedRun {
  int64_t num_elements = 0;
  uint64_t first_element = 0;  // in the tensor
  const void* gradient = nullptr;
  DType gradient_dtype = DType::kF32;
  float* master = nullptr;  // updated in place, as the moments are; null: it is split
  // The new master weight, rounded to nearest even; null: not written. If the master weight is
  // split, the weight is updated in place, together with the residuals in the encoded row.
  void* weight = nullptr;
  DType weight_dtype = DType::kF16;
  // The same weight if the caller may have written it (given_weight.h); null: it has not.
  const void* given_weight = nullptr;
  StateFormat format = StateFormat::kF32;
  size_t num_moments = 0;  // others that the row has stay as they are
  FusedMoment moments[kMostMoments] = {};
  uint64_t residual_key = 0;  // keys the rounding of a split master weight
  EncodedMoments encoded;     // used if the format is encoded
};

void UpdateFused(const RuleFactors& factors, const FusedRun& run);

// Adds the squares of the master weight to sums[0], and those of DirectionOfElements to sums[1].
// The run lies in one block of the sums and begins with that block's element `first`. The run is
// not changed. Moments may be absent if the direction does not need them.
void AddSquaresFused(const RuleFactors& factors, const FusedRun& run, uint64_t first,
                     SumLanes* sums);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_FUSED_UPDATE_H_
