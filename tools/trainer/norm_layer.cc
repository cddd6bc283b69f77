// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/norm_layer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "src/base/status_macros.h"
#include "tools/trainer/kernels/convert.h"
#include "tools/trainer/kernels/norm.h"

namespace spillway::trainer {
namespace {

constexpr int64_t kTokensOfBlock = 32;

int64_t NumTokenBlocks(int64_t tokens) { return (tokens + kTokensOfBlock - 1) / kTokensOfBlock; }

}  // namespace

void NormScratch::Bind(ScratchLayout& layout, int64_t tokens, int64_t width) {
  weight = layout.Take<float>(width);
  inverse_rms = layout.Take<float>(tokens);
  partial = layout.Take<float>(NumTokenBlocks(tokens) * width);
}

NormLayer::NormLayer(ModelContext* context, const NormScratch* scratch, size_t parameter)
    : context_(context),
      scratch_(scratch),
      parameter_(parameter),
      width_(context->WeightSpec(parameter).shape[0]) {}

absl::Status NormLayer::FetchWeight() const {
  return context_->WithWeights(parameter_, 0, [&](const float* weight) {
    std::memcpy(scratch_->weight, weight, static_cast<size_t>(width_) * sizeof(float));
  });
}

absl::Status NormLayer::Forward(const float* x, int64_t tokens, float* y) const {
  SPILLWAY_RETURN_IF_ERROR(FetchWeight());
  const auto epsilon = static_cast<float>(context_->config.rms_norm_eps);
  context_->pool->ParallelRanges(tokens, 1, [&](int64_t begin, int64_t end) {
    RmsNormForward(x + begin * width_, scratch_->weight, epsilon, end - begin, width_,
                   y + begin * width_, scratch_->inverse_rms + begin);
  });
  context_->RoundProduct(y, tokens * width_);
  return absl::OkStatus();
}

absl::Status NormLayer::Backward(const float* dy, const float* x, int64_t tokens, float* dx) const {
  SPILLWAY_RETURN_IF_ERROR(FetchWeight());
  const int64_t blocks = NumTokenBlocks(tokens);
  context_->pool->ParallelRanges(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kTokensOfBlock;
      float* const partial = scratch_->partial + block * width_;
      std::fill_n(partial, width_, 0.0f);
      RmsNormBackward(dy + first * width_, x + first * width_, scratch_->weight,
                      scratch_->inverse_rms + first, std::min(kTokensOfBlock, tokens - first),
                      width_, dx + first * width_, partial);
    }
  });
  return context_->gradients->Add(parameter_, 0, Gradients::UseOfParameter::kFirst,
                                  [&](float* out) {
                                    std::fill_n(out, width_, 0.0f);
                                    for (int64_t block = 0; block < blocks; ++block) {
                                      AddToFloats(scratch_->partial + block * width_, width_, out);
                                    }
                                  });
}

}  // namespace spillway::trainer
