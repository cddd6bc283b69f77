// SPDX-License-Identifier: Apache-2.0
//
// Model FLOP utilisation: the time that a step's arithmetic would take at the machine's peak,
// divided by the time that the step took (Chowdhery et al., PaLM, 2022, appendix B). Recomputed
// activations do not count.

#ifndef SPILLWAY_TOOLS_TRAINER_FLOPS_H_
#define SPILLWAY_TOOLS_TRAINER_FLOPS_H_

#include "tools/hf/config.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

// Returns the floating-point operations of a step's products, forward and backward. Each token
// takes 6 operations for each weight of a matrix (4 if the matrix is frozen, because its gradient
// is not computed), and each layer's attention 12 · query width · the keys that a query sees at
// most.
double StepFlops(const hf::ModelConfig& config, const ModelOptions& options);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_FLOPS_H_
