// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench io` at work: it makes its files, runs the rows in turns with fio and takes
// everything away again.
//
// Method. Everything is written before it is measured (that filling is the first-touch rows), and
// rounds go over all rows, so that what else the machine does falls on all alike; in each round fio
// and we take turns, who is first changes. The store's data and the bare file that fio and the file
// rows use have the same size. Where a row cycles through more memory than its depth keeps busy,
// fio gets as much memory as we have, which it takes as depth: its blocks have a buffer each.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_BENCH_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_BENCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "io/store/store.h"
#include "tools/spillway/bench/io/machine.h"
#include "tools/spillway/bench/io/own_folder.h"
#include "tools/spillway/bench/io/rows.h"

namespace spillway::bench_io {

struct BenchOptions {
  std::vector<std::string> folders;
  uint64_t size_bytes = uint64_t{2} << 30;    // of the store's data, and of the bare file
  uint64_t memory_bytes = uint64_t{2} << 30;  // to move it through
  double seconds = 60;  // no further round of the main rows is begun after that
  bool full = false;
  bool fio = true;      // where it is installed
  bool verify = false;  // mark what is written, check what is read; without fio
  // What is under way: rows done, rows in all, the row.
  std::function<void(int, int, std::string_view)> progress;
  std::function<void(std::string_view)> note;  // one sentence about something less than asked
  // Makes a folder for the time of the bench in that one; nothing else is made.
  std::function<absl::StatusOr<OwnFolder>(const std::string&)> make_folder = OwnFolder::Make;
};

struct BenchReport {
  Machine machine;
  std::string fio_version;                  // empty: none
  std::vector<io::DeviceProfile> profiles;  // by folder
  std::vector<Row> rows;
};

// Cancelled if `interrupted` became true. ResourceExhausted, before anything is written, if the
// file systems have too little room: a tenth of it stays free. Whatever the end, its files are
// gone.
absl::StatusOr<BenchReport> RunBench(const BenchOptions& options,
                                     const std::atomic<bool>& interrupted);

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_BENCH_H_
