// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/tiers/ceilings.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "io/make_io_engine.h"
#include "io/nameless_file.h"
#include "src/base/status_macros.h"
#include "tiers/make_device_runtime.h"
#include "tools/spillway/bench/io/targets.h"

namespace spillway::bench_tiers {
namespace {

constexpr uint64_t kMemoryBytes = 256 * kMiB;
constexpr uint64_t kBytesUnderWay = 64 * kMiB;
constexpr uint64_t kMostBlockBytes = 4 * kMiB;  // of the bare file; larger blocks gain nothing
constexpr int kCopies = 4;                      // back to back

}  // namespace

absl::StatusOr<std::unique_ptr<Ceilings>> Ceilings::Create(const std::string& folder, Device device,
                                                           uint64_t size_bytes,
                                                           uint64_t block_bytes,
                                                           const std::atomic<bool>& interrupted) {
  SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<tiers::DeviceRuntime> runtime,
                            tiers::MakeDeviceRuntime(device));
  SPILLWAY_ASSIGN_OR_RETURN(
      bench_io::Memory memory,
      bench_io::Memory::Make(std::min(kMemoryBytes, size_bytes), /*huge=*/true));
  SPILLWAY_ASSIGN_OR_RETURN(io::DirectFile file, io::OpenNamelessFile(folder));
  auto self =
      std::unique_ptr<Ceilings>(new Ceilings(std::move(memory), std::move(file), interrupted));
  self->size_bytes_ = size_bytes;
  self->block_bytes_ = static_cast<uint32_t>(std::min(block_bytes, kMostBlockBytes));
  self->runtime_ = std::move(runtime);
  SPILLWAY_ASSIGN_OR_RETURN(
      self->io_, io::MakeIoEngine(IoKind::kAuto, {.queue_depth = io::kMaxQueueDepth}, folder));
  SPILLWAY_ASSIGN_OR_RETURN(self->file_id_,
                            self->io_->AddFile(self->file_.fd(), folder, /*device=*/0));
  self->memory_.AddTo(*self->io_);
  SPILLWAY_ASSIGN_OR_RETURN(self->arena_, self->runtime_->AllocateArena(self->memory().size()));
  SPILLWAY_RETURN_IF_ERROR(self->runtime_->RegisterHostMemory(self->memory()));
  self->registered_ = true;
  SPILLWAY_ASSIGN_OR_RETURN(self->stream_, self->runtime_->CreateStream());
  // Writes and copies once, so that no measurement is a first touch.
  SPILLWAY_RETURN_IF_ERROR(self->Pass(bench_io::Op::kWrite).status());
  SPILLWAY_RETURN_IF_ERROR(self->Copy(tiers::CopyDirection::kHostToDevice).status());
  return self;
}

Ceilings::~Ceilings() {
  if (stream_.value != nullptr) runtime_->DestroyStream(stream_);
  if (registered_) runtime_->UnregisterHostMemory(memory());
  if (arena_ != nullptr) runtime_->FreeArena(arena_, memory().size());
  if (io_ != nullptr) io_->RemoveBuffers();
}

absl::StatusOr<double> Ceilings::Measure(Edge edge) {
  switch (edge) {
    case Edge::kNvmePinned: return Pass(bench_io::Op::kRead);
    case Edge::kPinnedNvme: return Pass(bench_io::Op::kWrite);
    case Edge::kPinnedDevice: return Copy(tiers::CopyDirection::kHostToDevice);
    case Edge::kDevicePinned: return Copy(tiers::CopyDirection::kDeviceToHost);
    case Edge::kNvmeDevice: break;
  }
  SPILLWAY_ASSIGN_OR_RETURN(const double read, Pass(bench_io::Op::kRead));
  SPILLWAY_ASSIGN_OR_RETURN(const double copy, Copy(tiers::CopyDirection::kHostToDevice));
  return std::min(read, copy);
}

absl::StatusOr<double> Ceilings::MeasureBoth() { return Pass(bench_io::Op::kMixed); }

absl::StatusOr<double> Ceilings::Pass(bench_io::Op op) {
  bench_io::FileTarget target(io_.get(), {file_id_}, block_bytes_);
  const bench_io::Pass pass = {.op = op,
                               .block_bytes = block_bytes_,
                               .depth = static_cast<int>(kBytesUnderWay / block_bytes_),
                               .num_blocks = size_bytes_ / block_bytes_};
  SPILLWAY_ASSIGN_OR_RETURN(const bench_io::PassResult result,
                            bench_io::RunPass(pass, target, memory(), interrupted_));
  return static_cast<double>(result.bytes) / result.seconds;
}

absl::StatusOr<double> Ceilings::Copy(tiers::CopyDirection direction) {
  if (interrupted_) return absl::CancelledError("interrupted");
  const bool in = direction == tiers::CopyDirection::kHostToDevice;
  const uint64_t bytes = memory().size();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCopies; ++i) {
    SPILLWAY_RETURN_IF_ERROR(runtime_->CopyAsync(stream_, direction, in ? arena_ : memory().data(),
                                                 in ? memory().data() : arena_, bytes));
  }
  SPILLWAY_RETURN_IF_ERROR(runtime_->Synchronize(stream_));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(bytes) * kCopies / seconds.count();
}

}  // namespace spillway::bench_tiers
