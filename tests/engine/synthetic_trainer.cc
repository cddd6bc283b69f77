// SPDX-License-Identifier: Apache-2.0

#include "tests/engine/synthetic_trainer.h"

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "tests/engine/synthetic_kernels.h"

namespace spillway::test {
namespace {

constexpr size_t kTensors = 12;
constexpr size_t kMostHeld = 3;  // leases held at a time

class SyntheticTrainer {
 public:
  explicit SyntheticTrainer(const SyntheticOptions& options)
      : options_(options), random_(options.seed) {}

  absl::StatusOr<SyntheticResult> Run() {
    SPILLWAY_RETURN_IF_ERROR(Open(OpenMode::kCreate));
    for (int64_t step = 0; step < options_.steps; ++step) {
      SPILLWAY_RETURN_IF_ERROR(Step());
      if (Below(4) == 0) SPILLWAY_RETURN_IF_ERROR(Commit());
    }
    SPILLWAY_RETURN_IF_ERROR(Commit());
    SPILLWAY_RETURN_IF_ERROR(Step());  // not committed, so it is lost when the engine closes
    SPILLWAY_RETURN_IF_ERROR(CheckAll());
    result_.stats = engine_->Stats();
    Close();
    SPILLWAY_RETURN_IF_ERROR(Open(OpenMode::kOpenOrCreate));
    if (engine_->UserState() != std::to_string(result_.commits)) {
      return absl::DataLossError("the store reopened at another commit");
    }
    for (Tile& tile : tiles_) tile.holds = tile.committed;
    SPILLWAY_RETURN_IF_ERROR(CheckAll());
    Close();
    return result_;
  }

 private:
  struct Tile {
    TileRef ref;
    bool transient = false;
    uint64_t holds = 0;      // the seed of its bytes; 0: zeros
    uint64_t committed = 0;  // the same, at the last commit
    bool held = false;
  };
  struct Held {
    Lease lease;
    size_t tile = 0;
  };

  uint64_t Below(uint64_t end) { return random_() % end; }

  absl::Status Open(OpenMode mode) {
    const uint64_t frame_bytes = (options_.most_tile_bytes + 4095) / 4096 * 4096;
    EngineOptions options;
    options.store = {options_.store};
    options.mode = mode;
    options.device = options_.device;
    options.device_bytes = 2 * (kMostHeld + 2) * frame_bytes;
    options.pinned_bytes = 3 * (kMostHeld + 2) * frame_bytes;
    options.page_bytes = 16 * kKiB;
    SPILLWAY_ASSIGN_OR_RETURN(engine_, Engine::Open(std::move(options)));
    SPILLWAY_ASSIGN_OR_RETURN(kernels_, MakeSyntheticKernels(options_.device));
    for (std::unique_ptr<Stream>& stream : streams_) {
      SPILLWAY_ASSIGN_OR_RETURN(stream, engine_->CreateStream());
    }
    return Register();
  }

  void Close() {
    for (std::unique_ptr<Stream>& stream : streams_) stream.reset();
    kernels_.reset();
    engine_.reset();
  }

  // Registers the same tensors each time. Their shapes follow from the seed alone.
  absl::Status Register() {
    std::mt19937_64 shapes(options_.seed);
    const bool first = tiles_.empty();
    for (size_t i = 0; i < kTensors; ++i) {
      const uint64_t row_bytes = 1 + shapes() % 5000;
      const uint64_t rows = 1 + shapes() % (6 * options_.most_tile_bytes / row_bytes);
      const TensorSpec spec = {
          .name = absl::StrCat("t", i),
          .dtype = DType::kU8,
          .shape = {static_cast<int64_t>(rows), static_cast<int64_t>(row_bytes)},
          .role = static_cast<Role>(i % kNumRoles),
          .tile_rows = static_cast<int64_t>(
              std::max<uint64_t>(1, (1 + shapes() % options_.most_tile_bytes) / row_bytes)),
          .transient = i % 4 == 3};
      SPILLWAY_ASSIGN_OR_RETURN(const TensorId id, engine_->Register(spec));
      for (uint64_t tile = 0; first && tile < spec.num_tiles(); ++tile) {
        tiles_.push_back({.ref = {id, tile}, .transient = spec.transient});
      }
    }
    return absl::OkStatus();
  }

  absl::Status Step() {
    std::vector<size_t> order;
    std::vector<Use> uses;
    for (int64_t i = 0; i < options_.uses_per_step; ++i) {
      order.push_back(Below(tiles_.size()));
      if (Below(8) == 0) continue;  // the use comes without being declared
      uses.push_back({.tile = tiles_[order.back()].ref,
                      .tier = Below(6) == 0 ? Tier::kPinned : Tier::kDevice});
    }
    if (Below(4) != 0) SPILLWAY_RETURN_IF_ERROR(engine_->Prefetch(uses));
    for (const size_t index : order) {
      while (held_.size() == kMostHeld || (!held_.empty() && Below(3) == 0)) ReleaseOne();
      if (tiles_[index].held) continue;  // a declared use that does not come
      SPILLWAY_RETURN_IF_ERROR(UseTile(index));
    }
    while (!held_.empty()) ReleaseOne();
    if (Below(4) == 0) engine_->ClearPrefetch();
    const absl::Status ended = engine_->EndStep();
    return ended.ok() ? engine_->WaitForPlan() : ended;
  }

  absl::Status UseTile(size_t index) {
    Tile& tile = tiles_[index];
    switch (Below(12)) {
      case 0: return UseOnHost(tile);
      case 1:
        // The tile cannot be evicted while a running kernel still holds it.
        if (const absl::Status status = engine_->Evict(tile.ref);
            !absl::IsFailedPrecondition(status)) {
          SPILLWAY_RETURN_IF_ERROR(status);
        }
        break;
      case 2:
        if (!tile.transient) break;
        if (const absl::Status status = engine_->Discard(tile.ref);
            !absl::IsFailedPrecondition(status)) {
          SPILLWAY_RETURN_IF_ERROR(status);
          tile.holds = 0;
        }
        break;
      default: break;
    }
    return UseOnDevice(index);
  }

  absl::Status UseOnHost(Tile& tile) {
    const auto access = static_cast<Access>(Below(4));
    SPILLWAY_ASSIGN_OR_RETURN(const Lease lease, engine_->AcquireHost(tile.ref, access));
    const uint64_t wrong_bytes = RunOnHost(Work(tile, lease, access));
    if (wrong_bytes == 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(wrong_bytes, " bytes in pinned memory are wrong"));
  }

  absl::Status UseOnDevice(size_t index) {
    Tile& tile = tiles_[index];
    Stream& stream = *streams_[Below(streams_.size())];
    const bool on_stream = Below(4) != 0;
    const auto access = static_cast<Access>(Below(4));
    SPILLWAY_ASSIGN_OR_RETURN(Lease lease,
                              engine_->Acquire(tile.ref, access, on_stream ? &stream : nullptr));
    SPILLWAY_RETURN_IF_ERROR(kernels_->Launch(stream, Work(tile, lease, access)));
    ++result_.kernels;
    if (!on_stream) return stream.Synchronize();  // before the lease ends
    tile.held = true;
    held_.push_back({std::move(lease), index});
    return absl::OkStatus();
  }

  // Returns the work for an access to the tile, and records what the tile holds after it.
  TileWork Work(Tile& tile, const Lease& lease, Access access) {
    TileWork work = {.data = reinterpret_cast<uint8_t*>(lease.data()),
                     .size_bytes = lease.size_bytes(),
                     .check = access != Access::kDiscard,
                     .write = Writes(access),
                     .expected = tile.holds,
                     .microseconds = static_cast<uint32_t>(
                         Below(static_cast<uint64_t>(options_.most_microseconds) + 1))};
    if (work.check) result_.bytes_checked += work.size_bytes;
    if (work.write) tile.holds = work.next = random_() | 1;
    return work;
  }

  void ReleaseOne() {
    const auto victim = held_.begin() + static_cast<ptrdiff_t>(Below(held_.size()));
    tiles_[victim->tile].held = false;
    held_.erase(victim);
  }

  absl::Status Commit() {
    SPILLWAY_RETURN_IF_ERROR(AwaitKernels());
    ++result_.commits;
    SPILLWAY_RETURN_IF_ERROR(engine_->Commit(std::to_string(result_.commits)));
    for (Tile& tile : tiles_) tile.committed = tile.transient ? 0 : tile.holds;
    return absl::OkStatus();
  }

  absl::Status CheckAll() {
    for (Tile& tile : tiles_) {
      Stream& stream = *streams_[Below(streams_.size())];
      SPILLWAY_ASSIGN_OR_RETURN(const Lease lease,
                                engine_->Acquire(tile.ref, Access::kRead, &stream));
      SPILLWAY_RETURN_IF_ERROR(kernels_->Launch(stream, Work(tile, lease, Access::kRead)));
    }
    return AwaitKernels();
  }

  absl::Status AwaitKernels() {
    for (const std::unique_ptr<Stream>& stream : streams_) {
      SPILLWAY_RETURN_IF_ERROR(stream->Synchronize());
    }
    SPILLWAY_ASSIGN_OR_RETURN(const uint64_t wrong_bytes, kernels_->WrongBytes());
    if (wrong_bytes == 0) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(wrong_bytes, " bytes on the device are wrong; seed ", options_.seed));
  }

  const SyntheticOptions& options_;
  std::mt19937_64 random_;
  std::vector<Tile> tiles_;
  SyntheticResult result_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<SyntheticKernels> kernels_;
  std::array<std::unique_ptr<Stream>, 2> streams_;
  std::vector<Held> held_;  // destroyed first, so that its leases end before the engine
};

}  // namespace

absl::StatusOr<SyntheticResult> RunSyntheticTrainer(const SyntheticOptions& options) {
  return SyntheticTrainer(options).Run();
}

}  // namespace spillway::test
