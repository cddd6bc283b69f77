// SPDX-License-Identifier: Apache-2.0
//
// Checks of what AdamW is given, the order in which it uses tiles, and the pass over them.

#include "src/optim/adamw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/optim/adamw_kernel.h"

namespace spillway {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

absl::Status CheckOptions(const AdamWOptions& options) {
  const auto refuse = [](const char* name, double value, const char* range) {
    return absl::InvalidArgumentError(
        absl::StrCat("AdamW: ", name, " is ", value, "; it must be ", range));
  };
  // Written so that NaN fails.
  if (!(options.beta1 >= 0 && options.beta1 < 1))
    return refuse("beta1", options.beta1, "in [0, 1)");
  if (!(options.beta2 >= 0 && options.beta2 < 1))
    return refuse("beta2", options.beta2, "in [0, 1)");
  if (!(static_cast<float>(options.epsilon) > 0) || !std::isfinite(options.epsilon)) {
    return refuse("epsilon", options.epsilon, "above 0 in single precision");
  }
  if (!(options.weight_decay >= 0) || !std::isfinite(options.weight_decay)) {
    return refuse("weight_decay", options.weight_decay, "at least 0");
  }
  return absl::OkStatus();
}

absl::Status CheckStep(const AdamWStep& step) {
  if (step.step < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("AdamW: step is ", step.step, "; updates are counted from 1"));
  }
  if (!(step.learning_rate >= 0) || !std::isfinite(step.learning_rate)) {
    return absl::InvalidArgumentError(
        absl::StrCat("AdamW: learning_rate is ", step.learning_rate, "; it must be at least 0"));
  }
  if (!std::isfinite(step.gradient_scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("AdamW: gradient_scale is ", step.gradient_scale, "; it must be finite"));
  }
  return absl::OkStatus();
}

absl::Status CheckDType(const TensorSpec& spec, const char* what,
                        std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), spec.dtype) != allowed.end())
    return absl::OkStatus();
  std::string names;
  for (DType dtype : allowed)
    absl::StrAppend(&names, names.empty() ? "" : " or ", View(Name(dtype)));
  return absl::InvalidArgumentError(absl::StrCat("AdamW: ", what, " '", spec.name, "' is ",
                                                 View(Name(spec.dtype)), "; it must be ", names));
}

absl::Status CheckSameTiles(const TensorSpec& spec, const char* what, const TensorSpec& master) {
  if (spec.shape == master.shape && spec.tile_rows == master.tile_rows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("AdamW: ", what, " '", spec.name,
                                                 "' and master weight '", master.name,
                                                 "' have different shapes or tile_rows"));
}

absl::Status CheckParameter(const Engine& engine, const AdamWTensors& tensors) {
  const TensorSpec& master = engine.Spec(tensors.master);
  SPILLWAY_RETURN_IF_ERROR(CheckDType(master, "master weight", {DType::kF32}));
  const TensorSpec& gradient = engine.Spec(tensors.gradient);
  SPILLWAY_RETURN_IF_ERROR(CheckDType(gradient, "gradient", {DType::kF16, DType::kF32}));
  SPILLWAY_RETURN_IF_ERROR(CheckSameTiles(gradient, "gradient", master));
  for (TensorId moment : {tensors.moment1, tensors.moment2}) {
    SPILLWAY_RETURN_IF_ERROR(CheckDType(engine.Spec(moment), "moment", {DType::kF32}));
    SPILLWAY_RETURN_IF_ERROR(CheckSameTiles(engine.Spec(moment), "moment", master));
  }
  if (tensors.weight == tensors.master) return absl::OkStatus();
  const TensorSpec& weight = engine.Spec(tensors.weight);
  if (weight.dtype == DType::kF32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "AdamW: weight '", weight.name, "' is f32 and must then be the master weight itself, not '",
        master.name, "'"));
  }
  SPILLWAY_RETURN_IF_ERROR(CheckDType(weight, "weight", {DType::kF16}));
  return CheckSameTiles(weight, "weight", master);
}

// A tensor that two places name would be updated twice, or wait for itself.
absl::Status CheckDistinct(const Engine& engine, const std::vector<AdamWTensors>& parameters) {
  std::set<TensorId> seen;
  for (const AdamWTensors& tensors : parameters) {
    std::vector<TensorId> ids = {tensors.gradient, tensors.master, tensors.moment1,
                                 tensors.moment2};
    if (tensors.weight != tensors.master) ids.push_back(tensors.weight);
    for (TensorId id : ids) {
      if (seen.insert(id).second) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("AdamW: tensor '", engine.Spec(id).name, "' is given twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdamW>> AdamW::Create(Engine* engine, ThreadPool* pool,
                                                     AdamWOptions options,
                                                     std::vector<AdamWTensors> parameters) {
  SPILLWAY_RETURN_IF_ERROR(CheckOptions(options));
  for (const AdamWTensors& tensors : parameters) {
    SPILLWAY_RETURN_IF_ERROR(CheckParameter(*engine, tensors));
  }
  SPILLWAY_RETURN_IF_ERROR(CheckDistinct(*engine, parameters));
  return std::make_unique<optim::StreamingAdamW>(engine, pool, options, std::move(parameters));
}

namespace optim {
namespace {

constexpr uint64_t kFrameBytes = 4096;
// The least that is worth handing to another thread: 16 Ki elements take about 10 µs.
constexpr int64_t kGrainElements = 16384;

// The uses of one tile, in the order in which Step leases them.
std::vector<Use> UsesOfTile(const AdamWTensors& tensors, uint64_t tile) {
  std::vector<Use> uses = {
      {TileRef(tensors.gradient, tile), Tier::kPinned, Access::kRead},
      {TileRef(tensors.master, tile), Tier::kPinned, Access::kReadWrite},
      {TileRef(tensors.moment1, tile), Tier::kPinned, Access::kReadWrite},
      {TileRef(tensors.moment2, tile), Tier::kPinned, Access::kReadWrite},
  };
  if (tensors.weight != tensors.master) {
    uses.push_back({TileRef(tensors.weight, tile), Tier::kPinned, Access::kDiscard});
  }
  return uses;
}

}  // namespace

uint64_t PinnedBytesForLeases(std::span<const uint64_t> lease_bytes) {
  uint64_t held_bytes = 0, most = 0;
  for (size_t i = 0; i < lease_bytes.size(); ++i) {
    const uint64_t frame_bytes = base::RoundUp(lease_bytes[i], kFrameBytes);
    most = std::max(most, held_bytes + (i + 1) * frame_bytes);
    held_bytes += frame_bytes;
  }
  return most;
}

StreamingAdamW::StreamingAdamW(Engine* engine, ThreadPool* pool, AdamWOptions options,
                               std::vector<AdamWTensors> parameters)
    : engine_(engine), pool_(pool), options_(options), parameters_(std::move(parameters)) {
  for (const AdamWTensors& tensors : parameters_) {
    const uint64_t num_tiles = engine_->Spec(tensors.master).num_tiles();
    for (uint64_t tile = 0; tile < num_tiles; ++tile) {
      std::vector<uint64_t> lease_bytes;
      for (const Use& use : UsesOfTile(tensors, tile)) {
        uses_.push_back(use);
        lease_bytes.push_back(engine_->Spec(use.tile.tensor).tile_bytes(tile));
      }
      min_pinned_bytes_ = std::max(min_pinned_bytes_, PinnedBytesForLeases(lease_bytes));
    }
  }
}

absl::Status StreamingAdamW::Step(const AdamWStep& step) {
  SPILLWAY_RETURN_IF_ERROR(CheckStep(step));
  const AdamWFactors factors = MakeAdamWFactors(options_, step);
  for (const AdamWTensors& tensors : parameters_) {
    const uint64_t num_tiles = engine_->Spec(tensors.master).num_tiles();
    for (uint64_t tile = 0; tile < num_tiles; ++tile) {
      SPILLWAY_RETURN_IF_ERROR(UpdateTile(factors, tensors, tile));
    }
  }
  return absl::OkStatus();
}

absl::Status StreamingAdamW::UpdateTile(const AdamWFactors& factors, const AdamWTensors& tensors,
                                        uint64_t tile) {
  std::vector<Lease> leases;
  for (const Use& use : UsesOfTile(tensors, tile)) {
    SPILLWAY_ASSIGN_OR_RETURN(Lease lease, engine_->AcquireHost(use.tile, use.access));
    leases.push_back(std::move(lease));
  }
  const std::byte* const gradient = leases[0].data();
  const bool gradient_is_f16 = engine_->Spec(tensors.gradient).dtype == DType::kF16;
  const uint64_t gradient_element_bytes = gradient_is_f16 ? 2 : 4;
  const std::span<float> master = leases[1].as<float>();
  float* const moment1 = leases[2].as<float>().data();
  float* const moment2 = leases[3].as<float>().data();
  uint16_t* const weight = leases.size() > 4 ? leases[4].as<uint16_t>().data() : nullptr;
  SPILLWAY_CHECK(leases[0].size_bytes() == master.size() * gradient_element_bytes);

  pool_->ParallelRanges(
      static_cast<int64_t>(master.size()), kGrainElements, [&](int64_t begin, int64_t end) {
        AdamWRun run;
        run.num_elements = end - begin;
        run.gradient = gradient + static_cast<uint64_t>(begin) * gradient_element_bytes;
        run.gradient_is_f16 = gradient_is_f16;
        run.master = master.data() + begin;
        run.moment1 = moment1 + begin;
        run.moment2 = moment2 + begin;
        run.weight = weight != nullptr ? weight + begin : nullptr;
        UpdateAdamW(factors, run);
      });
  if (!engine_->Spec(tensors.gradient).transient) return absl::OkStatus();
  leases[0].Release();
  return engine_->Discard({tensors.gradient, tile});
}

}  // namespace optim
}  // namespace spillway
