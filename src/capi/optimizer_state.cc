// SPDX-License-Identifier: Apache-2.0
//
// C ABI: reads and writes the whole state of a parameter in fp32, whatever its format.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spillway/optimizer.h"
#include "src/base/default_floats.h"
#include "src/base/interrupt.h"
#include "src/base/status_macros.h"
#include "src/capi/calls.h"
#include "src/capi/handles.h"
#include "src/optim/resting_state.h"
#include "src/optim/state_format.h"
#include "src/optim/tensor_bytes.h"

namespace spillway::capi {
namespace {

using base::MutexLock;
using optim::DecodedTile;
using optim::RestingState;

uint64_t NumElements(const TensorSpec& weight) {
  return weight.size_bytes() / ElementBytes(weight.dtype);
}

absl::Status CheckElements(const TensorSpec& weight, uint64_t given) {
  if (given == NumElements(weight)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("parameter '", weight.name, "' has ",
                                                 NumElements(weight), " elements, not ", given));
}

absl::Status CheckHasMasters(const Parameter& parameter) {
  if (!parameter.tensors.state.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "parameter '", parameter.weight.name, "' has no state, so there are no master weights"));
}

// Opens the state of a parameter whose weight lies at `weight`. The tiles are those of the state's
// last tensor. The encoded moments of a vector are one row, so its tiles are those of its master
// weight, if that is a tensor of its own.
absl::StatusOr<RestingState> StateOf(const spw_optimizer& optimizer, const Parameter& parameter,
                                     const Values& weight) {
  const std::vector<TensorId>& state = parameter.tensors.state;
  TensorSpec spec = parameter.weight;
  const bool is_vector = spec.shape.size() < 2;
  const bool is_encoded =  // of a rule without moments only a compact state is
      optim::IsEncoded(optimizer.format) && !state.empty() &&
      optimizer.engine->Spec(state.back()).role == Role::kMoment;
  if (is_encoded && is_vector) {
    spec.tile_rows = state.size() > 1 ? optimizer.engine->Spec(state.front()).tile_rows : 0;
  } else if (!state.empty()) {
    spec.tile_rows = optimizer.engine->Spec(state.back()).tile_rows;
  }
  return RestingState::Create(optimizer.engine.get(),
                              parameter.tensors.rule.value_or(optimizer.rule), optimizer.format,
                              spec, weight, state);
}

absl::Status ReadMasters(const spw_optimizer& optimizer, const Parameter& parameter,
                         std::span<float> masters) {
  Engine& engine = *optimizer.engine;
  SPILLWAY_RETURN_IF_ERROR(CheckElements(parameter.weight, masters.size()));
  const bool is_split = optim::IsSplit(optimizer.format);
  const bool is_own = parameter.weight.dtype == DType::kF32 && !is_split;
  if (!is_own) SPILLWAY_RETURN_IF_ERROR(CheckHasMasters(parameter));
  const std::span<std::byte> bytes = std::as_writable_bytes(masters);
  if (!is_own && !is_split)
    return optim::ReadBytes(engine, parameter.tensors.state.front(), 0, bytes);
  const Values& weight = parameter.tensors.weight;
  if (!is_split && weight.memory == nullptr)
    return optim::ReadBytes(engine, weight.tensor, 0, bytes);
  if (!is_split) {
    std::memcpy(bytes.data(), weight.memory, bytes.size());
    return absl::OkStatus();
  }
  SPILLWAY_ASSIGN_OR_RETURN(const RestingState state, StateOf(optimizer, parameter, weight));
  std::vector<float> tile_masters;
  for (uint64_t tile = 0; tile < state.num_tiles(); ++tile) {
    SPILLWAY_RETURN_IF_ERROR(state.ReadMaster(tile, &tile_masters));
    std::copy(tile_masters.begin(), tile_masters.end(), masters.data() + state.FirstElement(tile));
  }
  return absl::OkStatus();
}

// A parameter's state, and the caller's arrays for its values.
struct Transfer {
  RestingState state;
  float* masters = nullptr;
  std::vector<float*> moments;
};

absl::StatusOr<Transfer> CheckTransfer(spw_optimizer* optimizer, const spw_state& given)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(optimizer->mu) {
  SPILLWAY_RETURN_IF_ERROR(CheckNumber(given.parameter, optimizer->parameters));
  const Parameter& parameter = optimizer->parameters[given.parameter];
  SPILLWAY_RETURN_IF_ERROR(CheckElements(parameter.weight, given.num_elements));
  Values weight = parameter.tensors.weight;
  if (given.weight_memory != nullptr && weight.memory != nullptr)
    weight.memory = given.weight_memory;
  SPILLWAY_ASSIGN_OR_RETURN(RestingState state, StateOf(*optimizer, parameter, weight));
  if (given.num_moments != 0 && given.num_moments != state.num_moments()) {
    return absl::InvalidArgumentError(
        absl::StrCat("spw_state.num_moments is ", given.num_moments, ": the state of parameter '",
                     parameter.weight.name, "' has ", state.num_moments()));
  }
  if (given.num_moments > 0) SPILLWAY_RETURN_IF_ERROR(CheckNotNull(given.moments, "moments"));
  Transfer transfer = {.state = std::move(state), .masters = given.masters, .moments = {}};
  for (size_t m = 0; m < given.num_moments; ++m) {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(given.moments[m], absl::StrCat("moments[", m, "]")));
    transfer.moments.push_back(given.moments[m]);
  }
  return transfer;
}

absl::Status ReadAll(const Transfer& transfer) {
  const RestingState& state = transfer.state;
  DecodedTile values;
  for (uint64_t tile = 0; tile < state.num_tiles(); ++tile) {
    const uint64_t first = state.FirstElement(tile);
    if (transfer.masters != nullptr) {
      SPILLWAY_RETURN_IF_ERROR(state.ReadMaster(tile, &values.master));
      std::copy(values.master.begin(), values.master.end(), transfer.masters + first);
    }
    if (transfer.moments.empty()) continue;
    SPILLWAY_RETURN_IF_ERROR(state.ReadMoments(tile, &values));
    for (size_t m = 0; m < transfer.moments.size(); ++m) {
      std::copy(values.moments[m].begin(), values.moments[m].end(), transfer.moments[m] + first);
    }
  }
  return absl::OkStatus();
}

// Writes the values that the caller gave, and changes no others. The weight itself changes only if
// it is its master weight (fp32), or part of it (a split format).
absl::Status WriteAll(const Transfer& transfer) {
  const RestingState& state = transfer.state;
  const auto masters = transfer.masters != nullptr ? optim::Masters::kWrite : optim::Masters::kKeep;
  DecodedTile values;
  for (uint64_t tile = 0; tile < state.num_tiles(); ++tile) {
    const uint64_t first = state.FirstElement(tile);
    const uint64_t count = state.NumElements(tile);
    if (transfer.masters != nullptr)
      values.master.assign(transfer.masters + first, transfer.masters + first + count);
    for (size_t m = 0; m < transfer.moments.size(); ++m)
      values.moments[m].assign(transfer.moments[m] + first, transfer.moments[m] + first + count);
    if (transfer.moments.empty()) {
      SPILLWAY_RETURN_IF_ERROR(state.WriteMaster(tile, values.master, masters));
    } else {
      SPILLWAY_RETURN_IF_ERROR(state.Write(tile, values, masters));
    }
  }
  return absl::OkStatus();
}

spw_status* Move(spw_optimizer* optimizer, const spw_state* given,
                 absl::Status (*move)(const Transfer&)) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckUsable(optimizer));
    SPILLWAY_RETURN_IF_ERROR(CheckStruct(given, "spw_state"));
    MutexLock lock(&optimizer->mu);
    SPILLWAY_ASSIGN_OR_RETURN(const Transfer transfer,
                              CheckTransfer(optimizer, Grown(given, given->size, spw_state{})));
    const base::Uninterrupted whole;
    const base::DefaultFloats floats;
    return move(transfer);
  });
}

}  // namespace
}  // namespace spillway::capi

using namespace spillway;        // NOLINT(google-build-using-namespace): for the calls below
using namespace spillway::capi;  // NOLINT(google-build-using-namespace)

extern "C" {

spw_status* spw_optimizer_masters(spw_optimizer* optimizer, size_t parameter, float* masters,
                                  uint64_t num_elements) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckUsable(optimizer));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(masters, "masters"));
    const base::Uninterrupted whole;
    const base::DefaultFloats floats;
    MutexLock lock(&optimizer->mu);
    SPILLWAY_RETURN_IF_ERROR(CheckNumber(parameter, optimizer->parameters));
    return ReadMasters(*optimizer, optimizer->parameters[parameter], {masters, num_elements});
  });
}

void spw_state_init(spw_state* state, size_t size) { Init(state, size, spw_state{}); }

spw_status* spw_optimizer_read_state(spw_optimizer* optimizer, const spw_state* state) {
  return Move(optimizer, state, ReadAll);
}

spw_status* spw_optimizer_write_state(spw_optimizer* optimizer, const spw_state* state) {
  return Move(optimizer, state, WriteAll);
}

}  // extern "C"
