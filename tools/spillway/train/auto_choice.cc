// SPDX-License-Identifier: Apache-2.0
//
// The search goes one coordinate after the other: micro-batches and their order, then how memory is
// divided between the device's tier and pinned memory, then places. A GPU has memory of its own, so
// there nothing is divided. An earlier candidate is kept unless a later one is faster by a
// hundredth, so that the choice does not follow noise. No candidate is begun after a few seconds.

#include "tools/spillway/train/auto_choice.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/store/page_io.h"
#include "io/store/store.h"
#include "src/base/bytes.h"
#include "src/base/clock.h"
#include "src/base/status_macros.h"
#include "src/simulation/virtual_engine.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/step/timed_step.h"
#include "tools/trainer/description.h"
#include "tools/trainer/gpu_needs.h"
#include "tools/trainer/model.h"
#include "tools/trainer/parameters.h"

namespace spillway::command {
namespace {

using base::FormatBytes;
using trainer::AccumulationOrder;

// The process beside tiles and scratch: code, plans, I/O.
constexpr uint64_t kHostProcessBytes = 64 * kMiB;
// With CUDA's driver and library. An estimate: it differs by version and GPU.
constexpr uint64_t kGpuProcessBytes = 768 * kMiB;
constexpr double kMostChoosingSeconds = 6;
constexpr double kFaster = 0.99;
constexpr size_t kMostBatches = 3;        // largest ones that fit
constexpr uint64_t kMostPages = 1 << 20;  // of a state, with pages of the chosen size
constexpr uint64_t kLargestPageBytes = 16 * kMiB;
// Passes of a micro-batch through a layer that are simulated. Of a step with more, two shorter ones
// are, and the rest follows from their difference.
constexpr int64_t kMostPassesSimulated = 1 << 9;
// Parts of the memory that the device's budget is tried with: 1/8 first.
constexpr uint64_t kDeviceParts[] = {8, 4, 16, 2, 64};

struct Candidate {
  int64_t micro_batch = 1, accumulate = 1;
  AccumulationOrder order = AccumulationOrder::kMicroBatch;
  uint64_t device_part = kDeviceParts[0];  // the device has one of so many parts of the memory
  uint64_t device_bytes = 0, pinned_bytes = 0;
  PlacementFlags places;
  trainer::TileSizes tiles;
};
struct Ranked {
  Candidate candidate;
  simulation::StepResult step;
  double computing = 0;
};

bool IsFaster(const Ranked& one, const Ranked& than) {
  return one.step.seconds < kFaster * than.step.seconds;
}

// "48MiB", or bytes where that is not exact: as the flag takes it.
std::string FlagSize(uint64_t bytes) {
  if (bytes == kUnlimited) return "unlimited";
  return bytes % kMiB == 0 ? absl::StrCat(bytes / kMiB, "MiB") : absl::StrCat(bytes);
}

// A budget that is printed exactly and is no larger than `bytes`, unless that would be too small.
uint64_t Rounded(uint64_t bytes, uint64_t least) {
  constexpr uint64_t kManyMiB = 16 * kMiB;
  return std::max(base::RoundDown(bytes, bytes < kManyMiB ? 4 * kKiB : kMiB), least);
}

class Chooser {
 public:
  Chooser(const hf::ModelConfig& config, uint64_t memory_bytes, const std::optional<GpuAtHand>& gpu,
          TrainFlags* flags)
      : config_(config),
        memory_bytes_(memory_bytes),
        gpu_(gpu),
        process_bytes_(gpu ? kGpuProcessBytes : kHostProcessBytes),
        flags_(*flags) {}

  absl::StatusOr<AutoChoice> Choose(const std::function<absl::StatusOr<ThisMachine>()>& measure,
                                    const std::optional<trainer::TrainState>& resumed) {
    SPILLWAY_RETURN_IF_ERROR(SetStep(resumed));
    SPILLWAY_RETURN_IF_ERROR(CheckRatesOfGpu());
    SPILLWAY_ASSIGN_OR_RETURN(machine_, measure());
    if (gpu_) TakeRatesOfGpu();
    const MachineProfile& rates = machine_.rates;
    rates_.compute = {.flops_16bit = rates.flops,
                      .flops_fp32 = rates.flops,
                      .bytes_per_second = rates.memory,
                      .is_host = !gpu_};
    rates_.update_bytes_per_second =
        rates.update[static_cast<size_t>(flags_.trainer.model.state_format)];
    begin_ = base::Now();
    ChoosePageSize(resumed.has_value());
    SPILLWAY_RETURN_IF_ERROR(TryBatches());
    TryDivisions();
    TryPlaces();
    return Take();
  }

 private:
  absl::Status CheckRatesOfGpu() const {
    if (!gpu_) return absl::OkStatus();
    const trainer::gpu::DeviceRates& rates = gpu_->rates;
    if (std::min({rates.flops, rates.copy, rates.from_pinned, rates.to_pinned}) > 0)
      return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat(
        "--auto: the rates of ", gpu_->name,
        " could not be measured; leave it out, and give --device-bytes and --pinned-bytes"));
  }

  // The GPU computes instead of the processor, and its link is the way to the device's tier.
  void TakeRatesOfGpu() {
    const trainer::gpu::DeviceRates& rates = gpu_->rates;
    machine_.rates.flops = rates.flops;
    machine_.rates.memory = rates.copy;
    machine_.links.copy_in = machine_.rates.copy_in = rates.from_pinned;
    machine_.links.copy_out = machine_.rates.copy_out = rates.to_pinned;
  }

  // --- The step ---

  // Sets windows_, the windows of a step, and what the store fixes.
  absl::Status SetStep(const std::optional<trainer::TrainState>& resumed) {
    trainer::ModelOptions& model = flags_.trainer.model;
    AutoFlags& given = flags_.automatic;
    if (resumed) {
      SPILLWAY_RETURN_IF_ERROR(
          TakeFixed(*resumed, "--batch", &given.has_batch, &model.micro_batch));
      SPILLWAY_RETURN_IF_ERROR(
          TakeFixed(*resumed, "--accumulate", &given.has_accumulate, &model.accumulate));
      store_tiles_ = trainer::TilesOfStore(trainer::Describe(config_), resumed->tiles);
    }
    windows_ = model.micro_batch * model.accumulate;
    if (!given.tokens) return absl::OkStatus();
    const int64_t wanted = *given.tokens / model.sequence;
    if (wanted * model.sequence != *given.tokens) {
      return UsageError(absl::StrFormat(
          "--tokens %d is no multiple of --seq %d: a step has whole windows; give %d or %d",
          *given.tokens, model.sequence, std::max<int64_t>(1, wanted) * model.sequence,
          (wanted + 1) * model.sequence));
    }
    const bool is_fixed = given.has_batch && given.has_accumulate;
    const int64_t unit = is_fixed               ? windows_
                         : given.has_batch      ? model.micro_batch
                         : given.has_accumulate ? model.accumulate
                                                : 1;
    if (is_fixed ? wanted != windows_ : wanted % unit != 0) {
      const char* const who = is_fixed          ? "--batch and --accumulate"
                              : given.has_batch ? "--batch"
                                                : "--accumulate";
      return UsageError(absl::StrFormat(
          "--tokens %d are %d windows of --seq %d, and %s make %s%d%s; leave one of them out",
          *given.tokens, wanted, model.sequence, who, is_fixed ? "" : "multiples of ", unit,
          resumed ? ", as the store's run has" : ""));
    }
    windows_ = wanted;
    return absl::OkStatus();
  }

  static absl::Status TakeFixed(const trainer::TrainState& state, const std::string& flag,
                                bool* given, int64_t* value) {
    if (*given) return absl::OkStatus();  // that it agrees is checked as for every run
    for (const auto& [name, text] : state.fixed) {
      if (name != flag) continue;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
      if (error == std::errc() && *value >= 1) {
        *given = true;
        return absl::OkStatus();
      }
    }
    return absl::DataLossError(absl::StrCat("the store's commit has no ", flag));
  }

  void ChoosePageSize(bool is_resumed) {
    if (is_resumed || flags_.automatic.has_page_bytes || flags_.engine.store.empty()) return;
    const trainer::StateBytes state = trainer::ModelStateBytes(config_, flags_.trainer.model);
    uint64_t page = io::kDefaultPageBytes;
    while (page < kLargestPageBytes && state.committed / page > kMostPages) page *= 2;
    flags_.engine.page_bytes = page;
    page_why_ = page == io::kDefaultPageBytes
                    ? ""
                    : absl::StrCat(", so that the catalog has at most ", kMostPages, " pages");
  }

  // --- Candidates ---

  trainer::ModelOptions OptionsOf(const Candidate& candidate) const {
    trainer::ModelOptions options = flags_.trainer.model;
    options.micro_batch = candidate.micro_batch;
    options.accumulate = candidate.accumulate;
    options.accumulation_order = candidate.order;
    options.tiles = candidate.tiles;
    return options;
  }

  // Micro-batches, the largest first.
  std::vector<Candidate> Batches() const {
    const trainer::ModelOptions& model = flags_.trainer.model;
    const AutoFlags& given = flags_.automatic;
    std::vector<Candidate> batches;
    const int64_t most = kMostTokensOfMicroBatch / model.sequence;
    for (int64_t batch = std::min(windows_, most); batch >= 1; --batch) {
      if (windows_ % batch != 0) continue;
      if (given.has_batch && batch != model.micro_batch) continue;
      if (given.has_accumulate && windows_ / batch != model.accumulate) continue;
      if (windows_ / batch > kMostMicroBatchesOfStep) break;
      batches.push_back({.micro_batch = batch,
                         .accumulate = windows_ / batch,
                         .places = flags_.engine.placement});
    }
    return batches;
  }

  // What a candidate needs at least, and twice its state, more than which serves nothing.
  struct Needs {
    uint64_t device_bytes = 0, pinned_bytes = 0;
    uint64_t most_bytes = 0;
  };

  // Sets the candidate's budgets and tiles. ResourceExhausted: there is too little memory, and what
  // is needed.
  absl::Status Divide(Candidate* candidate) {
    SPILLWAY_ASSIGN_OR_RETURN(const Placement placement, PlacementOf(candidate->places));
    const auto tiles_within = [&](uint64_t device_bytes, uint64_t pinned_bytes) {
      const trainer::ModelOptions& model = flags_.trainer.model;
      return store_tiles_.value_or(
          trainer::TilesWithin(config_, model, placement, device_bytes, pinned_bytes));
    };
    candidate->tiles = tiles_within(0, 0);  // the smallest
    const trainer::ModelOptions options = OptionsOf(*candidate);
    SPILLWAY_ASSIGN_OR_RETURN(workspace_bytes_, Workspace(options));
    const Needs needs = NeedsOf(options, placement);
    SPILLWAY_RETURN_IF_ERROR(gpu_ ? TakeBothMemories(needs, candidate)
                                  : ShareMemory(needs, candidate));
    // Larger tiles take more scratch, for which the tiles in the same memory make room.
    candidate->tiles = tiles_within(candidate->device_bytes, candidate->pinned_bytes);
    SPILLWAY_ASSIGN_OR_RETURN(const uint64_t workspace, Workspace(OptionsOf(*candidate)));
    const uint64_t larger = workspace - std::min(workspace, workspace_bytes_);
    uint64_t& budget = gpu_ ? candidate->device_bytes : candidate->pinned_bytes;
    const uint64_t least = gpu_ ? needs.device_bytes : needs.pinned_bytes;
    const bool is_given = gpu_ ? gives_device_bytes() : gives_pinned_bytes();
    if (larger > 0 && budget >= least + larger && !is_given) {
      budget = Rounded(budget - larger, least);
      candidate->tiles = tiles_within(candidate->device_bytes, candidate->pinned_bytes);
      workspace_bytes_ = workspace;
      return absl::OkStatus();
    }
    if (!gpu_) return absl::OkStatus();
    workspace_bytes_ = workspace;
    return CheckGpu(candidate->device_bytes);
  }

  bool gives_device_bytes() const {
    return flags_.automatic.has_device_bytes && flags_.engine.device_bytes != kUnlimited;
  }
  bool gives_pinned_bytes() const {
    return flags_.automatic.has_pinned_bytes && flags_.engine.pinned_bytes != kUnlimited;
  }

  Needs NeedsOf(const trainer::ModelOptions& options, const Placement& placement) const {
    const trainer::MinimumBudgets least = trainer::SmallestBudgets(config_, options, placement);
    const trainer::StateBytes state = trainer::ModelStateBytes(config_, options);
    const uint64_t all = state.committed_room + state.transient_room;
    Needs needs = {.device_bytes = least.device_bytes,
                   .pinned_bytes = least.pinned_bytes,
                   .most_bytes = 2 * all};
    if (flags_.engine.store.empty()) needs.pinned_bytes = std::max(needs.pinned_bytes, all);
    if (gives_device_bytes()) needs.device_bytes = flags_.engine.device_bytes;
    if (gives_pinned_bytes()) needs.pinned_bytes = flags_.engine.pinned_bytes;
    return needs;
  }

  // The device has a part of the memory, and pinned memory what is left beside the scratch.
  absl::Status ShareMemory(const Needs& needs, Candidate* candidate) const {
    const uint64_t needed =
        process_bytes_ + workspace_bytes_ + needs.device_bytes + needs.pinned_bytes;
    if (needed > memory_bytes_) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "%s are needed at least (scratch %s, device %s, pinned memory %s, the process %s)",
          FormatBytes(needed), FormatBytes(workspace_bytes_), FormatBytes(needs.device_bytes),
          FormatBytes(needs.pinned_bytes), FormatBytes(process_bytes_)));
    }
    const uint64_t spare = memory_bytes_ - needed;
    const uint64_t room = memory_bytes_ - process_bytes_ - workspace_bytes_;
    const uint64_t more = room / candidate->device_part > needs.device_bytes
                              ? std::min(room / candidate->device_part - needs.device_bytes, spare)
                              : 0;
    candidate->device_bytes =
        gives_device_bytes()
            ? needs.device_bytes
            : Rounded(std::min(needs.device_bytes + more, needs.most_bytes), needs.device_bytes);
    TakePinned(needs, room - candidate->device_bytes, candidate);
    return absl::OkStatus();
  }

  // The device's tier has what the GPU's scratch leaves, and pinned memory what the process leaves.
  absl::Status TakeBothMemories(const Needs& needs, Candidate* candidate) const {
    if (process_bytes_ + needs.pinned_bytes > memory_bytes_) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "%s of memory are needed at least (pinned memory %s, the process with CUDA %s)",
          FormatBytes(process_bytes_ + needs.pinned_bytes), FormatBytes(needs.pinned_bytes),
          FormatBytes(process_bytes_)));
    }
    SPILLWAY_RETURN_IF_ERROR(CheckGpu(needs.device_bytes));
    candidate->device_bytes =
        gives_device_bytes() ? needs.device_bytes
                             : Rounded(std::min(MemoryOfGpu() - workspace_bytes_, needs.most_bytes),
                                       needs.device_bytes);
    TakePinned(needs, memory_bytes_ - process_bytes_, candidate);
    return absl::OkStatus();
  }

  // What a run takes of the GPU's free memory: a sixteenth is left to its driver and to others,
  // unless the budget was given.
  uint64_t MemoryOfGpu() const {
    return gives_device_bytes() ? gpu_->free_bytes : gpu_->free_bytes / 16 * 15;
  }

  // Checks that the GPU has room for the scratch beside such a budget.
  absl::Status CheckGpu(uint64_t device_bytes) const {
    const uint64_t needed = workspace_bytes_ + device_bytes;
    if (needed <= MemoryOfGpu()) return absl::OkStatus();
    const absl::Status status = absl::FailedPreconditionError(absl::StrFormat(
        "--auto: %s of the GPU's memory are needed at least (scratch %s, tiles %s), and a run may "
        "take %s of the %s that are free there; %sa shorter --seq needs less",
        FormatBytes(needed), FormatBytes(workspace_bytes_), FormatBytes(device_bytes),
        FormatBytes(MemoryOfGpu()), FormatBytes(gpu_->free_bytes),
        gives_device_bytes() ? "a smaller --device-bytes or " : ""));
    return WithExitCode(status, gives_device_bytes() ? ExitCode::kUsage : ExitCode::kCannot);
  }

  void TakePinned(const Needs& needs, uint64_t room, Candidate* candidate) const {
    candidate->pinned_bytes = gives_pinned_bytes()
                                  ? needs.pinned_bytes
                                  : Rounded(std::min(room, needs.most_bytes), needs.pinned_bytes);
  }

  absl::StatusOr<uint64_t> Workspace(const trainer::ModelOptions& options) const {
    if (gpu_) return trainer::GpuScratchBytes(config_, options);
    return HostWorkspaceBytes(config_, options, static_cast<int>(flags_.engine.threads));
  }

  // --- Ranking ---

  absl::StatusOr<Ranked> Simulate(const Candidate& candidate, int64_t micro_batches) const {
    trainer::ModelOptions options = OptionsOf(candidate);
    options.accumulate = micro_batches;
    simulation::SimulationOptions simulated;
    SPILLWAY_ASSIGN_OR_RETURN(simulated.placement, PlacementOf(candidate.places));
    SPILLWAY_ASSIGN_OR_RETURN(TimedStep step,
                              TimeStep(config_, options, simulated.placement, rates_));
    simulated.budgets.device_bytes = candidate.device_bytes;
    simulated.budgets.pinned_bytes = candidate.pinned_bytes;
    simulated.budgets.has_store = !flags_.engine.store.empty();
    simulated.small_bytes = io::PackedBytes(flags_.engine.page_bytes > 0 ? flags_.engine.page_bytes
                                                                         : io::kDefaultPageBytes);
    simulated.machine = machine_.links;
    // As the engine: without a store, no step is planned while a role rests on the device.
    const bool can_plan =
        simulated.budgets.has_store ||
        std::ranges::find(simulated.placement, Tier::kDevice) == simulated.placement.end();
    simulated.plans_steps = flags_.engine.plan_steps && can_plan;
    simulated.most_steps = 5;
    SPILLWAY_ASSIGN_OR_RETURN(const simulation::RepeatedStep repeated,
                              simulation::SimulateStep(step.trace, simulated));
    return Ranked{candidate, repeated.step, step.walk_seconds() + step.update_seconds};
  }

  absl::StatusOr<Ranked> Rank(const Candidate& candidate) {
    ++tried_;
    const int64_t most = std::max<int64_t>(4, kMostPassesSimulated / config_.num_layers);
    if (candidate.accumulate <= most) return Simulate(candidate, candidate.accumulate);
    SPILLWAY_ASSIGN_OR_RETURN(Ranked more, Simulate(candidate, most));
    SPILLWAY_ASSIGN_OR_RETURN(const Ranked fewer, Simulate(candidate, most / 2));
    const double times =
        static_cast<double>(candidate.accumulate - most) / static_cast<double>(most - most / 2);
    const auto extend = [times](double at_most, double at_half) {
      return at_most + times * std::max(0.0, at_most - at_half);
    };
    more.step.seconds = extend(more.step.seconds, fewer.step.seconds);
    more.computing = extend(more.computing, fewer.computing);
    for (size_t link = 0; link < more.step.bytes.bytes.size(); ++link) {
      more.step.bytes.bytes[link] =
          static_cast<uint64_t>(extend(static_cast<double>(more.step.bytes.bytes[link]),
                                       static_cast<double>(fewer.step.bytes.bytes[link])));
    }
    return more;
  }

  bool HasTime() const { return base::Now() - begin_ < kMostChoosingSeconds; }

  // Ranks the candidate, and keeps it if it is the best so far.
  absl::Status Consider(Candidate candidate) {
    SPILLWAY_RETURN_IF_ERROR(Divide(&candidate));
    SPILLWAY_ASSIGN_OR_RETURN(Ranked ranked, Rank(candidate));
    slowest_ = std::max(slowest_, ranked.step.seconds);
    if (!best_ || IsFaster(ranked, *best_)) best_ = std::move(ranked);
    return absl::OkStatus();
  }

  absl::Status TryBatches() {
    absl::Status why = UsageError(absl::StrFormat(
        "%d windows a step cannot be divided into micro-batches of at most %d tokens; give --batch "
        "and --accumulate",
        windows_, kMostTokensOfMicroBatch));
    size_t fits = 0;
    for (const Candidate& batch : Batches()) {
      bool one_fits = false;
      for (const AccumulationOrder order :
           {AccumulationOrder::kMicroBatch, AccumulationOrder::kLayer}) {
        const bool is_only = batch.accumulate == 1 && order == AccumulationOrder::kLayer;
        if (is_only || (flags_.accumulation_order && *flags_.accumulation_order != order)) continue;
        if (best_ && !HasTime()) return absl::OkStatus();
        Candidate candidate = batch;
        candidate.order = order;
        const absl::Status status = Consider(candidate);
        one_fits |= status.ok();
        if (!status.ok()) why = status;
      }
      fits += one_fits ? 1 : 0;
      if (fits == kMostBatches) break;
    }
    return best_ ? absl::OkStatus() : NothingFits(why);
  }

  absl::Status NothingFits(const absl::Status& why) const {
    if (!absl::IsResourceExhausted(why)) return why;
    const bool is_given = flags_.automatic.memory_bytes.has_value();
    const absl::Status status = absl::ResourceExhaustedError(absl::StrFormat(
        "--auto: nothing fits %s of memory%s: %s; a shorter --seq%s needs less",
        FormatBytes(memory_bytes_),
        is_given ? " (--memory)" : ", 7/8 of what is free on this machine",
        std::string(why.message()),
        flags_.engine.store.empty() ? ", or --store DIR, which keeps the state on disk," : ""));
    return WithExitCode(status, is_given ? ExitCode::kUsage : ExitCode::kCannot);
  }

  void TryDivisions() {
    if (gpu_) return;
    for (size_t i = 1; i < std::size(kDeviceParts) && HasTime(); ++i) {
      Candidate candidate = best_->candidate;
      candidate.device_part = kDeviceParts[i];
      (void)Consider(candidate);  // a part that does not fit is no candidate
    }
  }

  void TryPlaces() {
    if (flags_.automatic.has_places) return;
    std::vector<const char*> tried;
    // A GPU updates the state that rests there.
    if (gpu_) tried = {"optimizer=device", "parameters=device,gradients=device,optimizer=device"};
    if (!flags_.engine.store.empty()) {
      tried.insert(tried.end(),
                   {"gradients=pinned", "parameters=pinned,gradients=pinned", "optimizer=nvme"});
    }
    for (const char* const places : tried) {
      if (!HasTime()) return;
      Candidate candidate = best_->candidate;
      candidate.places.places = *ParsePlaces(places);
      const Ranked before = *best_;
      (void)Consider(candidate);  // as above
      if (IsFaster(*best_, before)) places_ = places;
    }
  }

  // --- The answer ---

  AutoChoice Take() {
    const Candidate& chosen = best_->candidate;
    trainer::ModelOptions& model = flags_.trainer.model;
    model.micro_batch = chosen.micro_batch;
    model.accumulate = chosen.accumulate;
    model.accumulation_order = chosen.order;
    flags_.accumulation_order = chosen.order;
    flags_.engine.device_bytes = chosen.device_bytes;
    flags_.engine.pinned_bytes = chosen.pinned_bytes;
    flags_.engine.placement = chosen.places;
    (void)Divide(&best_->candidate);  // for workspace_bytes_
    return {.why = Why(), .step_seconds = best_->step.seconds, .step_bytes = best_->step.bytes};
  }

  std::string Why() const {
    const trainer::ModelOptions& model = flags_.trainer.model;
    const simulation::StepResult& step = best_->step;
    std::string flags =
        absl::StrCat("--batch ", model.micro_batch, " --accumulate ", model.accumulate);
    if (model.accumulate > 1)
      absl::StrAppend(&flags, " --accumulation-order ", model.by_layer() ? "layer" : "micro-batch");
    absl::StrAppend(&flags, " --device-bytes ", FlagSize(flags_.engine.device_bytes),
                    " --pinned-bytes ", FlagSize(flags_.engine.pinned_bytes));
    if (!places_.empty()) absl::StrAppend(&flags, " --place ", places_);
    if (flags_.engine.page_bytes > 0)
      absl::StrAppend(&flags, " --page-bytes ", FlagSize(flags_.engine.page_bytes));
    return absl::StrFormat(
        "auto: %s%s\n"
        "auto: %s\n"
        "auto: %s%s\n"
        "auto: a step takes %.3g s in a simulation, %.3g s of it computing, and moves %s over "
        "NVMe; "
        "it is the fastest of %s%s\n",
        gpu_ ? absl::StrCat(gpu_->name, "; ") : "", Describe(machine_), DescribeMemory(), flags,
        page_why_, step.seconds, best_->computing, FormatBytes(step.bytes.nvme()),
        base::FormatCount(static_cast<uint64_t>(tried_), "candidate"),
        slowest_ > step.seconds ? absl::StrFormat(", of which the slowest takes %.3g s", slowest_)
                                : "");
  }

  std::string DescribeMemory() const {
    if (!gpu_) {
      return absl::StrFormat("%s of memory: scratch %s, the process %s, the rest divided",
                             FormatBytes(memory_bytes_), FormatBytes(workspace_bytes_),
                             FormatBytes(process_bytes_));
    }
    return absl::StrFormat(
        "%s of memory: the process with CUDA %s; %s of the GPU's are free: scratch %s",
        FormatBytes(memory_bytes_), FormatBytes(process_bytes_), FormatBytes(gpu_->free_bytes),
        FormatBytes(workspace_bytes_));
  }

  const hf::ModelConfig& config_;
  const uint64_t memory_bytes_;  // the host's
  const std::optional<GpuAtHand>& gpu_;
  const uint64_t process_bytes_;
  TrainFlags& flags_;
  ThisMachine machine_;
  StepRates rates_;
  double begin_ = 0;
  int64_t windows_ = 1;
  std::optional<trainer::TileSizes> store_tiles_;  // of a resumed run
  std::string page_why_, places_;
  uint64_t workspace_bytes_ = 0;  // of the candidate that was divided last
  std::optional<Ranked> best_;
  double slowest_ = 0;
  int tried_ = 0;
};

}  // namespace

absl::StatusOr<AutoChoice> ChooseFlags(const hf::ModelConfig& config,
                                       const std::function<absl::StatusOr<ThisMachine>()>& measure,
                                       uint64_t memory_bytes, const std::optional<GpuAtHand>& gpu,
                                       const std::optional<trainer::TrainState>& resumed,
                                       TrainFlags* flags) {
  const uint64_t bytes = flags->automatic.memory_bytes.value_or(memory_bytes);
  return Chooser(config, bytes, gpu, flags).Choose(measure, resumed);
}

uint64_t MemoryForRun(uint64_t available_bytes) { return available_bytes / 8 * 7; }

}  // namespace spillway::command
