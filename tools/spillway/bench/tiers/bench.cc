// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/tiers/bench.h"

#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "src/base/available_memory.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/bench/io/room.h"
#include "tools/spillway/bench/tiers/ceilings.h"

namespace spillway::bench_tiers {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostRounds = 9;

// Checks that the folder has room for the engine's data, its slack and the bare file. A tenth of
// the free bytes must stay free.
absl::Status CheckRoom(const BenchOptions& options) {
  const uint64_t needed =
      2 * options.size_bytes + 2 * options.memory_bytes + bench_io::kStoreSlackBytes;
  return bench_io::CheckRoom({&options.folder, 1}, needed, "give a smaller --size");
}

absl::Status CheckMemory(const BenchOptions& options) {
  const uint64_t needed = options.memory_bytes + options.memory_bytes / 8 + 512 * kMiB;
  const uint64_t available = base::AvailableMemoryBytes();
  if (available == 0 || needed <= available / 10 * 9) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(base::FormatBytes(available), " of memory can be had, the benchmark takes ",
                   base::FormatBytes(needed), ": give a smaller --memory"));
}

std::vector<Row> MakeRows() {
  std::vector<Row> rows;
  for (const Edge edge : kEdges) rows.push_back({.edge = edge});
  for (const Edge edge : {Edge::kPinnedDevice, Edge::kDevicePinned}) {
    rows.push_back({.edge = edge, .beside_nvme = true});
  }
  return rows;
}

absl::Status RunRow(Row& row, Edges& edges, Ceilings& ceilings, bool ceiling_first) {
  Sample sample;
  for (const bool ceiling_turn : {ceiling_first, !ceiling_first}) {
    if (ceiling_turn) {
      SPILLWAY_ASSIGN_OR_RETURN(sample.ceiling_bytes_per_second, ceilings.Measure(row.edge));
    } else {
      SPILLWAY_ASSIGN_OR_RETURN(const Edges::Rate rate, edges.Measure(row.edge, row.beside_nvme));
      sample.bytes_per_second = rate.bytes_per_second;
      sample.nvme_bytes_per_second = rate.nvme_bytes_per_second;
    }
  }
  row.samples.push_back(sample);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BenchReport> RunBench(const BenchOptions& options,
                                     const std::atomic<bool>& interrupted) {
  const Clock::time_point start = Clock::now();
  SPILLWAY_RETURN_IF_ERROR(CheckRoom(options));
  SPILLWAY_RETURN_IF_ERROR(CheckMemory(options));
  int passes = 0;
  const auto show = [&](const std::string& what) {
    if (options.progress) options.progress(passes, passes, what);
  };
  show("writing");
  SPILLWAY_ASSIGN_OR_RETURN(const bench_io::OwnFolder folder, options.make_folder(options.folder));
  const uint64_t size_bytes = base::RoundUp(options.size_bytes, options.block_bytes);
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Ceilings> ceilings,
                            Ceilings::Create(folder.path(), options.device, size_bytes,
                                             options.block_bytes, interrupted));
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Edges> edges,
                            Edges::Create({.store = absl::StrCat(folder.path(), "/store"),
                                           .device = options.device,
                                           .size_bytes = size_bytes,
                                           .memory_bytes = options.memory_bytes,
                                           .block_bytes = options.block_bytes,
                                           .content = ceilings->memory(),
                                           .announce = options.note},
                                          interrupted));
  BenchReport report;
  report.machine = bench_io::Look({&options.folder, 1}, ceilings->memory());
  report.device = ceilings->device_name();
  report.io_engine = edges->Stats().io_engine;
  report.cached = ceilings->is_cached();
  report.block_bytes = options.block_bytes;
  report.rows = MakeRows();
  for (int round = 0; round < kMostRounds; ++round) {
    const std::chrono::duration<double> spent = Clock::now() - start;
    if (round > 0 && spent.count() > options.seconds) break;
    for (Row& row : report.rows) {
      show(absl::StrCat(std::string(NameOf(row.edge)), row.beside_nvme ? " beside NVMe" : ""));
      SPILLWAY_RETURN_IF_ERROR(RunRow(row, *edges, *ceilings, /*ceiling_first=*/round % 2 == 0));
      ++passes;
    }
  }
  return report;
}

}  // namespace spillway::bench_tiers
