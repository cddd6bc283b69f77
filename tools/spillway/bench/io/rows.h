// SPDX-License-Identifier: Apache-2.0
//
// The rows of `spillway bench io`: what each row measures, and its results.

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
inline constexpr uint64_t kPageBytes = kMiB;  // the default page size of a store

// The path that the bytes take.
enum class Through : uint8_t {
  kStore,      // pages of a tensor: catalog, extents, checksums, io_uring (if available)
  kUringFile,  // a bare file, through io_uring
  kPosixFile,  // a bare file, through threads
};
std::string_view NameOf(Through through);  // "store", "uring file", "posix file"

struct RowSpec {
  Op op = Op::kRead;
  Pattern pattern = Pattern::kSequential;
  uint32_t block_bytes = kMiB;
  int depth = 1;
  Through through = Through::kStore;
  bool first_touch = false;   // the blocks were never written; otherwise all were
  bool huge_pages = true;     // the largest pages available, otherwise plain ones
  uint64_t memory_bytes = 0;  // memory that the row cycles through
  double most_seconds = 1e9;  // no block of a pass begins after that
  int rounds = 1;             // at most
  // Each round also moves the blocks without checksums, to measure the cost of the rest of the
  // store.
  bool also_without_checksums = false;
};

bool HasChecksums(const RowSpec& spec);
// Returns "read 1 MiB sequential, depth 64, store".
std::string Describe(const RowSpec& spec);

struct RowOptions {
  uint64_t size_bytes = 0;    // size of the data
  uint64_t memory_bytes = 0;  // memory to cycle through
  bool full = false;
  std::vector<io::DeviceProfile> profiles;  // by folder
};
// Returns the number of blocks in flight that keeps the devices' calibrated queues full while as
// many blocks again are hashed or wait. At least four, but no more than the memory holds.
int CalibratedDepth(const RowOptions& options, Op op, uint32_t block_bytes);
// Returns the rows in the order of a round. The first-touch row is not among them, because it is
// measured while the files are filled.
std::vector<RowSpec> MakeRows(const RowOptions& options);

// The rates of one pass, of this benchmark or of fio.
struct Sample {
  double bytes_per_second = 0;
  double cpu_seconds_per_gib = 0;
  double checksum_seconds_per_gib = 0;  // the part spent on checksums; 0 for fio
};

struct Row {
  RowSpec spec;
  PageKind pages = PageKind::kPlain;
  uint64_t moved_bytes = 0;  // by this benchmark's last pass
  bool cached = false;       // see IsCached
  std::vector<Sample> ours;  // by round
  // By round; empty: no fio, or not requested. Has fewer rounds than `ours` if fio failed.
  std::vector<Sample> fio;
  // By round: of fio while as many bytes of the same memory are hashed as it moves by itself.
  // Empty: as for `fio`, and in rows without checksums and brief rows.
  std::vector<Sample> fio_beside_hashing;
  std::vector<Sample> without_checksums;  // by round; empty: not requested
  // By round: the rate of the default hashing threads together; empty if the row has no checksums.
  std::vector<double> hash_bytes_per_second;
  int fio_depth = 0;
  bool fio_huge_pages = false;
  std::vector<double> latency_seconds;  // sorted, of all rounds
};

// The lowest value, the median and the highest value.
struct Summary {
  double low = 0, median = 0, high = 0;
};
Summary Summarize(std::vector<double> values);
Summary Rate(const std::vector<Sample>& samples);
double CpuSecondsPerGib(const std::vector<Sample>& samples);       // median
double ChecksumSecondsPerGib(const std::vector<Sample>& samples);  // median
// Returns this benchmark's rate as a share of fio's (`fio` or `fio_beside_hashing` of the row) in
// the same round. Zeros if there is no fio.
Summary ShareOfFio(const Row& row, const std::vector<Sample>& fio);

// The rate that no storage engine on this machine exceeds: that of fio, or kHashShare of that of
// hashing alone, whichever is less.
enum class Limit : uint8_t { kNone, kFio, kHash };
inline constexpr double kHashShare = 0.9;
std::string_view NameOf(Limit limit);  // "none", "fio", "hash"
struct ShareOfLimit {
  Limit limit = Limit::kNone;         // the lesser one in most rounds
  double limit_bytes_per_second = 0;  // median
  Summary share;                      // each formed within its round
};
// Rounds without fio are left out if the row has others.
ShareOfLimit CompareWithLimit(const Row& row);
// Returns the q-quantile of sorted values, 0 <= q <= 1, or 0 if there are no values.
double Quantile(const std::vector<double>& sorted, double q);

// Returns the reasons to doubt a row's rates: "page cache", "faster than memory", "more CPU than
// there is". `copy_bytes_per_second` is the rate at which one thread copies on this machine.
std::vector<std::string> Doubts(const Row& row, double copy_bytes_per_second, int num_cpus);

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_ROWS_H_
