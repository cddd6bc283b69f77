// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a folder of safetensors of any kind, counted from the files' headers alone. So
// a model whose computation Spillway does not know still has its bytes.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_COUNTED_WEIGHTS_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_COUNTED_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/trainer/description.h"

namespace spillway::command {

struct CountedWeights {
  // The tensors of floating-point numbers, each once, as vectors or as matrices [rows, rest].
  std::vector<trainer::ParameterShape> parameters;
  uint64_t num_files = 0;
  uint64_t file_bytes = 0;   // of all tensors, as the files hold them
  uint64_t num_other = 0;    // tensors of integers, as of quantized weights: not counted
  uint64_t other_bytes = 0;  // of those
};

// Whether `path` is a safetensors file or a folder that has one.
bool HasSafetensors(const std::string& path);

// Reads the headers of a safetensors file, or of all in a folder (not below it). A tensor that
// several files have counts once. NotFound: there is none. InvalidArgument: a header is malformed,
// or no tensor is of floating-point numbers.
absl::StatusOr<CountedWeights> CountWeights(const std::string& path);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_COUNTED_WEIGHTS_H_
