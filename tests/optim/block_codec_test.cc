// SPDX-License-Identifier: Apache-2.0
//
// Tests the 8-bit codes of blocks: the maps are the paper's, every value gets the nearest code, and
// any bytes decode to something.

#include "src/optim/block_codec.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "src/optim/state_format.h"
#include "tests/exhaustive.h"
#include "tests/heap_engine.h"
#include "tests/optim/block_reference.h"
#include "tests/optim/reference_parameter.h"

namespace spillway::optim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr CodeMap kMaps[] = {CodeMap::kSigned, CodeMap::kUnsigned, CodeMap::kGrowing};

// Returns the paper's map, computed as its authors' library does (create_dynamic_map).
std::vector<double> DynamicMap(bool is_signed) {
  std::vector<double> data = {0, 1};
  for (int i = 0; i < 7; ++i) {
    const int items = (1 << (is_signed ? i : i + 1)) + 1;
    for (int k = 0; k + 1 < items; ++k) {
      const double begin = 0.1 + 0.9 * k / (items - 1), end = 0.1 + 0.9 * (k + 1) / (items - 1);
      const double mean = std::pow(10, i - 6) * (begin + end) / 2;
      data.push_back(mean);
      if (is_signed) data.push_back(-mean);
    }
  }
  std::sort(data.begin(), data.end());
  return data;
}

TEST(CodeValues, AreThePapers) {
  for (const CodeMap map : kMaps) {
    const std::vector<double> expected = DynamicMap(map == CodeMap::kSigned);
    ASSERT_EQ(expected.size(), 256U);
    for (size_t code = 0; code < 256; ++code)
      EXPECT_NEAR(CodeValues(map)[code], expected[code], 1e-7 * std::fabs(expected[code])) << code;
  }
}

// Runs on each instruction set of this machine, by restricting dispatch to it.
class Codes : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  // Returns the codes of values whose magnitudes are at most 1. Each block that it encodes begins
  // with a 1, so that its scale is 1.
  static std::vector<uint8_t> CodesOf(CodeMap map, const std::vector<float>& values) {
    std::vector<uint8_t> codes;
    for (size_t begin = 0; begin < values.size(); begin += 255) {
      std::vector<float> block = {1.0F};
      const size_t end = std::min(values.size(), begin + 255);
      block.insert(block.end(), &values[begin], &values[0] + end);
      std::vector<uint8_t> of_block(block.size());
      std::byte scale[4];
      EncodeBlock(map, block.data(), static_cast<int64_t>(block.size()), scale, of_block.data());
      codes.insert(codes.end(), of_block.begin() + 1, of_block.end());
    }
    return codes;
  }
};

// Returns every value of a map, points between two neighbours, the midpoint among them, the floats
// next to all of these, and a sample of the floats from 0 to 1, each with either sign.
std::vector<float> ManyRatios(CodeMap map) {
  std::vector<float> values = {0.0F, 1.0F, 1e-30F, 1e-45F};
  for (size_t code = 0; code + 1 < 256; ++code) {
    const double low = CodeValues(map)[code], high = CodeValues(map)[code + 1];
    for (const double part : {0.0, 0.1, 0.49, 0.5, 0.51, 0.9}) {
      const auto at = static_cast<float>(low + part * (high - low));
      for (const float value : {std::nextafter(at, -1.0F), at, std::nextafter(at, 1.0F)})
        values.push_back(value);
    }
  }
  for (uint32_t bits = 0; bits <= 0x3f800000; bits += 9973)
    values.push_back(std::bit_cast<float>(bits));
  const size_t count = values.size();
  for (size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  return values;
}

TEST_P(Codes, AreTheReferencesOnEveryInstructionSet) {
  for (const CodeMap map : kMaps) {
    const std::vector<float> values = ManyRatios(map);
    const std::vector<uint8_t> codes = CodesOf(map, values);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(codes[i], ReferenceCode(map, values[i])) << values[i];
  }
}

TEST_P(Codes, OfEveryLength) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t n = 1; n <= 70; ++n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = std::pow(uniform(random), 5.0F);
    std::vector<uint8_t> codes(values.size() + 1, 0xee);
    std::byte scale[4];
    EncodeBlock(CodeMap::kSigned, values.data(), n, scale, codes.data());
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::fabs(value));
    float found = 0;
    std::memcpy(&found, scale, sizeof(found));
    EXPECT_EQ(found, largest);
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(codes[i], ReferenceCode(CodeMap::kSigned, values[i] / largest)) << i;
    EXPECT_EQ(codes.back(), 0xee);
  }
}

TEST_P(Codes, OfSecondMomentsWhoseRatioUnderflowsAreNotZeros) {
  for (const float small : {std::numeric_limits<float>::denorm_min(), 1e-38F}) {
    std::vector<float> values(37, small);
    values[5] = 1e20F;
    values[6] = 0;
    std::vector<uint8_t> codes(values.size());
    std::byte scale[4];
    EncodeBlock(CodeMap::kUnsigned, values.data(), 37, scale, codes.data());
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(codes[i], i == 5 ? 255 : i == 6 ? 0 : 1) << i;
    EncodeBlock(CodeMap::kSigned, values.data(), 37, scale, codes.data());
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(codes[i], i == 5 ? 255 : 127) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, Codes,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& test) { return std::string(hwy::TargetName(test.param)); });

// The code's value is as near as the nearest one, except for rounding in fp32.
TEST(ReferenceCode, IsTheNearest) {
  for (const CodeMap map : kMaps) {
    const std::array<float, 256>& of = CodeValues(map);
    for (const float value : ManyRatios(map)) {
      if (map != CodeMap::kSigned && value <= of[1] / 2) continue;
      double nearest = 2;
      for (const double other : of) nearest = std::min(nearest, std::fabs(other - value));
      const double distance = std::fabs(double{of[ReferenceCode(map, value)]} - value);
      EXPECT_LE(distance, nearest + 2e-6 * std::fabs(value)) << value;
    }
  }
}

TEST(ReferenceCode, OfEachValueIsItsOwn) {
  for (const CodeMap map : kMaps) {
    for (size_t code = 0; code < 256; ++code)
      EXPECT_EQ(ReferenceCode(map, CodeValues(map)[code]), code);
  }
}

TEST(ReferenceCode, OfASecondMomentThatIsNotZeroIsNotZeros) {
  EXPECT_EQ(ReferenceCode(CodeMap::kUnsigned, 0.0F), 0);
  EXPECT_EQ(ReferenceCode(CodeMap::kUnsigned, std::numeric_limits<float>::denorm_min()), 1);
  EXPECT_EQ(ReferenceCode(CodeMap::kUnsigned, -1.0F), 0);
}

TEST(Blocks, OfZerosAreZeroBytesThatDecodeToZeros) {
  std::vector<float> decoded(256, 7.0F);
  const std::vector<uint8_t> codes(256);
  const std::byte scale[4] = {};
  for (const CodeMap map : kMaps) {
    DecodeBlock(map, scale, codes.data(), 256, decoded.data());
    for (const float value : decoded) EXPECT_EQ(value, 0.0F);
  }
}

// The largest magnitude keeps its value, unless its element is negative: the signed map has no −1.
TEST(Blocks, KeepTheLargestAndTheSignsOfAll) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const float size : {1e-38F, 1e-20F, 1.0F, 1e30F}) {
    for (const int64_t n : {1, 5, 255, 256}) {
      std::vector<float> values(static_cast<size_t>(n)), decoded(values.size());
      for (float& value : values) value = normal(random) * size;
      values[0] = 4 * size;
      std::vector<uint8_t> codes(values.size());
      std::byte scale[4];
      EncodeBlock(CodeMap::kSigned, values.data(), n, scale, codes.data());
      DecodeBlock(CodeMap::kSigned, scale, codes.data(), n, decoded.data());
      const float largest =
          std::fabs(*std::max_element(values.begin(), values.end(), [](float a, float b) {
            return std::fabs(a) < std::fabs(b);
          }));
      for (size_t i = 0; i < values.size(); ++i) {
        // At most half of a step. Steps are largest in the last decade: a 64th of it.
        EXPECT_NEAR(decoded[i], values[i], 0.0071F * largest);
        if (std::fabs(values[i]) > 1e-6F * largest) {
          EXPECT_EQ(std::signbit(decoded[i]), std::signbit(values[i]));
        }
      }
    }
  }
}

TEST(Blocks, WithValuesThatAreNotFiniteDecodeSo) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const CodeMap map : kMaps) {
      std::vector<float> values(100, 1.0F), decoded(100);
      values[37] = bad;
      std::vector<uint8_t> codes(100);
      std::byte scale[4];
      EncodeBlock(map, values.data(), 100, scale, codes.data());
      DecodeBlock(map, scale, codes.data(), 100, decoded.data());
      EXPECT_FALSE(std::isfinite(decoded[37]));
    }
  }
}

TEST(Blocks, AnyBytesAreReadAndWritten) {
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    const auto n = static_cast<int64_t>(random() % 256 + 1);
    std::vector<std::byte> bytes(4 + static_cast<size_t>(n));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    auto* const codes = reinterpret_cast<uint8_t*>(bytes.data() + 4);
    std::vector<float> values(static_cast<size_t>(n));
    for (const CodeMap map : kMaps) {
      DecodeBlock(map, bytes.data(), codes, n, values.data());
      EncodeBlock(map, values.data(), n, bytes.data(), codes);
    }
    // Any floats can be encoded too.
    for (float& value : values) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    for (const CodeMap map : kMaps) EncodeBlock(map, values.data(), n, bytes.data(), codes);
  }
}

// The largest element grows slowly. If the scale followed it, codes rounded to nearest would not
// change, and the other elements would grow with the scale.
TEST(Blocks, OfGrowingMomentsKeepWhatDoesNotGrow) {
  std::vector<float> stays(256), values;
  for (size_t i = 0; i < stays.size(); ++i)
    stays[i] = std::exp2(-static_cast<float>(i) / 32);  // over more than two decades
  values = stays;
  std::byte scale[4];
  std::vector<uint8_t> codes(stays.size());
  for (int step = 1; step <= 2000; ++step) {  // to 55 times itself
    for (size_t i = 1; i < values.size(); ++i) values[i] = std::max(values[i], stays[i]);
    values[0] = std::exp(0.002F * static_cast<float>(step));
    EncodeBlock(CodeMap::kGrowing, values.data(), 256, scale, codes.data());
    DecodeBlock(CodeMap::kGrowing, scale, codes.data(), 256, values.data());
  }
  for (size_t i = 1; i < values.size(); ++i) EXPECT_NEAR(values[i] / stays[i], 1.1, 0.3) << i;
}

TEST(Blocks, ScalesOfGrowingMomentsArePowersOfTwo) {
  const float most = std::numeric_limits<float>::max();
  const float least = std::numeric_limits<float>::denorm_min();
  for (const auto& [largest, expected] :
       {std::pair(1.0F, 1.0F), std::pair(std::nextafter(1.0F, 2.0F), 2.0F), std::pair(0.7F, 1.0F),
        std::pair(least, std::numeric_limits<float>::min()), std::pair(0x1p127F, 0x1p127F),
        std::pair(most, most), std::pair(kInfinity, kInfinity), std::pair(0.0F, 0.0F)}) {
    const float values[] = {largest, largest / 3};
    std::byte scale[4];
    uint8_t codes[2];
    EncodeBlock(CodeMap::kGrowing, values, 2, scale, codes);
    float found = -1;
    std::memcpy(&found, scale, sizeof(found));
    EXPECT_EQ(found, expected) << largest;
  }
}

TEST(EncodedRow, HasTheBytesThatFormatsMdSays) {
  const EncodedRow row = {.num_elements = 576, .num_moments = 2};
  EXPECT_EQ(row.num_blocks(), 3U);
  EXPECT_EQ(row.scale_offset(1, 0), 12U);
  EXPECT_EQ(row.code_offset(0, 0), 24U);
  EXPECT_EQ(row.code_offset(1, 7), 24U + 576 + 7);
  EXPECT_EQ(row.size_bytes(), 24U + 2 * 576);
  // AdamW on a row of whole blocks: 2 codes per element, and 8 bytes of scales per block.
  const EncodedRow whole = {.num_elements = 4096, .num_moments = 2};
  EXPECT_EQ(static_cast<double>(whole.size_bytes()) / 4096, 2.03125);
}

TEST(EncodedState, IsOneTensorOfBytesWhoseVectorIsOneRow) {
  const auto state = [](std::vector<int64_t> shape, int64_t tile_rows, DType dtype) {
    TensorSpec weight;
    weight.name = "w";
    weight.dtype = dtype;
    weight.shape = std::move(shape);
    weight.tile_rows = tile_rows;
    return *StateSpecs(Rule(), StateFormat::k8Bit, weight);
  };
  const auto matrix = state({7, 300}, 2, DType::kF16);
  ASSERT_EQ(matrix.size(), 2U);
  EXPECT_EQ(matrix[0].name, "w/master");
  EXPECT_EQ(matrix[1].name, "w/state8");
  EXPECT_EQ(matrix[1].dtype, DType::kU8);
  EXPECT_EQ(matrix[1].shape, (std::vector<int64_t>{7, 2 * (8 + 300)}));
  EXPECT_EQ(matrix[1].tile_rows, 2);
  const auto vector = state({5000}, 256, DType::kF32);
  ASSERT_EQ(vector.size(), 1U);
  EXPECT_EQ(vector[0].shape, (std::vector<int64_t>{1, 2 * (80 + 5000)}));
  EXPECT_EQ(vector[0].tile_rows, 0);
  EXPECT_EQ(state({}, 0, DType::kF32)[0].shape, (std::vector<int64_t>{1, 10}));
  EXPECT_EQ(state({3, 4, 5}, 0, DType::kF32)[0].shape, (std::vector<int64_t>{3, 48}));
}

std::vector<RuleAndFormat> PairsWithCodes() {
  std::vector<RuleAndFormat> pairs = AllPairs();
  std::erase_if(pairs, [](const RuleAndFormat& pair) { return !IsEncoded(pair.format); });
  return pairs;
}

class EncodedUpdate : public testing::TestWithParam<RuleAndFormat> {
 protected:
  TensorSpec Weight(std::vector<int64_t> shape, int64_t tile_rows) const {
    TensorSpec spec;
    spec.name = "w";
    spec.dtype = DType::kF16;
    spec.shape = std::move(shape);
    spec.tile_rows = tile_rows;
    return spec;
  }
};

TEST_P(EncodedUpdate, IsTheReferencesForEveryShapeAndTile) {
  struct Shape {
    std::vector<int64_t> shape;
    std::vector<int64_t> tile_rows;
  };
  const Shape shapes[] = {{{}, {0}},
                          {{5000}, {0, 256, 1024, 5000}},
                          {{7, 300}, {0, 1, 3}},
                          {{3, 4, 5}, {0, 2}},
                          {{2, 2049}, {0, 1}},
                          {{40, 256}, {0, 7}}};
  for (const Shape& shape : shapes) {
    for (const int64_t tile_rows : shape.tile_rows) {
      for (const int threads : {1, 3}) {
        HeapEngine engine;
        ThreadPool pool(threads);
        ReferenceParameter p(Weight(shape.shape, tile_rows), DType::kF32, GetParam().rule,
                             GetParam().format, 3);
        const ParameterTensors tensors = RegisterParameter(engine, p);
        const auto optimizer =
            *Optimizer::Create(&engine, &pool, GetParam().rule, GetParam().format);
        const size_t number = *optimizer->Add(tensors);
        for (int64_t step = 1; step <= 4; ++step) {
          p.NewGradient(static_cast<uint32_t>(step));
          CopyTiles(engine, tensors.gradient->tensor, Access::kDiscard, p.gradient.data());
          const Update update = {
              .parameter = number, .step = step, .learning_rate = 1e-2, .weight_decay = 0.1};
          ASSERT_TRUE(optimizer->Step({&update, 1}).ok());
          p.Apply(update);
        }
        ExpectParameter(engine, tensors, p);
      }
    }
  }
}

TEST_P(EncodedUpdate, OfFuzzedStateCrashesNothing) {
  std::mt19937 random(4);
  HeapEngine engine;
  ThreadPool pool(1);
  ReferenceParameter p(Weight({5, 700}, 2), DType::kF16, GetParam().rule, GetParam().format, 5);
  const ParameterTensors tensors = RegisterParameter(engine, p);
  const auto optimizer = *Optimizer::Create(&engine, &pool, GetParam().rule, GetParam().format);
  const Update update = {.parameter = *optimizer->Add(tensors), .learning_rate = 1e-2};
  for (int round = 0; round < 50; ++round) {
    for (std::byte& byte : engine.Values<std::byte>(tensors.state.back()))
      byte = static_cast<std::byte>(random());
    EXPECT_TRUE(optimizer->Step({&update, 1}).ok());
  }
}

TEST_P(EncodedUpdate, RefusesAVectorThatIsCutInsideABlock) {
  HeapEngine engine;
  ThreadPool pool(1);
  const ReferenceParameter p(Weight({5000}, 100), DType::kF16, GetParam().rule, GetParam().format,
                             6);
  const auto optimizer = *Optimizer::Create(&engine, &pool, GetParam().rule, GetParam().format);
  const auto added = optimizer->Add(RegisterParameter(engine, p));
  EXPECT_EQ(added.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string words =
      GetParam().format == StateFormat::k8Bit
          ? "cut every 100 elements; its 8-bit state needs a multiple of 256"
          : "cut every 100 elements; its compact state needs a multiple of 64";
  EXPECT_NE(added.status().ToString().find(words), std::string::npos) << added.status();
}

INSTANTIATE_TEST_SUITE_P(Rules, EncodedUpdate, testing::ValuesIn(SampleOf(PairsWithCodes())),
                         PairName);

}  // namespace
}  // namespace spillway::optim
