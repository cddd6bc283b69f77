// SPDX-License-Identifier: Apache-2.0
//
// Adafactor on matrices, in three passes over their rows. The first updates the means of squared
// gradients over rows and over columns, the second sums the squares of the step that follows from
// them, and the third takes the step. Leases, and the order of passes, are update_pass.cc's.

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

// Of a parameter's last two dimensions; there may be several such matrices.
struct MatrixShape {
  uint64_t num_rows = 0;
  uint64_t num_columns = 0;
};

// The parameter's elements [begin, end): whole rows, and whole matrices unless there is only one.
// Operands lie from the first of them on; what a pass does not touch is null.
struct FactoredSegment {
  uint64_t begin = 0;
  uint64_t end = 0;
  const std::byte* gradient = nullptr;
  DType gradient_dtype = DType::kF32;
  float* master = nullptr;
  std::byte* weight = nullptr;  // the new master, rounded to nearest even; may be null
  DType weight_dtype = DType::kF16;
  const std::byte* given_weight = nullptr;  // see FusedRun
  float* rows = nullptr;                    // a mean for each row
  float* columns = nullptr;                 // of the first matrix, then of the next
};

// Of one parameter in one update: each pass takes its segments in order. Thread-compatible. Keeps
// 8 bytes for each column.
class FactoredUpdate {
 public:
  // `least_mean` is ε₁.
  FactoredUpdate(ThreadPool* pool, const MatrixShape& matrix, uint64_t num_elements,
                 float least_mean);

  // Updates rows and columns; adds up sums().weight.
  void UpdateMeans(const RuleFactors& factors, const FactoredSegment& segment);
  // Adds up sums().direction.
  void SumSteps(const RuleFactors& factors, const FactoredSegment& segment);
  // Updates master and weight; the factors have the step size that follows from sums().
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
  double row_sum_ = 0;      // of the squares of a row so far
  double sum_of_rows_ = 0;  // of the only matrix
  std::vector<double> column_sums_;
};

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_FACTORED_UPDATE_H_
