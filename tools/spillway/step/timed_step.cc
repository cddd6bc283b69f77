// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/step/timed_step.h"

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "spillway/thread_pool.h"
#include "src/base/status_macros.h"
#include "tools/spillway/step/counting_compute.h"
#include "tools/spillway/step/recorded_trace.h"
#include "tools/trainer/compute/host_compute.h"
#include "tools/trainer/dry_run.h"
#include "tools/trainer/dry_walk.h"
#include "tools/trainer/recording_engine.h"

namespace spillway::command {
namespace {

using trainer::DryWalk;

// Notes the time of each event.
class TimedEngine final : public trainer::RecordingEngine {
 public:
  TimedEngine(const Placement& placement, std::function<double()> now)
      : RecordingEngine(placement), now_(std::move(now)) {}

  const std::vector<double>& times() const { return times_; }

  absl::StatusOr<Lease> Acquire(TileRef tile, Access access, Stream* stream) override {
    times_.push_back(now_());
    return RecordingEngine::Acquire(tile, access, stream);
  }
  absl::StatusOr<Lease> AcquireHost(TileRef tile, Access access) override {
    times_.push_back(now_());
    return RecordingEngine::AcquireHost(tile, access);
  }
  absl::Status Discard(TileRef tile) override {
    times_.push_back(now_());
    return RecordingEngine::Discard(tile);
  }

 protected:
  void EndLease(const Lease& lease) override {
    times_.push_back(now_());
    RecordingEngine::EndLease(lease);
  }

 private:
  const std::function<double()> now_;
  std::vector<double> times_;
};

}  // namespace

absl::StatusOr<uint64_t> WorkspaceBytes(const hf::ModelConfig& config,
                                        const trainer::ModelOptions& options) {
  trainer::RecordingEngine engine;
  CountingCompute compute(ComputeRates{});
  SPILLWAY_RETURN_IF_ERROR(DryWalk::Create(&engine, &compute, config, options).status());
  return compute.scratch_bytes();
}

absl::StatusOr<uint64_t> HostWorkspaceBytes(const hf::ModelConfig& config,
                                            const trainer::ModelOptions& options, int threads) {
  trainer::RecordingEngine engine;
  ThreadPool pool(threads);
  SPILLWAY_ASSIGN_OR_RETURN(const auto compute, trainer::HostCompute::Create(&pool));
  // Takes address space alone: nothing touches the scratch.
  SPILLWAY_RETURN_IF_ERROR(DryWalk::Create(&engine, compute.get(), config, options).status());
  return compute->scratch_bytes();
}

absl::StatusOr<TimedStep> TimeStep(const hf::ModelConfig& config,
                                   const trainer::ModelOptions& options, const Placement& placement,
                                   const StepRates& rates, int64_t tile_elements) {
  CountingCompute compute(rates.compute, tile_elements);
  TimedEngine engine(placement, [&compute] { return compute.seconds(); });
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<DryWalk> dry,
                            DryWalk::Create(&engine, &compute, config, options));
  SPILLWAY_RETURN_IF_ERROR(dry->Train());
  const size_t update = engine.times().size();
  SPILLWAY_RETURN_IF_ERROR(dry->Update());

  TimedStep step;
  step.flops = compute.flops();
  step.update = update;
  step.forward_seconds = compute.forward_seconds();
  step.backward_seconds = compute.backward_seconds();
  step.workspace_bytes = compute.scratch_bytes();
  const std::vector<double>& times = engine.times();
  step.tensors = engine.specs();
  step.trace = TraceOf(trainer::RecordedStep{step.tensors, engine.TakeEvents()});
  double then = 0;
  for (size_t i = 0; i < step.trace.events.size(); ++i) {
    plan::TraceEvent& event = step.trace.events[i];
    event.seconds_before = times[i] - std::exchange(then, times[i]);
    // The update passes over what it holds once, before the lease ends.
    if (i < update || event.kind != plan::TraceEvent::Kind::kRelease) continue;
    const bool on_device = event.tier == Tier::kDevice;
    event.seconds_before =
        static_cast<double>(step.trace.tiles[event.tile].size_bytes) /
        (on_device ? rates.device_update_bytes_per_second() : rates.update_bytes_per_second);
    step.update_seconds += event.seconds_before;
    if (on_device) step.device_update_seconds += event.seconds_before;
  }
  return step;
}

void LeaveOutSmallTiles(TimedStep* step) {
  constexpr uint64_t kParts = 1000;
  plan::Trace& trace = step->trace;
  std::map<uint64_t, uint64_t> bytes_of_size;
  uint64_t all = 0, small = 0, most = 0;
  for (const plan::TraceTile& tile : trace.tiles) {
    bytes_of_size[tile.size_bytes] += tile.size_bytes;
    all += tile.size_bytes;
  }
  for (const auto& [size, bytes] : bytes_of_size) {
    small += bytes;
    if (small > all / kParts) break;
    most = size;
  }

  std::vector<plan::TileIndex> index(trace.tiles.size());
  plan::Trace kept;
  for (plan::TileIndex tile = 0; tile < trace.tiles.size(); ++tile) {
    if (trace.tiles[tile].size_bytes <= most) continue;
    index[tile] = static_cast<plan::TileIndex>(kept.tiles.size());
    kept.tiles.push_back(trace.tiles[tile]);
  }
  double seconds = 0;
  size_t update = 0;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    plan::TraceEvent event = trace.events[i];
    if (i == step->update) update = kept.events.size();
    seconds += event.seconds_before;
    if (trace.tiles[event.tile].size_bytes <= most) continue;
    event.seconds_before = std::exchange(seconds, 0);
    event.tile = index[event.tile];
    kept.events.push_back(event);
  }
  if (!kept.events.empty()) kept.events.back().seconds_before += seconds;
  step->trace = std::move(kept);
  step->update = update;
  step->tensors.clear();
}

}  // namespace spillway::command
