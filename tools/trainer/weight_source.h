// SPDX-License-Identifier: Apache-2.0
//
// Sources of a model's first weights: a Hugging Face folder, or a seeded random initialisation.

#ifndef SPILLWAY_TOOLS_TRAINER_WEIGHT_SOURCE_H_
#define SPILLWAY_TOOLS_TRAINER_WEIGHT_SOURCE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/hf/config.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

// Opens the weights of a Hugging Face folder, converted to fp32. Reads the files' headers to check
// that the folder holds exactly the parameters that the configuration calls for, each of the right
// shape and type. Otherwise NotFound or InvalidArgument names the tensor. An extra tensor, such as
// a bias, is an error too, because a model computed without it would be a different one. The head
// of a tied embedding may be there if it is a copy; the source compares the two, with
// InvalidArgument if they differ, when it is asked for the embedding. CheckFinite in parameters.h
// reads the values.
absl::StatusOr<WeightSource> OpenFolderWeights(const std::string& path,
                                               const hf::ModelConfig& config);

// Returns the initialisation of transformers' LLaMA: matrices from a normal distribution of mean 0
// and standard deviation 0.02, norms' weights 1, biases 0. An element follows from seed, tensor
// name and index alone (Box-Muller over a counter), so that pieces may be read in any order.
WeightSource RandomWeights(uint64_t seed);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_WEIGHT_SOURCE_H_
