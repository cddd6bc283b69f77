// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a LLaMA-family decoder: their names, shapes and tiles, and the engine tensors
// of each. Everything except the registration is a pure function of the configuration, so that
// budgets can be checked before anything is opened.

#ifndef SPILLWAY_TOOLS_TRAINER_PARAMETERS_H_
#define SPILLWAY_TOOLS_TRAINER_PARAMETERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "tools/hf/config.h"
#include "tools/trainer/description.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

// Lists the parameters in the order of Hugging Face's LlamaForCausalLM. The head is absent if it is
// tied to the embedding.
std::vector<ParameterShape> ListParameters(const hf::ModelConfig& config);

// Indices of a layer's parameters in that list.
struct LayerParameters {
  size_t input_norm, query, key, value, output, middle_norm, gate, up, down;
};
LayerParameters LayerParameterIndices(int64_t layer);
inline constexpr size_t kEmbeddingIndex = 0;
size_t FinalNormIndex(const hf::ModelConfig& config);
size_t HeadIndex(const hf::ModelConfig& config);  // kEmbeddingIndex when tied

// The most elements that a tile holds, except that a tile has at least one row: a 128th of the
// model, rounded down to a power of two, between 64 Ki and 1 Mi. At this size leases are small
// compared to the model, and products are large enough that BLAS spends little time on packing
// (half the size costs 4% of SmolLM2's step).
int64_t TileElements(const Description& model);
int64_t TileElements(const hf::ModelConfig& config);
// Rows per tile of a tensor [rows, width]: even shares, in multiples of 32 rows unless a tile holds
// fewer. A tensor that fits in one tile gets one.
int64_t TileRows(int64_t rows, int64_t width, int64_t tile_elements);

// The engine tensors of one parameter: the weight, the gradient, the state. A weight in fp32 has an
// fp32 gradient and no master weight. Tensors that `options` does not need are absent, as are the
// gradient and state of a frozen parameter. REQUIRES: the pair of rule and state format exists, and
// under compact state weights have 16 bits.
std::vector<TensorSpec> ParameterTensorSpecs(const ParameterShape& parameter,
                                             const ModelOptions& options, int64_t tile_elements);

// Returns a reader that fails with DataLoss, for a tensor that the engine's last commit must have.
Reader MissingTensor(const std::string& name);

// Reads all weights once. InvalidArgument names the parameter and index of a value that is not
// finite. RegisterParameters checks what it reads, too; this finds such a value before anything is
// opened.
absl::Status CheckFinite(const hf::ModelConfig& config, const WeightSource& source);

// Registers the tensors of all parameters. `source` is called for a parameter only if the engine
// needs its bytes. InvalidArgument names the parameter and index of a value that is not finite or
// does not fit the weight's 16 bits.
absl::StatusOr<std::vector<Parameter>> RegisterParameters(Engine* engine,
                                                          const hf::ModelConfig& config,
                                                          const ModelOptions& options,
                                                          const WeightSource& source);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_PARAMETERS_H_
