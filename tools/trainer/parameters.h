// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a model over engine tensors: the tiles of each, and the tensors that it needs.
// Everything except the registration is a pure function of the description, so that budgets can be
// checked before anything is opened.

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

// Lists the parameters of a description.
std::vector<ParameterShape> ListParameters(const hf::ModelConfig& config);

// The most elements that a tile holds, except that a tile has at least one row: what
// `options.tiles` says, or a 128th of the model, rounded down to a power of two and at least 64 Ki.
// The most is 1 Mi for models below 2^28 parameters, 16 Mi for larger ones, and 4 Mi for their
// state. At this size leases are small compared to the model, products are large enough that BLAS
// spends little time on packing (half the size costs 4% of SmolLM2's step), and a trillion
// parameters are under a million tiles. A tile of state is never larger than one of a weight.
//
// Numbers depend on tiles: the gradient of a linear's input is a sum over the tiles of its weight,
// each product rounded to fp32 before it is added, and BLAS rounds products of other sizes
// differently.
TileSizes TilesOf(const Description& model, const ModelOptions& options);
// The most elements of a tile of a model below 2^28 parameters.
inline constexpr int64_t kMostOfSmallModels = 1 << 20;
// The tiles of a store's run: TrainState::tiles, or if a store is older than that field, those that
// all runs had then: as above, but at most 1 Mi elements for every model.
TileSizes TilesOfStore(const Description& model, const TileSizes& stored);
// Rows per tile of a tensor [rows, width]: even shares, in multiples of 32 rows unless a tile holds
// fewer, or of 8 rows if a tile may have more than 1 Mi elements. A tensor that fits in one tile
// gets one.
int64_t TileRows(int64_t rows, int64_t width, int64_t tile_elements);
// Rows per tile of a weight [rows, width] and of its gradient: even shares, in multiples of the
// rows of a tile of its state, which are TileRows(rows, width, tiles.state). So a tile of state
// lies within one tile of the weight.
int64_t WeightTileRows(int64_t rows, int64_t width, const TileSizes& tiles);

// The engine tensors of one parameter: the weight, the gradient, the state. A weight in fp32 has an
// fp32 gradient and no master weight. Tensors that `options` does not need are absent, as are the
// gradient and state of a frozen parameter. REQUIRES: the pair of rule and state format exists, and
// under compact state weights have 16 bits.
std::vector<TensorSpec> ParameterTensorSpecs(const ParameterShape& parameter,
                                             const ModelOptions& options, const TileSizes& tiles);

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
