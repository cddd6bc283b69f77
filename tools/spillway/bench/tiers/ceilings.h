// SPDX-License-Identifier: Apache-2.0
//
// The ceilings that the edges are compared with: the I/O engine alone moving blocks between memory
// and a bare file, many in flight, and large copies between pinned memory and the device.

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
#include "tools/spillway/bench/io/machine.h"
#include "tools/spillway/bench/io/memory.h"
#include "tools/spillway/bench/io/pass.h"
#include "tools/spillway/bench/tiers/edges.h"

namespace spillway::bench_tiers {

// Thread-compatible. The destructor releases all that it made.
class Ceilings {
 public:
  // The file has been written when it returns. NotFound or Unimplemented if there is no such
  // device. Here and below: Cancelled if `interrupted` becomes true. `interrupted` must outlive
  // this object.
  static absl::StatusOr<std::unique_ptr<Ceilings>> Create(const std::string& folder, Device device,
                                                          uint64_t size_bytes, uint64_t block_bytes,
                                                          const std::atomic<bool>& interrupted);
  ~Ceilings();
  Ceilings(const Ceilings&) = delete;
  Ceilings& operator=(const Ceilings&) = delete;

  // Returns bytes per second. For an edge with two hops, returns the rate of the slower hop.
  absl::StatusOr<double> Measure(Edge edge);
  // Returns the bytes per second of as many reads as writes of the file together.
  absl::StatusOr<double> MeasureBoth();

  std::span<std::byte> memory() const { return memory_.span(); }
  std::string device_name() const { return runtime_->name(); }
  bool is_cached() const { return bench_io::IsCached(file_); }

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
  std::unique_ptr<io::IoEngine> io_;  // destroyed before the file and the memory that it uses
  std::unique_ptr<tiers::DeviceRuntime> runtime_;
  std::byte* arena_ = nullptr;
  tiers::StreamHandle stream_;
  bool registered_ = false;
};

}  // namespace spillway::bench_tiers

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_CEILINGS_H_
