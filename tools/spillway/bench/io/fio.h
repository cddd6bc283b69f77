// SPDX-License-Identifier: Apache-2.0
//
// Runs fio over existing files, as the yardstick of this machine's disk.

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
  double read_share = 0.5;  // of the bytes of a mixed job
  Pattern pattern = Pattern::kSequential;
  uint32_t block_bytes = 0;
  int depth = 1;             // blocks under way; each has memory of its own
  bool huge_pages = false;   // 2 MiB pages of the system's pool, else ordinary ones
  bool first_touch = false;  // the files are new
  uint64_t size_bytes = 0;   // of all files
  uint64_t move_bytes = 0;   // of them: at most that much is moved
  std::vector<std::string> paths;
};

struct FioResult {
  double bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;  // user and system
};

// "fio-3.33", or empty if there is none.
std::string FioVersion();

// With io_uring, O_DIRECT, registered buffers and files. Starting it takes about a second. NotFound
// if there is no fio or it failed, Cancelled if `interrupted` became true: it is ended then.
absl::StatusOr<FioResult> RunFio(const FioJob& job, const std::atomic<bool>& interrupted);

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_FIO_H_
