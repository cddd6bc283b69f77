// SPDX-License-Identifier: Apache-2.0

#include "tests/optim/norm_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/optim/rule_kernels.h"
#include "tests/optim/sum_reference.h"

namespace spillway::optim {

bool NeedsNorms(const Rule& rule, size_t dimensions) {
  if (rule.kind == RuleKind::kAdafactor) return true;
  return dimensions > 1 && (rule.kind == RuleKind::kLamb || rule.kind == RuleKind::kLars);
}

float ReferenceStepSize(const Rule& rule, const Update& update, double weight, double direction,
                        size_t n) {
  const double lr = update.learning_rate;
  if (rule.kind == RuleKind::kAdafactor) {
    const double root = std::sqrt(static_cast<double>(n));
    const double rho = std::min(lr, 1 / std::sqrt(static_cast<double>(update.step)));
    const double alpha = rho * std::max(rule.epsilon2, weight / root);
    return static_cast<float>(alpha / std::max(1.0, direction / root / rule.clipping_threshold));
  }
  if (weight == 0 || direction == 0) return static_cast<float>(lr);
  if (rule.kind == RuleKind::kLamb) return static_cast<float>(lr * (weight / direction));
  const double decayed = direction + update.weight_decay * weight;
  return static_cast<float>(lr * (rule.trust_coefficient * weight / decayed));
}

void UpdateFactoredReference(const Rule& rule, const Update& update,
                             const std::vector<int64_t>& shape, const std::vector<float>& gradients,
                             std::vector<float>* master, std::vector<float>* rows,
                             std::vector<float>* columns) {
  RuleFactors f = MakeFactors(rule, update);
  const auto width = static_cast<size_t>(shape.back());
  const auto height = static_cast<size_t>(shape[shape.size() - 2]);
  const size_t n = gradients.size();
  std::vector<float> g(n), step(n);
  for (size_t i = 0; i < n; ++i) g[i] = f.gradient_scale * gradients[i];
  const auto average = [&](float* mean, double square) {
    *mean = f.beta2 * *mean + f.one_minus_beta2 * static_cast<float>(square);
  };
  for (size_t row = 0; row < n / width; ++row) {
    const std::vector<float> of_row(&g[row * width], &g[row * width] + width);
    average(&(*rows)[row], ReferenceSumOfSquares(of_row, width) / static_cast<double>(width));
  }
  for (size_t matrix = 0; matrix < n / width / height; ++matrix) {
    double sum_of_rows = 0;
    for (size_t r = 0; r < height; ++r)
      sum_of_rows += static_cast<double>((*rows)[matrix * height + r]);
    const auto mean = static_cast<float>(sum_of_rows / static_cast<double>(height));
    const float bounded = std::max(mean, static_cast<float>(rule.epsilon));
    for (size_t c = 0; c < width; ++c) {
      double sum = 0;
      for (size_t r = 0; r < height; ++r) {
        const auto value = static_cast<double>(g[(matrix * height + r) * width + c]);
        sum += value * value;
      }
      average(&(*columns)[matrix * width + c], sum / static_cast<double>(height));
      for (size_t r = 0; r < height; ++r) {
        const size_t i = (matrix * height + r) * width + c;
        const float product = (*rows)[matrix * height + r] * (*columns)[matrix * width + c];
        step[i] = g[i] / std::sqrt(std::max(product / bounded, f.epsilon));
      }
    }
  }
  f.step_size = ReferenceStepSize(rule, update, std::sqrt(ReferenceSumOfSquares(*master, width)),
                                  std::sqrt(ReferenceSumOfSquares(step, width)), n);
  for (size_t i = 0; i < n; ++i) (*master)[i] = f.decay * (*master)[i] - f.step_size * step[i];
}

}  // namespace spillway::optim
