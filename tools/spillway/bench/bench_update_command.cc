// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench update`: compares the optimizer's rate with the speed of memory and of the drive.

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "spillway/types.h"
#include "src/base/status_macros.h"
#include "tools/spillway/bench/bench_session.h"
#include "tools/spillway/bench/update/bench.h"
#include "tools/spillway/bench/update/pairs.h"
#include "tools/spillway/bench/update/report.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"

namespace spillway::command {
namespace {

constexpr char kDescription[] =
    "Measure the optimizer's update: parameters a second and bytes a parameter.\n"
    "\n"
    "Examples:\n"
    "  spillway bench update\n"
    "  spillway bench update /nvme0 --json\n"
    "  spillway bench update /nvme0 --optimizer adamw,lion --state-format fp32,bf16 --memory "
    "256MiB\n"
    "\n"
    "In memory, each rule and format is held against an update in place of as many bytes. With "
    "DIR\n"
    "also with weights and state on its device, against fio moving as many bytes and against the\n"
    "update and the checksums alone. Weights and gradients have 16 bits; gradients stay in "
    "memory,\n"
    "or are read from the device, too, with --gradients nvme.\n"
    "Writes files of up to 2 x the state of a rule's formats, and gradients for each of them, and\n"
    "removes them again, also when interrupted. A tenth of the free space stays free.\n";

constexpr int64_t kLeastParameters = int64_t{1} << 20;
constexpr int64_t kMostParameters = int64_t{1} << 40;
constexpr uint64_t kLeastMemoryBytes = 64 * kMiB;
constexpr int64_t kMostThreads = 512;

struct Flags {
  bench_update::BenchOptions bench;
  int64_t num_parameters = int64_t{64} << 20;
  int64_t num_threads = std::max<int64_t>(1, std::thread::hardware_concurrency());
  std::vector<std::string> optimizers;
  std::vector<std::string> formats;
  bool json = false;
};

absl::Status Check(Flags* flags) {
  bench_update::BenchOptions& bench = flags->bench;
  if (bench.memory_bytes == kUnlimited || bench.memory_bytes < kLeastMemoryBytes) {
    return UsageError(
        "--memory must be a size of at least 64 MiB: it is the budget of pinned "
        "memory that the state passes through");
  }
  if (bench.folder.empty() && bench.gradients == bench_update::Where::kNvme)
    return UsageError("--gradients nvme needs DIR, a folder on the drive");
  if (flags->num_parameters % static_cast<int64_t>(bench_update::kRowElements) != 0) {
    return UsageError(absl::StrFormat("--parameters must be a multiple of %d; it is %d",
                                      bench_update::kRowElements, flags->num_parameters));
  }
  auto pairs = bench_update::FindPairs(flags->optimizers, flags->formats);
  if (!pairs.ok()) {
    const absl::string_view message = pairs.status().message();
    return UsageError({message.data(), message.size()});
  }
  bench.pairs = *std::move(pairs);
  bench.num_parameters = static_cast<uint64_t>(flags->num_parameters);
  bench.num_threads = static_cast<int>(flags->num_threads);
  return absl::OkStatus();
}

absl::Status RunBenchUpdate(Flags flags) {
  SPILLWAY_RETURN_IF_ERROR(Check(&flags));
  SPILLWAY_ASSIGN_OR_RETURN(const bench_update::BenchReport report,
                            RunSession(flags.bench, bench_update::RunBench));
  PrintReport(report, flags.json);
  return absl::OkStatus();
}

}  // namespace

void AddBenchUpdateCommand(CLI::App* bench, Run* run) {
  CLI::App* update = AddCommand(bench, "update", kDescription);
  auto flags = std::make_shared<Flags>();
  AddText(update, "dir", &flags->bench.folder,
          "A folder on the drive to measure; none: in memory alone");
  AddInteger(update, "--parameters", &flags->num_parameters, kLeastParameters, kMostParameters,
             "Parameters to update, a multiple of 1024");
  AddSize(update, "--memory", &flags->bench.memory_bytes,
          "Budget of pinned memory for state on the drive")
      .Default("128MiB");
  AddChoice(update, "--gradients", &flags->bench.gradients,
            {{"memory", bench_update::Where::kDram}, {"nvme", bench_update::Where::kNvme}},
            "Where an update of state on the drive reads gradients");
  AddList(update, "--optimizer", &flags->optimizers, "Rules to measure: NAME[,NAME]; none: all");
  AddList(update, "--state-format", &flags->formats, "Formats to measure: NAME[,NAME]; none: all");
  AddInteger(update, "--threads", &flags->num_threads, 1, kMostThreads, "Threads that compute");
  AddNumber(update, "--seconds", &flags->bench.seconds, {1, 86400}, "No further round after that");
  AddFlag(update, "--json", &flags->json, "JSON on stdout");
  WhenChosen(update, [flags, run] { *run = [flags] { return RunBenchUpdate(*flags); }; });
}

}  // namespace spillway::command
