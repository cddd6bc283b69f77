// SPDX-License-Identifier: Apache-2.0
//
// Runs `spillway bench update`: measures the parameters per second of each rule and format, with
// all data in memory and with all of it on NVMe, and compares them with what the hardware does with
// as many bytes.
//
// Method. The formats of a rule are measured together. In each round every format, in memory and on
// NVMe, takes turns with its limits. The order alternates from round to round, and a share is
// formed within its round.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_BENCH_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_BENCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "spillway/optimizer.h"
#include "spillway/types.h"
#include "tools/spillway/bench/io/machine.h"
#include "tools/spillway/bench/io/own_folder.h"
#include "tools/spillway/bench/update/pairs.h"
#include "tools/spillway/bench/update/updated_state.h"

namespace spillway::bench_update {

enum class Where : uint8_t { kDram, kNvme };
std::string_view NameOf(Where where);  // "dram", "nvme"

struct BenchOptions {
  std::string folder;  // empty: only in memory
  std::vector<RuleFormats> pairs;
  uint64_t num_parameters = uint64_t{64} << 20;
  uint64_t memory_bytes = 128 * kMiB;  // the pinned budget of state on NVMe
  Where gradients = Where::kDram;      // where an update of state on NVMe reads them
  int num_threads = 1;
  double seconds = 120;  // a rule begins no further round after its share of it
  // Reports progress: rounds of a format done, the same number again (the total is not known), and
  // the rule and its format.
  std::function<void(int, int, std::string_view)> progress;
  std::function<void(std::string_view)> note;  // one sentence: what falls short of the options
  // Makes a folder in the given one, for the duration of the benchmark.
  std::function<absl::StatusOr<bench_io::OwnFolder>(const std::string&)> make_folder =
      bench_io::OwnFolder::Make;
};

// The rates of one round, in parameters per second.
struct Sample {
  double update = 0;
  double memory = 0;  // for kDram: an in-place update of as many bytes
  double kernel = 0;  // for kNvme: the update in memory, plus hashing its bytes
  double fio = 0;     // for kNvme: fio with the same mix of bytes; 0: no fio, or it failed
};

struct Row {
  Rule rule;
  StateFormat format = StateFormat::kF32;
  Where where = Where::kDram;
  ParameterBytes bytes;
  ParameterBytes kernel_bytes;  // for kNvme: counted by the operating system; zeros: no count
  std::vector<Sample> samples;  // by round
};

struct BenchReport {
  bench_io::Machine machine;
  std::string io_engine;  // "uring" or "posix"; empty without a folder
  std::string fio;        // version; empty: no fio
  bool cached = false;    // see bench_io::IsCached
  uint64_t num_parameters = 0;
  uint64_t memory_bytes = 0;
  Where gradients = Where::kDram;
  int num_threads = 1;
  std::vector<Row> rows;
};

// Runs the benchmark. Cancelled if `interrupted` became true. ResourceExhausted, before anything is
// written, if there is too little memory, or too little room in the file system: a tenth of its
// free bytes must stay free. In any case the benchmark's files are removed when it returns.
absl::StatusOr<BenchReport> RunBench(const BenchOptions& options,
                                     const std::atomic<bool>& interrupted);

}  // namespace spillway::bench_update

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_BENCH_H_
