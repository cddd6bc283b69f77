// SPDX-License-Identifier: Apache-2.0
//
// The streaming AdamW pass: one set of tiles (gradient, master, moments, weight) is leased in
// pinned memory, updated by the kernel on all threads, and released; then the next. What brings the
// next tiles ahead is the engine, told by Prefetch(uses()).

#ifndef SPILLWAY_OPTIM_ADAMW_H_
#define SPILLWAY_OPTIM_ADAMW_H_

#include <cstdint>
#include <span>
#include <vector>

#include "spillway/optimizer.h"
#include "src/optim/adamw_kernel.h"

namespace spillway::optim {

class StreamingAdamW final : public AdamW {
 public:
  // REQUIRES what AdamW::Create checks.
  StreamingAdamW(Engine* engine, ThreadPool* pool, AdamWOptions options,
                 std::vector<AdamWTensors> parameters);

  const std::vector<Use>& uses() const override { return uses_; }
  absl::Status Step(const AdamWStep& step) override;
  uint64_t min_pinned_bytes() const override { return min_pinned_bytes_; }

 private:
  // Leases one tile of a parameter's tensors, updates it and releases them.
  absl::Status UpdateTile(const AdamWFactors& factors, const AdamWTensors& tensors, uint64_t tile);

  Engine* const engine_;
  ThreadPool* const pool_;
  const AdamWOptions options_;
  const std::vector<AdamWTensors> parameters_;
  std::vector<Use> uses_;
  uint64_t min_pinned_bytes_ = 0;
};

// The pinned bytes within which leases of `lease_bytes`, taken in this order and held together,
// always find room. With the first k−1 held and everything else out of the way, the free bytes lie
// in at most k gaps. If all were smaller than the k-th lease, less than k·l_k would be free; so a
// budget of (l_1 + … + l_(k−1)) + k·l_k has a gap that holds it, wherever the others lie. Sizes are
// rounded up to frames of 4 KiB.
uint64_t PinnedBytesForLeases(std::span<const uint64_t> lease_bytes);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_ADAMW_H_
