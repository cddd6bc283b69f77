// SPDX-License-Identifier: Apache-2.0
//
// What a model takes without Spillway: the bytes on one GPU and in its share of the machine's
// memory, for each of the usual ways to train with Adam. Weights, gradients and state follow from
// the parameters (src/plan/zero_bytes.h), activations from the model's shapes (autograd_bytes.h).
//
// Not counted: the CUDA context, the allocator's fragments and cache, the buckets of collective
// operations, and the scratch of libraries. So a way that does not fit here fits nowhere.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_WITHOUT_SPILLWAY_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_WITHOUT_SPILLWAY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/spillway/plan/autograd_bytes.h"
#include "tools/trainer/description.h"

namespace spillway::command {

// The linears of a block that have an adapter. kQueryValue: as in the paper, queries and values
// alone, each with its own adapter even if one linear gives both (arXiv:2106.09685). kAll: every
// linear of the blocks.
enum class LoraLinears : uint8_t { kQueryValue, kAttention, kAll };

struct LoraOptions {
  int64_t rank = 16;
  LoraLinears linears = LoraLinears::kAll;
};

// The parameters of the adapters: rank · (inputs + outputs) of each linear that has one.
double LoraParameters(const trainer::Description& model, const LoraOptions& options);

struct WithoutOptions {
  int64_t sequence = 0;
  int64_t windows = 1;  // of a micro-batch
  uint32_t ranks = 8;   // of ZeRO: processes with one GPU each
  LoraOptions lora;
};

// A way to train, with the bytes of one GPU by what they hold. `temporary`: whole weights that are
// gathered, and gradients on their way out.
struct WithoutSpillway {
  std::string_view key;  // as the JSON has it: "zero_3"
  std::string title;
  bool checkpointing = false;
  double weights = 0;
  double gradients = 0;
  double state = 0;
  double activations = 0;
  double temporary = 0;
  double host = 0;  // bytes of one rank in the machine's memory

  double gpu() const { return weights + gradients + state + activations + temporary; }
};

// The ways, from the plainest on: fp32; AMP (16-bit weights and gradients, fp32 master weights);
// with checkpointing; with 8-bit Adam; LoRA and QLoRA; ZeRO 1 to 3; ZeRO-Offload on one GPU, and
// ZeRO-3 with weights, gradients and state in memory. All from the third on have checkpointing. A
// description without blocks has no adapters and no activations.
std::vector<WithoutSpillway> WaysWithoutSpillway(const trainer::Description& model,
                                                 const WithoutOptions& options);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_WITHOUT_SPILLWAY_H_
