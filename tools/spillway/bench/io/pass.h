// SPDX-License-Identifier: Apache-2.0
//
// One pass of a benchmark: blocks moved once each between memory and a target, a number of them
// under way at a time. What the target is (a bare file, the page store) is its own business.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_PASS_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_PASS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/io_engine.h"

namespace spillway::bench_io {

enum class Op : uint8_t { kRead, kWrite, kMixed };  // mixed: as many reads as writes
enum class Pattern : uint8_t { kSequential, kRandom };
std::string_view NameOf(Op op);            // "read", "write", "mixed"
std::string_view NameOf(Pattern pattern);  // "sequential", "random"

// Blocks are numbered from 0; a mixed pass reads in the first half and writes in the second, so
// that nothing is read while it is being written.
struct Pass {
  Op op = Op::kRead;
  Pattern pattern = Pattern::kSequential;
  uint32_t block_bytes = 0;
  int depth = 1;  // blocks under way
  uint64_t num_blocks = 0;
  double most_seconds = 1e9;  // blocks that were not begun by then are left out
  uint64_t seed = 1;
  bool stamp = false;  // writes mark every 4 KiB with its place, reads check that
};

struct Move {
  io::IoOp op = io::IoOp::kRead;
  uint64_t block = 0;
  std::byte* memory = nullptr;
  uint64_t tag = 0;
};

struct Moved {
  uint64_t tag = 0;
  absl::Status status;
};

class Target {
 public:
  virtual ~Target() = default;
  virtual void Start(std::span<const Move> moves) = 0;
  // Waits for one at least.
  virtual void Reap(std::vector<Moved>* moved) = 0;
  // Spent on checksums so far, as a part of the process's CPU time.
  virtual double checksum_seconds() const = 0;
};

struct PassResult {
  uint64_t bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;               // of this process, user and system
  double checksum_seconds = 0;          // of that, on checksums
  std::vector<double> latency_seconds;  // of each block, in order of their ends
};

// Cycles through all of `memory`. Cancelled if `interrupted` becomes true; a failed move ends the
// pass with its status, and DataLoss says where a stamp did not match. Nothing is under way when it
// returns.
absl::StatusOr<PassResult> RunPass(const Pass& pass, Target& target, std::span<std::byte> memory,
                                   const std::atomic<bool>& interrupted);

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_PASS_H_
