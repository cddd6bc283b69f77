// SPDX-License-Identifier: Apache-2.0
//
// Moves bytes over each edge between the tiers, as training does: through the engine, its mover,
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
  std::string store;  // a folder that does not exist yet
  Device device = Device::Host();
  uint64_t size_bytes = 0;             // data between NVMe and memory; a multiple of block_bytes
  uint64_t memory_bytes = 0;           // the pinned budget; the device's is an eighth of it
  uint64_t block_bytes = 0;            // a tile; at most a 32nd of memory_bytes
  std::span<const std::byte> content;  // fills the tensors, repeatedly
  std::function<void(std::string_view)> announce;
};

// Thread-compatible. The destructor releases all that it made.
class Edges {
 public:
  // When it returns, both tensors have been filled and the far one has been written again, so that
  // no measured write is a first touch. Here and below: Cancelled if `interrupted` becomes true.
  // `interrupted` must outlive this object.
  static absl::StatusOr<std::unique_ptr<Edges>> Create(const EdgesOptions& options,
                                                       const std::atomic<bool>& interrupted);

  struct Rate {
    double bytes_per_second = 0;
    double nvme_bytes_per_second = 0;  // read from NVMe at the same time
  };
  // Measures one pass over an edge. With `beside_nvme`, which only the edges between pinned memory
  // and the device use, up to four threads read from NVMe into pinned memory meanwhile.
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
  absl::Status ReadFar(uint64_t number, uint64_t num_readers);
  absl::Status ReadUntil(const std::atomic<bool>& stop, uint64_t reader, uint64_t num_readers);
  uint64_t NumTiles(TensorId tensor) const { return engine_->Spec(tensor).num_tiles(); }
  absl::Status CheckGoing() const;

  const std::unique_ptr<Engine> engine_;
  const std::atomic<bool>& interrupted_;
  TensorId far_;   // size_bytes; by default twice the pinned budget, which cannot hold it
  TensorId near_;  // a quarter of the pinned budget; twice the device's, which cannot hold it
};

}  // namespace spillway::bench_tiers

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_EDGES_H_
