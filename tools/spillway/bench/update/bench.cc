// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/update/bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spillway/thread_pool.h"
#include "src/base/available_memory.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/optim/rule_passes.h"
#include "tools/spillway/bench/io/room.h"
#include "tools/spillway/bench/update/limits.h"

namespace spillway::bench_update {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostRounds = 9;
constexpr uint64_t kMostLimitBytes = 512 * kMiB;  // more than any cache holds
constexpr uint64_t kMostMovedBytes = 64;  // per parameter, in a round of any rule and format
constexpr uint64_t kGradientBytes = 2;    // fp16, read in each pass of the rule
constexpr uint16_t kGradient = 0x2000;    // 2⁻⁷ in fp16

// Returns the bytes of weights and state in all formats together, of the rule that has the most.
absl::StatusOr<uint64_t> MostStateBytes(const BenchOptions& options) {
  uint64_t most = 0;
  for (const RuleFormats& pair : options.pairs) {
    uint64_t sum = 0;
    for (const StateFormat format : pair.formats) {
      SPILLWAY_ASSIGN_OR_RETURN(const uint64_t bytes,
                                StateBytes(pair.rule, format, options.num_parameters));
      sum += bytes;
    }
    most = std::max(most, sum);
  }
  return most;
}

// Returns the size of the memory that the limits are measured in, and of fio's file: the bytes that
// a round moves, but no more than a size that no cache holds.
uint64_t LimitBytes(const BenchOptions& options) {
  return std::min(kMostLimitBytes, kMostMovedBytes * options.num_parameters);
}

size_t MostFormats(const BenchOptions& options) {
  size_t most = 1;
  for (const RuleFormats& pair : options.pairs) most = std::max(most, pair.formats.size());
  return most;
}

// Checks that the folder has room for twice the state (it is written out of place), the gradients
// of each format, and fio's file. A tenth of the free bytes must stay free.
absl::Status CheckRoom(const BenchOptions& options, uint64_t state_bytes) {
  const uint64_t gradients = options.gradients == Where::kNvme
                                 ? MostFormats(options) * kGradientBytes * options.num_parameters
                                 : 0;
  const uint64_t needed = 2 * state_bytes + gradients + LimitBytes(options) + kGiB;
  return bench_io::CheckRoom({&options.folder, 1}, needed, "give fewer --parameters");
}

// Checks that there is memory for the state and its slack, the gradients, the limits, and the
// pinned budgets of the state on NVMe.
absl::Status CheckMemory(const BenchOptions& options, uint64_t state_bytes) {
  const uint64_t budgets = options.folder.empty() ? 0 : MostFormats(options) * options.memory_bytes;
  const uint64_t needed = state_bytes + state_bytes / 8 + kGradientBytes * options.num_parameters +
                          LimitBytes(options) + budgets + 512 * kMiB;
  const uint64_t available = base::AvailableMemoryBytes();
  if (available == 0 || needed <= available / 10 * 9) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(base::FormatBytes(available), " of memory can be had, the benchmark takes ",
                   base::FormatBytes(needed), ": give fewer --parameters or a smaller --memory"));
}

// A rule's state in one format: in memory, and on NVMe if there is a folder.
struct Measured {
  std::optional<bench_io::OwnFolder> folder;  // holds the store; destroyed after it
  std::unique_ptr<UpdatedState> dram, nvme;
  Row dram_row, nvme_row;
};

class Bench {
 public:
  Bench(const BenchOptions& options, const std::atomic<bool>& interrupted)
      : options_(options), interrupted_(interrupted), pool_(options.num_threads) {}

  absl::StatusOr<BenchReport> Run() {
    SPILLWAY_ASSIGN_OR_RETURN(const uint64_t state_bytes, MostStateBytes(options_));
    if (!options_.folder.empty()) SPILLWAY_RETURN_IF_ERROR(CheckRoom(options_, state_bytes));
    SPILLWAY_RETURN_IF_ERROR(CheckMemory(options_, state_bytes));
    SPILLWAY_RETURN_IF_ERROR(Prepare());
    for (const RuleFormats& pair : options_.pairs) SPILLWAY_RETURN_IF_ERROR(RunRule(pair));
    if (HasFio()) report_.fio = limits_->fio_version();
    report_.cached = limits_->cached();
    if (!options_.folder.empty() && report_.fio.empty())
      options_.note(
          "there is no fio here, or it failed: state on NVMe is held against kernel and hash "
          "alone");
    return std::move(report_);
  }

 private:
  absl::Status Prepare() {
    Show("writing");
    SPILLWAY_ASSIGN_OR_RETURN(
        limits_, Limits::Create(options_.folder, LimitBytes(options_), &pool_, interrupted_));
    gradients_.assign(options_.num_parameters, kGradient);
    std::vector<std::string> folders;
    if (!options_.folder.empty()) folders.push_back(options_.folder);
    report_.machine = bench_io::Look(folders, limits_->memory().span());
    report_.num_parameters = options_.num_parameters;
    report_.memory_bytes = options_.memory_bytes;
    report_.gradients = options_.gradients;
    report_.num_threads = options_.num_threads;
    return absl::OkStatus();
  }

  // Whether fio did any round.
  bool HasFio() const {
    const auto has_fio = [](const Sample& sample) { return sample.fio > 0; };
    return std::any_of(report_.rows.begin(), report_.rows.end(), [&](const Row& row) {
      return std::any_of(row.samples.begin(), row.samples.end(), has_fio);
    });
  }

  absl::Status RunRule(const RuleFormats& pair) {
    const Clock::time_point start = Clock::now();
    const double most_seconds = options_.seconds / static_cast<double>(options_.pairs.size());
    std::vector<Measured> all;
    for (const StateFormat format : pair.formats) {
      SPILLWAY_ASSIGN_OR_RETURN(Measured measured, Make(pair.rule, format));
      all.push_back(std::move(measured));
    }
    for (int round = 0; round < kMostRounds; ++round) {
      const std::chrono::duration<double> spent = Clock::now() - start;
      if (round > 0 && spent.count() > most_seconds) break;
      for (Measured& measured : all)
        SPILLWAY_RETURN_IF_ERROR(RunRound(measured, /*limit_first=*/round % 2 == 0));
    }
    for (Measured& measured : all) report_.rows.push_back(std::move(measured.dram_row));
    for (Measured& measured : all) {
      if (measured.nvme != nullptr) report_.rows.push_back(std::move(measured.nvme_row));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Measured> Make(const Rule& rule, StateFormat format) {
    Show(absl::StrCat(std::string(Name(rule.kind)), " ", std::string(Name(format))));
    Measured measured;
    StateOptions state = {.rule = rule,
                          .format = format,
                          .num_parameters = options_.num_parameters,
                          .store = "",
                          .memory_bytes = options_.memory_bytes,
                          .gradients = gradients_,
                          .announce = options_.note};
    SPILLWAY_ASSIGN_OR_RETURN(measured.dram, UpdatedState::Create(state, &pool_, interrupted_));
    measured.dram_row = {.rule = rule, .format = format, .where = Where::kDram};
    measured.dram_row.bytes = measured.dram->bytes();
    if (options_.folder.empty()) return measured;
    SPILLWAY_ASSIGN_OR_RETURN(bench_io::OwnFolder folder, options_.make_folder(options_.folder));
    state.store = absl::StrCat(folder.path(), "/store");
    state.has_gradients_on_nvme = options_.gradients == Where::kNvme;
    measured.folder.emplace(std::move(folder));
    SPILLWAY_ASSIGN_OR_RETURN(measured.nvme, UpdatedState::Create(state, &pool_, interrupted_));
    measured.nvme_row = {.rule = rule, .format = format, .where = Where::kNvme};
    report_.io_engine = measured.nvme->Stats().io_engine;
    return measured;
  }

  absl::Status RunRound(Measured& measured, bool limit_first) {
    Show(absl::StrCat(std::string(Name(measured.dram_row.rule.kind)), " ",
                      std::string(Name(measured.dram_row.format))));
    SPILLWAY_ASSIGN_OR_RETURN(const double dram_seconds, RunDram(measured, limit_first));
    if (measured.nvme != nullptr)
      SPILLWAY_RETURN_IF_ERROR(RunNvme(measured, dram_seconds, limit_first));
    ++passes_;
    return absl::OkStatus();
  }

  // Measures a pass in memory and its limit. Returns the seconds of the update.
  absl::StatusOr<double> RunDram(Measured& measured, bool limit_first) {
    Row& row = measured.dram_row;
    const uint64_t bytes = BytesOf(row.bytes.read + row.bytes.written + GradientsReadBy(row));
    double seconds = 0, memory_seconds = 0;
    for (const bool limits_turn : {limit_first, !limit_first}) {
      if (limits_turn) {
        SPILLWAY_ASSIGN_OR_RETURN(memory_seconds, limits_->InPlaceSeconds(bytes));
      } else {
        SPILLWAY_ASSIGN_OR_RETURN(seconds, measured.dram->Pass());
      }
    }
    row.samples.push_back({.update = Rate(seconds), .memory = Rate(memory_seconds)});
    return seconds;
  }

  absl::Status RunNvme(Measured& measured, double kernel_seconds, bool limit_first) {
    Row& row = measured.nvme_row;
    ParameterBytes mix = measured.dram_row.bytes;
    if (options_.gradients == Where::kNvme) mix.read += GradientsReadBy(row);
    const uint64_t bytes = BytesOf(mix.read + mix.written);
    SPILLWAY_ASSIGN_OR_RETURN(const double hash_seconds, limits_->HashSeconds(bytes));
    double seconds = 0;
    std::optional<double> fio_seconds;
    for (const bool limits_turn : {limit_first, !limit_first}) {
      if (limits_turn) {
        SPILLWAY_ASSIGN_OR_RETURN(fio_seconds,
                                  limits_->FioSeconds(bytes, mix, report_.io_engine == "uring"));
      } else {
        SPILLWAY_ASSIGN_OR_RETURN(seconds, measured.nvme->Pass());
      }
    }
    row.bytes = measured.nvme->bytes();
    row.kernel_bytes = measured.nvme->kernel_bytes();
    row.samples.push_back({.update = Rate(seconds),
                           .kernel = Rate(kernel_seconds + hash_seconds),
                           .fio = fio_seconds ? Rate(*fio_seconds) : 0});
    return absl::OkStatus();
  }

  // Returns the bytes of gradients that an update reads per parameter.
  static double GradientsReadBy(const Row& row) {
    const std::vector<int64_t> shape = {1, static_cast<int64_t>(kRowElements)};
    return static_cast<double>(kGradientBytes *
                               optim::PassesOf(row.rule, row.format, shape).size());
  }
  uint64_t BytesOf(double bytes_per_parameter) const {
    return static_cast<uint64_t>(bytes_per_parameter *
                                 static_cast<double>(options_.num_parameters));
  }
  double Rate(double seconds) const {
    return static_cast<double>(options_.num_parameters) / seconds;
  }
  void Show(const std::string& what) const { options_.progress(passes_, passes_, what); }

  const BenchOptions& options_;
  const std::atomic<bool>& interrupted_;
  ThreadPool pool_;
  std::unique_ptr<Limits> limits_;
  std::vector<uint16_t> gradients_;
  BenchReport report_;
  int passes_ = 0;
};

}  // namespace

std::string_view NameOf(Where where) { return where == Where::kDram ? "dram" : "nvme"; }

absl::StatusOr<BenchReport> RunBench(const BenchOptions& options,
                                     const std::atomic<bool>& interrupted) {
  return Bench(options, interrupted).Run();
}

}  // namespace spillway::bench_update
