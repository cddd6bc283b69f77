// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a model with their state in one rule and format, as training has them, and a
// pass of the optimizer over all of them. Weights and gradients have 16 bits.

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

// Parameters are counted in rows of so many.
inline constexpr uint64_t kRowElements = 1024;

struct StateOptions {
  Rule rule;
  StateFormat format = StateFormat::kF32;
  uint64_t num_parameters = 0;  // a multiple of kRowElements
  std::string store;            // a folder that is not there yet; empty: all in pinned memory
  uint64_t memory_bytes = 0;    // with a store: the pinned budget
  std::span<uint16_t> gradients;
  bool has_gradients_on_nvme = false;  // a copy of them
  std::function<void(std::string_view)> announce;
};

// Bytes a parameter of weights and state, and of gradients if they are on NVMe.
struct ParameterBytes {
  double read = 0;
  double written = 0;
};

// Thread-compatible. What it made is gone with it.
class UpdatedState {
 public:
  // Everything has been updated some times when it returns: no write is a first touch, and a plan
  // is followed. Cancelled
  // if `interrupted` becomes true, here and below; it and the pool must outlive this.
  static absl::StatusOr<std::unique_ptr<UpdatedState>> Create(const StateOptions& options,
                                                              ThreadPool* pool,
                                                              const std::atomic<bool>& interrupted);

  // Updates every parameter; returns the seconds until the last transfer ended: NVMe has all that
  // was written, and memory what is read ahead for the next pass.
  absl::StatusOr<double> Pass();
  // As the last pass moved them over NVMe, by the engine's count; without a store, as they passed
  // through the processor.
  ParameterBytes bytes() const { return bytes_; }
  // The same by the kernel's count; zeros where it has none, as on a file system in memory.
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
  std::vector<Use> uses_;  // of a pass
  uint64_t read_bytes_ = 0;
  uint64_t written_bytes_ = 0;  // by `uses_`
  int64_t step_ = 0;
  ParameterBytes bytes_;
  ParameterBytes kernel_bytes_;
};

// Bytes of weights and state together.
absl::StatusOr<uint64_t> StateBytes(const Rule& rule, StateFormat format, uint64_t num_parameters);

}  // namespace spillway::bench_update

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_UPDATED_STATE_H_
