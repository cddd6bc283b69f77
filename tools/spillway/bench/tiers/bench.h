// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench tiers` at work: every edge between the tiers, through the engine, as a share of
// what its hardware does alone.
//
// Method. Rounds go over all edges; in each, an edge and its ceiling take turns, who is first
// changes, and a share is formed within its round. Everything is written before it is measured.

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
  uint64_t size_bytes = kGiB;          // of what passes between NVMe and memory
  uint64_t memory_bytes = 512 * kMiB;  // the pinned budget; the device's is an eighth of it
  uint64_t block_bytes = 4 * kMiB;     // a tile
  double seconds = 60;                 // no further round is begun after that
  // What is under way: passes done, twice (there is no last one), the edge.
  std::function<void(int, int, std::string_view)> progress;
  std::function<void(std::string_view)> note;  // one sentence about something less than asked
  // Makes a folder in that one, which is there until the bench ends.
  std::function<absl::StatusOr<bench_io::OwnFolder>(const std::string&)> make_folder =
      bench_io::OwnFolder::Make;
};

struct Sample {
  double bytes_per_second = 0;
  double ceiling_bytes_per_second = 0;
  double nvme_bytes_per_second = 0;  // beside it
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
  bool cached = false;    // the file system took no O_DIRECT
  uint64_t block_bytes = 0;
  std::vector<Row> rows;
};

// Cancelled if `interrupted` became true. ResourceExhausted, before anything is written, if the
// file system has too little room: a tenth of it stays free. NotFound or Unimplemented if there is
// no such device. Whatever the end, its files are gone.
absl::StatusOr<BenchReport> RunBench(const BenchOptions& options,
                                     const std::atomic<bool>& interrupted);

}  // namespace spillway::bench_tiers

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_BENCH_H_
