// SPDX-License-Identifier: Apache-2.0
//
// Tests the rules that take norms of a whole tensor: their passes over an engine's tiles, the
// numbers of PyTorch and of the papers, and norms that are zero or not finite.

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "src/optim/factored_kernels.h"
#include "tests/heap_engine.h"
#include "tests/optim/norm_golden.h"
#include "tests/optim/reference_parameter.h"
#include "tests/other_floats.h"
#include "tests/seed.h"

namespace spillway::optim {
namespace {

std::vector<float> RandomFloats(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// Runs on each instruction set of this machine, by restricting dispatch to it.
class FactoredKernels : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(FactoredKernels, StepFromRowsAndColumnsToTheReferencesBits) {
  const Rule rule = UsualRule(RuleKind::kAdafactor);
  const RuleFactors f = MakeFactors(
      rule, {.step = 3, .learning_rate = 0.01, .weight_decay = 0.1, .gradient_scale = 0.37});
  for (size_t n = 0; n <= 70; ++n) {
    const std::vector<float> gradients = RandomFloats(n, n);
    std::vector<float> columns = RandomFloats(n, n + 100), p = RandomFloats(n, n + 200);
    for (float& column : columns) column *= column;
    std::vector<float> step(n), expected = p, expected_step(n);
    for (size_t i = 0; i < n; ++i) {
      const float v = 0.25F * columns[i] / 0.5F;
      const float scaled = f.gradient_scale * gradients[i];
      expected_step[i] = scaled / std::sqrt(std::max(v, f.epsilon));
      expected[i] = f.decay * p[i] - f.step_size * expected_step[i];
    }
    const FactoredRun run = {.num_elements = static_cast<int64_t>(n),
                             .gradient = gradients.data(),
                             .row = 0.25F,
                             .columns = columns.data(),
                             .mean = 0.5F};
    FactoredStep(f, run, step.data());
    UpdateFactored(f, run, p.data());
    EXPECT_EQ(step, expected_step) << n;
    EXPECT_EQ(p, expected) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, FactoredKernels,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& test) { return std::string(hwy::TargetName(test.param)); });

// Compares with the results of PyTorch, or of the paper's algorithm, for the same gradients, which
// norm_golden.py recorded.
class NormGolden : public testing::TestWithParam<const golden::NormCase*> {};

// Allows a few units in the last place of the largest value that the element had so far, because
// terms may cancel.
void ExpectNear(std::span<const float> got, const float* expected, std::vector<float>* largest,
                const std::string& where) {
  largest->resize(got.size());
  for (size_t i = 0; i < got.size(); ++i) {
    float& most = (*largest)[i];
    most = std::max(most, std::fabs(expected[i]));
    EXPECT_NEAR(got[i], expected[i], 6e-7F * most) << where << " " << i;
  }
}

TEST_P(NormGolden, IsFollowedStepForStep) {
  const golden::NormCase& c = *GetParam();
  TensorSpec spec = {.name = "w", .tile_rows = 2};
  for (const int64_t dimension : c.shape) {
    if (dimension > 0) spec.shape.push_back(dimension);
  }
  HeapEngine engine;
  ThreadPool pool(2);
  ReferenceParameter p(spec, DType::kF32, c.rule, StateFormat::kF32, 1);
  const size_t n = p.size();
  std::memcpy(p.weight.data(), c.initial, n * sizeof(float));
  const ParameterTensors tensors = RegisterParameter(engine, p);
  const auto optimizer = Optimizer::Create(&engine, &pool, c.rule, StateFormat::kF32);
  const size_t number = *(*optimizer)->Add(tensors);
  std::vector<float> largest[3];
  for (int t = 0; t < golden::kNormSteps; ++t) {
    std::copy_n(c.gradients[t], n, engine.Values<float>(tensors.gradient->tensor).begin());
    const Update update = {.parameter = number,
                           .step = t + 1,
                           .learning_rate = golden::kNormRates[t],
                           .weight_decay = golden::kNormWeightDecay};
    ASSERT_TRUE((*optimizer)->Step({&update, 1}).ok());
    const std::string where = "step " + std::to_string(t + 1);
    ExpectNear(engine.Values<float>(tensors.weight.tensor), c.parameters[t], &largest[2], where);
    for (size_t m = 0; m < tensors.state.size(); ++m)
      ExpectNear(engine.Values<float>(tensors.state[m]), c.state[m][t], &largest[m],
                 where + " state");
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, NormGolden, testing::ValuesIn(golden::kNormCases),
                         [](const auto& test) { return std::string(test.param->name); });

// Tiles of any size, on 1, 2 and 4 threads, give the same bits.
TEST(Norms, DependOnNeitherTilesNorThreads) {
  const uint64_t first = test::Seed();
  const Rule rules[] = {UsualRule(RuleKind::kLamb), UsualRule(RuleKind::kLars),
                        UsualRule(RuleKind::kAdafactor)};
  for (uint64_t seed = first; seed != first + 24; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    std::mt19937_64 random(seed);
    const std::vector<std::vector<int64_t>> shapes = {{70001}, {37, 600}, {3, 17000}, {7, 11, 13}};
    const std::vector<int64_t>& shape = shapes[random() % shapes.size()];
    const DType dtype = random() % 2 == 0 ? DType::kF32 : DType::kF16;
    const TensorSpec spec = {.name = "w", .dtype = dtype, .shape = shape};
    // A compact vector cannot be cut at every element, and the rules that have compact state take
    // no norms of a vector.
    const bool is_compact = shape.size() > 1 && random() % 2 == 0;
    const Rule& rule = rules[seed % 3];
    const StateFormat format = is_compact && Exists(rule, StateFormat::kCompact)
                                   ? StateFormat::kCompact
                                   : StateFormat::kF32;
    ReferenceParameter start(spec, dtype, rule, format, 7);
    start.NewGradient(8);
    const auto cut = [&](int64_t rows) {
      return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(rows));
    };
    for (const int threads : {1, 2, 4}) {
      ReferenceParameter p = start;
      p.weight_spec.tile_rows = cut(shape[0]);
      for (TensorSpec& state : p.state_specs) state.tile_rows = cut(shape[0]);
      HeapEngine engine;
      ThreadPool pool(threads);
      const ParameterTensors tensors = RegisterParameter(engine, p);
      const auto optimizer = Optimizer::Create(&engine, &pool, p.rule, p.format);
      const size_t number = *(*optimizer)->Add(tensors);
      for (int64_t step = 1; step <= 2; ++step) {
        const Update update = {
            .parameter = number, .step = step, .learning_rate = 0.1, .weight_decay = 0.1};
        CopyTiles(engine, tensors.gradient->tensor, Access::kDiscard, p.gradient.data());
        engine.uses.clear();
        ASSERT_TRUE((*optimizer)->Step({&update, 1}).ok());
        EXPECT_EQ(*(*optimizer)->Uses({&number, 1}), engine.uses);
        p.Apply(update);
      }
      ExpectParameter(engine, tensors, p);
      EXPECT_EQ(engine.held(), 0);
    }
  }
}

// Updates a matrix with an fp16 weight, cut into three tiles, and describes the leases in words. In
// a word, "g" is the gradient, "m" the master weight, "a" and "b" are the moments, and "w" is the
// weight. Then "r" reads, "w" reads and writes, and "d" writes without reading.
class Leases {
 public:
  explicit Leases(RuleKind kind, StateFormat format = StateFormat::kF32) {
    ReferenceParameter p({.name = "w", .dtype = DType::kF16, .shape = {5, 8}, .tile_rows = 2},
                         DType::kF16, UsualRule(kind), format, 1);
    p.NewGradient(2);
    tensors = RegisterParameter(engine, p);
    optimizer_ = *Optimizer::Create(&engine, &pool_, p.rule, p.format);
    number_ = *optimizer_->Add(tensors);
  }
  absl::Status Step() {
    const Update update = {.parameter = number_, .learning_rate = 0.1};
    return optimizer_->Step({&update, 1});
  }
  std::vector<Use> Declared() const { return *optimizer_->Uses({&number_, 1}); }
  // For example "gr0 mr0 ": reads tile 0 of the gradient and of the master weight.
  std::string Words(const std::vector<Use>& uses) const {
    std::string words;
    for (const Use& use : uses) {
      const char* name = use.tile.tensor == tensors.gradient->tensor ? "g" : "w";
      for (size_t i = 0; i < tensors.state.size(); ++i) {
        if (use.tile.tensor == tensors.state[i]) name = i == 0 ? "m" : i == 1 ? "a" : "b";
      }
      words += name;
      words += use.access == Access::kRead ? "r" : use.access == Access::kReadWrite ? "w" : "d";
      words += std::to_string(use.tile.tile) + " ";
    }
    return words;
  }

  HeapEngine engine;
  ParameterTensors tensors;

 private:
  ThreadPool pool_{1};
  std::unique_ptr<Optimizer> optimizer_;
  size_t number_ = 0;
};

TEST(NormLeases, OfEachPassAreDeclared) {
  const struct {
    RuleKind kind;
    std::string uses;
    StateFormat format = StateFormat::kF32;
  } cases[] = {
      {RuleKind::kLamb,
       "gr0 mr0 ar0 br0 gr1 mr1 ar1 br1 gr2 mr2 ar2 br2 "
       "gr0 mw0 aw0 bw0 wd0 gr1 mw1 aw1 bw1 wd1 gr2 mw2 aw2 bw2 wd2 "},
      {RuleKind::kLars, "gr0 mr0 gr1 mr1 gr2 mr2 gr0 mw0 aw0 wd0 gr1 mw1 aw1 wd1 gr2 mw2 aw2 wd2 "},
      {RuleKind::kAdafactor,
       "gr0 mr0 aw0 bw0 gr1 mr1 aw1 gr2 mr2 aw2 "
       "gr0 ar0 br0 gr1 ar1 gr2 ar2 "
       "gr0 mw0 ar0 br0 wd0 gr1 mw1 ar1 wd1 gr2 mw2 ar2 wd2 "},
      // In compact state the weight is most of the master weight. "m" is the tensor that holds the
      // rest of it, and the moments.
      {RuleKind::kLamb, "gr0 wr0 mr0 gr1 wr1 mr1 gr2 wr2 mr2 gr0 ww0 mw0 gr1 ww1 mw1 gr2 ww2 mw2 ",
       StateFormat::kCompact},
      {RuleKind::kLars, "gr0 wr0 mr0 gr1 wr1 mr1 gr2 wr2 mr2 gr0 ww0 mw0 gr1 ww1 mw1 gr2 ww2 mw2 ",
       StateFormat::kCompact}};
  for (const auto& c : cases) {
    Leases of(c.kind, c.format);
    EXPECT_EQ(of.Words(of.Declared()), c.uses);
    ASSERT_TRUE(of.Step().ok());
    EXPECT_EQ(of.Words(of.engine.uses), c.uses);
    EXPECT_EQ(of.engine.held(), 0);
    // A transient gradient is needed until the last pass.
    ASSERT_EQ(of.engine.discards.size(), 3U);
    for (uint64_t tile = 0; tile < 3; ++tile)
      EXPECT_EQ(of.engine.discards[tile].tile, TileRef(of.tensors.gradient->tensor, tile));
    EXPECT_GT(of.engine.discards[0].num_uses, of.engine.uses.size() / 2);
  }
}

TEST(NormLeases, ThatFailBeforeTheLastPassChangeNothing) {
  Leases of(RuleKind::kLamb);
  std::vector<std::vector<float>> before;
  for (const TensorId id : of.tensors.state) {
    const auto content = of.engine.Values<float>(id);
    before.emplace_back(content.begin(), content.end());
  }
  of.engine.refuse_at = 11;  // the first pass's last lease
  EXPECT_EQ(of.Step(), absl::DataLossError("the page is rotten"));
  EXPECT_EQ(of.engine.held(), 0);
  for (size_t i = 0; i < of.tensors.state.size(); ++i) {
    const auto content = of.engine.Values<float>(of.tensors.state[i]);
    EXPECT_TRUE(std::equal(content.begin(), content.end(), before[i].begin()));
  }
}

// Adafactor holds the tile of its column means in addition to the tiles of a segment.
TEST(Norms, PinnedBytesCountWhatEachPassHolds) {
  HeapEngine engine;
  ThreadPool pool(1);
  constexpr uint64_t kTile = 100 * 4096, kRowsTile = 4096;  // 400 bytes, rounded up to a frame
  const auto least = [&](RuleKind kind) {
    const TensorSpec spec = {.name = "w", .shape = {1000, 1024}, .tile_rows = 100};
    const ReferenceParameter p(spec, DType::kF32, UsualRule(kind), StateFormat::kF32, 1);
    const auto optimizer = *Optimizer::Create(&engine, &pool, p.rule, p.format);
    EXPECT_TRUE(optimizer->Add(RegisterParameter(engine, p)).ok());
    return optimizer->min_pinned_bytes();
  };
  EXPECT_EQ(least(RuleKind::kLamb), 7 * kTile);
  EXPECT_EQ(least(RuleKind::kLars), 5 * kTile);
  // The most is held from the second segment on, when the columns' tile is already held.
  EXPECT_EQ(least(RuleKind::kAdafactor), kRowsTile + kTile + 3 * kTile);
}

class OneMatrix {
 public:
  OneMatrix(const Rule& rule, float weight, float gradient)
      : p_({.name = "w", .shape = {3, 4}, .tile_rows = 2}, DType::kF32, rule, StateFormat::kF32,
           1) {
    for (size_t i = 0; i < p_.size(); ++i) PutValue(weight, DType::kF32, i, &p_.weight);
    for (size_t i = 0; i < p_.size(); ++i) PutValue(gradient, DType::kF32, i, &p_.gradient);
    tensors_ = RegisterParameter(engine_, p_);
    optimizer_ = *Optimizer::Create(&engine_, &pool_, rule, StateFormat::kF32);
    number_ = *optimizer_->Add(tensors_);
  }
  // Returns the weights after one update with `learning_rate`.
  std::span<float> Step(double learning_rate, double weight_decay = 0) {
    const Update update = {
        .parameter = number_, .learning_rate = learning_rate, .weight_decay = weight_decay};
    EXPECT_TRUE(optimizer_->Step({&update, 1}).ok());
    return weights();
  }
  std::span<float> weights() { return engine_.Values<float>(tensors_.weight.tensor); }
  std::span<float> gradients() { return engine_.Values<float>(tensors_.gradient->tensor); }

 private:
  HeapEngine engine_;
  ThreadPool pool_{1};
  ReferenceParameter p_;
  ParameterTensors tensors_;
  std::unique_ptr<Optimizer> optimizer_;
  size_t number_ = 0;
};

TEST(Norms, OfZeroLeaveTheLearningRateAsItIs) {
  EXPECT_NEAR(OneMatrix(UsualRule(RuleKind::kLamb), 0, 2).Step(0.5)[11], -0.5F, 1e-6F);
  EXPECT_EQ(OneMatrix(UsualRule(RuleKind::kLamb), 3, 0).Step(0.5)[11], 3);
  EXPECT_EQ(OneMatrix(UsualRule(RuleKind::kLars), 0, 2).Step(0.5)[11], -1);
  EXPECT_EQ(OneMatrix(UsualRule(RuleKind::kLars), 3, 0).Step(0.5, 0.1)[11], 3 - 0.5F * (0.1F * 3));
  // Adafactor's scale is at least ε₂. There is no step if the gradient is zero.
  EXPECT_FLOAT_EQ(OneMatrix(UsualRule(RuleKind::kAdafactor), 0, 2).Step(0.5)[11], -0.5e-3F);
  EXPECT_EQ(OneMatrix(UsualRule(RuleKind::kAdafactor), 3, 0).Step(0.5)[11], 3);
}

TEST(Norms, ANaNShowsInEveryElementAndAnInfiniteGradientInItsOwn) {
  for (const RuleKind kind : {RuleKind::kLamb, RuleKind::kLars, RuleKind::kAdafactor}) {
    OneMatrix nan(UsualRule(kind), 1, 2);
    nan.gradients()[5] = std::numeric_limits<float>::quiet_NaN();
    for (const float weight : nan.Step(0.5)) EXPECT_TRUE(std::isnan(weight)) << Name(kind);
    OneMatrix infinite(UsualRule(kind), 1, 2);
    infinite.gradients()[5] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(std::isfinite(infinite.Step(0.5)[5])) << Name(kind);
  }
}

// Some squares of gradients are denormal.
TEST(Norms, DoNotDependOnTheCallersFloatingPointEnvironment) {
  for (const RuleKind kind : {RuleKind::kLamb, RuleKind::kLars, RuleKind::kAdafactor}) {
    ReferenceParameter p({.name = "w", .shape = {5, 8}}, DType::kF32, UsualRule(kind),
                         StateFormat::kF32, 3);
    p.NewGradient(4);
    for (size_t i = 0; i < 8; ++i) PutValue(1e-20F, DType::kF32, i, &p.gradient);
    const auto state_after_a_step = [&](bool is_default) {
      HeapEngine engine;
      ThreadPool pool(1);
      const ParameterTensors tensors = RegisterParameter(engine, p);
      const auto optimizer = *Optimizer::Create(&engine, &pool, p.rule, StateFormat::kF32);
      const Update update = {
          .parameter = *optimizer->Add(tensors), .step = 3, .learning_rate = 0.3};
      const auto other =
          is_default ? nullptr : std::make_unique<const spillway::test::OtherFloats>();
      EXPECT_TRUE(optimizer->Step({&update, 1}).ok());
      std::vector<std::vector<std::byte>> bytes;
      std::vector<TensorId> ids = tensors.state;
      ids.push_back(tensors.weight.tensor);
      for (const TensorId id : ids) {
        const auto content = engine.Values<std::byte>(id);
        bytes.emplace_back(content.begin(), content.end());
      }
      return bytes;
    };
    EXPECT_EQ(state_after_a_step(false), state_after_a_step(true)) << Name(kind);
  }
}

// The gradient is scaled before its norm is taken, so moving a power of two from the scale to the
// gradient changes no bit.
TEST(Norms, AreOfTheScaledGradient) {
  for (const RuleKind kind : {RuleKind::kLamb, RuleKind::kLars, RuleKind::kAdafactor}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{40}, {5, 8}}) {
      const TensorSpec spec = {.name = "w", .shape = shape};
      std::vector<std::vector<float>> weights;
      for (const float scale : {1.0F, 1024.0F}) {
        HeapEngine engine;
        ThreadPool pool(1);
        ReferenceParameter p(spec, DType::kF32, UsualRule(kind), StateFormat::kF32, 3);
        p.NewGradient(4);
        for (size_t i = 0; i < p.size(); ++i)
          PutValue(ValueAt(p.gradient, DType::kF32, i) * scale, DType::kF32, i, &p.gradient);
        const ParameterTensors tensors = RegisterParameter(engine, p);
        const auto optimizer = Optimizer::Create(&engine, &pool, p.rule, p.format);
        const Update update = {.parameter = *(*optimizer)->Add(tensors),
                               .learning_rate = 0.1,
                               .weight_decay = 0.1,
                               .gradient_scale = 1 / static_cast<double>(scale)};
        ASSERT_TRUE((*optimizer)->Step({&update, 1}).ok());
        const auto content = engine.Values<float>(tensors.weight.tensor);
        weights.emplace_back(content.begin(), content.end());
      }
      EXPECT_EQ(weights[0], weights[1]) << Name(kind);
    }
  }
}

}  // namespace
}  // namespace spillway::optim
