// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/update/limits.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/checksum.h"
#include "io/nameless_file.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"
#include "tools/spillway/bench/io/fio.h"
#include "tools/spillway/bench/io/machine.h"
#include "tools/spillway/bench/update/in_place_scale.h"

namespace spillway::bench_update {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kBlockBytes = kMiB;  // a page of the store
// With blocks of 1 MiB fio reached 1.7 GB/s of a mix where blocks of 4 MiB reached 3.1 GB/s.
constexpr uint32_t kFioBlockBytes = 4 * kMiB;
constexpr int kFioDepth = 64;
constexpr int64_t kGrainElements = 16384;  // as in the update

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Limits>> Limits::Create(const std::string& folder,
                                                       uint64_t size_bytes, ThreadPool* pool,
                                                       const std::atomic<bool>& interrupted) {
  SPILLWAY_ASSIGN_OR_RETURN(bench_io::Memory memory,
                            bench_io::Memory::Make(size_bytes, /*huge=*/true));
  auto limits = std::unique_ptr<Limits>(new Limits(std::move(memory), pool, interrupted));
  if (!folder.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(const io::DirectFile probe, io::OpenNamelessFile(folder));
    limits->cached_ = bench_io::IsCached(probe);
    limits->fio_version_ = bench_io::FioVersion();
  }
  if (!limits->fio_version_.empty()) SPILLWAY_RETURN_IF_ERROR(limits->MakeFile(folder));
  // Makes the floats near 1, because denormals are slow to multiply.
  std::memset(limits->memory_.span().data(), 0x3f, limits->memory_.span().size());
  return limits;
}

absl::Status Limits::MakeFile(const std::string& folder) {
  SPILLWAY_ASSIGN_OR_RETURN(file_, io::OpenNamelessFile(folder));
  const std::span<std::byte> bytes = memory_.span();
  for (size_t at = 0; at < bytes.size(); at += kBlockBytes) {
    SPILLWAY_RETURN_IF_ERROR(CheckGoing());
    const size_t size = std::min<size_t>(kBlockBytes, bytes.size() - at);
    if (::pwrite(file_->fd(), bytes.data() + at, size, static_cast<off_t>(at)) !=
        static_cast<ssize_t>(size)) {
      return base::ErrnoToStatus(errno, absl::StrCat("writing a file in ", folder));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Limits::InPlaceSeconds(uint64_t bytes) {
  const Clock::time_point start = Clock::now();
  auto* const values = reinterpret_cast<float*>(memory_.span().data());
  const auto most = static_cast<int64_t>(memory_.span().size() / sizeof(float));
  auto left = static_cast<int64_t>(bytes / (2 * sizeof(float)));
  for (; left > 0; left -= most) {
    SPILLWAY_RETURN_IF_ERROR(CheckGoing());
    pool_->ParallelPortions(std::min(left, most), kGrainElements, [&](int64_t begin, int64_t end) {
      ScaleInPlace(values + begin, end - begin);
    });
  }
  return SecondsSince(start);
}

absl::StatusOr<double> Limits::HashSeconds(uint64_t bytes) {
  SPILLWAY_RETURN_IF_ERROR(CheckGoing());
  const uint64_t pages = memory_.span().size() / kBlockBytes;
  std::atomic<uint64_t> sum = 0;  // keeps the compiler from omitting the hashes
  const Clock::time_point start = Clock::now();
  pool_->ParallelFor(static_cast<int64_t>(bytes / kBlockBytes), [&](int64_t i) {
    const uint64_t page = static_cast<uint64_t>(i) % pages;
    sum += io::Checksum(memory_.span().subspan(page * kBlockBytes, kBlockBytes));
  });
  return SecondsSince(start);
}

absl::StatusOr<std::optional<double>> Limits::FioSeconds(uint64_t bytes, const ParameterBytes& mix,
                                                         bool uring) {
  if (!file_) return std::nullopt;
  const uint64_t size_bytes = memory_.span().size();
  double seconds = 0, moved = 0;
  while (moved < static_cast<double>(bytes)) {  // a job passes over the file at most once
    const absl::StatusOr<bench_io::FioResult> result =
        bench_io::RunFio({.op = bench_io::Op::kMixed,
                          .read_share = mix.read / (mix.read + mix.written),
                          .block_bytes = kFioBlockBytes,
                          .depth = kFioDepth,
                          .uring = uring,
                          .size_bytes = size_bytes,
                          .move_bytes = std::min(bytes - static_cast<uint64_t>(moved), size_bytes),
                          .paths = {absl::StrCat("/proc/", ::getpid(), "/fd/", file_->fd())}},
                         interrupted_);
    if (absl::IsNotFound(result.status())) {
      file_.reset();  // fio is not tried again
      return std::nullopt;
    }
    SPILLWAY_RETURN_IF_ERROR(result.status());
    moved += result->bytes;
    seconds += result->seconds;
  }
  return seconds * static_cast<double>(bytes) / moved;
}

absl::Status Limits::CheckGoing() const {
  return interrupted_ ? absl::CancelledError("interrupted") : absl::OkStatus();
}

}  // namespace spillway::bench_update
