// SPDX-License-Identifier: Apache-2.0
//
// The AdamW update as a kernel: in each state format the bits of the update on the CPU, over
// several steps, with subnormal numbers, infinities and NaN among the elements.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "spillway/optimizer.h"
#include "src/optim/adamw_of_run.h"
#include "src/optim/block_codec.h"
#include "src/optim/compact_elements.h"
#include "src/optim/element_codecs.h"
#include "src/optim/fused_update.h"
#include "src/optim/random_words.h"
#include "src/optim/rule_kernels.h"
#include "src/optim/split_master.h"
#include "src/optim/state_format.h"
#include "tests/simt/machine.h"

namespace spillway::trainer::gpu {
namespace {

using optim::FusedRun;

using Bytes = std::vector<uint8_t>;

constexpr int64_t kBlock = optim::kBlockElements;
// The run has elements of two keys, and their numbers have more than 32 bits.
constexpr uint64_t kFirstElement = (uint64_t{1} << 33) + 65536 * 3 - 1000;
constexpr uint64_t kKeys[3] = {0x1234567890abcdef, 0xfedcba0987654321, 0x55aa55aa12345678};
constexpr optim::CodeMap kMaps[2] = {optim::CodeMap::kSigned, optim::CodeMap::kUnsigned};

// A parameter's elements as they rest, for either update.
struct Resting {
  StateFormat format = StateFormat::kF32;
  DType gradient_type = DType::kF32, weight_type = DType::kBF16;
  int64_t rows = 0, width = 0;
  optim::EncodedRow row;
  uint8_t* gradient = nullptr;
  uint8_t* weight = nullptr;  // null: there is only the master weight
  float* master = nullptr;
  uint8_t* moments[2] = {};  // tensors of their own
  uint8_t* state = nullptr;  // or encoded rows

  int64_t elements() const { return rows * width; }
  int64_t row_bytes() const { return static_cast<int64_t>(row.size_bytes()); }
};

class ComputeAdamW : public EachMachine {
 protected:
  // The numbers that training meets, and among them what it should not meet.
  Values Gradients(int64_t n) {
    Values values = Random(n, 1e-3f);
    const auto share = static_cast<int64_t>(values.size());
    const float infinity = std::numeric_limits<float>::infinity();
    for (int i = 0; i < 200; ++i) values[static_cast<size_t>(Draw(0, share - 1))] = 0;
    for (int i = 0; i < 200; ++i) values[static_cast<size_t>(Draw(0, share - 1))] *= 0x1p-130f;
    for (int i = 0; i < 20; ++i) values[static_cast<size_t>(Draw(0, share - 1))] *= 1e9f;
    if (n > 2 * kBlock) std::fill_n(values.begin(), kBlock, 0.0f);  // a block without a scale
    // All in one place, because they spread over a group of elements.
    const auto first = static_cast<size_t>(Draw(0, share - 40));
    values[first] = infinity;
    values[first + 3] = -infinity;
    values[first + 30] = std::nanf("");
    return values;
  }

  Bytes BytesOf(DType type, const Values& values) {
    const View view = Put(type, 1, static_cast<int64_t>(values.size()), values);
    const auto* const data = reinterpret_cast<const uint8_t*>(view.data);
    return Bytes(data, data + values.size() * ElementBytes(type));
  }

  // Steps of a parameter on the CPU, whose vectors these are, and on the machine. It has a weight
  // beside its master weight unless that would be fp32, too.
  void Check(StateFormat format, DType gradient_type, DType weight_type, int64_t rows,
             int64_t width, int64_t steps, int orders) {
    SCOPED_TRACE(testing::Message()
                 << "format " << static_cast<int>(format) << ", gradient " << Name(gradient_type)
                 << ", weight " << Name(weight_type) << ", " << rows << " rows of " << width);
    GiveBack();
    const int64_t n = rows * width;
    Resting there = {.format = format,
                     .gradient_type = gradient_type,
                     .weight_type = weight_type,
                     .rows = rows,
                     .width = width};
    if (optim::IsEncoded(format)) there.row = optim::RowOf(format, {rows, width}, 2);
    Values masters = Random(n, 0.05f);
    for (int64_t i = 0; i < n; i += 97) masters[static_cast<size_t>(i)] *= 0x1p-20f;
    masters[0] = 1e6f;  // more than an fp16
    Bytes weight = BytesOf(weight_type, masters);
    const size_t moment_bytes =
        static_cast<size_t>(n) * (format == StateFormat::kF32 ? sizeof(float) : sizeof(uint16_t));
    Bytes moments[2] = {Bytes(moment_bytes), Bytes(moment_bytes)};
    Bytes state(static_cast<size_t>(rows * there.row_bytes()));
    there.master = Put(masters);
    const bool has_weight = weight_type != DType::kF32;
    if (has_weight) there.weight = Put(weight);
    for (int i = 0; i < 2; ++i) there.moments[i] = Put(moments[i]);
    there.state = Put(state);
    there.gradient = Take<uint8_t>(n * static_cast<int64_t>(ElementBytes(gradient_type)));

    Resting here = there;
    here.master = masters.data();
    if (has_weight) here.weight = weight.data();
    for (int i = 0; i < 2; ++i) here.moments[i] = moments[i].data();
    here.state = state.data();
    for (int64_t step = 1; step <= steps; ++step) {
      Bytes gradient = BytesOf(gradient_type, Gradients(n));
      here.gradient = gradient.data();
      std::copy(gradient.begin(), gradient.end(), there.gradient);
      const Update update = {
          .step = step, .learning_rate = 1e-3, .weight_decay = 0.1, .gradient_scale = 0.3};
      const optim::RuleFactors factors = optim::MakeFactors({.kind = RuleKind::kAdamW}, update);
      UpdateOnCpu(factors, here);
      UpdateOnMachine(factors, there, orders);
      if (HasFatalFailure()) return;
      ExpectSameState(there, here, step);
      if (HasFatalFailure()) return;
    }
  }

  // Returns the run of a row's elements [begin, begin + n), which begin with a block.
  static FusedRun RunOf(const Resting& of, int64_t row, int64_t begin, int64_t n) {
    const int64_t first = row * of.width + begin;
    const bool is_encoded = optim::IsEncoded(of.format);
    FusedRun run;
    run.num_elements = n;
    run.first_element = kFirstElement + static_cast<uint64_t>(first);
    run.gradient = of.gradient + first * static_cast<int64_t>(ElementBytes(of.gradient_type));
    run.gradient_dtype = of.gradient_type;
    run.master = optim::IsSplit(of.format) ? nullptr : of.master + first;
    if (of.weight != nullptr)
      run.weight = of.weight + first * static_cast<int64_t>(ElementBytes(of.weight_type));
    run.weight_dtype = of.weight_type;
    run.format = of.format;
    run.num_moments = 2;
    const int64_t moment_bytes = of.format == StateFormat::kF32 ? 4 : 2;
    for (size_t moment = 0; moment < 2; ++moment) {
      uint8_t* const data = is_encoded ? nullptr : of.moments[moment] + first * moment_bytes;
      run.moments[moment] = {.slot = moment,
                             .data = data,
                             .index = moment,
                             .map = kMaps[moment],
                             .rounding_key = kKeys[moment]};
    }
    run.residual_key = kKeys[2];
    run.encoded.row = reinterpret_cast<std::byte*>(of.state + row * of.row_bytes());
    run.encoded.layout = of.row;
    run.encoded.first_block = static_cast<uint64_t>(begin) / of.row.block_elements;
    return run;
  }

  static void UpdateOnCpu(const optim::RuleFactors& factors, const Resting& of) {
    for (int64_t row = 0; row < of.rows; ++row)
      optim::UpdateFused(factors, RunOf(of, row, 0, of.width));
  }

  // Updates all rows at once, or a single row in two runs.
  void UpdateOnMachine(const optim::RuleFactors& factors, const Resting& of, int orders) {
    const optim::CodeTables tables = Tables(of.format);
    const auto update = [&](const FusedRun& first_row, int64_t rows) {
      optim::WithAdamWKernel(factors, first_row, rows, tables,
                             [&](const auto& kernel) { Launch(kernel, orders); });
    };
    if (of.rows > 1 || of.width <= kBlock) return update(RunOf(of, 0, 0, of.width), of.rows);
    update(RunOf(of, 0, kBlock, of.width - kBlock), 1);
    update(RunOf(of, 0, 0, kBlock), 1);
  }

  optim::CodeTables Tables(StateFormat format) {
    optim::CodeTables tables;
    if (format != StateFormat::k8Bit) return tables;
#if SPILLWAY_HAS_CUDA
    if (GetParam() == Kind::kCuda) {
      EXPECT_EQ(test::FindTables(&tables), "");
      return tables;
    }
#endif
    for (int i = 0; i < 2; ++i) tables.values[i] = optim::CodeValues(kMaps[i]).data();
    return tables;
  }

  // --- Comparisons ---

  static bool IsNan(DType type, const uint8_t* element) {
    float value = 0;
    uint16_t narrow = 0;
    if (type == DType::kF32) {
      std::memcpy(&value, element, sizeof(value));
    } else {
      std::memcpy(&narrow, element, sizeof(narrow));
      value = Widen(type, narrow);
    }
    return std::isnan(value);
  }
  // Of a NaN, only that it is NaN must be the same.
  static bool IsSame(DType type, const uint8_t* a, const uint8_t* b) {
    if (std::memcmp(a, b, ElementBytes(type)) == 0) return true;
    return type != DType::kU8 && IsNan(type, a) && IsNan(type, b);
  }
  static void ExpectSameRun(const std::string& what, DType type, int64_t n, const uint8_t* got,
                            const uint8_t* expected) {
    const auto bytes = static_cast<int64_t>(ElementBytes(type));
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_TRUE(IsSame(type, got + i * bytes, expected + i * bytes))
          << what << " " << i << " of " << n;
    }
  }

  // A group whose scale is NaN decodes to NaN whatever its codes are, and these follow the sign of
  // a NaN, which compilers choose.
  static void ExpectSameCodes(const optim::EncodedRow& row, uint64_t moment, DType of_scale,
                              const uint8_t* got, const uint8_t* expected) {
    for (uint64_t i = 0; i < row.num_elements; ++i) {
      if (IsNan(of_scale, got + row.scale_offset(moment, i / row.block_elements))) continue;
      ASSERT_EQ(got[row.code_offset(moment, i)], expected[row.code_offset(moment, i)])
          << "code " << i << " of moment " << moment;
    }
  }

  static void ExpectSameState(const Resting& got, const Resting& expected, int64_t step) {
    SCOPED_TRACE(testing::Message() << "after step " << step);
    const int64_t n = got.elements();
    if (got.weight != nullptr)
      ExpectSameRun("weight", got.weight_type, n, got.weight, expected.weight);
    if (!optim::IsSplit(got.format)) {
      ExpectSameRun("master", DType::kF32, n, reinterpret_cast<const uint8_t*>(got.master),
                    reinterpret_cast<const uint8_t*>(expected.master));
    }
    if (!optim::IsEncoded(got.format)) {
      const DType type = got.format == StateFormat::kF32 ? DType::kF32 : DType::kBF16;
      for (int i = 0; i < 2; ++i)
        ExpectSameRun("moment", type, n, got.moments[i], expected.moments[i]);
      return;
    }
    const DType of_scale = optim::IsSplit(got.format) ? DType::kBF16 : DType::kF32;
    for (int64_t row = 0; row < got.rows; ++row) {
      const uint8_t* const a = got.state + row * got.row_bytes();
      const uint8_t* const b = expected.state + row * got.row_bytes();
      const uint64_t scales = got.row.scale_offset(0, 0);
      ExpectSameRun("residual", DType::kU8, static_cast<int64_t>(scales), a, b);
      ExpectSameRun("scale", of_scale, static_cast<int64_t>(2 * got.row.num_blocks()), a + scales,
                    b + scales);
      for (uint64_t moment = 0; moment < 2; ++moment)
        ExpectSameCodes(got.row, moment, of_scale, a, b);
    }
  }
};

// Every pattern of bits is as likely, so there are numbers that no update meets.
TEST_P(ComputeAdamW, ElementsRoundAtRandomAsVectorsDo) {
  if (GetParam() == Kind::kCuda) GTEST_SKIP() << "compares functions of the host";
  constexpr int64_t kElements = 1 << 17;
  constexpr uint64_t kKey = 0x0123456789abcdef;
  Values values;
  std::vector<uint32_t> words(kElements);
  for (int64_t i = 0; i < kElements; ++i)
    values.push_back(simt::FloatOf(static_cast<uint32_t>(Draw(0, 0xffffffff))));
  values[0] = std::numeric_limits<float>::max();
  values[1] = 65519;
  optim::FillRandomWords(kKey, kFirstElement, kElements, words.data());
  const auto element = [](size_t i) { return kFirstElement + i; };
  for (size_t i = 0; i < words.size(); ++i)
    ASSERT_EQ(optim::RandomWord(kKey, element(i)), words[i]) << i;

  std::vector<uint16_t> narrow(kElements);
  optim::EncodeBf16Randomly(values.data(), kElements, kKey, kFirstElement, narrow.data());
  for (size_t i = 0; i < words.size(); ++i)
    ASSERT_EQ(optim::Bf16AtRandom(values[i], words[i] >> 16), narrow[i]) << values[i];

  for (const DType type : {DType::kF16, DType::kBF16}) {
    std::vector<uint8_t> residuals(kElements);
    Values joined(kElements);
    optim::EncodeMasters(type, values.data(), words.data(), kElements, narrow.data(),
                         residuals.data());
    optim::DecodeMasters(type, narrow.data(), residuals.data(), kElements, joined.data());
    for (size_t i = 0; i < words.size(); ++i) {
      const bool is_half = type == DType::kF16;
      const optim::SplitWeight split = optim::SplitMaster(is_half, values[i], words[i]);
      ASSERT_EQ(split.weight, narrow[i]) << values[i];
      ASSERT_EQ(split.residual, residuals[i]) << values[i];
      const float whole = optim::JoinMaster(is_half, narrow[i], residuals[i]);
      ASSERT_EQ(simt::BitsOf(whole), simt::BitsOf(joined[i])) << values[i];
    }
    // Any bytes join to something.
    for (size_t i = 0; i < words.size(); ++i) {
      narrow[i] = static_cast<uint16_t>(words[i]);
      residuals[i] = static_cast<uint8_t>(words[i] >> 16);
    }
    optim::DecodeMasters(type, narrow.data(), residuals.data(), kElements, joined.data());
    for (size_t i = 0; i < words.size(); ++i) {
      const float whole = optim::JoinMaster(type == DType::kF16, narrow[i], residuals[i]);
      ASSERT_EQ(simt::BitsOf(whole), simt::BitsOf(joined[i])) << narrow[i];
    }
  }
}

constexpr StateFormat kFormats[] = {StateFormat::kF32, StateFormat::kBf16, StateFormat::k8Bit,
                                    StateFormat::kCompact};

TEST_P(ComputeAdamW, HasTheBitsOfTheCpuInEachOrder) {
  for (const StateFormat format : kFormats) {
    for (const DType weight_type : {DType::kF16, DType::kBF16}) {
      for (const int64_t width : {int64_t{577}, int64_t{101}})
        Check(format, DType::kF32, weight_type, 3, width, 3, kOrders);
      for (const int64_t width : {int64_t{256}, int64_t{701}})
        Check(format, weight_type, weight_type, 1, width, 3, kOrders);
    }
  }
}

TEST_P(ComputeAdamW, AMasterWeightMayBeTheOnlyOne) {
  for (const StateFormat format : {StateFormat::kF32, StateFormat::kBf16, StateFormat::k8Bit})
    Check(format, DType::kF32, DType::kF32, 2, 301, 2, /*orders=*/1);
}

TEST_P(ComputeAdamW, HasTheBitsOfTheCpuOverAMillionElements) {
  const int64_t rows = SPILLWAY_IS_SANITIZED ? 17 : 613;
  for (const StateFormat format : kFormats) {
    const DType type = Draw(0, 1) == 0 ? DType::kF16 : DType::kBF16;
    Check(format, Draw(0, 1) == 0 ? DType::kF32 : type, type, rows, 1637, 2, /*orders=*/1);
  }
}

SPILLWAY_ON_EACH_MACHINE(ComputeAdamW);

}  // namespace
}  // namespace spillway::trainer::gpu
