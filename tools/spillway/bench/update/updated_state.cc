// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/update/updated_state.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "tools/spillway/bench/update/process_traffic.h"

namespace spillway::bench_update {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kTileRows = 1024;            // a tile of fp32 state: 4 MiB
constexpr uint64_t kRowsOfOne = 4 * kTileRows;  // rows of the largest parameter
constexpr uint64_t kDeviceBytes = 4 * kMiB;     // nothing is computed on the device
constexpr double kLearningRate = 1e-4;
constexpr int kWarmPasses = 4;  // until the engine follows a plan
// A smaller state moves in well under a second, which is not worth the seconds of a calibration.
constexpr uint64_t kLeastCalibratedBytes = 256 * kMiB;
// Transfers count as ended when no bytes have moved for this long. The shorter time applies once
// the pass has read all that it uses. The longer one applies before that, because a read may take
// longer on a busy machine.
constexpr std::chrono::milliseconds kQuiet(50);
constexpr std::chrono::seconds kQuietBeforeAllIsRead(2);
constexpr std::chrono::minutes kMostWaiting(2);

TensorSpec WeightSpec(uint64_t first_row, uint64_t rows) {
  return {.name = absl::StrCat("weight.", first_row),
          .dtype = DType::kF16,
          .shape = {static_cast<int64_t>(rows), static_cast<int64_t>(kRowElements)},
          .role = Role::kParameter,
          .tile_rows = static_cast<int64_t>(kTileRows)};
}

// Fills memory with numbers of the size of weights: 2⁻⁶ and its neighbours, in the tensor's type.
template <typename T>
void Fill(std::span<std::byte> out, T first) {
  const std::span<T> values(reinterpret_cast<T*>(out.data()), out.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<T>(i % 64);
}
constexpr uint16_t kHalf = 0x2400;        // 2⁻⁶ in fp16
constexpr uint32_t kSingle = 0x3c800000;  // in fp32

Traffic Since(const Traffic& before, const Traffic& now) {
  return {.read_bytes = now.read_bytes - before.read_bytes,
          .written_bytes = now.written_bytes - before.written_bytes};
}

Placement AllOnNvme() {
  Placement placement;
  for (const Role role : {Role::kParameter, Role::kMasterWeight, Role::kMoment, Role::kGradient})
    placement[static_cast<size_t>(role)] = Tier::kNvme;
  return placement;
}

EngineOptions OptionsOf(const StateOptions& options, uint64_t state_bytes,
                        const std::atomic<bool>& interrupted) {
  EngineOptions engine;
  engine.device_bytes = kDeviceBytes;
  engine.plan_steps = !options.store.empty();
  engine.announce = options.announce;
  engine.stop = &interrupted;
  // Adds slack: a tile for each tensor, and the rounding up to frames.
  engine.pinned_bytes = state_bytes + state_bytes / 16 + 64 * kMiB;
  if (options.store.empty()) return engine;
  engine.pinned_bytes = options.memory_bytes;
  engine.store = {options.store};
  engine.mode = OpenMode::kScratch;
  engine.calibration = state_bytes < kLeastCalibratedBytes ? Calibration::kKeep : Calibration::kNow;
  engine.placement = AllOnNvme();
  return engine;
}

}  // namespace

absl::StatusOr<uint64_t> StateBytes(const Rule& rule, StateFormat format, uint64_t num_parameters) {
  const TensorSpec weight = WeightSpec(0, num_parameters / kRowElements);
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<TensorSpec> specs, StateSpecs(rule, format, weight));
  uint64_t bytes = weight.size_bytes();
  for (const TensorSpec& spec : specs) bytes += spec.size_bytes();
  return bytes;
}

absl::StatusOr<std::unique_ptr<UpdatedState>> UpdatedState::Create(
    const StateOptions& options, ThreadPool* pool, const std::atomic<bool>& interrupted) {
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t state_bytes,
                            StateBytes(options.rule, options.format, options.num_parameters));
  SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                            Engine::Open(OptionsOf(options, state_bytes, interrupted)));
  auto state =
      std::unique_ptr<UpdatedState>(new UpdatedState(std::move(engine), options, interrupted));
  SPILLWAY_ASSIGN_OR_RETURN(state->optimizer_, Optimizer::Create(state->engine_.get(), pool,
                                                                 options.rule, options.format));
  const uint64_t num_rows = options.num_parameters / kRowElements;
  for (uint64_t row = 0; row < num_rows; row += kRowsOfOne)
    SPILLWAY_RETURN_IF_ERROR(state->Add(row, std::min(kRowsOfOne, num_rows - row)));
  SPILLWAY_ASSIGN_OR_RETURN(state->uses_, state->optimizer_->Uses(state->parameters_));
  for (const Use& use : state->uses_) {
    const uint64_t bytes = state->engine_->Spec(use.tile.tensor).tile_bytes(use.tile.tile);
    if (use.access == Access::kRead || use.access == Access::kReadWrite)
      state->read_bytes_ += bytes;
    if (Writes(use.access)) state->written_bytes_ += bytes;
  }
  for (int pass = 0; pass < kWarmPasses; ++pass) SPILLWAY_RETURN_IF_ERROR(state->Pass().status());
  return state;
}

absl::Status UpdatedState::Add(uint64_t first_row, uint64_t rows) {
  const auto reader_of = [this](DType dtype) {
    return [this, dtype](uint64_t, std::span<std::byte> out) {
      if (dtype == DType::kF32) Fill<uint32_t>(out, kSingle);
      if (dtype == DType::kF16) Fill<uint16_t>(out, kHalf);
      return CheckGoing();
    };
  };
  const TensorSpec weight = WeightSpec(first_row, rows);
  SPILLWAY_ASSIGN_OR_RETURN(const TensorId weight_id,
                            engine_->Register(weight, reader_of(weight.dtype)));
  ParameterTensors tensors;
  tensors.weight = weight_id;
  const std::span<uint16_t> gradients =
      options_.gradients.subspan(first_row * kRowElements, rows * kRowElements);
  if (options_.has_gradients_on_nvme) {
    SPILLWAY_ASSIGN_OR_RETURN(tensors.gradient, AddGradients(weight, gradients));
  } else {
    tensors.gradient = Values(gradients.data(), DType::kF16);
  }
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<TensorSpec> specs,
                            StateSpecs(options_.rule, options_.format, weight));
  for (const TensorSpec& spec : specs) {
    const bool is_master = spec.role == Role::kMasterWeight;
    SPILLWAY_ASSIGN_OR_RETURN(
        const TensorId id, engine_->Register(spec, is_master ? reader_of(spec.dtype) : Reader()));
    tensors.state.push_back(id);
  }
  SPILLWAY_ASSIGN_OR_RETURN(const size_t parameter, optimizer_->Add(tensors));
  parameters_.push_back(parameter);
  return absl::OkStatus();
}

// Registers a parameter's gradients. They are not transient: an update leaves them unchanged for
// the next one.
absl::StatusOr<TensorId> UpdatedState::AddGradients(const TensorSpec& weight,
                                                    std::span<uint16_t> gradients) {
  TensorSpec spec = weight;
  spec.name = absl::StrCat("gradient of ", weight.name);
  spec.role = Role::kGradient;
  return engine_->Register(spec, [this, gradients](uint64_t offset, std::span<std::byte> out) {
    std::memcpy(out.data(), std::as_bytes(gradients).data() + offset, out.size());
    return CheckGoing();
  });
}

ParameterBytes UpdatedState::PerParameter(const Traffic& traffic) const {
  const auto num_parameters = static_cast<double>(options_.num_parameters);
  return {static_cast<double>(traffic.read_bytes) / num_parameters,
          static_cast<double>(traffic.written_bytes) / num_parameters};
}

absl::StatusOr<double> UpdatedState::Pass() {
  const Traffic before = engine_->Stats().nvme;
  const Traffic kernel_before = ProcessTraffic();
  const Clock::time_point start = Clock::now();
  SPILLWAY_RETURN_IF_ERROR(Update());
  Clock::time_point end = Clock::now();
  Traffic moved = {.read_bytes = read_bytes_, .written_bytes = written_bytes_};
  if (!options_.store.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(
        end, AwaitQuiet({before.read_bytes + (step_ < kWarmPasses ? 0 : read_bytes_),
                         before.written_bytes + written_bytes_}));
    moved = Since(before, engine_->Stats().nvme);
    const Traffic by_kernel = Since(kernel_before, ProcessTraffic());
    // On a file system in memory, the kernel counts only page faults.
    kernel_bytes_ = by_kernel.written_bytes > 0 ? PerParameter(by_kernel) : ParameterBytes();
  }
  bytes_ = PerParameter(moved);
  return std::chrono::duration<double>(end - start).count();
}

absl::Status UpdatedState::Update() {
  ++step_;
  SPILLWAY_RETURN_IF_ERROR(engine_->Prefetch(uses_));
  for (const size_t parameter : parameters_) {
    SPILLWAY_RETURN_IF_ERROR(CheckGoing());
    const spillway::Update update = {
        .parameter = parameter, .step = step_, .learning_rate = kLearningRate};
    SPILLWAY_RETURN_IF_ERROR(optimizer_->Step({&update, 1}));
  }
  SPILLWAY_RETURN_IF_ERROR(engine_->EndStep());
  return engine_->WaitForPlan();
}

// Waits until the transfers of a pass have ended, and returns the time of the last one. A plan
// reads ahead for the next pass as far as its budget allows. Those reads count for this pass, and
// what the pass before read ahead for this one does not. So once a plan is followed, a pass reads
// as many bytes as it uses.
absl::StatusOr<Clock::time_point> UpdatedState::AwaitQuiet(const Traffic& expected) {
  const Clock::time_point start = Clock::now();
  Clock::time_point changed = start;
  Traffic seen = engine_->Stats().nvme;
  const auto is_quiet = [&] {
    const Clock::duration quiet = Clock::now() - changed;
    return seen.written_bytes >= expected.written_bytes &&
           quiet >= (seen.read_bytes < expected.read_bytes ? kQuietBeforeAllIsRead : kQuiet);
  };
  while (!is_quiet()) {
    SPILLWAY_RETURN_IF_ERROR(CheckGoing());
    if (Clock::now() - start > kMostWaiting)
      return absl::InternalError("what an update wrote did not reach NVMe");
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    const Traffic now = engine_->Stats().nvme;
    if (now.read_bytes == seen.read_bytes && now.written_bytes == seen.written_bytes) continue;
    seen = now;
    changed = Clock::now();
  }
  return changed;
}

absl::Status UpdatedState::CheckGoing() const {
  return interrupted_ ? absl::CancelledError("interrupted") : absl::OkStatus();
}

}  // namespace spillway::bench_update
