// SPDX-License-Identifier: Apache-2.0
//
// The JSON texts that the C ABI returns. Their keys are the names of the C++ members.

#ifndef SPILLWAY_CAPI_JSON_H_
#define SPILLWAY_CAPI_JSON_H_

#include <string>
#include <vector>

#include "spillway/engine.h"
#include "spillway/stats.h"
#include "spillway/timeline.h"
#include "spillway/types.h"

namespace spillway::capi {

std::string ToJson(const TensorSpec& spec);
std::string ToJson(const std::vector<SnapshotInfo>& snapshots);
std::string ToJson(const EngineStats& stats);
std::string ToJson(const Timeline& timeline);

struct NamedId {
  std::string name;
  TensorId id;
};
std::string ToJson(const std::vector<NamedId>& tensors);

}  // namespace spillway::capi

#endif  // SPILLWAY_CAPI_JSON_H_
