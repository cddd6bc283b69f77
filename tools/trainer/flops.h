// SPDX-License-Identifier: Apache-2.0
//
// Model FLOP utilisation: what a step's arithmetic would take at the machine's peak, over what the
// step took (Chowdhery et al., PaLM, 2022, appendix B). Recomputed activations do not count.

#ifndef SPILLWAY_TOOLS_TRAINER_FLOPS_H_
#define SPILLWAY_TOOLS_TRAINER_FLOPS_H_

#include "spillway/thread_pool.h"
#include "tools/hf/config.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

// Floating-point operations of a step's products, forward and backward: 6 for each weight of a
// matrix and token (4 where it is frozen: its gradient is not computed), and 12 for each layer,
// query width and position of the window for attention.
double StepFlops(const hf::ModelConfig& config, const ModelOptions& options);

// Operations a second of a product of fp32 matrices on all threads of the pool: the best of a few,
// some 50 ms. BLAS must be loaded.
double MeasurePeakFlops(ThreadPool* pool);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_FLOPS_H_
