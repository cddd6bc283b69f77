// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/train/bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "src/base/available_memory.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/step/timed_step.h"
#include "tools/spillway/train/computing.h"
#include "tools/trainer/flops.h"
#include "tools/trainer/parameters.h"
#include "tools/trainer/updates.h"

namespace spillway::bench_train {
namespace {

using command::EngineFlags;
using command::StoreNeed;
using Clock = std::chrono::steady_clock;

constexpr int64_t kUnplannedSteps = 2;  // as the trainer's
// Without a budget, the device and pinned memory have these parts of what rests below them.
constexpr uint64_t kDevicePart = 8;
constexpr uint64_t kPinnedPart = 4;
// What is left free of the memory that is available.
constexpr uint64_t kFreePart = 10;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Normal numbers from a short table, again and again: the generator would take longer than a step.
trainer::WeightSource QuickWeights() {
  constexpr size_t kTable = (1 << 16) + 1;  // no multiple of a row
  auto table = std::make_shared<std::vector<float>>(kTable);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  for (float& value : *table) value = normal(random);
  return [table](const trainer::ParameterShape&) -> absl::StatusOr<Reader> {
    return Reader([table](uint64_t offset, std::span<std::byte> out) {
      constexpr uint64_t kBytes = kTable * sizeof(float);
      for (size_t done = 0; done < out.size();) {
        const uint64_t from = (offset + done) % kBytes;
        const size_t part = std::min<size_t>(out.size() - done, kBytes - from);
        std::memcpy(out.data() + done, reinterpret_cast<const std::byte*>(table->data()) + from,
                    part);
        done += part;
      }
      return absl::OkStatus();
    });
  };
}

// A model in an engine, with what a step needs.
struct Run {
  std::unique_ptr<Engine> engine;
  TimedCompute* compute = nullptr;  // of the model
  std::unique_ptr<trainer::Model> model;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<Update> updates;
  std::vector<int32_t> inputs, targets;
};

class Bench {
 public:
  Bench(const BenchOptions& options, const std::atomic<bool>& interrupted)
      : options_(options),
        interrupted_(interrupted),
        pool_(static_cast<int>(options.engine.threads)) {}

  absl::StatusOr<BenchReport> Measure() {
    std::vector<std::string> folders;
    if (!options_.folder.empty()) folders.push_back(options_.folder);
    report_.machine = bench_io::Describe(folders);
    const int rows = static_cast<int>(options_.models.size() * options_.places.size());
    for (const BenchModel& model : options_.models) {
      for (const Where where : options_.places) {
        const std::string what = absl::StrCat(model.name, ", ", std::string(NameOf(where)));
        options_.progress(static_cast<int>(report_.rows.size()), rows, what);
        Row row = {.model = model.name, .where = where};
        const absl::Status measured = MeasureRow(model, &row);
        if (absl::IsResourceExhausted(measured)) {
          row.skipped = std::string(measured.message());
        } else if (!measured.ok()) {
          return measured;
        }
        report_.rows.push_back(std::move(row));
      }
    }
    return std::move(report_);
  }

 private:
  absl::Status MeasureRow(const BenchModel& model, Row* row) {
    trainer::ModelOptions recipe = options_.recipe;
    recipe.on_gpu = options_.engine.device.kind() == Device::Kind::kCuda;
    EngineFlags flags = options_.engine;
    std::optional<bench_io::OwnFolder> folder;
    if (row->where == Where::kNvme) {
      if (options_.folder.empty())
        return absl::ResourceExhaustedError("no DIR was given, a folder on the drive");
      SPILLWAY_ASSIGN_OR_RETURN(bench_io::OwnFolder made, options_.make_folder(options_.folder));
      folder.emplace(std::move(made));
      flags.store = {absl::StrCat(folder->path(), "/store")};
    }
    SPILLWAY_ASSIGN_OR_RETURN(recipe.tiles, command::TilesFor(flags, model.config, recipe));
    const StoreNeed need = {.state = trainer::ModelStateBytes(model.config, recipe)};
    const uint64_t all = need.state.committed_room + need.state.transient_room;
    SPILLWAY_RETURN_IF_ERROR(SetPlaces(model, recipe, row->where, all, &flags));
    SPILLWAY_RETURN_IF_ERROR(CheckMemory(model, recipe, row->where, all, flags));
    const absl::Status room = command::CheckRoom(flags, model.config, recipe, need);
    if (!room.ok()) return absl::ResourceExhaustedError(room.message());
    for (const auto& parameter : trainer::ListParameters(model.config))
      row->num_parameters += static_cast<uint64_t>(parameter.elements());
    row->device_bytes = flags.device_bytes;
    row->pinned_bytes = flags.pinned_bytes;
    row->tokens = recipe.accumulate * recipe.micro_batch * recipe.sequence;
    row->step_flops = trainer::StepFlops(model.config, recipe);

    SPILLWAY_ASSIGN_OR_RETURN(Run run, Begin(model, recipe, need, flags, row));
    return Steps(recipe, &run, row);
  }

  // Places everything on the device, if it is to rest there, and sets the budgets that were not
  // given. Otherwise what rests where is left to the engine.
  absl::Status SetPlaces(const BenchModel& model, const trainer::ModelOptions& recipe, Where where,
                         uint64_t all, EngineFlags* flags) const {
    if (where == Where::kDevice) {
      for (auto& place : flags->placement.places) place = Tier::kDevice;
    }
    SPILLWAY_ASSIGN_OR_RETURN(const Placement placement, command::PlacementOf(flags->placement));
    const trainer::MinimumBudgets smallest =
        trainer::SmallestBudgets(model.config, recipe, placement);
    const auto set = [](uint64_t least, uint64_t wanted, uint64_t* budget) {
      if (*budget == kUnlimited) *budget = std::max(least + least / 16, wanted);
    };
    const bool rests_below = where != Where::kDevice;
    set(smallest.device_bytes, rests_below ? all / kDevicePart : 0, &flags->device_bytes);
    if (where == Where::kNvme) set(smallest.pinned_bytes, all / kPinnedPart, &flags->pinned_bytes);
    return absl::OkStatus();
  }

  // The machine's own memory: the device's tier on the host, and what rests in pinned memory.
  absl::Status CheckMemory(const BenchModel& model, const trainer::ModelOptions& recipe,
                           Where where, uint64_t all, const EngineFlags& flags) const {
    const bool on_host = flags.device.kind() == Device::Kind::kHost;
    uint64_t bytes = where == Where::kPinned ? all : 0;
    if (where == Where::kNvme) bytes = flags.pinned_bytes;
    if (on_host) {
      SPILLWAY_ASSIGN_OR_RETURN(
          const uint64_t workspace,
          command::HostWorkspaceBytes(model.config, recipe, static_cast<int>(flags.threads)));
      bytes += flags.device_bytes + workspace;
    }
    const uint64_t available = base::AvailableMemoryBytes();
    if (bytes <= available - available / kFreePart) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s of memory are needed, and %s are available", base::FormatBytes(bytes),
                        base::FormatBytes(available)));
  }

  absl::StatusOr<Run> Begin(const BenchModel& model, const trainer::ModelOptions& recipe,
                            const StoreNeed& need, EngineFlags flags, Row* row) {
    Run run;
    SPILLWAY_ASSIGN_OR_RETURN(auto gpu,
                              command::OpenGpuFor(flags, trainer::ElementType(recipe.precision)));
    const bool measures_rates = report_.product_flops == 0;
    if (gpu != nullptr && measures_rates) gpu->MeasureRates();
    SPILLWAY_RETURN_IF_ERROR(command::PrepareGpu(gpu.get(), model.config, recipe, &flags));
    SPILLWAY_ASSIGN_OR_RETURN(run.engine,
                              command::OpenEngine(flags, OpenMode::kScratch, need, interrupted_));
    report_.device = run.engine->Stats().device;
    SPILLWAY_ASSIGN_OR_RETURN(auto compute,
                              command::BeginComputing(std::move(gpu), run.engine.get(), &pool_));
    if (const auto by = compute->computed_by()) {
      report_.device = by->gpu;
      report_.library = by->library;
    }
    if (measures_rates) {
      report_.product_flops = compute->PeakFlops();
      report_.copy_rate = compute->CopyRate();
    }
    auto timed = std::make_unique<TimedCompute>(std::move(compute));
    run.compute = timed.get();
    SPILLWAY_ASSIGN_OR_RETURN(
        run.model, trainer::Model::Create(run.engine.get(), std::move(timed), model.config, recipe,
                                          QuickWeights()));
    row->workspace_bytes = run.model->workspace_bytes();
    SPILLWAY_ASSIGN_OR_RETURN(
        run.optimizer, Optimizer::Create(run.engine.get(), &pool_, recipe.rule, recipe.state_format,
                                         run.compute->stream()));
    SPILLWAY_ASSIGN_OR_RETURN(auto listed, trainer::AddTrained(run.optimizer.get(), recipe,
                                                               run.model->parameters(), 0.01));
    run.updates = std::move(listed.updates);
    std::mt19937_64 random(1);
    for (int64_t i = 0; i < row->tokens; ++i) {
      for (std::vector<int32_t>* tokens : {&run.inputs, &run.targets}) {
        tokens->push_back(
            static_cast<int32_t>(random() % static_cast<uint64_t>(model.config.vocab_size)));
      }
    }
    return run;
  }

  absl::Status Train(const trainer::ModelOptions& recipe, Run* run) const {
    if (interrupted_.load()) return absl::CancelledError("interrupted");
    return run->model
        ->Train({.inputs = run->inputs,
                 .targets = run->targets,
                 .gradient_scale = 1.0 / static_cast<double>(recipe.accumulate)})
        .status();
  }

  absl::Status Steps(const trainer::ModelOptions& recipe, Run* run, Row* row) const {
    std::vector<double> step, walk, update, computing, transfers, waiting;
    EngineStats before = run->engine->Stats();
    for (int64_t i = 0; i < kUnplannedSteps + options_.steps; ++i) {
      const Clock::time_point begin = Clock::now();
      SPILLWAY_RETURN_IF_ERROR(Train(recipe, run));
      const double walked = SecondsSince(begin);
      for (Update& each : run->updates) {
        each.step = i + 1;
        each.learning_rate = 1e-6;
      }
      SPILLWAY_RETURN_IF_ERROR(run->optimizer->Step(run->updates));
      if (run->compute->stream() != nullptr) {  // an update may be on the device
        SPILLWAY_RETURN_IF_ERROR(run->compute->stream()->Synchronize());
      }
      const double updated = SecondsSince(begin);
      SPILLWAY_RETURN_IF_ERROR(run->engine->EndStep());
      SPILLWAY_RETURN_IF_ERROR(run->engine->WaitForPlan());
      const double seconds = SecondsSince(begin);
      const EngineStats after = run->engine->Stats();
      if (i >= kUnplannedSteps) {
        step.push_back(seconds);
        walk.push_back(walked);
        update.push_back(updated - walked);
        computing.push_back(after.plan.compute_seconds);
        transfers.push_back(after.plan.transfer_seconds);
        waiting.push_back(after.stall_seconds - before.stall_seconds);
        const auto moved = [](const Traffic& now, const Traffic& then) {
          return now.read_bytes + now.written_bytes - then.read_bytes - then.written_bytes;
        };
        row->nvme_bytes = moved(after.nvme, before.nvme);
        row->copied_bytes = moved(after.pinned, before.pinned);
      }
      before = after;
    }
    row->seconds = {.step = Median(step),
                    .walk = Median(walk),
                    .update = Median(update),
                    .computing = Median(computing),
                    .transfers = Median(transfers),
                    .waiting = Median(waiting)};
    // Each operation alone.
    run->compute->set_measures(true);
    const Clock::time_point begin = Clock::now();
    SPILLWAY_RETURN_IF_ERROR(Train(recipe, run));
    row->lease_seconds =
        SecondsSince(begin) - (run->engine->Stats().stall_seconds - before.stall_seconds);
    SPILLWAY_RETURN_IF_ERROR(run->compute->failure());
    row->operations = run->compute->times();
    for (const OperationTime& time : row->operations) row->lease_seconds -= time.seconds;
    row->lease_seconds = std::max(0.0, row->lease_seconds);
    return absl::OkStatus();
  }

  const BenchOptions& options_;
  const std::atomic<bool>& interrupted_;
  ThreadPool pool_;
  BenchReport report_;
};

}  // namespace

std::string_view NameOf(Where where) {
  constexpr std::array<std::string_view, kNumPlaces> kNames = {"device", "pinned", "nvme"};
  return kNames[static_cast<size_t>(where)];
}

std::string_view NameOf(Operation operation) {
  constexpr std::array<std::string_view, kNumOperations> kNames = {
      "products",    "attention",        "norms and rope",
      "activations", "softmax and loss", "copies and sums"};
  return kNames[static_cast<size_t>(operation)];
}

absl::StatusOr<BenchReport> RunBench(const BenchOptions& options,
                                     const std::atomic<bool>& interrupted) {
  return Bench(options, interrupted).Measure();
}

}  // namespace spillway::bench_train
