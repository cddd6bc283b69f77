// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/autograd_bytes.h"

#include <algorithm>
#include <variant>

namespace spillway::command {
namespace {

// Values of a token that a sublayer keeps, in elements of the activations' type and in bytes of
// dropout masks.
struct KeptValues {
  double elements = 0;
  double bytes = 0;
};

KeptValues KeptOf(const trainer::Attention& attention, double width,
                  const AutogradOptions& options) {
  KeptValues kept;
  // The input, which all three linears share; queries, keys and values; the output's input.
  const auto queries = static_cast<double>(attention.query_width());
  const auto keys = static_cast<double>(attention.key_width());
  kept.elements = width + queries + 2 * keys + queries;
  const auto heads = static_cast<double>(attention.heads);
  const auto scores = heads * static_cast<double>(options.sequence);
  if (options.flash_attention) {
    kept.bytes += 4 * heads;  // the logarithm of each row's sum
  } else {
    kept.elements += scores;                                             // the softmax
    if (options.dropout) kept.elements += scores, kept.bytes += scores;  // its rest, and the mask
  }
  return kept;
}

KeptValues KeptOf(const trainer::Mlp& mlp, double width) {
  const auto inner = static_cast<double>(mlp.width());
  // With a gate: the gate's result, what its activation gives, `up`, and their product.
  return {.elements = width + (mlp.gate.has_value() ? 4 : 2) * inner};
}

double BytesOf(const trainer::Block& block, double width, const AutogradOptions& options) {
  const double tokens =
      static_cast<double>(options.sequence) * static_cast<double>(options.windows);
  double bytes = 0;
  for (const trainer::Sublayer& sublayer : block.sublayers) {
    const auto* attention = std::get_if<trainer::Attention>(&sublayer.branch);
    KeptValues kept = attention != nullptr ? KeptOf(*attention, width, options)
                                           : KeptOf(std::get<trainer::Mlp>(sublayer.branch), width);
    kept.elements += width;                    // the norm's input
    if (options.dropout) kept.bytes += width;  // the mask of the sublayer's dropout
    bytes += tokens * (options.element_bytes * kept.elements + kept.bytes);
  }
  return bytes;
}

}  // namespace

double AutogradBytes::Peak(bool checkpointing) const {
  // With checkpointing, one block's are there at a time, and none while the loss is computed.
  return checkpointing ? block_inputs + std::max(largest_block, head) : blocks + head;
}

AutogradBytes CountAutogradBytes(const trainer::Description& model,
                                 const AutogradOptions& options) {
  const auto width = static_cast<double>(model.width);
  const double tokens =
      static_cast<double>(options.sequence) * static_cast<double>(options.windows);
  const double input = tokens * options.element_bytes * width;
  AutogradBytes bytes;
  for (const trainer::Block& block : model.blocks) {
    const double kept = BytesOf(block, width, options);
    bytes.block_inputs += input;
    bytes.blocks += kept;
    bytes.largest_block = std::max(bytes.largest_block, kept - input);
  }
  bytes.head = 2 * input + tokens * 2 * sizeof(float) * static_cast<double>(model.vocabulary);
  return bytes;
}

}  // namespace spillway::command
