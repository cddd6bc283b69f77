// SPDX-License-Identifier: Apache-2.0
//
// A trained model as a Hugging Face folder: weights in fp32 as safetensors, config.json, and
// the tokenizer's files of the model that the training began with.

#ifndef SPILLWAY_TOOLS_TRAINER_EXPORT_H_
#define SPILLWAY_TOOLS_TRAINER_EXPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "spillway/engine.h"
#include "tools/trainer/model.h"
#include "tools/trainer/parameters.h"

namespace spillway::trainer {

// Whether an export of so many bytes can be written to `folder`, as far as can be told before:
// AlreadyExists if it is there and not an empty folder; Unavailable if no folder can be made there;
// ResourceExhausted if its file system has less space free or a file may not be so large. Leaves
// nothing behind, and removes what killed exports to that folder left.
absl::Status CheckExportFolder(const std::string& folder, uint64_t weight_bytes);

// Bytes of the parameters in fp32.
uint64_t ExportedBytes(const std::vector<ParameterShape>& parameters);

using ConsumeBytes = std::function<absl::Status(std::span<const std::byte>)>;
// Hands all fp32 bytes of a parameter to `consume`, in order and in pieces.
using WeightStream =
    std::function<absl::Status(const ParameterShape& parameter, const ConsumeBytes& consume)>;

// Writes `folder`, which appears whole under its name or not at all: it is filled as
// `folder`.partial-<n>, synced and renamed, and removed again if anything fails; of a process
// that is killed, by the next export to that folder. `config_json` is the model's config.json, to
// which the element type written ("float32") is noted; tokenizer files are copied from
// `model_folder` where present (empty: none); NotFound if that is no folder.
absl::Status ExportWeights(const std::vector<ParameterShape>& parameters,
                           const WeightStream& weights, const std::string& config_json,
                           const std::string& model_folder, const std::string& folder);

// The same with an engine's master weights.
absl::Status ExportModel(Engine* engine, const std::vector<Parameter>& parameters,
                         const std::string& config_json, const std::string& model_folder,
                         const std::string& folder);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_EXPORT_H_
