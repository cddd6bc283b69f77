// SPDX-License-Identifier: Apache-2.0
//
// Runs `spillway bench io`: makes the files, measures the rows in turns with fio, and removes the
// files.
//
// Method. Everything is written before it is measured; this filling is the first-touch row. Each
// round goes over all rows, so that other load on the machine affects all rows alike. In a round
// fio and this benchmark take turns, and in rows that move all data the order alternates from round
// to round. There fio also has a turn beside a load that hashes as many bytes of its memory. The
// store's data and the bare file that fio and the file rows use have the same size. In rows that
// move all data, fio has the depth at which it was fastest in a trial. Without a trial it has the
// depth at which it uses as much memory as this benchmark, because each of its blocks has a buffer
// of its own.

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
  uint64_t memory_bytes = uint64_t{2} << 30;  // to move the data through
  // No round begins after this time, or after twice this time before three rounds are done. Not
  // with `full`.
  double seconds = 60;
  bool full = false;
  bool fio = true;      // compare with fio, if it is installed
  bool verify = false;  // mark written blocks and check read ones; without fio
  // Reports progress: passes over a row done, number of rows, and a description of the current
  // work.
  std::function<void(int, int, std::string_view)> progress;
  std::function<void(std::string_view)> note;  // one sentence: what falls short of the options
  // Makes a folder in the given one, for the duration of the benchmark. All files of the benchmark
  // are in such folders.
  std::function<absl::StatusOr<OwnFolder>(const std::string&)> make_folder = OwnFolder::Make;
};

struct BenchReport {
  Machine machine;
  std::string io_engine;                    // of the store: "uring" or "posix"
  std::string fio_version;                  // empty: no row has rounds of fio
  std::vector<io::DeviceProfile> profiles;  // by folder
  std::vector<Row> rows;
};

// Runs the benchmark. Cancelled if `interrupted` became true. ResourceExhausted, before anything is
// written, if the file systems have too little room: a tenth of their free bytes must stay free. In
// any case the benchmark's files are removed when it returns.
absl::StatusOr<BenchReport> RunBench(const BenchOptions& options,
                                     const std::atomic<bool>& interrupted);

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_BENCH_H_
