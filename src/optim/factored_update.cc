// SPDX-License-Identifier: Apache-2.0

#include "src/optim/factored_update.h"

#include <algorithm>
#include <cstddef>

#include "src/optim/element_codecs.h"
#include "src/optim/given_weight.h"

namespace spillway::optim {
namespace {

constexpr uint64_t kFactoredElements = 512;  // as kPieceElements in fused_update.cc
static_assert(kFactoredElements <= kMostGivenElements);
constexpr int64_t kGrainElements = 16384;
constexpr int64_t kGrainColumns = 64;

// Returns the gradient's piece in fp32: in place if it rests in fp32, else decoded into the buffer.
const float* Decode(const FactoredSegment& segment, uint64_t element, uint64_t n, float* buffer) {
  const ElementCodec& codec = CodecOf(segment.gradient_dtype);
  const std::byte* const from = segment.gradient + (element - segment.begin) * codec.element_bytes;
  if (segment.gradient_dtype == DType::kF32) return reinterpret_cast<const float*>(from);
  codec.decode(from, static_cast<int64_t>(n), buffer);
  return buffer;
}

// Writes the gradient's piece times its scale into the buffer.
void DecodeScaled(float scale, const FactoredSegment& segment, uint64_t element, uint64_t n,
                  float* buffer) {
  const float* const gradient = Decode(segment, element, n, buffer);
  ScaleElements(scale, gradient, static_cast<int64_t>(n), buffer);
}

const std::byte* GivenWeight(const FactoredSegment& segment, uint64_t element) {
  return segment.given_weight + (element - segment.begin) * ElementBytes(segment.weight_dtype);
}

// Returns the master weight's piece: in place, or, if the caller may have changed the weight, as a
// copy in the buffer that has the changes.
const float* Master(const FactoredSegment& segment, uint64_t element, int64_t n, float* buffer) {
  const float* const master = segment.master + (element - segment.begin);
  if (segment.given_weight == nullptr) return master;
  std::copy_n(master, n, buffer);
  TakeGiven(segment.weight_dtype, GivenWeight(segment, element), n, buffer);
  return buffer;
}

// Returns the running mean after `square`, the newest value.
float Averaged(const RuleFactors& f, float mean, double square) {
  return f.beta2 * mean + f.one_minus_beta2 * ToFloat(square);
}

}  // namespace

FactoredUpdate::FactoredUpdate(ThreadPool* pool, const MatrixShape& matrix, uint64_t num_elements,
                               float least_mean)
    : pool_(pool),
      matrix_(matrix),
      is_one_matrix_(num_elements == matrix.num_rows * matrix.num_columns),
      least_mean_(least_mean),
      blocks_(matrix.num_columns),
      column_sums_(matrix.num_columns) {}

void FactoredUpdate::UpdateMeans(const RuleFactors& factors, const FactoredSegment& segment) {
  UpdateRows(factors, segment);
  UpdateColumns(factors, segment);
}

void FactoredUpdate::UpdateRows(const RuleFactors& factors, const FactoredSegment& segment) {
  const auto add_to = [&](uint64_t begin, uint64_t end, uint64_t first, SumLanes* sums) {
    float buffer[kFactoredElements], master_buffer[kFactoredElements];
    for (uint64_t at = begin; at < end; at += kFactoredElements) {
      const uint64_t n = std::min(kFactoredElements, end - at);
      const auto count = static_cast<int64_t>(n);
      AddSquares(Master(segment, at, count, master_buffer), count, first + at - begin, &sums[0]);
      DecodeScaled(factors.gradient_scale, segment, at, n, buffer);
      AddSquares(buffer, count, first + at - begin, &sums[1]);
    }
  };
  const auto take_sums = [&](uint64_t end, const double* sums) {
    sums_.weight += sums[0];
    row_sum_ += sums[1];
    if (end % matrix_.num_columns != 0) return;
    float& row = segment.rows[(end - segment.begin) / matrix_.num_columns - 1];
    row = Averaged(factors, row, row_sum_ / static_cast<double>(matrix_.num_columns));
    row_sum_ = 0;
    sum_of_rows_ += static_cast<double>(row);
  };
  blocks_.Sum(pool_, segment.begin, segment.end, add_to, take_sums);
}

// Each thread takes its own columns through all rows, so that the squares of a column are added in
// the order of rows.
void FactoredUpdate::UpdateColumns(const RuleFactors& factors, const FactoredSegment& segment) {
  const uint64_t width = matrix_.num_columns, matrix_elements = width * matrix_.num_rows;
  const auto update = [&](uint64_t first, uint64_t n) {
    float buffer[kFactoredElements];
    double* const sums = &column_sums_[first];
    for (uint64_t row = segment.begin; row < segment.end; row += width) {
      if (row % matrix_elements == 0) std::fill_n(sums, n, 0.0);
      DecodeScaled(factors.gradient_scale, segment, row + first, n, buffer);
      AddSquaresApart(buffer, static_cast<int64_t>(n), sums);
      if ((row + width) % matrix_elements != 0) continue;
      const uint64_t before = row / matrix_elements - segment.begin / matrix_elements;
      float* const columns = segment.columns + before * width + first;
      for (uint64_t i = 0; i < n; ++i)
        columns[i] = Averaged(factors, columns[i], sums[i] / static_cast<double>(matrix_.num_rows));
    }
  };
  pool_->ParallelRanges(
      static_cast<int64_t>(width), kGrainColumns, [&](int64_t begin, int64_t end) {
        for (auto at = static_cast<uint64_t>(begin); at < static_cast<uint64_t>(end);
             at += kFactoredElements)
          update(at, std::min(kFactoredElements, static_cast<uint64_t>(end) - at));
      });
}

float FactoredUpdate::Bounded(double sum_of_rows) const {
  const float mean = ToFloat(sum_of_rows / static_cast<double>(matrix_.num_rows));
  return mean < least_mean_ ? least_mean_ : mean;
}

// Returns the bounded mean over the rows of each matrix.
std::vector<float> FactoredUpdate::MeansOf(const FactoredSegment& segment) const {
  if (is_one_matrix_) return {Bounded(sum_of_rows_)};
  const uint64_t num_rows = (segment.end - segment.begin) / matrix_.num_columns;
  std::vector<float> means;
  for (uint64_t first = 0; first < num_rows; first += matrix_.num_rows) {
    double sum = 0;
    for (uint64_t i = 0; i < matrix_.num_rows; ++i)
      sum += static_cast<double>(segment.rows[first + i]);
    means.push_back(Bounded(sum));
  }
  return means;
}

// Calls visit(first element, run) for pieces of [begin, end), each within one row.
template <class Visit>
void FactoredUpdate::ForEachPiece(const FactoredSegment& segment, const std::vector<float>& means,
                                  uint64_t begin, uint64_t end, const Visit& visit) const {
  const uint64_t width = matrix_.num_columns;
  const uint64_t matrix_elements = width * matrix_.num_rows;
  float buffer[kFactoredElements];
  while (begin < end) {
    const uint64_t n = std::min({kFactoredElements, end - begin, width - begin % width});
    const uint64_t matrix = begin / matrix_elements - segment.begin / matrix_elements;
    visit(begin, FactoredRun{.num_elements = static_cast<int64_t>(n),
                             .gradient = Decode(segment, begin, n, buffer),
                             .row = segment.rows[(begin - segment.begin) / width],
                             .columns = segment.columns + matrix * width + begin % width,
                             .mean = means[matrix]});
    begin += n;
  }
}

void FactoredUpdate::SumSteps(const RuleFactors& factors, const FactoredSegment& segment) {
  const std::vector<float> means = MeansOf(segment);
  const auto add_to = [&](uint64_t begin, uint64_t end, uint64_t first, SumLanes* sums) {
    float step[kFactoredElements];
    ForEachPiece(segment, means, begin, end, [&](uint64_t at, const FactoredRun& run) {
      FactoredStep(factors, run, step);
      AddSquares(step, run.num_elements, first + at - begin, &sums[0]);
    });
  };
  blocks_.Sum(pool_, segment.begin, segment.end, add_to,
              [&](uint64_t, const double* sums) { sums_.direction += sums[0]; });
}

void FactoredUpdate::Update(const RuleFactors& factors, const FactoredSegment& segment) const {
  const std::vector<float> means = MeansOf(segment);
  const auto update = [&](uint64_t begin, const FactoredRun& run) {
    float* const master = segment.master + (begin - segment.begin);
    if (segment.given_weight != nullptr)
      TakeGiven(segment.weight_dtype, GivenWeight(segment, begin), run.num_elements, master);
    UpdateFactored(factors, run, master);
    if (segment.weight == nullptr) return;
    const ElementCodec& codec = CodecOf(segment.weight_dtype);
    codec.encode(master, run.num_elements,
                 segment.weight + (begin - segment.begin) * codec.element_bytes);
  };
  pool_->ParallelRanges(static_cast<int64_t>(segment.end - segment.begin), kGrainElements,
                        [&](int64_t begin, int64_t end) {
                          ForEachPiece(segment, means, segment.begin + static_cast<uint64_t>(begin),
                                       segment.begin + static_cast<uint64_t>(end), update);
                        });
}

}  // namespace spillway::optim
