// SPDX-License-Identifier: Apache-2.0
//
// Model FLOP utilisation: the time that a step's arithmetic would take at the machine's peak,
// divided by the time that the step took (Chowdhery et al., PaLM, 2022, appendix B). Recomputed
// activations do not count.

#ifndef SPILLWAY_TOOLS_TRAINER_FLOPS_H_
#define SPILLWAY_TOOLS_TRAINER_FLOPS_H_

#include "spillway/thread_pool.h"
#include "tools/hf/config.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

// Returns the floating-point operations of a step's products, forward and backward. Each token
// takes 6 operations for each weight of a matrix (4 if the matrix is frozen, because its gradient
// is not computed) and 12 · layers · query width · window length for attention.
double StepFlops(const hf::ModelConfig& config, const ModelOptions& options);

// Measures the operations per second of a product of fp32 matrices on all threads of the pool: the
// best of several rounds, for about 50 ms. REQUIRES: BLAS is loaded.
double MeasurePeakFlops(ThreadPool* pool);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_FLOPS_H_
