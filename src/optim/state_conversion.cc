// SPDX-License-Identifier: Apache-2.0

#include "spillway/state_conversion.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/base/default_floats.h"
#include "src/base/interrupt.h"
#include "src/base/status_macros.h"
#include "src/optim/resting_state.h"
#include "src/optim/state_format.h"

namespace spillway {
namespace {

void Add(const std::vector<float>& before, const std::vector<float>& after, ValueChange* change) {
  for (size_t i = 0; i < before.size(); ++i) {
    if (!std::isfinite(before[i]) || !std::isfinite(after[i])) continue;
    change->magnitude += std::fabs(static_cast<double>(before[i]));
    change->difference += std::fabs(static_cast<double>(after[i]) - static_cast<double>(before[i]));
  }
}

// Returns the spec for which StateSpecs lists the state: the weight's, with the state's tiles. A
// vector's state may be one tile while the weight has several.
absl::StatusOr<TensorSpec> SpecOfState(const Engine& engine, TensorId weight,
                                       const StateTensors& state) {
  TensorSpec spec = engine.Spec(weight);
  if (spec.shape.size() < 2 || state.tensors.empty()) return spec;
  SPILLWAY_RETURN_IF_ERROR(engine.CheckTile(state.tensors.front()));
  spec.tile_rows = engine.Spec(state.tensors.front()).tile_rows;
  return spec;
}

// Returns what a conversion does with the master weights. Two formats that are not split may share
// one master weight, which is kept.
optim::Masters MastersOf(const TensorSpec& weight, const StateTensors& from,
                         const StateTensors& to) {
  if (optim::IsSplit(from.format) != optim::IsSplit(to.format)) return optim::Masters::kWithWeight;
  const bool is_shared = weight.dtype == DType::kF32 || from.tensors[0] == to.tensors[0];
  return is_shared ? optim::Masters::kKeep : optim::Masters::kWrite;
}

}  // namespace

absl::Status ConvertState(Engine* engine, const Rule& rule, TensorId weight,
                          const StateTensors& from, const StateTensors& to, StateChange* change) {
  SPILLWAY_RETURN_IF_ERROR(engine->CheckTile(weight));
  SPILLWAY_ASSIGN_OR_RETURN(const TensorSpec spec, SpecOfState(*engine, weight, from));
  SPILLWAY_ASSIGN_OR_RETURN(
      const optim::RestingState source,
      optim::RestingState::Create(engine, rule, from.format, spec, weight, from.tensors));
  SPILLWAY_ASSIGN_OR_RETURN(
      const optim::RestingState target,
      optim::RestingState::Create(engine, rule, to.format, spec, weight, to.tensors));
  const optim::Masters masters = MastersOf(spec, from, to);
  const base::Uninterrupted whole;
  const base::DefaultFloats floats;
  optim::DecodedTile before, after;
  for (uint64_t tile = 0; tile < source.num_tiles(); ++tile) {
    SPILLWAY_RETURN_IF_ERROR(source.Read(tile, &before));
    SPILLWAY_RETURN_IF_ERROR(target.Write(tile, before, masters));
    SPILLWAY_RETURN_IF_ERROR(target.Read(tile, &after));
    Add(before.master, after.master, &change->master);
    for (size_t m = 0; m < change->moments.size(); ++m)
      Add(before.moments[m], after.moments[m], &change->moments[m]);
  }
  return absl::OkStatus();
}

}  // namespace spillway
