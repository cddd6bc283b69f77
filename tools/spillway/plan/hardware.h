// SPDX-License-Identifier: Apache-2.0
//
// The machine that `spillway plan` and `spillway simulate` compute with: presets with their
// sources, and the flags that change them. A rate is in bytes per second in one direction.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_HARDWARE_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_HARDWARE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/simulation/links.h"

namespace spillway::command {

// A GPU as its maker describes it.
struct Gpu {
  std::string_view name;  // as --gpu takes it
  std::string_view title;
  double flops = 0;       // of dense 16-bit products with fp32 accumulators, per second
  double flops_fp32 = 0;  // of fp32 products, never TF32
  uint64_t memory_bytes = 0;
  double memory_bytes_per_second = 0;
  double link = 0;  // between pinned memory and the device, as usually measured
  std::string_view source;
  // A whole machine also has these; 0: the user says. The figures above are those of all its GPUs.
  int64_t count = 1;  // GPUs
  uint64_t dram_bytes = 0;
  int64_t drives = 0;
  double drive_read = 0;  // of one drive
  double drive_write = 0;
  uint64_t drive_bytes = 0;
};
std::span<const Gpu> Gpus();
// NotFound names the presets, and the nearest one.
absl::StatusOr<Gpu> FindGpu(std::string_view name);

// Equal drives.
struct Drives {
  int64_t count = 1;
  double read = 3e9;  // of one drive
  double write = 1.5e9;
  uint64_t size_bytes = 0;  // of one drive; 0: not limited
  double both = 0;          // reads and writes of one together; 0: the faster of the two

  // 2^64 - 1 if there are more.
  uint64_t total_bytes() const {
    const auto drives = static_cast<uint64_t>(count);
    return size_bytes > UINT64_MAX / drives ? UINT64_MAX : drives * size_bytes;
  }
};
// Parses "7GB/s", "7/5GB/s" (read/write), "8x7GB/s", "8x7/5GB/s:3.8TB". Without a rate of its own,
// writing has half of reading's, as flash drives have. InvalidArgument says what is wrong, and the
// form.
absl::StatusOr<Drives> ParseDrives(std::string_view text);

// Parses "25GB/s". InvalidArgument unless it is above 0 and below 10^15.
absl::StatusOr<double> ParseRate(std::string_view text);

struct Hardware {
  Gpu gpu;
  uint64_t dram_bytes = 0;
  Drives drives;
  double link = 0;
  // A usual share, and rates of a server CPU's memory; measured ones are better.
  double flops_share = 0.4;    // of the GPU's peak that products reach
  double update_rate = 100e9;  // bytes of state a second that the CPU updates
  double checksum = 80e9;      // bytes a second that the CPU hashes
  double latency_seconds = 0;
  double jitter = 0;
  uint64_t seed = 1;

  simulation::Machine Links() const;
};

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_HARDWARE_H_
