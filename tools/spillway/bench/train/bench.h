// SPDX-License-Identifier: Apache-2.0
//
// Runs `spillway bench train`: steps of models with random weights, whose state is all on the
// device, in pinned memory or on NVMe.
//
// Method. Each model in each place is an engine of its own. Its first steps are not measured: they
// are recorded and planned. Then whole steps are timed, and the medians count. In one more step
// each operation is timed alone.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_TRAIN_BENCH_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_TRAIN_BENCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "spillway/stats.h"
#include "tools/hf/config.h"
#include "tools/spillway/bench/io/machine.h"
#include "tools/spillway/bench/io/own_folder.h"
#include "tools/spillway/bench/train/timed_compute.h"
#include "tools/spillway/train/engine_flags.h"
#include "tools/trainer/model.h"

namespace spillway::bench_train {

// Where weights, gradients and state rest.
enum class Where : uint8_t { kDevice, kPinned, kNvme };
inline constexpr size_t kNumPlaces = 3;
std::string_view NameOf(Where where);  // "device", "pinned", "nvme"

struct BenchModel {
  std::string name;
  hf::ModelConfig config;
};

struct BenchOptions {
  std::string folder;  // for state on NVMe; empty: not measured
  std::vector<BenchModel> models;
  std::vector<Where> places;
  command::EngineFlags engine;   // the device, threads, and budgets if they are given
  trainer::ModelOptions recipe;  // precision, formats, and the tokens of a step
  int64_t steps = 5;             // that are measured
  std::function<void(int, int, std::string_view)> progress;
  std::function<void(std::string_view)> note;
  // Makes a folder in the given one, for the duration of the benchmark.
  std::function<absl::StatusOr<bench_io::OwnFolder>(const std::string&)> make_folder =
      bench_io::OwnFolder::Make;
};

// Medians over the steps, in seconds.
struct StepSeconds {
  double step = 0;
  double walk = 0;  // forward and backward
  double update = 0;
  double computing = 0;  // PlanStats::compute_seconds
  double transfers = 0;  // PlanStats::transfer_seconds
  double waiting = 0;    // for bytes
};

struct Row {
  std::string model;
  uint64_t num_parameters = 0;
  Where where = Where::kDevice;
  std::string skipped;                          // why it was not measured; else empty
  int64_t tokens = 0;                           // of a step
  uint64_t device_bytes = 0, pinned_bytes = 0;  // budgets
  uint64_t workspace_bytes = 0;
  double step_flops = 0;
  StepSeconds seconds;
  // Of one step: what forward and backward take beyond their operations and the waiting, to take
  // leases.
  double lease_seconds = 0;
  uint64_t nvme_bytes = 0, copied_bytes = 0;  // of a step
  OperationTimes operations;
};

struct BenchReport {
  bench_io::Machine machine;
  std::string device;        // as EngineStats names it
  std::string library;       // of a GPU's products
  double product_flops = 0;  // of the best square product alone; 0: not measured here
  double copy_rate = 0;      // bytes read and written a second by a copy on the device; 0: likewise
  std::vector<Row> rows;
};

// Runs the benchmark. A model for which a place has no room is a row that says so. Cancelled if
// `interrupted` became true. Unimplemented: there is no such device.
absl::StatusOr<BenchReport> RunBench(const BenchOptions& options,
                                     const std::atomic<bool>& interrupted);

}  // namespace spillway::bench_train

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_TRAIN_BENCH_H_
