// SPDX-License-Identifier: Apache-2.0
//
// What `spillway bench io` measures: its rows, and what a row came to.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_ROWS_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_ROWS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/store/store.h"
#include "tools/spillway/bench/io/memory.h"
#include "tools/spillway/bench/io/pass.h"

namespace spillway::bench_io {

inline constexpr uint32_t kKiB = 1 << 10;
inline constexpr uint32_t kMiB = 1 << 20;
inline constexpr double kGiB = 1 << 30;
inline constexpr double kGb = 1e9;
inline constexpr uint64_t kPageBytes = kMiB;  // of a store whose pages nobody chose

// Which way the bytes go.
enum class Through : uint8_t {
  kStore,      // pages of a tensor: catalog, extents, checksums, io_uring (or what auto gives)
  kUringFile,  // a bare file, by the ring
  kPosixFile,  // a bare file, by threads
};
std::string_view NameOf(Through through);  // "store", "uring file", "posix file"

struct RowSpec {
  Op op = Op::kRead;
  Pattern pattern = Pattern::kSequential;
  uint32_t block_bytes = kMiB;
  int depth = 1;
  Through through = Through::kStore;
  bool first_touch = false;   // blocks that were never written; else all were
  bool huge_pages = true;     // the largest pages to be had, or plain ones
  uint64_t memory_bytes = 0;  // that the row cycles through
  double most_seconds = 1e9;  // of one pass
  int rounds = 1;             // at most
  // Each round also moves the blocks without checksums: what the rest of the store costs.
  bool also_without_checksums = false;
};

bool HasChecksums(const RowSpec& spec);
// "read 1 MiB sequential, depth 64, store".
std::string Describe(const RowSpec& spec);

struct RowOptions {
  uint64_t size_bytes = 0;    // of the data
  uint64_t memory_bytes = 0;  // to cycle through
  bool full = false;
  std::vector<io::DeviceProfile> profiles;  // by folder
};
// The blocks under way that keep the devices' calibrated queues full while as many are hashed or
// wait: at least four, and no more than the memory holds.
int CalibratedDepth(const RowOptions& options, Op op, uint32_t block_bytes);
// Rows in the order of a round. First-touch rows are not among them: filling is what measures
// those.
std::vector<RowSpec> MakeRows(const RowOptions& options);

// One pass, ours or fio's.
struct Sample {
  double bytes_per_second = 0;
  double cpu_seconds_per_gib = 0;
  double checksum_seconds_per_gib = 0;  // of those, on checksums; fio takes none
};

struct Row {
  RowSpec spec;
  PageKind pages = PageKind::kPlain;
  uint64_t moved_bytes = 0;               // by the last pass
  bool cached = false;                    // the file system took no O_DIRECT
  std::vector<Sample> ours;               // by round
  std::vector<Sample> fio;                // likewise; empty: no fio, or not asked
  std::vector<Sample> without_checksums;  // likewise; empty: not asked
  std::vector<double>
      hash_bytes_per_second;  // by round: of all cores together; empty: no checksums
  int fio_depth = 0;
  bool fio_huge_pages = false;
  std::vector<double> latency_seconds;  // sorted, of all rounds
};

// Lowest, middle and highest.
struct Summary {
  double low = 0, median = 0, high = 0;
};
Summary Summarize(std::vector<double> values);
Summary Rate(const std::vector<Sample>& samples);
double CpuSecondsPerGib(const std::vector<Sample>& samples);       // median
double ChecksumSecondsPerGib(const std::vector<Sample>& samples);  // median
// Ours as a share of fio's rate, each within its round. Zeros without fio.
Summary ShareOfFio(const Row& row);

// What no storage engine on this machine does better: fio, or kHashShare of what the cores hash,
// whichever is less.
enum class Limit : uint8_t { kNone, kFio, kHash };
inline constexpr double kHashShare = 0.9;
std::string_view NameOf(Limit limit);  // "none", "fio", "hash"
struct ShareOfLimit {
  Limit limit = Limit::kNone;         // of most rounds
  double limit_bytes_per_second = 0;  // median
  Summary share;                      // each within its round
};
ShareOfLimit CompareWithLimit(const Row& row);
// The q-quantile of sorted values, 0 <= q <= 1; 0 for none.
double Quantile(const std::vector<double>& sorted, double q);

// What is wrong with a row's rates: "page cache", "faster than memory", "more CPU than there is".
// `copy_bytes_per_second` is what one thread copies here.
std::vector<std::string> Doubts(const Row& row, double copy_bytes_per_second, int num_cpus);

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_ROWS_H_
