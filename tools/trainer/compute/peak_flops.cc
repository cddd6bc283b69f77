// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/compute/peak_flops.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "src/base/status_macros.h"
#include "tools/trainer/compute/best_rate.h"
#include "tools/trainer/kernels/gemm.h"

namespace spillway::trainer {

absl::StatusOr<double> MeasurePeakFlops(ThreadPool* pool) {
  SPILLWAY_RETURN_IF_ERROR(LoadBlas(pool->num_threads()));
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSide = 384;
  constexpr double kFlops = 2.0 * kSide * kSide * kSide;
  const std::vector<float> a(kSide * kSide, 0.5F);
  const std::vector<float> b(kSide * kSide, 0.25F);
  std::vector<float> c(kSide * kSide * static_cast<size_t>(pool->num_threads()));
  return BestRate(kFlops * pool->num_threads(), [&] {
    const Clock::time_point start = Clock::now();
    pool->ParallelFor(pool->num_threads(), [&](int64_t thread) {
      Multiply({kSide, kSide, kSide}, Plain(a.data(), kSide), Plain(b.data(), kSide),
               Into::kOverwrite, c.data() + thread * kSide * kSide, kSide);
    });
    return std::chrono::duration<double>(Clock::now() - start).count();
  });
}

double MeasureCopyRate(ThreadPool* pool) {
  using Clock = std::chrono::steady_clock;
  constexpr size_t kBytes = size_t{64} << 20;  // of a thread
  std::vector<std::vector<std::byte>> from(static_cast<size_t>(pool->num_threads()),
                                           std::vector<std::byte>(kBytes));
  auto to = from;
  return BestRate(2.0 * kBytes * pool->num_threads(), [&] {
    const Clock::time_point start = Clock::now();
    pool->ParallelFor(pool->num_threads(), [&](int64_t thread) {
      const auto i = static_cast<size_t>(thread);
      std::memcpy(to[i].data(), from[i].data(), kBytes);
    });
    return std::chrono::duration<double>(Clock::now() - start).count();
  });
}

}  // namespace spillway::trainer
