// SPDX-License-Identifier: Apache-2.0
//
// What a model computes, as data: its parameters, and its blocks as lists of sublayers, each with
// its norm, linears, positions and activation. The walk, budgets, FLOPs, saved activations, first
// values, import and export follow from it. A description is a pure function of the configuration.
//
// The words of shapes: a row is a token; `width` is the residual's. A linear's weight is [outputs,
// inputs] as it is stored, unless its storage says otherwise.

#ifndef SPILLWAY_TOOLS_TRAINER_DESCRIPTION_H_
#define SPILLWAY_TOOLS_TRAINER_DESCRIPTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tools/hf/config.h"

namespace spillway::trainer {

// Stands for an index where there is nothing: no bias, no rope, no learned positions.
inline constexpr size_t kNone = SIZE_MAX;

// The values of a parameter before training: from a normal distribution, ones or zeros.
enum class First : uint8_t { kNormal, kOnes, kZeros };

struct ParameterShape {
  std::string name;            // as in Hugging Face's files: "model.layers.0.mlp.up_proj.weight"
  std::vector<int64_t> shape;  // of a matrix [rows, columns], of a norm or bias [width]
  First first = First::kNormal;

  int64_t elements() const;
};

// How a weight lies in its tensor: [outputs, inputs], or [inputs, outputs]. A tile holds rows:
// outputs, or inputs.
enum class Storage : uint8_t { kOutputsByInputs, kInputsByOutputs };

// y[rows, outputs] = x[rows, inputs]·Wᵀ + bias.
struct Linear {
  size_t weight = kNone;  // of Description::parameters
  size_t bias = kNone;    // [outputs], of Description::parameters; or kNone
  int64_t inputs = 0;
  int64_t outputs = 0;
  Storage storage = Storage::kOutputsByInputs;
};

// kRms: y = scale · x / sqrt(mean(x²) + epsilon). kLayer: y = scale · (x - mean(x)) /
// sqrt(variance(x) + epsilon) + shift.
enum class NormKind : uint8_t { kRms, kLayer };

struct Norm {
  NormKind kind = NormKind::kRms;
  size_t scale = kNone;  // [width], of Description::parameters
  size_t shift = kNone;  // [width], of Description::parameters; or kNone
  int64_t width = 0;
  float epsilon = 0;
};

// Where the queries, keys or values lie: head h of a row begins at column first + h · head_stride
// of what Attention::inputs[input] gives.
struct Columns {
  size_t input = 0;
  int64_t first = 0;
  int64_t head_stride = 0;
};

// Causal attention of grouped heads: heads / kv_heads query heads share a key head. Norms come
// before rope; both are over head_dim.
struct Attention {
  std::vector<Linear> inputs;  // query, key and value; or one that gives all three
  Columns query;               // [heads, head_dim]
  Columns key;                 // [kv_heads, head_dim]
  Columns value;               // [kv_heads, head_dim]
  std::optional<Norm> query_norm;
  std::optional<Norm> key_norm;
  Linear output;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;
  int64_t window = 0;   // the keys that a query sees, its own included; 0: all before it
  float scale = 0;      // of query·key
  size_t rope = kNone;  // of Description::ropes; or kNone

  int64_t query_width() const { return heads * head_dim; }
  int64_t key_width() const { return kv_heads * head_dim; }
};

// kSilu: x / (1 + exp(-x)). kGeluTanh: x/2 · (1 + tanh(sqrt(2/pi) · (x + 0.044715 x³))).
enum class Activate : uint8_t { kSilu, kGeluTanh };

// down(activate(gate(x)) · up(x)); without a gate down(activate(up(x))).
struct Mlp {
  std::optional<Linear> gate;
  Linear up;
  Linear down;
  Activate activate = Activate::kSilu;

  int64_t width() const { return up.outputs; }
};

// x += branch(norm(x)).
struct Sublayer {
  Norm norm;
  std::variant<Attention, Mlp> branch;
};

struct Block {
  std::vector<Sublayer> sublayers;
};

struct Description {
  // In the order of the published files, which is that of their first use, except that an untied
  // head is last.
  std::vector<ParameterShape> parameters;
  int64_t vocabulary = 0;
  int64_t width = 0;                      // of the residual
  int64_t most_positions = 0;             // of a window; the rows of `positions` if there are any
  size_t tokens = kNone;                  // [vocabulary, width], of parameters
  size_t positions = kNone;               // [most_positions, width], of parameters; or kNone
  std::vector<std::vector<float>> ropes;  // [head_dim / 2] radians a position, scaling included
  std::vector<Block> blocks;
  Norm last;
  Linear head;  // head.weight == tokens if it is tied to the embedding

  bool is_tied() const { return head.weight == tokens; }
};

Description Describe(const hf::ModelConfig& config);
// The name of a head's weight. A file of a model whose head is tied may have it, as a copy.
std::string HeadName(const hf::ModelConfig& config);

// Calls use(linear) for each linear of a sublayer, in the order of forward.
template <typename Use>
void ForEachLinear(const Sublayer& sublayer, const Use& use) {
  if (const auto* attention = std::get_if<Attention>(&sublayer.branch)) {
    for (const Linear& linear : attention->inputs) use(linear);
    use(attention->output);
  } else {
    const Mlp& mlp = std::get<Mlp>(sublayer.branch);
    if (mlp.gate.has_value()) use(*mlp.gate);
    use(mlp.up);
    use(mlp.down);
  }
}

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_DESCRIPTION_H_
