// SPDX-License-Identifier: Apache-2.0
//
// The table of model types, model_types.json, as it was built in: what each `model_type` of a
// config.json computes, which keys give its sizes, and how its tensors are called. The Python
// helpers read the same file (tools/python/spillway_tools/model_types.py). Its words:
//
//   like          the row that has what this one leaves out
//   architecture  what `architectures` must hold
//   keys          which key of config.json gives a size; a size without a key follows from others
//   follow        sizes whose key may be absent: as many key heads as heads, width / heads for
//                 head_dim, 4 · width for mlp_width
//   defaults      of other keys that may be absent
//   only          keys that change what is computed, each with the value that is supported
//   dropouts      keys of dropout rates
//   activation    its key, and the values that are supported, with the kind of each
//   rope          the kinds of rope scaling that are supported; without it the model has none
//   window        the key of the sliding window; `enabled_by` and `from` are keys that limit it
//   norm          "rms", or "layer", which has a bias
//   storage       "outputs_by_inputs" or "inputs_by_outputs", of the blocks' matrices
//   names         of tensors. All but the head's follow `prefix`, which files may leave out if
//                 `prefix_is_optional`. A block's follow `block` and its number. Tensors that end
//                 in one of `skipped` are no parameters
//   sublayers     of a block, in order: a norm, and an attention or an mlp of linears. `gives` says
//                 which of query, key and value lie side by side in an input's result

#ifndef SPILLWAY_TOOLS_HF_MODEL_TYPES_H_
#define SPILLWAY_TOOLS_HF_MODEL_TYPES_H_

#include <string_view>

#include "nlohmann/json.hpp"

namespace spillway::hf {

// By `model_type`.
const nlohmann::ordered_json& ModelTypes();

// REQUIRES: the table has this type.
const nlohmann::ordered_json& ModelTypeOf(std::string_view model_type);

}  // namespace spillway::hf

#endif  // SPILLWAY_TOOLS_HF_MODEL_TYPES_H_
