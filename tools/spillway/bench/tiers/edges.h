// SPDX-License-Identifier: Apache-2.0
//
// Bytes over each edge of the tiers, moved as training moves them: through the engine, its mover,
// its page store and its copy streams.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_EDGES_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_EDGES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "spillway/engine.h"

namespace spillway::bench_tiers {

enum class Edge : uint8_t { kNvmePinned, kPinnedNvme, kPinnedDevice, kDevicePinned, kNvmeDevice };
inline constexpr std::array<Edge, 5> kEdges = {Edge::kNvmePinned, Edge::kPinnedNvme,
                                               Edge::kPinnedDevice, Edge::kDevicePinned,
                                               Edge::kNvmeDevice};
std::string_view NameOf(Edge edge);  // "nvme-pinned"

struct EdgesOptions {
  std::string store;  // a folder that is not there yet
  Device device = Device::Host();
  uint64_t size_bytes = 0;    // of what passes between NVMe and memory; a multiple of block_bytes
  uint64_t memory_bytes = 0;  // the pinned budget; the device's is an eighth of it
  uint64_t block_bytes = 0;   // a tile; at most a 32nd of memory_bytes
  std::span<const std::byte> content;  // what the tensors are filled with, again and again
  std::function<void(std::string_view)> announce;
};

// Thread-compatible. What it made is gone with it.
class Edges {
 public:
  // Everything has been written once and again when it returns, so that no write is a first touch.
  // Cancelled if `interrupted` becomes true, here and below; it must outlive this.
  static absl::StatusOr<std::unique_ptr<Edges>> Create(const EdgesOptions& options,
                                                       const std::atomic<bool>& interrupted);

  struct Rate {
    double bytes_per_second = 0;
    double nvme_bytes_per_second = 0;  // read beside it
  };
  // One pass over an edge. `beside_nvme`, for the edges between pinned memory and the device: while
  // four threads read from NVMe into pinned memory.
  absl::StatusOr<Rate> Measure(Edge edge, bool beside_nvme);

  EngineStats Stats() const { return engine_->Stats(); }

 private:
  Edges(std::unique_ptr<Engine> engine, const std::atomic<bool>& interrupted)
      : engine_(std::move(engine)), interrupted_(interrupted) {}

  absl::StatusOr<double> Timed(uint64_t (*moved)(const EngineStats&),
                               const std::function<absl::Status()>& pass) const;
  absl::StatusOr<double> MeasureCopies(Edge edge);
  absl::Status Lease(TensorId tensor, Tier tier, Access access, int passes = 1);
  absl::Status Write();
  absl::Status Evict(TensorId tensor);
  absl::Status ReadFar(uint64_t number);
  absl::Status ReadUntil(const std::atomic<bool>& stop, uint64_t first, uint64_t step);
  uint64_t NumTiles(TensorId tensor) const { return engine_->Spec(tensor).num_tiles(); }
  absl::Status CheckGoing() const;

  const std::unique_ptr<Engine> engine_;
  const std::atomic<bool>& interrupted_;
  TensorId far_;   // does not fit into pinned memory
  TensorId near_;  // fits there four times, and into the device not at all
};

}  // namespace spillway::bench_tiers

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_EDGES_H_
