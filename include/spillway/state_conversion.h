// SPDX-License-Identifier: Apache-2.0
//
// Converts optimizer state from one StateFormat to another. Master weights and moments stay the
// same, as exactly as the new format can hold them.

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

// How much values changed, summed over the elements that are finite before and after. The sums of
// several parameters can be added.
struct ValueChange {
  double magnitude = 0;   // Σ |before|
  double difference = 0;  // Σ |after − before|
};

struct StateChange {
  ValueChange master;
  std::array<ValueChange, 3> moments;  // in StateSpecs' order
};

// Writes the state that `from` holds into the tensors of `to`, a tile at a time, and adds to
// `change`. The tensors of `from` do not change. If one of the formats is kCompact, whose master
// weight is split between weight and state, the weight is written too, and `from` is void
// afterwards. Other formats may share one master weight. If the new format rounds moments at
// random, the random bits are those of step 0. A master weight that both formats have is one
// tensor, which is in both lists.
//
//   const StateTensors from = {StateFormat::kF32, old}, to = {StateFormat::k8Bit, fresh};
//   StateChange change;
//   absl::Status status = ConvertState(engine, rule, weight, from, to, &change);
//   for (const TensorId id : old) {
//     const bool is_shared = std::find(fresh.begin(), fresh.end(), id) != fresh.end();
//     if (!is_shared) status.Update(engine->Unregister(id));
//   }
//   // A crash before this commit leaves the old state.
//   if (status.ok()) status = engine->Commit(user_state);
//
// Holds a lease of one tile at a time, and uses memory for up to ten floats per element of a
// tile. InvalidArgument: a pair of rule and format does not exist, the rule is Adafactor, which has
// only one format, or the tensors, tiles included, are not those that StateSpecs lists for the
// weight. Unless the weight is a vector, tiles of the state may have another number of rows than
// the weight's, if all have the same. Errors of the engine, as CheckTile's for an id that it does
// not have, are returned unchanged.
SPILLWAY_EXPORT absl::Status ConvertState(Engine* engine, const Rule& rule, TensorId weight,
                                          const StateTensors& from, const StateTensors& to,
                                          StateChange* change);

}  // namespace spillway

#endif  // SPILLWAY_STATE_CONVERSION_H_
