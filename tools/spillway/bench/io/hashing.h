// SPDX-License-Identifier: Apache-2.0
//
// Hashing of memory by some threads: how fast it is, and as a load beside a measurement.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_HASHING_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_HASHING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace spillway::bench_io {

// Returns the bytes that `num_threads` together hash in a second. Each thread hashes one page of a
// mebibyte at a time.
double HashRate(std::span<const std::byte> memory, int num_threads);

// Hashes the memory, page after page and from the beginning again, until it is destroyed: at most
// `bytes_per_second` in all, on `num_threads`.
class HashLoad {
 public:
  HashLoad(std::span<const std::byte> memory, double bytes_per_second, int num_threads);
  ~HashLoad();
  HashLoad(const HashLoad&) = delete;
  HashLoad& operator=(const HashLoad&) = delete;

  uint64_t hashed_bytes() const { return hashed_bytes_; }

 private:
  void Run();

  const std::span<const std::byte> memory_;
  const double bytes_per_second_;
  const double start_;
  std::atomic<bool> stops_ = false;
  std::atomic<uint64_t> next_ = 0, hashed_bytes_ = 0, sum_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_HASHING_H_
