// SPDX-License-Identifier: Apache-2.0
//
// Exports a trained model as a Hugging Face folder: weights in fp32 as safetensors, config.json,
// and the tokenizer's files of the model that the training started from.

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

// Checks whether an export of `weight_bytes` can be written to `folder`, as far as this can be
// determined in advance. AlreadyExists if `folder` exists and is not an empty folder, or if a
// rename cannot replace it: a mount point, or a name that ends in "." or "..". Unavailable if no
// folder can be created there; ResourceExhausted if its file system has less free space or the
// limit on a file's size is too low. Leaves nothing behind, and removes what killed exports to that
// folder left.
absl::Status CheckExportFolder(const std::string& folder, uint64_t weight_bytes);

// Returns the bytes of the parameters in fp32.
uint64_t ExportedBytes(const std::vector<ParameterShape>& parameters);

using ConsumeBytes = std::function<absl::Status(std::span<const std::byte>)>;
// Passes all fp32 bytes of a parameter to `consume`, in order and in pieces.
using WeightStream =
    std::function<absl::Status(const ParameterShape& parameter, const ConsumeBytes& consume)>;

// Writes `folder`, which appears complete under its name or not at all: it is filled as
// `folder`.partial-<n>, synced and renamed. If anything fails before the rename, the partial folder
// is removed; if the process is killed, the next export to that folder removes it. `config_json` is
// the model's config.json; it is written with the element type "float32". Tokenizer files that
// exist in `model_folder` are copied (none if it is empty). NotFound if `model_folder` is not a
// folder.
absl::Status ExportWeights(const std::vector<ParameterShape>& parameters,
                           const WeightStream& weights, const std::string& config_json,
                           const std::string& model_folder, const std::string& folder);

// Returns the stream of an engine's master weights. `parameters` must outlive it.
WeightStream MasterWeights(Engine* engine, const std::vector<Parameter>& parameters);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_EXPORT_H_
