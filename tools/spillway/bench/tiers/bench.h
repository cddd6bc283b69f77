// SPDX-License-Identifier: Apache-2.0
//
// Runs `spillway bench tiers`: measures the engine's rate over every edge between the tiers, as a
// share of the rate that the edge's hardware reaches alone.
//
// Method. Each round goes over all edges. In a round an edge and its ceiling take turns, in an
// order that alternates from round to round, and a share is formed within its round. Everything is
// written before it is measured.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_BENCH_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_BENCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "tools/spillway/bench/io/machine.h"
#include "tools/spillway/bench/io/own_folder.h"
#include "tools/spillway/bench/tiers/edges.h"

namespace spillway::bench_tiers {

struct BenchOptions {
  std::string folder = ".";
  Device device = Device::Host();
  uint64_t size_bytes = kGiB;          // data that passes between NVMe and memory
  uint64_t memory_bytes = 512 * kMiB;  // the pinned budget; the device's is an eighth of it
  uint64_t block_bytes = 4 * kMiB;     // a tile
  double seconds = 60;                 // no further round begins after that
  // Reports progress: passes done, the same number again (the total is not known), and the edge.
  std::function<void(int, int, std::string_view)> progress;
  std::function<void(std::string_view)> note;  // one sentence: what falls short of the options
  // Makes a folder in the given one, for the duration of the benchmark.
  std::function<absl::StatusOr<bench_io::OwnFolder>(const std::string&)> make_folder =
      bench_io::OwnFolder::Make;
};

struct Sample {
  double bytes_per_second = 0;
  double ceiling_bytes_per_second = 0;
  double nvme_bytes_per_second = 0;  // NVMe's rate at the same time
};

struct Row {
  Edge edge = Edge::kNvmePinned;
  bool beside_nvme = false;
  std::vector<Sample> samples;  // by round
};

struct BenchReport {
  bench_io::Machine machine;
  std::string device;     // "host", or the GPU's name
  std::string io_engine;  // "uring" or "posix"
  bool cached = false;    // see bench_io::IsCached
  uint64_t block_bytes = 0;
  std::vector<Row> rows;
};

// Runs the benchmark. Cancelled if `interrupted` became true. ResourceExhausted, before anything is
// written, if there is too little memory, or too little room in the file system: a tenth of its
// free bytes must stay free. NotFound or Unimplemented if there is no such device. In any case the
// benchmark's files are removed when it returns.
absl::StatusOr<BenchReport> RunBench(const BenchOptions& options,
                                     const std::atomic<bool>& interrupted);

}  // namespace spillway::bench_tiers

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_BENCH_H_
