// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_PEAK_FLOPS_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_PEAK_FLOPS_H_

#include "absl/status/statusor.h"
#include "spillway/thread_pool.h"

namespace spillway::trainer {

// Measures the operations per second of a product of fp32 matrices on all threads of the pool, as
// BestRate does (best_rate.h). Loads BLAS first if that was not done before, and then returns its
// error: Unimplemented, if BLAS cannot be loaded.
absl::StatusOr<double> MeasurePeakFlops(ThreadPool* pool);

// Measures the bytes per second that all threads of the pool read and write together when they copy
// memory that no cache holds.
double MeasureCopyRate(ThreadPool* pool);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_PEAK_FLOPS_H_
