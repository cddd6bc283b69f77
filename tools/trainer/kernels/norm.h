// SPDX-License-Identifier: Apache-2.0
//
// Norms over rows of `width`: RMSNorm (Zhang and Sennrich, arXiv:1910.07467), y = w · x /
// sqrt(mean(x²) + eps), and LayerNorm (Ba et al., arXiv:1607.06450), y = w · (x − mean(x)) /
// sqrt(variance(x) + eps) + b. fp32; each call runs on the calling thread, for a range of rows.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_NORM_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_NORM_H_

#include <cstdint>

namespace spillway::trainer {

// y may be x. Writes inverse_rms[rows] for the backward.
void RmsNormForward(const float* x, const float* weight, float epsilon, int64_t rows, int64_t width,
                    float* y, float* inverse_rms);

// Adds the input's gradient to dx[rows, width] and the weight's gradient to weight_gradient[width].
// A caller that divides the rows into fixed blocks passes a separate weight_gradient for each block
// and adds these up in order.
void RmsNormBackward(const float* dy, const float* x, const float* weight, const float* inverse_rms,
                     int64_t rows, int64_t width, float* dx, float* weight_gradient);

// y may be x. Writes inverse_deviations[rows] and means[rows] for the backward.
void LayerNormForward(const float* x, const float* weight, const float* bias, float epsilon,
                      int64_t rows, int64_t width, float* y, float* inverse_deviations,
                      float* means);

// As RmsNormBackward, and adds the bias's gradient to bias_gradient[width].
void LayerNormBackward(const float* dy, const float* x, const float* weight,
                       const float* inverse_deviations, const float* means, int64_t rows,
                       int64_t width, float* dx, float* weight_gradient, float* bias_gradient);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_NORM_H_
