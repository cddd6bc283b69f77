// SPDX-License-Identifier: Apache-2.0
//
// One pass of a benchmark: moves each block once between memory and a target, with a number of
// blocks in flight. The pass does not depend on what the target is (a bare file, the page store).

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

// Blocks are numbered from 0. A mixed pass reads the first half of the blocks and writes the
// second, so that no block is read while it is written.
struct Pass {
  Op op = Op::kRead;
  Pattern pattern = Pattern::kSequential;
  uint32_t block_bytes = 0;
  int depth = 1;  // blocks in flight
  uint64_t num_blocks = 0;
  double most_seconds = 1e9;  // no block begins after that
  uint64_t seed = 1;
  bool stamp = false;  // writes mark every 4 KiB with its place, reads check the mark
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
  // Waits for at least one move to end, and appends the moves that ended.
  virtual void Reap(std::vector<Moved>* moved) = 0;
  // CPU time spent on checksums so far, a part of the process's CPU time.
  virtual double checksum_seconds() const = 0;
};

struct PassResult {
  uint64_t bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;               // of this process, user and system
  double checksum_seconds = 0;          // the part spent on checksums
  std::vector<double> latency_seconds;  // of each block, in the order in which the blocks ended
};

// Runs the pass, and cycles through all of `memory`. Cancelled if `interrupted` becomes true. A
// move that fails ends the pass with its status. DataLoss names the place of a stamp that did not
// match. Nothing is in flight when it returns.
absl::StatusOr<PassResult> RunPass(const Pass& pass, Target& target, std::span<std::byte> memory,
                                   const std::atomic<bool>& interrupted);

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_PASS_H_
