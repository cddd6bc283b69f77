// SPDX-License-Identifier: Apache-2.0

#include "tests/optim/sum_reference.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace spillway::optim {

double ReferenceBlockSum(const float* values, size_t n) {
  std::vector<double> lanes(32);
  for (size_t i = 0; i < n; ++i)
    lanes[i % 32] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  while (lanes.size() > 1) {
    const size_t half = lanes.size() / 2;
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    lanes.resize(half);
  }
  return lanes[0];
}

double ReferenceSumOfSquares(const std::vector<float>& values, size_t row_elements) {
  double sum = 0;
  for (size_t row = 0; row < values.size(); row += row_elements) {
    for (size_t at = 0; at < row_elements; at += 16384)
      sum += ReferenceBlockSum(&values[row + at], std::min<size_t>(16384, row_elements - at));
  }
  return sum;
}

}  // namespace spillway::optim
