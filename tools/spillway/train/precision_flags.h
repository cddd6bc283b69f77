// SPDX-License-Identifier: Apache-2.0
//
// The flags of train, eval and generate that choose the element types of a model's tensors.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_PRECISION_FLAGS_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_PRECISION_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/spillway/command/arguments.h"
#include "tools/trainer/model.h"

namespace spillway::command {

// `help` is the help text of --precision.
void AddPrecisionFlags(CLI::App* app, trainer::Precision* precision, std::vector<std::string>* fp32,
                       const std::string& help);

// UsageError if --fp32 has patterns although every parameter is in fp32.
absl::Status CheckPrecisionFlags(trainer::Precision precision,
                                 const std::vector<std::string>& fp32);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_PRECISION_FLAGS_H_
