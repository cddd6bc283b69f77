// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/io/hashing.h"

#include <algorithm>
#include <chrono>

#include "io/checksum.h"
#include "src/base/clock.h"
#include "tools/spillway/bench/io/rows.h"

namespace spillway::bench_io {

double HashRate(std::span<const std::byte> memory, int num_threads) {
  std::atomic<uint64_t> next = 0, sum = 0;
  const uint64_t num_pages = memory.size() / kPageBytes;
  const auto work = [&] {
    for (uint64_t page = next++; page < num_pages; page = next++) {
      sum += io::Checksum(memory.subspan(page * kPageBytes, kPageBytes));
    }
  };
  const double start = base::Now();
  std::vector<std::thread> threads;
  for (int i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return static_cast<double>(num_pages * kPageBytes) / (base::Now() - start);
}

HashLoad::HashLoad(std::span<const std::byte> memory, double bytes_per_second, int num_threads)
    : memory_(memory), bytes_per_second_(bytes_per_second), start_(base::Now()) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back(&HashLoad::Run, this);
}

HashLoad::~HashLoad() {
  stops_ = true;
  for (std::thread& thread : threads_) thread.join();
}

void HashLoad::Run() {
  constexpr double kLongestSleep = 0.01;  // seconds; the destructor waits for it
  const uint64_t num_pages = memory_.size() / kPageBytes;
  while (!stops_) {
    const double early =
        static_cast<double>(hashed_bytes_) / bytes_per_second_ - (base::Now() - start_);
    if (early > 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(early, kLongestSleep)));
      continue;
    }
    const uint64_t page = next_++ % num_pages;
    sum_ += io::Checksum(memory_.subspan(page * kPageBytes, kPageBytes));
    hashed_bytes_ += kPageBytes;
  }
}

}  // namespace spillway::bench_io
