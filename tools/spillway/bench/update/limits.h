// SPDX-License-Identifier: Apache-2.0
//
// The limits that an update is compared with: as many bytes updated in place, hashed, or moved by
// fio.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_LIMITS_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_LIMITS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/direct_file.h"
#include "spillway/thread_pool.h"
#include "tools/spillway/bench/io/memory.h"
#include "tools/spillway/bench/update/updated_state.h"

namespace spillway::bench_update {

// Thread-compatible. The destructor releases all that it made.
class Limits {
 public:
  // Makes memory of `size_bytes`, and a file of the same size for fio, which has been written when
  // this returns. Makes no file if `folder` is empty or there is no fio. Here and below: Cancelled
  // if `interrupted` becomes true. `interrupted` and the pool must outlive this object.
  static absl::StatusOr<std::unique_ptr<Limits>> Create(const std::string& folder,
                                                        uint64_t size_bytes, ThreadPool* pool,
                                                        const std::atomic<bool>& interrupted);

  // Returns the seconds that x ← a·x takes on all threads to read and write `bytes` in total.
  absl::StatusOr<double> InPlaceSeconds(uint64_t bytes);
  // Returns the seconds that all threads together take to hash `bytes` that no cache holds.
  absl::StatusOr<double> HashSeconds(uint64_t bytes);
  // Returns the seconds that fio takes to move `bytes` with this mix of reads and writes, through
  // io_uring or through libaio. nullopt if there is no fio or it failed.
  absl::StatusOr<std::optional<double>> FioSeconds(uint64_t bytes, const ParameterBytes& mix,
                                                   bool uring);

  const bench_io::Memory& memory() const { return memory_; }
  const std::string& fio_version() const { return fio_version_; }
  // Whether files in the folder are cached, as bench_io::IsCached says.
  bool cached() const { return cached_; }

 private:
  Limits(bench_io::Memory memory, ThreadPool* pool, const std::atomic<bool>& interrupted)
      : memory_(std::move(memory)), pool_(pool), interrupted_(interrupted) {}

  absl::Status MakeFile(const std::string& folder);
  absl::Status CheckGoing() const;

  bench_io::Memory memory_;
  ThreadPool* const pool_;
  const std::atomic<bool>& interrupted_;
  std::optional<io::DirectFile> file_;
  bool cached_ = false;
  std::string fio_version_;  // empty: fio is absent or is not needed
};

}  // namespace spillway::bench_update

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_LIMITS_H_
