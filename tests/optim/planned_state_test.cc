// SPDX-License-Identifier: Apache-2.0
//
// The bytes of state that src/plan counts without an optimizer are those of the tensors that an
// optimizer makes.

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "spillway/optimizer.h"
#include "src/plan/zero_bytes.h"

namespace spillway::optim {
namespace {

struct Moments {
  Rule rule;
  int moments;
};

double BytesOf(const TensorSpec& spec) {
  return static_cast<double>(ElementBytes(spec.dtype)) *
         std::accumulate(spec.shape.begin(), spec.shape.end(), 1.0, std::multiplies<>());
}

TEST(PlannedState, HasTheBytesOfTheTensors) {
  Rule amsgrad = UsualRule(RuleKind::kAdamW);
  amsgrad.amsgrad = true;
  int compared = 0;
  for (const auto& [rule, moments] : {Moments{UsualRule(RuleKind::kAdamW), 2}, Moments{amsgrad, 3},
                                      Moments{UsualRule(RuleKind::kLion), 1}}) {
    for (const StateFormat format :
         {StateFormat::kF32, StateFormat::kBf16, StateFormat::k8Bit, StateFormat::kCompact}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const int weight_bytes = dtype == DType::kF32 ? 4 : 2;
        if (format == StateFormat::kCompact && weight_bytes == 4) continue;
        TensorSpec weight;
        weight.name = "w";
        weight.dtype = dtype;
        weight.shape = {64, 1024};
        const auto specs = StateSpecs(rule, format, weight);
        ASSERT_TRUE(specs.ok()) << specs.status();
        double bytes = 0;
        for (const TensorSpec& spec : *specs) bytes += BytesOf(spec);
        EXPECT_EQ(plan::StateBytes(format, moments, weight_bytes), bytes / (64 * 1024))
            << Name(rule.kind) << " " << Name(format) << " " << weight_bytes;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 3 * 7);
}

}  // namespace
}  // namespace spillway::optim
