// SPDX-License-Identifier: Apache-2.0
//
// Makes the AdamW kernel (adamw_kernel.h) that updates what a FusedRun describes.

#ifndef SPILLWAY_OPTIM_ADAMW_OF_RUN_H_
#define SPILLWAY_OPTIM_ADAMW_OF_RUN_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "src/optim/adamw_kernel.h"
#include "src/optim/block_codec.h"
#include "src/optim/fused_update.h"
#include "src/optim/rule_kernels.h"

namespace spillway::optim {

// Where the kernel reads CodeValues of each moment's map, under 8-bit state.
struct CodeTables {
  const float* values[2] = {};
};

inline simt::Element ElementOf(DType type) {
  return type == DType::kF32   ? simt::Element::kF32
         : type == DType::kF16 ? simt::Element::kF16
                               : simt::Element::kBF16;
}

// Calls visit(kernel) and returns what it returns. The kernel updates `rows` rows, of which
// `first_row` is the first, and which follow each other in memory. REQUIRES: AdamW's factors and
// moments, without amsgrad, and no given weight.
template <class Visit>
auto WithAdamWKernel(const RuleFactors& f, const FusedRun& first_row, int64_t rows,
                     const CodeTables& tables, const Visit& visit) {
  const FusedRun& run = first_row;
  const AdamWFactors factors = {f.gradient_scale,  f.decay,      f.beta1,
                                f.one_minus_beta1, f.beta2,      f.one_minus_beta2,
                                f.step_size,       f.bias2_root, f.epsilon};
  const auto visit_with = [&](const auto& state) {
    return visit(AdamW<std::decay_t<decltype(state)>>{factors, rows, run.num_elements,
                                                      run.first_element, run.gradient,
                                                      ElementOf(run.gradient_dtype), state});
  };
  const SeparateMaster master = {run.master, run.weight, ElementOf(run.weight_dtype)};
  const uint64_t keys[2] = {run.moments[0].rounding_key, run.moments[1].rounding_key};
  if (!IsEncoded(run.format)) {
    void* const moments[2] = {run.moments[0].data, run.moments[1].data};
    if (run.format == StateFormat::kF32)
      return visit_with(SeparateState<false>{master, {moments[0], moments[1]}, {}});
    return visit_with(SeparateState<true>{master, {moments[0], moments[1]}, {keys[0], keys[1]}});
  }
  const EncodedRow& row = run.encoded.layout;
  const uint64_t first = run.encoded.first_block * row.block_elements;
  EncodedRows encoded = {
      reinterpret_cast<uint8_t*>(run.encoded.row), static_cast<int64_t>(row.size_bytes()), {}, {}};
  for (size_t moment = 0; moment < 2; ++moment) {
    encoded.scales[moment] =
        static_cast<int64_t>(row.scale_offset(moment, run.encoded.first_block));
    encoded.codes[moment] = static_cast<int64_t>(row.code_offset(moment, first));
  }
  if (run.format == StateFormat::k8Bit) {
    return visit_with(
        BlockState{master,
                   encoded,
                   {tables.values[0], tables.values[1]},
                   {LevelsOfCodes(run.moments[0].map), LevelsOfCodes(run.moments[1].map)}});
  }
  return visit_with(CompactState{encoded,
                                 static_cast<int64_t>(row.residual_offset(first)),
                                 run.weight,
                                 ElementOf(run.weight_dtype),
                                 {keys[0], keys[1]},
                                 run.residual_key});
}

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_ADAMW_OF_RUN_H_
