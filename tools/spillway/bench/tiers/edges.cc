// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/tiers/edges.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <latch>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/bytes.h"
#include "src/base/status_macros.h"

namespace spillway::bench_tiers {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kRowBytes = 4 * kKiB;
constexpr int kCopyPasses = 8;  // over the near tensor
constexpr uint64_t kMostReaders = 4;

uint64_t NvmeRead(const EngineStats& stats) { return stats.nvme.read_bytes; }
uint64_t NvmeWritten(const EngineStats& stats) { return stats.nvme.written_bytes; }
uint64_t CopiedIn(const EngineStats& stats) { return stats.pinned.read_bytes; }
uint64_t CopiedOut(const EngineStats& stats) { return stats.pinned.written_bytes; }

}  // namespace

std::string_view NameOf(Edge edge) {
  constexpr std::string_view kNames[] = {"nvme-pinned", "pinned-nvme", "pinned-device",
                                         "device-pinned", "nvme-device"};
  return kNames[static_cast<size_t>(edge)];
}

absl::StatusOr<std::unique_ptr<Edges>> Edges::Create(const EdgesOptions& options,
                                                     const std::atomic<bool>& interrupted) {
  EngineOptions engine_options;
  engine_options.store = {options.store};
  engine_options.mode = OpenMode::kScratch;
  engine_options.device = options.device;
  engine_options.device_bytes = options.memory_bytes / 8;
  engine_options.pinned_bytes = options.memory_bytes;
  engine_options.page_bytes = std::min(options.block_bytes, kMiB);
  engine_options.calibration = Calibration::kNow;
  engine_options.plan_steps = false;  // uses are declared, and do not repeat by step
  engine_options.announce = options.announce;
  engine_options.stop = &interrupted;
  SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Open(engine_options));
  auto edges = std::unique_ptr<Edges>(new Edges(std::move(engine), interrupted));
  const auto fill = [&](uint64_t offset_bytes, std::span<std::byte> out) {
    for (uint64_t done = 0; done < out.size();) {  // a tile may be larger than the content
      const uint64_t start = (offset_bytes + done) % options.content.size();
      const uint64_t size = std::min(out.size() - done, options.content.size() - start);
      std::memcpy(out.data() + done, options.content.data() + start, size);
      done += size;
    }
    return edges->CheckGoing();
  };
  const auto add = [&](const char* name, uint64_t size_bytes) {
    return edges->engine_->Register(
        {.name = name,
         .dtype = DType::kU8,
         .shape = {static_cast<int64_t>(size_bytes / kRowBytes), static_cast<int64_t>(kRowBytes)},
         .tile_rows = static_cast<int64_t>(options.block_bytes / kRowBytes)},
        fill);
  };
  SPILLWAY_ASSIGN_OR_RETURN(edges->far_, add("far", options.size_bytes));
  SPILLWAY_ASSIGN_OR_RETURN(edges->near_, add("near", options.memory_bytes / 4));
  SPILLWAY_RETURN_IF_ERROR(edges->Evict(edges->near_));
  SPILLWAY_RETURN_IF_ERROR(edges->Write());
  return edges;
}

absl::Status Edges::CheckGoing() const {
  return interrupted_ ? absl::CancelledError("interrupted") : absl::OkStatus();
}

absl::StatusOr<Edges::Rate> Edges::Measure(Edge edge, bool beside_nvme) {
  SPILLWAY_RETURN_IF_ERROR(Evict(far_));
  switch (edge) {
    case Edge::kNvmePinned: {
      SPILLWAY_ASSIGN_OR_RETURN(const double rate, Timed(NvmeRead, [this] {
                                  return Lease(far_, Tier::kPinned, Access::kRead);
                                }));
      return Rate{rate, 0};
    }
    case Edge::kPinnedNvme: {
      SPILLWAY_ASSIGN_OR_RETURN(const double rate, Timed(NvmeWritten, [this] { return Write(); }));
      return Rate{rate, 0};
    }
    case Edge::kNvmeDevice: {
      SPILLWAY_ASSIGN_OR_RETURN(const double rate, Timed(CopiedIn, [this] {
                                  return Lease(far_, Tier::kDevice, Access::kRead);
                                }));
      return Rate{rate, 0};
    }
    case Edge::kPinnedDevice:
    case Edge::kDevicePinned: break;
  }
  if (!beside_nvme) {
    SPILLWAY_ASSIGN_OR_RETURN(const double rate, MeasureCopies(edge));
    return Rate{rate, 0};
  }
  std::atomic<bool> stop = false;
  const uint64_t num_readers = std::min(kMostReaders, NumTiles(far_));
  std::array<absl::Status, kMostReaders> ends;
  std::vector<std::thread> readers;
  std::latch reading(static_cast<std::ptrdiff_t>(num_readers));
  for (uint64_t i = 0; i < num_readers; ++i) {
    readers.emplace_back([&, i] {
      ends[i] = ReadFar(i, num_readers);
      reading.count_down();
      if (ends[i].ok()) ends[i] = ReadUntil(stop, i, num_readers);
    });
  }
  reading.wait();  // on a busy machine threads may begin late
  const uint64_t before = NvmeRead(engine_->Stats());
  const Clock::time_point start = Clock::now();
  const absl::StatusOr<double> rate = MeasureCopies(edge);
  stop = true;
  for (std::thread& reader : readers) reader.join();
  const std::chrono::duration<double> seconds = Clock::now() - start;
  SPILLWAY_RETURN_IF_ERROR(rate.status());
  for (const absl::Status& end : ends) SPILLWAY_RETURN_IF_ERROR(end);
  const auto read = static_cast<double>(NvmeRead(engine_->Stats()) - before);
  return Rate{*rate, read / seconds.count()};
}

// Returns the bytes per second that a pass moves, by the engine's count.
absl::StatusOr<double> Edges::Timed(uint64_t (*moved)(const EngineStats&),
                                    const std::function<absl::Status()>& pass) const {
  const uint64_t before = moved(engine_->Stats());
  const Clock::time_point start = Clock::now();
  SPILLWAY_RETURN_IF_ERROR(pass());
  const std::chrono::duration<double> seconds = Clock::now() - start;
  const uint64_t bytes = moved(engine_->Stats()) - before;
  if (bytes == 0) return absl::InternalError("a pass over an edge moved nothing");
  return static_cast<double>(bytes) / seconds.count();
}

// Into the device: leases keep the near tensor in pinned memory. The tensor does not fit on the
// device, so the device evicts clean tiles to make room for the next ones. Out of the device: each
// tile is written on the device and must be copied out to make room. Pinned memory stays less than
// half full, so no tile is written back to NVMe.
absl::StatusOr<double> Edges::MeasureCopies(Edge edge) {
  std::vector<spillway::Lease> held;
  if (edge == Edge::kPinnedDevice) {
    SPILLWAY_RETURN_IF_ERROR(Evict(near_));
    for (uint64_t tile = 0; tile < NumTiles(near_); ++tile) {
      SPILLWAY_RETURN_IF_ERROR(CheckGoing());
      SPILLWAY_ASSIGN_OR_RETURN(spillway::Lease lease,
                                engine_->AcquireHost({near_, tile}, Access::kRead));
      held.push_back(std::move(lease));
    }
  }
  const bool in = edge == Edge::kPinnedDevice;
  return Timed(in ? CopiedIn : CopiedOut, [&] {
    return Lease(near_, Tier::kDevice, in ? Access::kRead : Access::kDiscard, kCopyPasses);
  });
}

// Declares the uses of every tile, in order, then leases and releases the tiles in that order.
absl::Status Edges::Lease(TensorId tensor, Tier tier, Access access, int passes) {
  std::vector<Use> uses;
  for (int pass = 0; pass < passes; ++pass) {
    for (uint64_t tile = 0; tile < NumTiles(tensor); ++tile) {
      uses.push_back({.tile = {tensor, tile}, .tier = tier, .access = access});
    }
  }
  SPILLWAY_RETURN_IF_ERROR(engine_->Prefetch(uses));
  for (const Use& use : uses) {
    SPILLWAY_RETURN_IF_ERROR(CheckGoing());
    SPILLWAY_RETURN_IF_ERROR((tier == Tier::kDevice ? engine_->Acquire(use.tile, access)
                                                    : engine_->AcquireHost(use.tile, access))
                                 .status());
  }
  return absl::OkStatus();
}

// Writes all of the far tensor. Returns when its bytes are on NVMe.
absl::Status Edges::Write() {
  const uint64_t before = NvmeWritten(engine_->Stats());
  SPILLWAY_RETURN_IF_ERROR(Lease(far_, Tier::kPinned, Access::kDiscard));
  SPILLWAY_RETURN_IF_ERROR(Evict(far_));
  while (NvmeWritten(engine_->Stats()) - before < engine_->Spec(far_).size_bytes()) {
    SPILLWAY_RETURN_IF_ERROR(CheckGoing());
    SPILLWAY_RETURN_IF_ERROR(engine_->EndStep());
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return absl::OkStatus();
}

absl::Status Edges::Evict(TensorId tensor) {
  engine_->ClearPrefetch();
  for (uint64_t tile = 0; tile < NumTiles(tensor); ++tile) {
    SPILLWAY_RETURN_IF_ERROR(engine_->Evict({tensor, tile}));
  }
  return absl::OkStatus();
}

// Reads a tile of the far tensor from NVMe. Uses only a few tiles, because tiles written on the
// device would be written back to NVMe if pinned memory became half full. Numbers that differ
// modulo `num_readers` have different tiles: a reader cannot evict a tile that another leases.
absl::Status Edges::ReadFar(uint64_t number, uint64_t num_readers) {
  const uint64_t tile =
      number % base::RoundDown(std::min(NumTiles(near_) / 2, NumTiles(far_)), num_readers);
  SPILLWAY_RETURN_IF_ERROR(engine_->Evict({far_, tile}));
  return engine_->AcquireHost({far_, tile}, Access::kRead).status();
}

// Reads at least one tile.
absl::Status Edges::ReadUntil(const std::atomic<bool>& stop, uint64_t reader,
                              uint64_t num_readers) {
  uint64_t number = reader;
  do {
    number += num_readers;
    SPILLWAY_RETURN_IF_ERROR(ReadFar(number, num_readers));
  } while (!stop);
  return absl::OkStatus();
}

}  // namespace spillway::bench_tiers
