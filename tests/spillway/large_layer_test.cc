// SPDX-License-Identifier: Apache-2.0
//
// A layer larger than the device budget. Each matrix of its attention and MLP passes through the
// device in tiles. The numbers are the same as under any other budget.

#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"

namespace spillway::test {
namespace {

constexpr uint64_t kHidden = 512, kIntermediate = 1024;
constexpr uint64_t kAttentionElements = kHidden * kHidden;  // in each of its four matrices
constexpr uint64_t kMlpElements = kHidden * kIntermediate;  // in each of its three matrices

nlohmann::json WideConfig() {
  nlohmann::json config = TinyConfig();
  config["hidden_size"] = kHidden;
  config["intermediate_size"] = kIntermediate;
  config["num_hidden_layers"] = 1;
  config["num_attention_heads"] = config["num_key_value_heads"] = 8;
  return config;
}

struct Outcome {
  Numbers numbers;
  uint64_t peak_device_bytes = 0;
};

Outcome TrainWide(const std::string& precision, const std::string& device_bytes,
                  const Arguments& more = {}) {
  const Training training;
  WriteTinyModel(training.model(), WideConfig());
  const Ended ended = RunCommand(training.TrainInStore(3) +
                                 Arguments{"--precision", precision, "--pinned-bytes", "6MiB",
                                           "--device-bytes", device_bytes} +
                                 more);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  if (!json.is_object()) return {};
  return {training.NumbersOf(json), json["peak_bytes"]["device"]};
}

class LargeLayer : public ::testing::TestWithParam<std::string> {};

TEST_P(LargeLayer, TrainsInADeviceThatHoldsNoMatrixOfIt) {
  const uint64_t element_bytes = GetParam() == "fp32" ? 4 : 2;
  const Outcome free = TrainWide(GetParam(), "unlimited");
  ASSERT_EQ(free.numbers.steps.size(), 3u);
  // The budget is one tile of 64 Ki elements, then two.
  for (const uint64_t tiles : {1, 2}) {
    const uint64_t budget = tiles * (uint64_t{64} << 10) * element_bytes;
    ASSERT_GT(kAttentionElements * element_bytes, budget);
    ASSERT_GT(kMlpElements * element_bytes, budget);
    for (const char* checkpoint : {"on", "off"}) {
      const Outcome tight =
          TrainWide(GetParam(), std::to_string(budget), {"--checkpoint-activations", checkpoint});
      EXPECT_EQ(tight.numbers, free.numbers) << tiles << " tiles, checkpointing " << checkpoint;
      EXPECT_LE(tight.peak_device_bytes, budget);
      EXPECT_GT(tight.peak_device_bytes, 0u);
    }
  }
}

std::string NameOf(const ::testing::TestParamInfo<std::string>& precision) {
  if (precision.param == "bf16") return "Bf16";
  return precision.param == "fp32" ? "Fp32" : "Fp16Amp";
}

INSTANTIATE_TEST_SUITE_P(Precisions, LargeLayer, ::testing::Values("fp32", "fp16-amp", "bf16"),
                         NameOf);

}  // namespace
}  // namespace spillway::test
