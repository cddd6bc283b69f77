// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench tiers`: compares the engine's rate over each edge between the tiers with the
// hardware's.

#include <bit>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "spillway/types.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/bench/bench_session.h"
#include "tools/spillway/bench/tiers/bench.h"
#include "tools/spillway/bench/tiers/report.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"

namespace spillway::command {
namespace {

constexpr char kDescription[] =
    "Measure the edges between NVMe, pinned memory and the device.\n"
    "\n"
    "Examples:\n"
    "  spillway bench tiers /nvme0\n"
    "  spillway bench tiers /nvme0 --device cuda:0 --json\n"
    "  spillway bench tiers /nvme0 --block 1MiB --size 8GiB --memory 4GiB\n"
    "\n"
    "Each edge goes through the engine and is held against its ceiling in the same run: a bare\n"
    "file by the I/O engine alone, and one large copy between pinned memory and the device.\n"
    "Writes files of about 2 x --size and removes them again, also when interrupted.\n";

struct Flags {
  bench_tiers::BenchOptions bench;
  bool json = false;
};

constexpr uint64_t kLeastBytes = 64 * kMiB;
constexpr uint64_t kLeastBlockBytes = 64 * kKiB;
constexpr uint64_t kBlocksOfMemory = 32;

absl::Status Check(const bench_tiers::BenchOptions& options) {
  for (const auto& [flag, bytes] :
       {std::pair("--size", options.size_bytes), std::pair("--memory", options.memory_bytes)}) {
    if (bytes == kUnlimited) {
      return UsageError(absl::StrFormat("%s needs a size, not 'unlimited'", flag));
    }
    if (bytes < kLeastBytes) {
      return UsageError(absl::StrFormat("%s must be at least 64 MiB; it is %d bytes", flag, bytes));
    }
  }
  const uint64_t most = options.memory_bytes / kBlocksOfMemory;
  if (!std::has_single_bit(options.block_bytes) || options.block_bytes < kLeastBlockBytes ||
      options.block_bytes > most) {
    return UsageError(absl::StrFormat(
        "--block must be a power of two from 64 KiB to a 32nd of --memory, %s; it is %d bytes",
        base::FormatBytes(most), options.block_bytes));
  }
  return absl::OkStatus();
}

absl::Status RunBenchTiers(Flags flags) {
  SPILLWAY_RETURN_IF_ERROR(Check(flags.bench));
  // Decimal sizes, such as 8GB, are not whole MiB.
  flags.bench.size_bytes = base::RoundDown(flags.bench.size_bytes, kMiB);
  flags.bench.memory_bytes = base::RoundDown(flags.bench.memory_bytes, kMiB);
  const absl::StatusOr<bench_tiers::BenchReport> report =
      RunSession(flags.bench, bench_tiers::RunBench);
  // The machine or the build lacks the device; the command line is not at fault.
  if (absl::IsNotFound(report.status()) && flags.bench.device.kind() == Device::Kind::kCuda) {
    return WithExitCode(report.status(), ExitCode::kCannot);
  }
  if (!report.ok()) return report.status();
  PrintReport(*report, flags.json);
  return absl::OkStatus();
}

}  // namespace

void AddBenchTiersCommand(CLI::App* bench, Run* run) {
  CLI::App* tiers = AddCommand(bench, "tiers", kDescription);
  auto flags = std::make_shared<Flags>();
  AddText(tiers, "dir", &flags->bench.folder, "A folder on the drive to measure")
      .Default(flags->bench.folder);
  AddDevice(tiers, "--device", &flags->bench.device, "The device whose memory is the upper tier");
  AddSize(tiers, "--size", &flags->bench.size_bytes, "Data that passes between NVMe and memory")
      .Default("1GiB");
  AddSize(tiers, "--memory", &flags->bench.memory_bytes,
          "Budget of pinned memory; the device's is an eighth of it")
      .Default("512MiB");
  AddSize(tiers, "--block", &flags->bench.block_bytes, "Bytes of a tile").Default("4MiB");
  AddNumber(tiers, "--seconds", &flags->bench.seconds, {1, 86400}, "No further round after that");
  AddFlag(tiers, "--json", &flags->json, "JSON on stdout");
  WhenChosen(tiers, [flags, run] { *run = [flags] { return RunBenchTiers(*flags); }; });
}

}  // namespace spillway::command
