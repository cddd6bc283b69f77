// SPDX-License-Identifier: Apache-2.0
//
// What the edges are held against: the same blocks between memory and a bare file by the I/O engine
// alone, deep, and one large copy between pinned memory and the device.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_CEILINGS_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_CEILINGS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "io/direct_file.h"
#include "io/io_engine.h"
#include "spillway/engine.h"
#include "tiers/device_runtime.h"
#include "tools/spillway/bench/io/memory.h"
#include "tools/spillway/bench/io/pass.h"
#include "tools/spillway/bench/tiers/edges.h"

namespace spillway::bench_tiers {

// Thread-compatible. What it made is gone with it.
class Ceilings {
 public:
  // The file has been written when it returns. NotFound or Unimplemented if there is no such
  // device; Cancelled if `interrupted` becomes true, here and below; it must outlive this.
  static absl::StatusOr<std::unique_ptr<Ceilings>> Create(const std::string& folder, Device device,
                                                          uint64_t size_bytes, uint64_t block_bytes,
                                                          const std::atomic<bool>& interrupted);
  ~Ceilings();
  Ceilings(const Ceilings&) = delete;
  Ceilings& operator=(const Ceilings&) = delete;

  // Bytes per second; of an edge with two hops, the slower one's.
  absl::StatusOr<double> Measure(Edge edge);

  std::span<std::byte> memory() const { return memory_.span(); }
  std::string device_name() const { return runtime_->name(); }
  bool is_direct() const { return file_.is_direct(); }

 private:
  Ceilings(bench_io::Memory memory, io::DirectFile file, const std::atomic<bool>& interrupted)
      : interrupted_(interrupted), memory_(std::move(memory)), file_(std::move(file)) {}

  absl::StatusOr<double> Pass(bench_io::Op op);
  absl::StatusOr<double> Copy(tiers::CopyDirection direction);

  const std::atomic<bool>& interrupted_;
  bench_io::Memory memory_;
  io::DirectFile file_;
  uint64_t size_bytes_ = 0;
  uint32_t block_bytes_ = 0;
  io::FileId file_id_;
  std::unique_ptr<io::IoEngine> io_;  // before the file and the memory, which it knows, go
  std::unique_ptr<tiers::DeviceRuntime> runtime_;
  std::byte* arena_ = nullptr;
  tiers::StreamHandle stream_;
  bool registered_ = false;
};

}  // namespace spillway::bench_tiers

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_CEILINGS_H_
