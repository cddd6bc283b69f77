// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm (Zhang and Sennrich, arXiv:1910.07467): y = w · x / sqrt(mean(x²) + eps), over rows of
// `width`. fp32, one thread a call on a range of rows.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_NORM_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_NORM_H_

#include <cstdint>

namespace spillway::trainer {

// y may be x. inverse_rms[rows] is kept for the backward.
void RmsNormForward(const float* x, const float* weight, float epsilon, int64_t rows, int64_t width,
                    float* y, float* inverse_rms);

// Adds the input's gradient to dx[rows, width] and the weight's to weight_gradient[width]. A caller
// that cuts rows into fixed blocks gives each its own weight_gradient and adds those up in order.
void RmsNormBackward(const float* dy, const float* x, const float* weight, const float* inverse_rms,
                     int64_t rows, int64_t width, float* dx, float* weight_gradient);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_NORM_H_
