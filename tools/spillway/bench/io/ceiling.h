// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench io --ceiling`: measures how many bytes a second the store could move if its
// devices took no time, and the CPU time of the store's parts. It answers "how many drives can this
// machine feed?"
//
// Method. The page store runs over NopIoEngine, so only hashing, bookkeeping and the submission of
// requests remain. Each block of one mebibyte has its own memory, and no cache holds all of it. A
// block is "read" into the memory that it was written from, so its checksum matches. Each round
// takes every number of hashing threads in turn, and after each one measures the same number of
// threads that only hash the same memory. The report has the medians over the rounds.

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
  std::string folder;         // holds the store's catalog and empty segments meanwhile
  uint64_t memory_bytes = 0;  // to move the data through; also the size of the store's data
  int rounds = 5;
  std::function<void(int, int, std::string_view)> progress;
  std::function<void(std::string_view)> note;  // one sentence: what falls short of the options
  // As in BenchOptions.
  std::function<absl::StatusOr<OwnFolder>(const std::string&)> make_folder = OwnFolder::Make;
};

// Medians over the rounds.
struct CeilingRow {
  io::IoOp op = io::IoOp::kRead;
  int hash_threads = 1;
  double bytes_per_second = 0;
  double memory_hash_bytes_per_second = 0;  // when as many threads only hash
  double hash_cpu_seconds_per_gib = 0;
  double bookkeeping_cpu_seconds_per_gib = 0;  // neither hashing nor submission
  double submission_cpu_seconds_per_gib = 0;
  // The rate's ratio to the rate with one thread in the same round; 1 for one thread.
  double gain = 1;
  double memory_hash_gain = 1;
};

struct CeilingReport {
  Machine machine;
  std::vector<CeilingRow> rows;
};

// Runs the measurement. Cancelled if `interrupted` became true; FailedPrecondition if the kernel
// provides no io_uring. ResourceExhausted, before anything is made, if the file system has too
// little room for the segments or there is too little memory.
absl::StatusOr<CeilingReport> RunCeiling(const CeilingOptions& options,
                                         const std::atomic<bool>& interrupted);

nlohmann::ordered_json ToJson(const CeilingReport& report, std::string_view commit);
std::string ToTable(const CeilingReport& report, std::string_view commit);

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_CEILING_H_
