// SPDX-License-Identifier: Apache-2.0
//
// `spillway capacity`: the real store with the whole layout of a model, most of it holes.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/io_engine.h"
#include "nlohmann/json.hpp"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"
#include "tools/spillway/capacity/killed_commit.h"
#include "tools/spillway/capacity/trial.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/interrupt.h"
#include "tools/spillway/command/json_text.h"
#include "tools/spillway/command/progress.h"
#include "tools/spillway/plan/question.h"
#include "tools/trainer/activations.h"
#include "tools/trainer/parameters.h"

namespace spillway::command {
namespace {

using base::FormatBytes;
using capacity::TrialOptions;
using capacity::TrialReport;

constexpr char kDescription[] =
    "Try the real store with the whole layout of a model, on a small disk.\n"
    "\n"
    "Examples:\n"
    "  spillway capacity /nvme0/try --model 7B\n"
    "  spillway capacity /nvme0/try --model 1T --precision fp16-amp --state-format compact \\\n"
    "      --disk 20GiB --json\n"
    "\n"
    "Every page of the training state gets its extent and its row in the catalog. A sample (0.1%,\n"
    "in every file) is written, read back and compared; the other pages are holes, of which as\n"
    "many are read back. Then come a commit, a reopening, a second commit under a snapshot, the\n"
    "snapshot's restore, and kills during a commit. It says beforehand what it takes, and removes\n"
    "all of it at the end, also after Ctrl-C. No other command opens such a store.\n"
    "\n"
    "Exit codes: 0 all verified, 1 something did not, or the folder has a store, 2 wrong usage,\n"
    "3 the file system is too small or has no holes, 130 interrupted.\n";

struct CapacityFlags {
  std::vector<std::string> folders;
  QuestionFlags question;
  uint64_t disk_bytes = 20 * kGiB;
  uint64_t seed = 1;
  bool json = false;
};

std::vector<TensorSpec> TensorsOf(const Question& question) {
  const trainer::Description model = trainer::Describe(question.config());
  const trainer::TileSizes tiles = trainer::TilesOf(model, question.options);
  std::vector<TensorSpec> specs;
  for (const trainer::ParameterShape& parameter : model.parameters) {
    auto some = trainer::ParameterTensorSpecs(parameter, question.options, tiles);
    specs.insert(specs.end(), some.begin(), some.end());
  }
  const auto saved = trainer::ActivationSpecs(model, question.options);
  specs.insert(specs.end(), saved.begin(), saved.end());
  return specs;
}

// The store notes 48 bytes in memory for each page until its first commit.
constexpr uint64_t kMostPages = uint64_t{1} << 27;

absl::Status CheckPages(const TrialOptions& options) {
  const capacity::Layout layout(options.specs, options.page_bytes);
  const uint64_t pages = layout.Totals(false).pages + layout.Totals(true).pages;
  if (pages <= kMostPages) return absl::OkStatus();
  return UsageError(absl::StrFormat(
      "the layout has %d pages of %s; at most %d are tried, which take 6 GiB of memory: use a "
      "larger --page-bytes",
      pages, FormatBytes(options.page_bytes), kMostPages));
}

// Says what the trial takes, and checks that it may take that, and can.
absl::Status CheckNeed(const CapacityFlags& flags, const TrialOptions& options) {
  SPILLWAY_RETURN_IF_ERROR(CheckPages(options));
  const capacity::DiskNeed need = capacity::NeedOf(options);
  const uint64_t bytes = need.Total(options.folders.size());
  if (flags.disk_bytes < bytes) {
    return UsageError(absl::StrFormat(
        "--disk %s is too small: the trial takes up to %s of the disk; give at least that (%d "
        "bytes)",
        FormatBytes(flags.disk_bytes), FormatBytes(bytes), bytes));
  }
  std::vector<capacity::FileSystemProbe> probes;
  for (const std::string& folder : options.folders) {
    SPILLWAY_ASSIGN_OR_RETURN(probes.emplace_back(),
                              capacity::ProbeFileSystem(folder, need.largest_file_bytes));
  }
  SPILLWAY_RETURN_IF_ERROR(capacity::CheckFileSystems(probes, need));
  uint64_t real = 0;
  for (const TensorSpec& spec : options.specs) real += spec.transient ? 0 : spec.size_bytes();
  absl::FPrintF(stderr, "takes up to %s of the disk for a state of %s; all of it is removed\n",
                FormatBytes(bytes), FormatBytes(real));
  return absl::OkStatus();
}

nlohmann::ordered_json ToJson(const Question& question, const TrialReport& report) {
  nlohmann::ordered_json seconds = nlohmann::ordered_json::object();
  double total = 0;
  for (const capacity::TrialPhase& phase : report.phases) {
    seconds[phase.name] = phase.seconds;
    total += phase.seconds;
  }
  seconds["total"] = total;
  return {{"v", 1},
          {"verified", true},
          {"model", question.model.title},
          {"parameters", question.num_parameters},
          {"tensors", report.rows.tensors},
          {"pages", report.rows.pages},
          {"page_bytes", report.page_bytes},
          {"state_bytes", report.rows.bytes},
          {"transient_bytes", report.transient.bytes},
          {"transient_pages", report.transient.pages},
          {"files", report.files},
          {"file_bytes", report.file_bytes},
          {"written_pages", report.written_pages},
          {"written_bytes", report.written_bytes},
          {"rewritten_pages", report.rewritten_pages},
          {"verified_holes", report.verified_holes},
          {"sparse_bytes", report.rows.bytes - report.written_bytes},
          {"commits", report.commits},
          {"kills", {{"during_commit", report.kills}, {"committed", report.kills_with_commit}}},
          {"catalog_bytes", report.catalog_bytes},
          {"disk_bytes", {{"expected", report.needed_bytes}, {"most", report.disk_bytes}}},
          {"memory_bytes", report.memory_bytes},
          {"seconds", seconds}};
}

void PrintText(const Question& question, const TrialReport& report) {
  absl::PrintF("%s, %s of %s\n", question.model.title, base::FormatCount(report.rows.pages, "page"),
               FormatBytes(report.page_bytes));
  absl::PrintF("  state      %s in %s; each page has an extent and a row\n",
               FormatBytes(report.rows.bytes), base::FormatCount(report.files, "file"));
  absl::PrintF("  transient  %s of gradients and activations; they have room, and no rows\n",
               FormatBytes(report.transient.bytes));
  absl::PrintF(
      "  real       %d pages (%.2f%%), %s: written, read back and compared\n", report.written_pages,
      100 * static_cast<double>(report.written_pages) / static_cast<double>(report.rows.pages),
      FormatBytes(report.written_bytes));
  absl::PrintF("  sparse     all others, %s of holes; %d read back as zeros\n",
               FormatBytes(report.rows.bytes - report.written_bytes), report.verified_holes);
  absl::PrintF("  commits    %d; one was of all rows, the others of %d pages\n", report.commits,
               report.rewritten_pages);
  absl::PrintF("  kills      %d during a commit: %d left the old commit, %d the new, all whole\n",
               report.kills, report.kills - report.kills_with_commit, report.kills_with_commit);
  absl::PrintF("  took       %s of disk at most (%s expected), catalog %s, memory %s\n\n",
               FormatBytes(report.disk_bytes), FormatBytes(report.needed_bytes),
               FormatBytes(report.catalog_bytes), FormatBytes(report.memory_bytes));
  double total = 0;
  for (const capacity::TrialPhase& phase : report.phases) {
    absl::PrintF("  %-15s %8.1f s\n", phase.name, phase.seconds);
    total += phase.seconds;
  }
  absl::PrintF("  %-15s %8.1f s\n", "total", total);
}

// A trial that found damage, or had no room, failed; nothing of the user's is damaged, and no flag
// is wrong.
absl::Status WithCode(const absl::Status& status) {
  if (absl::IsResourceExhausted(status) && absl::StrContains(status.message(), "(ENOSPC)"))
    return WithExitCode(status, ExitCode::kCannot);
  if (absl::IsDataLoss(status) || absl::IsResourceExhausted(status))
    return WithExitCode(status, ExitCode::kFailed);
  return status;
}

absl::Status RunCapacity(const CapacityFlags& flags) {
  SPILLWAY_RETURN_IF_ERROR(CheckStoreArgument(flags.folders));
  EngineFlags engine = flags.question.recipe.engine;
  engine.store = flags.folders;
  SPILLWAY_RETURN_IF_ERROR(CheckEngineFlags(engine));
  SPILLWAY_ASSIGN_OR_RETURN(const Question question, ReadModelQuestion(flags.question));
  if (!question.model.config) {
    return UsageError(absl::StrCat(question.model.title,
                                   ": the tensors of a training state follow from a known model "
                                   "type alone: ",
                                   question.model.why_counted));
  }
  TrialOptions options;
  options.folders = flags.folders;
  options.specs = TensorsOf(question);
  if (engine.page_bytes > 0) options.page_bytes = engine.page_bytes;
  options.segment_bytes = std::max(options.segment_bytes, options.page_bytes);
  options.disk_bytes = flags.disk_bytes;
  options.seed = flags.seed;
  options.stop = &CatchInterrupts();
  SPILLWAY_RETURN_IF_ERROR(CheckNeed(flags, options));

  TidyOnSecondInterrupt([folders = flags.folders, made = capacity::MissingFolders(flags.folders)] {
    capacity::KillCommittingChild();
    capacity::RemoveOpenTrial(folders, made);
  });
  std::unique_ptr<Progress> progress;
  std::string shown;  // the phase that `progress` shows
  options.before_phase = [&progress](std::string_view) { progress.reset(); };
  options.progress = [&](std::string_view phase, uint64_t done, uint64_t total) {
    if (!progress || shown != phase) {
      shown = std::string(phase);
      progress = std::make_unique<Progress>(shown + ":");
    }
    progress->ShowCount(done, total,
                        phase == "kills"   ? "kills"
                        : phase == "check" ? "MiB"
                                           : "pages");
  };
  options.note = [&progress](std::string_view text) {
    if (progress) progress->End();
    absl::FPrintF(stderr, "note: %s\n", base::View(text));
  };
  const absl::StatusOr<TrialReport> report = capacity::RunTrial(options);
  progress.reset();
  if (!report.ok()) return WithCode(report.status());
  if (flags.json) {
    absl::PrintF("%s\n", JsonText(ToJson(question, *report)));
  } else {
    PrintText(question, *report);
  }
  return absl::OkStatus();
}

}  // namespace

void AddCapacityCommand(CLI::App* app, Run* run) {
  CLI::App* const command = AddCommand(app, "capacity", kDescription);
  const auto flags = std::make_shared<CapacityFlags>();
  AddStoreArgument(command, &flags->folders);
  AddModelQuestionFlags(command, &flags->question);
  BeginGroup(command, "Trial");
  AddSize(command, "--page-bytes", &flags->question.recipe.engine.page_bytes,
          "Of the store, a multiple of 4KiB; default: 1MiB, as of train", io::kIoAlignment);
  AddSize(command, "--disk", &flags->disk_bytes, "Most bytes of the disks that it may take", 1)
      .Default("20GiB");
  AddSeed(command, "--seed", &flags->seed, "Of the pages that are written, and of the kills");
  AddFlag(command, "--json", &flags->json, "One JSON object on stdout, nothing else there");
  WhenChosen(command, [flags, run] { *run = [flags] { return RunCapacity(*flags); }; });
}

}  // namespace spillway::command
