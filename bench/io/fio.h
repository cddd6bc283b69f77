// SPDX-License-Identifier: Apache-2.0
//
// Runs fio over an existing file, as the yardstick of this machine's disk.

#ifndef SPILLWAY_BENCH_IO_FIO_H_
#define SPILLWAY_BENCH_IO_FIO_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "io/io_engine.h"

namespace spillway::bench {

// Passes over a file, each from its start to its end, that differ in their depth.
struct Passes {
  io::IoOp op = io::IoOp::kRead;
  std::string path;
  uint64_t file_bytes = 0;
  uint32_t request_bytes = 0;
  bool huge_pages = false;  // buffers in 2 MiB pages of the system's pool, else in ordinary ones
  std::vector<int> queue_depths;
};

struct PassResult {
  double seconds = 0;
  double cpu_seconds = 0;  // user and system
};

// A result for each depth, by fio with io_uring, O_DIRECT, registered buffers and files: one
// process, since starting it takes about a second. NotFound if there is no fio.
absl::StatusOr<std::vector<PassResult>> RunFio(const Passes& passes);

}  // namespace spillway::bench

#endif  // SPILLWAY_BENCH_IO_FIO_H_
