// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/io/pass.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"

namespace spillway::bench_io {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double CpuSeconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The order of a pass's moves.
class Order {
 public:
  explicit Order(const Pass& pass) : pass_(pass), random_(pass.seed) {
    if (pass.pattern == Pattern::kSequential) return;
    blocks_.resize(pass.num_blocks);
    std::iota(blocks_.begin(), blocks_.end(), uint64_t{0});
    const auto middle = blocks_.begin() + static_cast<ptrdiff_t>(pass.num_blocks / 2);
    if (pass.op == Op::kMixed) {
      std::shuffle(blocks_.begin(), middle, random_);
      std::shuffle(middle, blocks_.end(), random_);
    } else {
      std::shuffle(blocks_.begin(), blocks_.end(), random_);
    }
  }

  bool has_next() const { return next_ < NumMoves(); }
  Move Next() {
    Move move;
    uint64_t place = next_++;
    if (pass_.op == Op::kMixed) {
      // Each pair of moves is a read and a write, in random order.
      if (place % 2 == 0) first_of_pair_ = random_() % 2;
      move.op = (place + first_of_pair_) % 2 == 0 ? io::IoOp::kRead : io::IoOp::kWrite;
      place = place / 2 + (move.op == io::IoOp::kRead ? 0 : pass_.num_blocks / 2);
    } else {
      move.op = pass_.op == Op::kRead ? io::IoOp::kRead : io::IoOp::kWrite;
    }
    move.block = blocks_.empty() ? place : blocks_[place];
    return move;
  }

 private:
  uint64_t NumMoves() const {
    return pass_.op == Op::kMixed ? pass_.num_blocks / 2 * 2 : pass_.num_blocks;
  }

  const Pass& pass_;
  std::mt19937_64 random_;
  std::vector<uint64_t> blocks_;  // empty: in order
  uint64_t next_ = 0;
  uint64_t first_of_pair_ = 0;
};

// Marks the start of every 4 KiB with its place, a byte offset in the target.
void Stamp(const Pass& pass, const Move& move) {
  for (uint64_t at = 0; at < pass.block_bytes; at += io::kIoAlignment) {
    const uint64_t place = move.block * pass.block_bytes + at;
    std::memcpy(move.memory + at, &place, sizeof(place));
  }
}

absl::Status CheckStamp(const Pass& pass, const Move& move) {
  for (uint64_t at = 0; at < pass.block_bytes; at += io::kIoAlignment) {
    uint64_t found;
    std::memcpy(&found, move.memory + at, sizeof(found));
    const uint64_t place = move.block * pass.block_bytes + at;
    if (found != place) {
      return absl::DataLossError(
          absl::StrCat("the 4 KiB at ", place, " came back as those of ", found));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view NameOf(Op op) {
  constexpr std::string_view kNames[] = {"read", "write", "mixed"};
  return kNames[static_cast<size_t>(op)];
}

std::string_view NameOf(Pattern pattern) {
  return pattern == Pattern::kSequential ? "sequential" : "random";
}

absl::StatusOr<PassResult> RunPass(const Pass& pass, Target& target, std::span<std::byte> memory,
                                   const std::atomic<bool>& interrupted) {
  const uint64_t num_buffers = memory.size() / pass.block_bytes;
  const auto depth = std::min<uint64_t>(static_cast<uint64_t>(pass.depth), num_buffers);
  if (depth == 0) return absl::InvalidArgumentError("the memory is smaller than a block");

  Order order(pass);
  PassResult result;
  result.latency_seconds.reserve(pass.num_blocks);
  // The buffers are used in turn. A buffer whose move is in flight is skipped, because moves end in
  // any order.
  std::vector<Move> by_buffer(num_buffers);
  std::vector<Clock::time_point> begun(num_buffers);
  std::vector<bool> busy(num_buffers, false);
  uint64_t buffer = 0, under_way = 0;
  absl::Status status;
  std::vector<Move> starting;
  std::vector<Moved> moved;

  const double cpu_before = CpuSeconds(), checksum_before = target.checksum_seconds();
  const Clock::time_point start = Clock::now();
  Clock::time_point now = start;
  const auto fill = [&] {
    starting.clear();
    const bool late = std::chrono::duration<double>(now - start).count() > pass.most_seconds;
    while (status.ok() && !late && under_way < depth && order.has_next()) {
      while (busy[buffer]) buffer = (buffer + 1) % num_buffers;
      Move move = order.Next();
      move.tag = buffer;
      move.memory = memory.data() + buffer * pass.block_bytes;
      if (pass.stamp && move.op == io::IoOp::kWrite) Stamp(pass, move);
      busy[buffer] = true;
      by_buffer[buffer] = move;
      begun[buffer] = now;
      buffer = (buffer + 1) % num_buffers;
      ++under_way;
      starting.push_back(move);
    }
    if (!starting.empty()) target.Start(starting);
  };
  fill();
  while (under_way > 0) {
    moved.clear();
    target.Reap(&moved);
    now = Clock::now();
    for (const Moved& end : moved) {
      --under_way;
      busy[end.tag] = false;
      status.Update(end.status);
      const Move& move = by_buffer[end.tag];
      if (pass.stamp && end.status.ok() && move.op == io::IoOp::kRead) {
        status.Update(CheckStamp(pass, move));
      }
      result.bytes += pass.block_bytes;
      result.latency_seconds.push_back(std::chrono::duration<double>(now - begun[end.tag]).count());
    }
    if (interrupted) status.Update(absl::CancelledError("interrupted"));
    fill();
  }
  result.seconds = SecondsSince(start);
  result.cpu_seconds = CpuSeconds() - cpu_before;
  result.checksum_seconds = target.checksum_seconds() - checksum_before;
  if (!status.ok()) return status;
  return result;
}

}  // namespace spillway::bench_io
