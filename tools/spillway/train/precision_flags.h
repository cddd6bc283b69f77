// SPDX-License-Identifier: Apache-2.0
//
// The flags of train, eval and generate that say in which element types a model is held.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_PRECISION_FLAGS_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_PRECISION_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/spillway/command/arguments.h"
#include "tools/trainer/model.h"

namespace spillway::command {

// `help` is that of --precision.
void AddPrecisionFlags(CLI::App* app, trainer::Precision* precision, std::vector<std::string>* fp32,
                       const std::string& help);

// Usage error: patterns of --fp32 where every tensor is in fp32.
absl::Status CheckPrecisionFlags(trainer::Precision precision,
                                 const std::vector<std::string>& fp32);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_PRECISION_FLAGS_H_
