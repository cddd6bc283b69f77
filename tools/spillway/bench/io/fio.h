// SPDX-License-Identifier: Apache-2.0
//
// Runs fio over existing files, to measure the machine's disk independently of the store.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_FIO_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_FIO_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/spillway/bench/io/pass.h"

namespace spillway::bench_io {

// One job: a pass over the files.
struct FioJob {
  Op op = Op::kRead;
  double read_share = 0.5;  // share of a mixed job's bytes that are read
  Pattern pattern = Pattern::kSequential;
  uint32_t block_bytes = 0;
  int depth = 1;             // blocks in flight; each has its own memory
  std::string memory_path;   // a file in huge pages, whose memory is used; empty: plain pages
  bool first_touch = false;  // the files are new
  bool uring = true;         // through io_uring, otherwise libaio
  uint64_t size_bytes = 0;   // of all files
  uint64_t move_bytes = 0;   // moves at most this much of them; 0: everything
  std::vector<std::string> paths;
};

struct FioResult {
  double bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;  // user and system
};

// Returns the version, such as "fio-3.33", or an empty string if there is no fio.
std::string FioVersion();

// Runs a job with O_DIRECT and, through io_uring, registered buffers and files. Starting fio takes
// about a second. NotFound if there is no fio or it failed. Cancelled, after fio has ended, if
// `interrupted` became true.
absl::StatusOr<FioResult> RunFio(const FioJob& job, const std::atomic<bool>& interrupted);

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_FIO_H_
