// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench update` at work: parameters a second of each rule and format, with all of it in
// memory and with all of it on NVMe, beside what the hardware does with as many bytes.
//
// Method. The formats of a rule are measured together. In each round every format, in memory and on
// NVMe, takes turns with its limits; who is first changes, and a share is formed within its round.

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
  std::string folder;  // empty: in memory alone
  std::vector<RuleFormats> pairs;
  uint64_t num_parameters = uint64_t{64} << 20;
  uint64_t memory_bytes = 128 * kMiB;  // the pinned budget of state on NVMe
  Where gradients = Where::kDram;      // of state on NVMe
  int num_threads = 1;
  double seconds = 120;  // no further round is begun after a rule's share of that
  // What is under way: passes done, twice (there is no last one), the rule and its format.
  std::function<void(int, int, std::string_view)> progress;
  std::function<void(std::string_view)> note;  // one sentence about something less than asked
  // Makes a folder in that one, which is there until the bench ends.
  std::function<absl::StatusOr<bench_io::OwnFolder>(const std::string&)> make_folder =
      bench_io::OwnFolder::Make;
};

// Of one round, all in parameters a second.
struct Sample {
  double update = 0;
  double memory = 0;  // of kDram: the in-place update of as many bytes
  double kernel = 0;  // of kNvme: updated in memory, and hashed what was read and written
  double fio = 0;     // of kNvme: the same mix of bytes; 0: no fio
};

struct Row {
  Rule rule;
  StateFormat format = StateFormat::kF32;
  Where where = Where::kDram;
  ParameterBytes bytes;
  ParameterBytes kernel_bytes;  // of kNvme: the same by the kernel's count; zeros: it has none
  std::vector<Sample> samples;  // by round
};

struct BenchReport {
  bench_io::Machine machine;
  std::string io_engine;  // "uring" or "posix"; empty without a folder
  std::string fio;        // its version, or empty
  bool cached = false;    // the file system took no O_DIRECT
  uint64_t num_parameters = 0;
  uint64_t memory_bytes = 0;
  Where gradients = Where::kDram;
  int num_threads = 1;
  std::vector<Row> rows;
};

// Cancelled if `interrupted` became true. ResourceExhausted, before anything is written, if there
// is too little memory, or too little room in the file system: a tenth of it stays free. Whatever
// the end, its files are gone.
absl::StatusOr<BenchReport> RunBench(const BenchOptions& options,
                                     const std::atomic<bool>& interrupted);

}  // namespace spillway::bench_update

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_BENCH_H_
