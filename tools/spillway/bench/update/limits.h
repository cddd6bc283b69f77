// SPDX-License-Identifier: Apache-2.0
//
// What an update is held against: as many bytes updated in place, hashed, or moved by fio.

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

// Thread-compatible. What it made is gone with it.
class Limits {
 public:
  // The memory that passes go through is `size_bytes`, and the file for fio too; the file has been
  // written when it returns. No folder, or no fio: no file. Cancelled if `interrupted` becomes
  // true, here and below; it and the pool must outlive this.
  static absl::StatusOr<std::unique_ptr<Limits>> Create(const std::string& folder,
                                                        uint64_t size_bytes, ThreadPool* pool,
                                                        const std::atomic<bool>& interrupted);

  // Seconds in which x ← a·x on all threads reads and writes `bytes` in total.
  absl::StatusOr<double> InPlaceSeconds(uint64_t bytes);
  // Seconds in which all threads hash `bytes` that no cache holds.
  absl::StatusOr<double> HashSeconds(uint64_t bytes);
  // Seconds in which fio moves `bytes` with this mix of reads and writes. None: no fio.
  absl::StatusOr<std::optional<double>> FioSeconds(uint64_t bytes, const ParameterBytes& mix);

  const bench_io::Memory& memory() const { return memory_; }
  const std::string& fio_version() const { return fio_version_; }
  bool cached() const { return file_ && !file_->is_direct(); }

 private:
  Limits(bench_io::Memory memory, ThreadPool* pool, const std::atomic<bool>& interrupted)
      : memory_(std::move(memory)), pool_(pool), interrupted_(interrupted) {}

  absl::Status MakeFile(const std::string& folder);
  absl::Status CheckGoing() const;

  bench_io::Memory memory_;
  ThreadPool* const pool_;
  const std::atomic<bool>& interrupted_;
  std::optional<io::DirectFile> file_;
  std::string fio_version_;  // empty: there is none, or it is not wanted
};

}  // namespace spillway::bench_update

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_LIMITS_H_
