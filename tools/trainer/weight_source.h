// SPDX-License-Identifier: Apache-2.0
//
// Where a model's first weights come from: a Hugging Face folder, or a seeded random
// initialisation.

#ifndef SPILLWAY_TOOLS_TRAINER_WEIGHT_SOURCE_H_
#define SPILLWAY_TOOLS_TRAINER_WEIGHT_SOURCE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/hf/config.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

// The weights of a Hugging Face folder, converted to fp32. Opens and checks them whole: the folder
// holds exactly the parameters that the configuration calls for, each of the right shape and
// finite, else NotFound or InvalidArgument names the tensor. A tensor too many (a bias, say) is an
// error as well, since a model computed without it would be another. Reads every weight once.
absl::StatusOr<WeightSource> OpenFolderWeights(const std::string& path,
                                               const hf::ModelConfig& config);

// The initialisation of transformers' LLaMA: matrices from a normal distribution of mean 0 and
// standard deviation 0.02, norm weights (vectors) 1. An element follows from seed, tensor name and
// index alone (Box-Muller over a counter), so that pieces may be asked for in any order.
WeightSource RandomWeights(uint64_t seed);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_WEIGHT_SOURCE_H_
