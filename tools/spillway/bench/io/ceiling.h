// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench io --ceiling`: how many bytes a second the store could move if its devices took
// no time, and what CPU time its parts take. It answers "how many drives can this feed?"
//
// Method. The page store works over NopIoEngine, so only hashing, bookkeeping and the handing over
// of requests remain. Blocks of one mebibyte lie in memory of their own that no cache holds: what
// is "read" is what was written from there, so that checksums match. Each round takes every number
// of hashing threads in turn, and beside each the same number of threads hashing the same memory
// alone; medians over rounds are reported.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_CEILING_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_CEILING_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "io/io_engine.h"
#include "tools/spillway/bench/io/machine.h"
#include "tools/spillway/bench/io/own_folder.h"

namespace spillway::bench_io {

struct CeilingOptions {
  std::string folder;         // where the store's catalog and empty segments are for a while
  uint64_t memory_bytes = 0;  // to move through: the store's data
  int rounds = 5;
  std::function<void(int, int, std::string_view)> progress;
  // As BenchOptions.
  std::function<absl::StatusOr<OwnFolder>(const std::string&)> make_folder = OwnFolder::Make;
};

// Medians over the rounds.
struct CeilingRow {
  io::IoOp op = io::IoOp::kRead;
  int hash_threads = 1;
  double bytes_per_second = 0;
  double memory_hash_bytes_per_second = 0;  // as many threads hashing alone
  double hash_cpu_seconds_per_gib = 0;
  double bookkeeping_cpu_seconds_per_gib = 0;  // all that is neither of the others
  double submission_cpu_seconds_per_gib = 0;
  // Against one thread in the same round; 1 for the first row.
  double gain = 1;
  double memory_hash_gain = 1;
};

struct CeilingReport {
  Machine machine;
  std::vector<CeilingRow> rows;
};

// As many bytes a second as `num_threads` hash together, each a page of a mebibyte at a time.
double HashRate(std::span<std::byte> memory, int num_threads);

// Cancelled if `interrupted` became true; FailedPrecondition without io_uring.
absl::StatusOr<CeilingReport> RunCeiling(const CeilingOptions& options,
                                         const std::atomic<bool>& interrupted);

nlohmann::ordered_json ToJson(const CeilingReport& report, std::string_view commit);
std::string ToTable(const CeilingReport& report, std::string_view commit);

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_CEILING_H_
