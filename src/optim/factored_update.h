// SPDX-License-Identifier: Apache-2.0
//
// Updates matrices by Adafactor, in three passes over their rows. The first updates the means of
// squared gradients over rows and over columns, the second sums the squares of the step that
// follows from them, and the third applies the step. update_pass.cc takes the leases and runs the
// passes in order.

#ifndef SPILLWAY_OPTIM_FACTORED_UPDATE_H_
#define SPILLWAY_OPTIM_FACTORED_UPDATE_H_

#include <cstdint>
#include <vector>

#include "spillway/thread_pool.h"
#include "spillway/types.h"
#include "src/optim/factored_kernels.h"
#include "src/optim/rule_kernels.h"
#include "src/optim/rule_passes.h"
#include "src/optim/tensor_sums.h"

namespace spillway::optim {

// The last two dimensions of a parameter, which may have several such matrices.
struct MatrixShape {
  uint64_t num_rows = 0;
  uint64_t num_columns = 0;
};

// The parameter's elements [begin, end): whole rows, and whole matrices unless there is only one.
// Each pointer is to its operand's part for these elements. An operand that a pass does not use may
// be null.
struct FactoredSegment {
  uint64_t begin = 0;
  uint64_t end = 0;
  const std::byte* gradient = nullptr;
  DType gradient_dtype = DType::kF32;
  float* master = nullptr;
  std::byte* weight = nullptr;  // the new master, rounded to nearest even; may be null
  DType weight_dtype = DType::kF16;
  const std::byte* given_weight = nullptr;  // as FusedRun::given_weight
  float* rows = nullptr;                    // one mean for each row
  float* columns = nullptr;  // means of the first matrix's columns, then of the next one's
};

// The update of one parameter in one step. Each pass takes the parameter's segments in order.
// Thread-compatible. Keeps 8 bytes for each column.
class FactoredUpdate {
 public:
  // `least_mean` is ε₁.
  FactoredUpdate(ThreadPool* pool, const MatrixShape& matrix, uint64_t num_elements,
                 float least_mean);

  // Updates rows and columns. Adds to sums().weight.
  void UpdateMeans(const RuleFactors& factors, const FactoredSegment& segment);
  // Adds to sums().direction.
  void SumSteps(const RuleFactors& factors, const FactoredSegment& segment);
  // Updates master and weight. `factors` has the step size that follows from sums().
  void Update(const RuleFactors& factors, const FactoredSegment& segment) const;

  const TensorSums& sums() const { return sums_; }

 private:
  void UpdateRows(const RuleFactors& factors, const FactoredSegment& segment);
  void UpdateColumns(const RuleFactors& factors, const FactoredSegment& segment);
  float Bounded(double sum_of_rows) const;
  std::vector<float> MeansOf(const FactoredSegment& segment) const;
  template <class Visit>
  void ForEachPiece(const FactoredSegment& segment, const std::vector<float>& means, uint64_t begin,
                    uint64_t end, const Visit& visit) const;

  ThreadPool* const pool_;
  const MatrixShape matrix_;
  const bool is_one_matrix_;
  const float least_mean_;
  TensorBlocks blocks_;
  TensorSums sums_;
  double row_sum_ = 0;      // squares of the current row so far
  double sum_of_rows_ = 0;  // row means; used if there is one matrix
  std::vector<double> column_sums_;
};

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_FACTORED_UPDATE_H_
