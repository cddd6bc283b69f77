// SPDX-License-Identifier: Apache-2.0
//
// Tests an optimizer over an engine: what it leases and in which order, that tiles, threads and
// where tensors lie change no bit, and what it refuses. rule_kernels_test tests the arithmetic.

#include "src/optim/update_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "src/optim/parameter_checks.h"
#include "tests/exhaustive.h"
#include "tests/heap_engine.h"
#include "tests/optim/reference_parameter.h"
#include "tests/optim/rule_reference.h"

namespace spillway::optim {
namespace {

constexpr Rule kAdamW = {};

std::unique_ptr<Optimizer> Create(Engine& engine, ThreadPool& pool, const Rule& rule = kAdamW,
                                  StateFormat format = StateFormat::kF32) {
  auto optimizer = Optimizer::Create(&engine, &pool, rule, format);
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  return *std::move(optimizer);
}

size_t Add(Optimizer& optimizer, const ParameterTensors& tensors) {
  const auto added = optimizer.Add(tensors);
  EXPECT_TRUE(added.ok()) << added.status();
  return added.value_or(std::numeric_limits<size_t>::max());
}

class EachPair : public testing::TestWithParam<RuleAndFormat> {
 protected:
  ReferenceParameter Make(const TensorSpec& weight, DType gradient, uint32_t seed) const {
    return {weight, gradient, GetParam().rule, GetParam().format, seed};
  }
  static Update UpdateOf(size_t parameter, int64_t step) {
    return {.parameter = parameter,
            .step = step,
            .learning_rate = 1e-2 / static_cast<double>(parameter + 1),
            .weight_decay = 0.1 * static_cast<double>(parameter),
            .gradient_scale = 0.25};
  }
};

TEST_P(EachPair, UpdatesEveryParameterAsTheReferenceDoes) {
  for (const int threads : {1, 3}) {
    HeapEngine engine;
    ThreadPool pool(threads);
    std::vector<ReferenceParameter> parameters = {
        Make(Spec("a", DType::kF16, {13, 77}, 3), DType::kF16, 1),
        Make(Spec("b", DType::kF32, {70003}, 0), DType::kF32, 2),
        Make(Spec("c", DType::kBF16, {}, 0), DType::kBF16, 3),
        Make(Spec("d", DType::kF16, {4, 5, 6}, 4), DType::kF32, 4)};
    const auto optimizer = Create(engine, pool, GetParam().rule, GetParam().format);
    std::vector<ParameterTensors> tensors;
    for (const ReferenceParameter& p : parameters) {
      tensors.push_back(RegisterParameter(engine, p));
      EXPECT_EQ(Add(*optimizer, tensors.back()), tensors.size() - 1);
    }
    for (int64_t step = 1; step <= 3; ++step) {
      std::vector<Update> updates;
      for (size_t i = 0; i < parameters.size(); ++i) {
        parameters[i].NewGradient(static_cast<uint32_t>(10 * step) + static_cast<uint32_t>(i));
        CopyTiles(engine, tensors[i].gradient->tensor, Access::kDiscard,
                  parameters[i].gradient.data());
        updates.push_back(UpdateOf(i, step));
        parameters[i].Apply(updates.back());
      }
      ASSERT_TRUE(optimizer->Step(updates).ok());
    }
    for (size_t i = 0; i < parameters.size(); ++i)
      ExpectParameter(engine, tensors[i], parameters[i]);
  }
}

// Tiles whose size differs between the tensors of a parameter change no bit.
TEST_P(EachPair, TilesOfOtherSizesChangeNoBit) {
  HeapEngine engine;
  ThreadPool pool(2);
  ReferenceParameter p = Make(Spec("w", DType::kF16, {41, 33}, 6), DType::kF16, 5);
  p.NewGradient(1);
  const int64_t tile_rows[] = {0, 1, 4, 15, 41, 7};
  for (size_t i = 0; i < p.state_specs.size(); ++i) p.state_specs[i].tile_rows = tile_rows[i];
  const ParameterTensors tensors = RegisterParameter(engine, p);
  const auto optimizer = Create(engine, pool, GetParam().rule, GetParam().format);
  const size_t number = Add(*optimizer, tensors);
  for (int64_t step = 1; step <= 2; ++step) {
    const Update update = UpdateOf(number, step);
    CopyTiles(engine, tensors.gradient->tensor, Access::kDiscard, p.gradient.data());
    engine.uses.clear();
    ASSERT_TRUE(optimizer->Step({&update, 1}).ok());
    EXPECT_EQ(*optimizer->Uses({&number, 1}), engine.uses);
    p.Apply(update);
  }
  ExpectParameter(engine, tensors, p);
  EXPECT_EQ(engine.held(), 0);
}

TEST_P(EachPair, TheCallersMemoryGivesTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    HeapEngine engine;
    ThreadPool pool(2);
    ReferenceParameter p = Make(Spec("w", dtype, {9, 40}, 2), dtype, 6);
    p.NewGradient(2);
    Bytes weight = p.weight;
    ParameterTensors tensors = RegisterParameter(engine, p);
    tensors.weight = Values(weight.data(), p.weight_spec.dtype);
    tensors.gradient = Values(p.gradient.data(), dtype);
    tensors.shape = {9, 40};
    const auto optimizer = Create(engine, pool, GetParam().rule, GetParam().format);
    const Update update = UpdateOf(Add(*optimizer, tensors), 1);
    ASSERT_TRUE(optimizer->Step({&update, 1}).ok());
    p.Apply(update);
    EXPECT_TRUE(weight == p.weight);
    for (size_t i = 0; i < p.state.size(); ++i) ExpectContent(engine, tensors.state[i], p.state[i]);
  }
}

// The caller writes some elements of a weight in its own memory between two updates. Their master
// weights take the new values; those of the other elements keep their bits.
TEST_P(EachPair, WhatWasWrittenIntoAWeightIsTaken) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    HeapEngine engine;
    ThreadPool pool(2);
    ReferenceParameter p = Make(Spec("w", dtype, {9, 130}, 2), dtype, 8);
    Bytes weight = p.weight;
    ParameterTensors tensors = RegisterParameter(engine, p);
    tensors.weight = Values(weight.data(), dtype);
    tensors.gradient = Values(p.gradient.data(), dtype);
    tensors.shape = {9, 130};
    const auto optimizer = Create(engine, pool, GetParam().rule, GetParam().format);
    const size_t number = Add(*optimizer, tensors);
    for (int64_t step = 1; step <= 4; ++step) {
      for (size_t i = static_cast<size_t>(step); step > 1 && i < p.size(); i += 7) {
        const float before = ValueAt(weight, dtype, i);
        PutValue(before * 1.5F + 0.25F, dtype, i, &weight);
        if (ValueAt(weight, dtype, i) == before) continue;
        PutValue(ValueAt(weight, dtype, i), dtype, i, &p.weight);
        p.master[i] = ValueAt(weight, dtype, i);
      }
      p.NewGradient(static_cast<uint32_t>(step));
      Update update = UpdateOf(number, step);
      update.take_changed_weight = true;
      ASSERT_TRUE(optimizer->Step({&update, 1}).ok());
      p.Apply(update);
      ASSERT_TRUE(weight == p.weight) << "step " << step;
      for (size_t i = 0; i < p.state.size(); ++i)
        ExpectContent(engine, tensors.state[i], p.state[i]);
    }
  }
}

TEST_P(EachPair, AnUpdateMayHaveItsOwnConstants) {
  HeapEngine engine;
  ThreadPool pool(1);
  ReferenceParameter p = Make(Spec("w", DType::kF32, {50}, 0), DType::kF32, 7);
  p.NewGradient(3);
  const ParameterTensors tensors = RegisterParameter(engine, p);
  const auto optimizer = Create(engine, pool, GetParam().rule, GetParam().format);
  Update update = UpdateOf(Add(*optimizer, tensors), 4);
  update.rule = GetParam().rule;
  update.rule->beta1 = 0.5;
  update.rule->alpha = 0.5;
  if (update.rule->momentum != 0) update.rule->momentum = 0.25;
  ASSERT_TRUE(optimizer->Step({&update, 1}).ok());
  p.Apply(update);
  ExpectParameter(engine, tensors, p);
}

// A momentum of 0 and an update without amsgrad are of another rule, which leaves m and w alone.
TEST_P(EachPair, AMomentThatAnUpdateDoesNotUseStaysAsItIs) {
  Rule other = GetParam().rule;
  other.momentum = 0;
  other.amsgrad = false;
  if (other == GetParam().rule) return;
  HeapEngine engine;
  ThreadPool pool(3);
  ReferenceParameter p = Make(Spec("w", DType::kF16, {41, 333}, 6), DType::kF16, 5);
  const ParameterTensors tensors = RegisterParameter(engine, p);
  const auto optimizer = Create(engine, pool, GetParam().rule, GetParam().format);
  const size_t number = Add(*optimizer, tensors);
  for (int64_t step = 1; step <= 5; ++step) {
    p.NewGradient(static_cast<uint32_t>(step));
    CopyTiles(engine, tensors.gradient->tensor, Access::kDiscard, p.gradient.data());
    Update update = UpdateOf(number, step);
    if (step % 2 == 0) update.rule = other;
    const std::vector<Bytes> before = p.state;
    ASSERT_TRUE(optimizer->Step({&update, 1}).ok());
    p.Apply(update);
    ExpectParameter(engine, tensors, p);
    // The last one of the state is m or w, or a, which a centered rule uses.
    if (step % 2 == 0 && GetParam().format == StateFormat::kF32) {
      EXPECT_EQ(p.state.back() == before.back(), !other.centered) << "step " << step;
    }
  }
}

// Each parameter has the state of its own rule, as those of groups whose constants differ. One of
// them has no moments, in any format.
TEST_P(EachPair, ParametersOfOneOptimizerMayHaveOtherRules) {
  const auto is_of_kind = [](const Rule& rule) { return rule.kind == GetParam().rule.kind; };
  std::vector<Rule> rules = AllRules();
  std::erase_if(rules, [&](const Rule& rule) { return !is_of_kind(rule); });
  HeapEngine engine;
  ThreadPool pool(2);
  const auto optimizer = Create(engine, pool, GetParam().rule, GetParam().format);
  std::vector<ReferenceParameter> parameters;
  std::vector<ParameterTensors> tensors;
  for (const Rule& rule : rules) {
    for (const auto& [shape, tile_rows] : {std::pair(std::vector<int64_t>{13, 300}, int64_t{3}),
                                           std::pair(std::vector<int64_t>{700}, int64_t{256})}) {
      const std::string name = "p" + std::to_string(parameters.size());
      parameters.emplace_back(Spec(name, DType::kBF16, shape, tile_rows), DType::kBF16, rule,
                              GetParam().format, 3);
      tensors.push_back(RegisterParameter(engine, parameters.back()));
      tensors.back().rule = rule;
      Add(*optimizer, tensors.back());
    }
  }
  for (int64_t step = 1; step <= 2; ++step) {
    std::vector<Update> updates;
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].NewGradient(static_cast<uint32_t>(step));
      CopyTiles(engine, tensors[i].gradient->tensor, Access::kDiscard,
                parameters[i].gradient.data());
      updates.push_back({.parameter = i, .step = step, .learning_rate = 0.1, .weight_decay = 0.1});
      parameters[i].Apply(updates.back());
    }
    ASSERT_TRUE(optimizer->Step(updates).ok());
  }
  for (size_t i = 0; i < parameters.size(); ++i) ExpectParameter(engine, tensors[i], parameters[i]);
}

INSTANTIATE_TEST_SUITE_P(RulesAndFormats, EachPair, testing::ValuesIn(SampleOf(AllPairs())),
                         PairName);

// Registers a parameter for AdamW with fp32 state, in tiles of `tile_rows`.
ParameterTensors RegisterAdamW(HeapEngine& engine, const std::string& name,
                               std::vector<int64_t> shape, int64_t tile_rows, DType dtype) {
  const ReferenceParameter p(Spec(name, dtype, std::move(shape), tile_rows), dtype, kAdamW,
                             StateFormat::kF32, 1);
  return RegisterParameter(engine, p);
}

Use PinnedUse(TensorId id, uint64_t tile, Access access) {
  return {TileRef(id, tile), Tier::kPinned, access};
}

TEST(Optimizer, LeasesWhatItDeclaresInThatOrderOneTileSetAtATime) {
  HeapEngine engine;
  ThreadPool pool(2);
  const ParameterTensors half = RegisterAdamW(engine, "half", {5, 8}, 2, DType::kF16);
  const ParameterTensors full = RegisterAdamW(engine, "full", {6}, 0, DType::kF32);
  const auto optimizer = Create(engine, pool);
  const std::vector<size_t> numbers = {Add(*optimizer, half), Add(*optimizer, full)};
  std::vector<Use> expected;
  for (uint64_t tile = 0; tile < 3; ++tile) {
    expected.push_back(PinnedUse(half.gradient->tensor, tile, Access::kRead));
    for (const TensorId id : half.state)
      expected.push_back(PinnedUse(id, tile, Access::kReadWrite));
    expected.push_back(PinnedUse(half.weight.tensor, tile, Access::kDiscard));
  }
  expected.push_back(PinnedUse(full.gradient->tensor, 0, Access::kRead));
  expected.push_back(PinnedUse(full.weight.tensor, 0, Access::kReadWrite));
  for (const TensorId id : full.state) expected.push_back(PinnedUse(id, 0, Access::kReadWrite));
  EXPECT_EQ(*optimizer->Uses(numbers), expected);
  const Update updates[] = {{.parameter = 0, .learning_rate = 0.1},
                            {.parameter = 1, .learning_rate = 0.1}};
  ASSERT_TRUE(optimizer->Step(updates).ok());
  EXPECT_EQ(engine.uses, expected);
  EXPECT_EQ(engine.most_held(), 5);
  EXPECT_EQ(engine.held(), 0);
}

TEST(Optimizer, TouchesOnlyTheParametersOfTheListThatHaveGradients) {
  HeapEngine engine;
  ThreadPool pool(1);
  const ParameterTensors a = RegisterAdamW(engine, "a", {8}, 0, DType::kF32);
  ParameterTensors frozen = RegisterAdamW(engine, "frozen", {8}, 0, DType::kF16);
  frozen.gradient = std::nullopt;
  ParameterTensors without_state = RegisterAdamW(engine, "bare", {8}, 0, DType::kF16);
  without_state.gradient = std::nullopt;
  without_state.state.clear();
  const auto optimizer = Create(engine, pool);
  const std::vector<size_t> all = {Add(*optimizer, a), Add(*optimizer, frozen),
                                   Add(*optimizer, without_state)};
  const Update updates[] = {{.parameter = 1, .learning_rate = 1},
                            {.parameter = 2, .learning_rate = 1}};
  ASSERT_TRUE(optimizer->Step(updates).ok());
  EXPECT_TRUE(engine.uses.empty());
  EXPECT_EQ(optimizer->Uses(all)->size(), 4U) << "a's gradient, weight and two moments";

  // Parameters may be added at any time.
  const ParameterTensors late = RegisterAdamW(engine, "late", {8}, 0, DType::kF32);
  const Update update = {.parameter = Add(*optimizer, late), .learning_rate = 1};
  ASSERT_TRUE(optimizer->Step({&update, 1}).ok());
  EXPECT_EQ(engine.uses.size(), 4U);
}

TEST(Optimizer, ReturnsTheEnginesFailureWithNothingHeldAndTheTileAsItWas) {
  HeapEngine engine;
  ThreadPool pool(1);
  const ParameterTensors tensors = RegisterAdamW(engine, "w", {4, 8}, 2, DType::kF16);
  const auto content = engine.Values<float>(tensors.state[0]);
  for (float& gradient : content) gradient += 1;
  const auto optimizer = Create(engine, pool);
  const Update update = {
      .parameter = Add(*optimizer, tensors), .learning_rate = 0.1, .weight_decay = 0.1};
  const std::vector<float> before(content.begin(), content.end());
  engine.refuse_at = 8;  // the second tile's second moment
  EXPECT_EQ(optimizer->Step({&update, 1}), absl::DataLossError("the page is rotten"));
  EXPECT_EQ(engine.held(), 0);
  EXPECT_FALSE(std::equal(before.begin(), before.begin() + 16, content.begin()));
  EXPECT_TRUE(std::equal(before.begin() + 16, before.end(), content.begin() + 16));
}

// The weight is one tile, and each row of its gradient is one. The discard of the first fails.
TEST(Optimizer, ADiscardThatFailsLeavesNaNWhereNothingWasWritten) {
  HeapEngine engine;
  ThreadPool pool(1);
  ParameterTensors tensors = RegisterAdamW(engine, "w", {4, 8}, 0, DType::kF16);
  TensorSpec rows = Spec("rows", DType::kF16, {4, 8}, 1);
  rows.transient = true;
  tensors.gradient = *engine.Register(rows, {});
  const auto optimizer = Create(engine, pool);
  const Update update = {.parameter = Add(*optimizer, tensors), .learning_rate = 0.1};
  engine.discard_status = absl::UnavailableError("the file system is full");
  EXPECT_EQ(optimizer->Step({&update, 1}), engine.discard_status);
  EXPECT_EQ(engine.held(), 0);
  EXPECT_EQ(engine.discards.size(), 1U);
  const auto weight = engine.Values<std::byte>(tensors.weight.tensor);
  const Bytes bytes(weight.begin(), weight.end());
  for (size_t i = 0; i < 32; ++i)
    EXPECT_EQ(std::isnan(ValueAt(bytes, DType::kF16, i)), i >= 8) << i;
}

// After a step that failed, the caller may free the memory that it named before.
TEST(Optimizer, AStepThatFailsMovesTheMemoryOfEveryParameterInTheList) {
  HeapEngine engine;
  ThreadPool pool(1);
  const ParameterTensors first = RegisterAdamW(engine, "first", {8}, 0, DType::kF32);
  ParameterTensors second = RegisterAdamW(engine, "second", {8}, 0, DType::kF32);
  std::vector<float> old_weight(8, 1), weight(8, 1), old_gradient(8, 1), gradient(8, 1);
  second.weight = Values(old_weight.data(), DType::kF32);
  second.gradient = Values(old_gradient.data(), DType::kF32);
  second.shape = {8};
  const auto optimizer = Create(engine, pool);
  Update updates[] = {{.parameter = Add(*optimizer, first), .learning_rate = 0.1},
                      {.parameter = Add(*optimizer, second), .learning_rate = 0.1}};
  updates[1].weight_memory = weight.data();
  updates[1].gradient_memory = gradient.data();
  engine.refuse_at = 0;
  EXPECT_TRUE(absl::IsDataLoss(optimizer->Step(updates)));
  engine.refuse_at = std::numeric_limits<size_t>::max();
  std::fill(old_gradient.begin(), old_gradient.end(), -1.0F);
  const Update unchanged = {.parameter = updates[1].parameter, .learning_rate = 0.1};
  ASSERT_TRUE(optimizer->Step({&unchanged, 1}).ok());
  EXPECT_EQ(old_weight, std::vector<float>(8, 1));
  for (const float value : weight) EXPECT_LT(value, 1) << "the new gradient is above zero";
}

TEST(Optimizer, AParameterThatWasRemovedMayBeAddedAgain) {
  HeapEngine engine;
  ThreadPool pool(1);
  const ParameterTensors tensors = RegisterAdamW(engine, "w", {4, 8}, 2, DType::kF16);
  const auto optimizer = Create(engine, pool);
  const size_t first = Add(*optimizer, tensors);
  EXPECT_TRUE(optimizer->Remove(first).ok());
  const Update update = {.parameter = first, .learning_rate = 0.1};
  for (const absl::Status& status :
       {optimizer->Step({&update, 1}), optimizer->Uses({&first, 1}).status(),
        optimizer->Remove(first)}) {
    EXPECT_EQ(status, absl::NotFoundError("optimizer: parameter 0 was removed"));
  }
  EXPECT_TRUE(absl::IsNotFound(optimizer->Remove(1)));
  const size_t second = Add(*optimizer, tensors);
  EXPECT_EQ(second, 1U);
  const Update again = {.parameter = second, .learning_rate = 0.1};
  EXPECT_TRUE(optimizer->Step({&again, 1}).ok());
}

TEST(Optimizer, WithoutParametersDoesNothing) {
  HeapEngine engine;
  ThreadPool pool(1);
  const auto optimizer = Create(engine, pool);
  EXPECT_TRUE(optimizer->Step({}).ok());
  EXPECT_TRUE(optimizer->Uses({})->empty());
  EXPECT_EQ(optimizer->min_pinned_bytes(), 0U);
}

// Whether leases i, i+1, … always find room, wherever an adversary places each of them. `frames`
// has one character per frame.
bool AlwaysFits(std::string& frames, const std::vector<size_t>& leases, size_t i) {
  if (i == leases.size()) return true;
  bool placed = false;
  for (size_t at = 0; at + leases[i] <= frames.size(); ++at) {
    if (frames.find('x', at) < at + leases[i]) continue;
    placed = true;
    std::fill_n(frames.begin() + static_cast<std::ptrdiff_t>(at), leases[i], 'x');
    const bool fits = AlwaysFits(frames, leases, i + 1);
    std::fill_n(frames.begin() + static_cast<std::ptrdiff_t>(at), leases[i], '.');
    if (!fits) return false;
  }
  return placed;
}

uint64_t PinnedBytesForLeases(const std::vector<uint64_t>& leases) {
  uint64_t most = 0;
  for (size_t i = 0; i < leases.size(); ++i) {
    most = std::max(most, BytesForNext(std::span(leases).first(i), leases[i]));
  }
  return most;
}

TEST(PinnedBytes, HoldTheLeasesWhereverTheyArePlaced) {
  for (size_t a = 1; a <= 3; ++a) {
    for (size_t b = 1; b <= 3; ++b) {
      for (size_t c = 1; c <= 3; ++c) {
        for (const std::vector<size_t>& leases :
             {std::vector<size_t>{a}, std::vector<size_t>{a, b}, std::vector<size_t>{a, b, c}}) {
          std::vector<uint64_t> bytes;
          for (size_t lease : leases) bytes.push_back(lease * 4096 - 1);
          std::string frames(PinnedBytesForLeases(bytes) / 4096, '.');
          EXPECT_TRUE(AlwaysFits(frames, leases, 0)) << a << b << c;
        }
      }
    }
  }
  std::string frames(5, '.');
  EXPECT_FALSE(AlwaysFits(frames, {1, 3}, 0));  // one frame more than their sum is not enough
}

TEST(PinnedBytes, OfATileSet) {
  EXPECT_EQ(PinnedBytesForLeases({}), 0U);
  EXPECT_EQ(PinnedBytesForLeases({1}), 4096U);
  EXPECT_EQ(PinnedBytesForLeases({4096, 8192}), 5 * 4096U);
  EXPECT_EQ(PinnedBytesForLeases({8192, 4096}), 4 * 4096U);
  constexpr uint64_t kTile = 1 << 20;
  EXPECT_EQ(PinnedBytesForLeases({kTile / 2, kTile, kTile, kTile, kTile / 2}), kTile * 13 / 2);
}

TEST(PinnedBytes, OfAnOptimizerFollowTheLargestTileSet) {
  HeapEngine engine;
  ThreadPool pool(1);
  const auto least = [&](const std::vector<ParameterTensors>& parameters) {
    const auto optimizer = Create(engine, pool);
    for (const ParameterTensors& tensors : parameters) Add(*optimizer, tensors);
    return optimizer->min_pinned_bytes();
  };
  const ParameterTensors tiled = RegisterAdamW(engine, "a", {1000, 1024}, 100, DType::kF32);
  const ParameterTensors whole = RegisterAdamW(engine, "b", {50, 1024}, 0, DType::kF16);
  const uint64_t tile_bytes = 100 * 4096;
  EXPECT_EQ(least({tiled, whole}), 7 * tile_bytes);
  const uint64_t half_bytes = 50 * 2048, full_bytes = 50 * 4096;
  // 102400 bytes are 25 frames.
  EXPECT_EQ(least({whole}), half_bytes + 2 * full_bytes + 4 * full_bytes);
}

class Refusals : public testing::Test {
 protected:
  absl::Status Status(const ParameterTensors& tensors, const Rule& rule = kAdamW) {
    const auto optimizer = Optimizer::Create(&engine_, &pool_, rule, StateFormat::kF32);
    return optimizer.ok() ? (*optimizer)->Add(tensors).status() : optimizer.status();
  }
  void ExpectRefused(const absl::Status& status, const std::string& part) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.ToString().find(part), std::string::npos) << status;
  }
  TensorId Register(const std::string& name, DType dtype, std::vector<int64_t> shape,
                    int64_t tile_rows = 0) {
    return *engine_.Register(Spec(name, dtype, std::move(shape), tile_rows), {});
  }

  HeapEngine engine_;
  ThreadPool pool_{1};
  ParameterTensors full_ = RegisterAdamW(engine_, "full", {4, 8}, 2, DType::kF32);
  ParameterTensors half_ = RegisterAdamW(engine_, "half", {4, 8}, 2, DType::kF16);
};

TEST_F(Refusals, OfConstantsOutOfRange) {
  using enum RuleKind;
  const double nan = std::nan("");
  // Sets the constant to the value in every kind. Those of `kinds` have it and are refused; the
  // others ignore it.
  const auto refuse = [&](const std::string& name, double Rule::* constant, double value,
                          const std::vector<RuleKind>& kinds) {
    for (int i = 0; i < kNumRuleKinds; ++i) {
      Rule rule = UsualRule(static_cast<RuleKind>(i));
      rule.*constant = value;
      if (std::find(kinds.begin(), kinds.end(), rule.kind) != kinds.end()) {
        ExpectRefused(CheckRule(rule), name);
      } else {
        EXPECT_TRUE(CheckRule(rule).ok()) << Name(rule.kind) << " has no " << name;
      }
    }
  };
  for (const double value : {-0.1, 1.0, 2.0, nan}) {
    refuse("beta1", &Rule::beta1, value, {kAdamW, kAdam, kLion, kLamb});
    refuse("beta2", &Rule::beta2, value, {kAdamW, kAdam, kLion, kLamb});
    refuse("alpha", &Rule::alpha, value, {kRmsProp});
  }
  for (const double epsilon : {0.0, -1e-8, 1e-60, nan, HUGE_VAL, 1e39})
    refuse("epsilon", &Rule::epsilon, epsilon, {kAdamW, kAdam, kRmsProp, kLamb, kAdafactor});
  for (const double momentum : {-0.1, 1.1, nan})
    refuse("momentum", &Rule::momentum, momentum, {kSgd, kRmsProp, kLars});
  for (const double value : {-0.1, nan, HUGE_VAL}) {
    refuse("trust_coefficient", &Rule::trust_coefficient, value, {kLars});
    refuse("beta2_decay", &Rule::beta2_decay, value, {kAdafactor});
    refuse("epsilon2", &Rule::epsilon2, value, {kAdafactor});
    refuse("clipping_threshold", &Rule::clipping_threshold, value, {kAdafactor});
  }
  for (const double dampening : {nan, HUGE_VAL, 1e39})
    refuse("dampening", &Rule::dampening, dampening, {kSgd});
  ExpectRefused(CheckRule({.kind = kSgd, .momentum = 0.9, .dampening = 0.5, .nesterov = true}),
                "dampening is 0.5; it must be 0 with nesterov");
  refuse("clipping_threshold is 0", &Rule::clipping_threshold, 0, {kAdafactor});
  refuse("square", &Rule::epsilon, 1e-30, {kAdafactor});
  ExpectRefused(Status(full_, {.beta1 = nan}), "beta1");
  EXPECT_TRUE(Status(full_, {.beta1 = 0, .beta2 = 0, .epsilon = 1}).ok());
}

TEST_F(Refusals, OfAPairThatDoesNotExist) {
  ExpectRefused(
      Optimizer::Create(&engine_, &pool_, {.kind = RuleKind::kSgd}, StateFormat::kBf16).status(),
      "sgd without momentum keeps no state that could rest as bf16");
  for (const StateFormat format : {StateFormat::kBf16, StateFormat::k8Bit, StateFormat::kCompact}) {
    ExpectRefused(
        Optimizer::Create(&engine_, &pool_, UsualRule(RuleKind::kAdafactor), format).status(),
        "adafactor's state rests as fp32 alone");
  }
  const auto no_format = static_cast<StateFormat>(kNumStateFormats);
  const auto no_rule = static_cast<RuleKind>(kNumRuleKinds);
  ExpectRefused(Optimizer::Create(&engine_, &pool_, kAdamW, no_format).status(), "no such format");
  ExpectRefused(Status(full_, {.kind = no_rule}), "no such rule");
  const TensorSpec weight = Spec("w", DType::kF32, {4}, 0);
  ExpectRefused(StateSpecs({.kind = no_rule}, StateFormat::kF32, weight).status(), "no such rule");
  ExpectRefused(StateSpecs(kAdamW, no_format, weight).status(), "no such format");
  ExpectRefused(StateSpecs(kAdamW, StateFormat::kCompact, weight).status(),
                "weight 'w' is f32, and compact state is the rest of a 16-bit weight: make the");
}

TEST_F(Refusals, OfDTypes) {
  const std::vector<int64_t> shape = {4, 8};
  ParameterTensors tensors = half_;
  tensors.gradient = Register("g8", DType::kU8, shape);
  ExpectRefused(Status(tensors), "gradient 'g8' is u8; it must be f32, f16 or bf16");
  tensors = half_;
  tensors.state[2] = Register("v16", DType::kF16, shape);
  ExpectRefused(Status(tensors), "moment 'v16' is f16; it must be f32");
  tensors = half_;
  tensors.state[0] = Register("m16", DType::kF16, shape);
  ExpectRefused(Status(tensors), "master weight 'm16' is f16");
  tensors = half_;
  tensors.weight = Register("w8", DType::kU8, shape);
  ExpectRefused(Status(tensors), "weight 'w8' is u8");
  tensors = half_;
  tensors.gradient = Register("g32", DType::kF32, shape);
  EXPECT_TRUE(Status(tensors).ok());
}

TEST_F(Refusals, OfAParametersRule) {
  ParameterTensors tensors = full_;
  tensors.rule = Rule{.kind = RuleKind::kAdam};
  ExpectRefused(Status(tensors), "the rule of a parameter is adam, and the optimizer's is adamw");
  tensors.rule = Rule{.beta1 = 2};
  ExpectRefused(Status(tensors), "beta1");
  tensors.rule = Rule{.amsgrad = true};
  ExpectRefused(Status(tensors), "weight 'full' has 2 state tensors; it needs 3");
}

TEST_F(Refusals, OfShapesAndMissingState) {
  ParameterTensors tensors = half_;
  tensors.gradient = Register("g", DType::kF16, {8, 4}, 2);
  ExpectRefused(Status(tensors), "gradient 'g' has the shape [8, 4] and weight 'half' [4, 8]");
  tensors = half_;
  tensors.state[1] = Register("m", DType::kF32, {32}, 2);
  ExpectRefused(Status(tensors), "moment 'm'");
  tensors = half_;
  tensors.state.pop_back();
  ExpectRefused(Status(tensors), "weight 'half' has 2 state tensors; it needs 3");
  tensors = half_;
  tensors.state[1] = TensorId();
  ExpectRefused(Status(tensors), "lacks 'half/exp_avg'");
  tensors = half_;
  tensors.weight = Values();
  ExpectRefused(Status(tensors), "a weight is neither tensor nor memory");
}

TEST_F(Refusals, OfMemoryThatIsNoWeight) {
  alignas(4) std::byte memory[256];
  ParameterTensors tensors = full_;
  const auto refuse = [&](const std::vector<int64_t>& shape, const std::string& part) {
    tensors.shape = shape;
    ExpectRefused(Status(tensors), part);
  };
  tensors.weight = Values(memory, DType::kF32);
  refuse({4, -8}, "dimension of -8");
  refuse({0}, "dimension of 0");
  refuse({int64_t{1} << 40, int64_t{1} << 40}, "more than");
  refuse({std::numeric_limits<int64_t>::max()}, "more than");
  refuse({4, 9}, "moment 'full/exp_avg' has the shape [4, 8]");
  tensors.weight = Values(memory + 2, DType::kF32);
  refuse({4, 8}, "multiple of its elements' 4 bytes");
  tensors.weight = Values(memory, DType::kU8);
  refuse({4, 8}, "is u8");
  ExpectRefused(StateSpecs(kAdamW, StateFormat::kF32, Spec("w", DType::kF32, {-1}, 0)).status(),
                "dimension of -1");
  ExpectRefused(StateSpecs(kAdamW, StateFormat::kF32, Spec("w", DType::kF32, {4}, -1)).status(),
                "tiles of -1 rows");
}

TEST_F(Refusals, OfATensorGivenTwice) {
  ParameterTensors tensors = full_;
  tensors.state[1] = tensors.state[0];
  ExpectRefused(Status(tensors), "'full/exp_avg' is given twice");
  const auto optimizer = Create(engine_, pool_);
  Add(*optimizer, half_);
  ExpectRefused(optimizer->Add(half_).status(), "is given twice");
}

// The gradient's tiles cut blocks of the 8-bit state. With another gradient the same tensors are
// added.
TEST_F(Refusals, LeaveTheTensorsFreeToBeAddedAgain) {
  ParameterTensors tensors = {.weight = Register("w", DType::kF32, {512}),
                              .gradient = Register("cut", DType::kF32, {512}, 100)};
  const TensorSpec weight = engine_.Spec(tensors.weight.tensor);
  const auto specs = StateSpecs(kAdamW, StateFormat::k8Bit, weight);
  for (const TensorSpec& spec : *specs) tensors.state.push_back(*engine_.Register(spec, {}));
  const auto optimizer = Create(engine_, pool_, kAdamW, StateFormat::k8Bit);
  ExpectRefused(optimizer->Add(tensors).status(), "is cut every 100 elements");
  tensors.gradient = Register("whole", DType::kF32, {512});
  EXPECT_EQ(Add(*optimizer, tensors), 0U);
}

TEST_F(Refusals, OfUpdatesThatCannotBeApplied) {
  const auto optimizer = Create(engine_, pool_);
  Add(*optimizer, full_);
  const auto refuse = [&](const Update& update, const std::string& part) {
    ExpectRefused(optimizer->Step({&update, 1}), part);
  };
  refuse({.step = 0, .learning_rate = 0.1}, "step is 0");
  refuse({.learning_rate = -0.1}, "learning_rate");
  refuse({.learning_rate = std::nan("")}, "learning_rate");
  refuse({.learning_rate = 1e39}, "learning_rate");
  refuse({.weight_decay = -1}, "weight_decay");
  refuse({.learning_rate = 0.1, .gradient_scale = HUGE_VAL}, "gradient_scale");
  refuse({.rule = Rule{.kind = RuleKind::kLion}}, "lion, has other state");
  refuse({.rule = Rule{.beta1 = 7}}, "beta1");
  refuse({.rule = Rule{.amsgrad = true}},
         "the rule of an update of parameter 0 needs max_exp_avg_sq, which the parameter's state");
  const Update unknown = {.parameter = 1};
  EXPECT_TRUE(absl::IsNotFound(optimizer->Step({&unknown, 1})));
  const size_t number = 5;
  EXPECT_TRUE(absl::IsNotFound(optimizer->Uses({&number, 1}).status()));
  const Update twice[] = {{.parameter = 0}, {.parameter = 0}};
  ExpectRefused(optimizer->Step(twice), "named twice");
  EXPECT_TRUE(engine_.uses.empty());
}

}  // namespace
}  // namespace spillway::optim
