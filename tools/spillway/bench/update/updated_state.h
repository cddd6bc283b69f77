// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a model with their state for one rule and format, as in training, and a pass of
// the optimizer over all of them. Weights and gradients have 16 bits.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_UPDATED_STATE_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_UPDATED_STATE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"

namespace spillway::bench_update {

// The number of parameters in a row of a tensor.
inline constexpr uint64_t kRowElements = 1024;

struct StateOptions {
  Rule rule;
  StateFormat format = StateFormat::kF32;
  uint64_t num_parameters = 0;  // a multiple of kRowElements
  std::string store;            // a folder that does not exist yet; empty: all in pinned memory
  uint64_t memory_bytes = 0;    // with a store: the pinned budget
  std::span<uint16_t> gradients;
  bool has_gradients_on_nvme = false;  // updates read a copy of them on NVMe
  std::function<void(std::string_view)> announce;
};

// Bytes of weights and state per parameter, and of gradients if they are on NVMe.
struct ParameterBytes {
  double read = 0;
  double written = 0;
};

// Thread-compatible. The destructor releases all that it made.
class UpdatedState {
 public:
  // Runs a few passes before it returns, so that no later write is a first touch and a plan is
  // followed. Here and below: Cancelled if `interrupted` becomes true. `interrupted` and the pool
  // must outlive this object.
  static absl::StatusOr<std::unique_ptr<UpdatedState>> Create(const StateOptions& options,
                                                              ThreadPool* pool,
                                                              const std::atomic<bool>& interrupted);

  // Updates every parameter. Returns the seconds until the last transfer ended: all that was
  // written is on NVMe, and all that is read ahead for the next pass is in memory.
  absl::StatusOr<double> Pass();
  // The bytes that the last pass moved to and from NVMe, by the engine's count. If there is no
  // store, the bytes that its leases read and wrote in memory.
  ParameterBytes bytes() const { return bytes_; }
  // The same by the kernel's count. Zeros if the kernel has no count, as on a file system in
  // memory.
  ParameterBytes kernel_bytes() const { return kernel_bytes_; }
  EngineStats Stats() const { return engine_->Stats(); }

 private:
  UpdatedState(std::unique_ptr<Engine> engine, const StateOptions& options,
               const std::atomic<bool>& interrupted)
      : engine_(std::move(engine)), options_(options), interrupted_(interrupted) {}

  absl::Status Add(uint64_t first_row, uint64_t rows);
  absl::StatusOr<TensorId> AddGradients(const TensorSpec& weight, std::span<uint16_t> gradients);
  absl::Status Update();
  absl::StatusOr<std::chrono::steady_clock::time_point> AwaitQuiet(const Traffic& expected);
  absl::Status CheckGoing() const;
  ParameterBytes PerParameter(const Traffic& traffic) const;

  const std::unique_ptr<Engine> engine_;
  const StateOptions options_;
  const std::atomic<bool>& interrupted_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<size_t> parameters_;
  std::vector<Use> uses_;  // the leases of one pass
  uint64_t read_bytes_ = 0;
  uint64_t written_bytes_ = 0;  // both: the bytes that `uses_` read and write
  int64_t step_ = 0;
  ParameterBytes bytes_;
  ParameterBytes kernel_bytes_;
};

// Returns the bytes of weights and state together.
absl::StatusOr<uint64_t> StateBytes(const Rule& rule, StateFormat format, uint64_t num_parameters);

}  // namespace spillway::bench_update

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_UPDATED_STATE_H_
