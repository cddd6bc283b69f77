// SPDX-License-Identifier: Apache-2.0
//
// Optimizer state from one StateFormat into another: the same master weights and moments, as near
// as the new format holds them.

#ifndef SPILLWAY_STATE_CONVERSION_H_
#define SPILLWAY_STATE_CONVERSION_H_

#include <array>
#include <vector>

#include "absl/status/status.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "spillway/types.h"

namespace spillway {

// The state of one parameter: the tensors that StateSpecs lists for the format, in its order.
struct StateTensors {
  StateFormat format = StateFormat::kF32;
  std::vector<TensorId> tensors;
};

// How far values were moved, over those that are finite. Sums, so that parameters add up.
struct ValueChange {
  double magnitude = 0;   // Σ |before|
  double difference = 0;  // Σ |after − before|
};

struct StateChange {
  ValueChange master;
  std::array<ValueChange, 2> moments;  // in StateSpecs' order
};

// Writes the state that `from` holds into the tensors of `to`, a tile at a time; `from` stays as it
// is. The weight is written, too, if one of the formats is kCompact, whose master weight is split
// between weight and state: then `from` is void. Other formats may share one master weight. Moments
// that the new format rounds at random are rounded with the bits of step 0. Adds to `change`.
//
//   const StateTensors from = {StateFormat::kF32, old}, to = {StateFormat::k8Bit, fresh};
//   StateChange change;
//   absl::Status status = ConvertState(engine, rule, weight, from, to, &change);
//   for (const TensorId id : old) status.Update(engine->Unregister(id));
//   if (status.ok()) status = engine->Commit(user_state);  // before it a crash leaves the old
//   state
//
// Holds one lease at a time, of a tile, and in memory up to eight floats for each of a tile's
// elements. InvalidArgument: a pair of rule and format does not exist, the rule is
// Adafactor, which has one format alone, or tensors are not what StateSpecs lists for the weight,
// tiles included. Errors of the engine come as they are.
SPILLWAY_EXPORT absl::Status ConvertState(Engine* engine, const Rule& rule, TensorId weight,
                                          const StateTensors& from, const StateTensors& to,
                                          StateChange* change);

}  // namespace spillway

#endif  // SPILLWAY_STATE_CONVERSION_H_
