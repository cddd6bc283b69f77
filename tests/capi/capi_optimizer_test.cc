// SPDX-License-Identifier: Apache-2.0
//
// Tests updates through the C ABI, for weights in the caller's memory and in the engine. The state
// of a weight is registered when the weight is added, is committed, and is found again.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/capi/capi_testing.h"

namespace spillway::test {
namespace {

constexpr int64_t kRows = 8, kColumns = 256;
constexpr size_t kElements = kRows * kColumns;

class CapiOptimizerTest : public CapiTest {
 protected:
  CapiOptimizerTest() {
    for (size_t i = 0; i < kElements; ++i) {
      weight_[i] = static_cast<float>(i % 17) * 0.1f - 0.8f;
      gradient_[i] = static_cast<float>(i % 23) * 0.01f - 0.1f;
    }
  }
  ~CapiOptimizerTest() override { spw_optimizer_release(optimizer_); }

  void Create(int32_t kind = SPW_ADAMW, int32_t format = SPW_STATE_F32) {
    spw_rule rule;
    spw_rule_init(&rule, sizeof rule, kind);
    rule.beta2 = 0.999;
    spw_optimizer_release(optimizer_);
    optimizer_ = nullptr;
    SPW_ASSERT_OK(spw_optimizer_create(engine_, &rule, format, 2, &optimizer_));
  }
  // Adds a parameter whose weight and gradient are in memory.
  size_t Add(const char* name, const spw_rule* rule = nullptr) {
    spw_parameter parameter;
    spw_parameter_init(&parameter, sizeof parameter);
    parameter.name = name;
    parameter.weight = {weight_.data(), SPW_F32, 0};
    parameter.has_gradient = 1;
    parameter.gradient = {gradient_.data(), SPW_F32, 0};
    parameter.shape = shape_;
    parameter.rank = 2;
    parameter.tile_rows = 3;
    parameter.is_fresh = is_fresh_;
    parameter.rule = rule;
    size_t number = 99;
    SPW_EXPECT_OK(spw_optimizer_add(optimizer_, &parameter, &number));
    return number;
  }
  void Step(size_t parameter, int64_t step) {
    spw_update update;
    spw_update_init(&update, sizeof update);
    update.parameter = parameter;
    update.step = step;
    update.learning_rate = 0.01;
    update.weight_decay = 0.1;
    SPW_ASSERT_OK(spw_optimizer_step(optimizer_, &update, 1));
    SPW_ASSERT_OK(spw_end_step(engine_));
  }
  // Computes PyTorch's AdamW for one element, in double precision.
  static double AdamW(double p, double g, int steps) {
    double m = 0, v = 0;
    for (int t = 1; t <= steps; ++t) {
      p *= 1 - 0.01 * 0.1;
      m = 0.9 * m + 0.1 * g;
      v = 0.999 * v + 0.001 * g * g;
      p -= 0.01 / (1 - std::pow(0.9, t)) * m /
           (std::sqrt(v) / std::sqrt(1 - std::pow(0.999, t)) + 1e-8);
    }
    return p;
  }

  const int64_t shape_[2] = {kRows, kColumns};
  std::vector<float> weight_ = std::vector<float>(kElements);
  std::vector<float> gradient_ = std::vector<float>(kElements);
  int32_t is_fresh_ = 0;  // of the parameters that Add adds
  spw_optimizer* optimizer_ = nullptr;
};

TEST_F(CapiOptimizerTest, UpdatesTheCallersMemoryAndResumes) {
  const std::vector<float> first = weight_;
  Create();
  const size_t parameter = Add("w");
  EXPECT_EQ(parameter, 0u);
  Step(parameter, 1);
  Step(parameter, 2);
  SPW_ASSERT_OK(spw_commit(engine_, nullptr, 0));

  spw_optimizer_release(optimizer_);
  optimizer_ = nullptr;
  Reopen();
  Create();
  Add("w");
  Step(0, 3);
  for (size_t i = 0; i < kElements; ++i)
    ASSERT_NEAR(weight_[i], AdamW(first[i], gradient_[i], 3), 2e-6) << i;
}

TEST_F(CapiOptimizerTest, FreshStateIsThatOfNoStep) {
  const std::vector<float> first = weight_;
  Create();
  Step(Add("w"), 1);
  SPW_ASSERT_OK(spw_commit(engine_, nullptr, 0));
  for (const bool reopens : {false, true}) {
    spw_optimizer_release(optimizer_);
    optimizer_ = nullptr;
    if (reopens) Reopen();
    Create();
    weight_ = first;
    is_fresh_ = 1;
    Step(Add("w"), 1);
    for (size_t i = 0; i < kElements; ++i)
      ASSERT_NEAR(weight_[i], AdamW(first[i], gradient_[i], 1), 2e-6) << i;
  }
}

// A refused parameter does not change the existing state.
TEST_F(CapiOptimizerTest, ARefusedParameterLeavesOthersState) {
  const std::vector<float> first = weight_;
  Create();
  Step(Add("w"), 1);
  spw_parameter again;
  spw_parameter_init(&again, sizeof again);
  again.name = "w";
  again.weight = {weight_.data(), SPW_F32, 0};
  again.has_gradient = 1;
  again.gradient = {gradient_.data(), SPW_F32, 0};
  again.shape = shape_;
  again.rank = 2;
  again.tile_rows = 3;
  size_t number = 0;
  SPW_EXPECT_ERROR(spw_optimizer_add(optimizer_, &again, &number), SPW_INVALID_ARGUMENT, "twice");
  Step(0, 2);
  for (size_t i = 0; i < kElements; ++i)
    ASSERT_NEAR(weight_[i], AdamW(first[i], gradient_[i], 2), 2e-6) << i;
}

// The gradient of a parameter that is added anew has another shape. The state of the last commit
// stays.
TEST_F(CapiOptimizerTest, ARefusedFreshParameterLeavesTheOldState) {
  const std::vector<float> first = weight_;
  Create();
  Step(Add("w"), 1);
  SPW_ASSERT_OK(spw_commit(engine_, nullptr, 0));
  const uint32_t shorter = Register("g", SPW_F32, 1, kColumns);
  Create();
  spw_parameter fresh;
  spw_parameter_init(&fresh, sizeof fresh);
  fresh.name = "w";
  fresh.weight = {weight_.data(), SPW_F32, 0};
  fresh.has_gradient = 1;
  fresh.gradient = {nullptr, 0, shorter};
  fresh.shape = shape_;
  fresh.rank = 2;
  fresh.tile_rows = 3;
  fresh.is_fresh = 1;
  size_t number = 0;
  SPW_EXPECT_ERROR(spw_optimizer_add(optimizer_, &fresh, &number), SPW_INVALID_ARGUMENT, "'g'");
  Step(Add("w"), 2);
  for (size_t i = 0; i < kElements; ++i)
    ASSERT_NEAR(weight_[i], AdamW(first[i], gradient_[i], 2), 2e-6) << i;
}

// Models a framework that allocates a new gradient for each step.
TEST_F(CapiOptimizerTest, AnUpdateSaysWhereMemoryLiesNow) {
  const std::vector<float> first = weight_;
  Create();
  const size_t parameter = Add("w");
  Step(parameter, 1);
  std::vector<float> moved = weight_, gradient = gradient_;
  std::fill(weight_.begin(), weight_.end(), 100.0f);
  std::fill(gradient_.begin(), gradient_.end(), 100.0f);
  spw_update update;
  spw_update_init(&update, sizeof update);
  update.parameter = parameter;
  update.step = 2;
  update.learning_rate = 0.01;
  update.weight_decay = 0.1;
  update.weight_memory = moved.data();
  update.gradient_memory = gradient.data();
  SPW_ASSERT_OK(spw_optimizer_step(optimizer_, &update, 1));
  EXPECT_EQ(weight_[0], 100.0f);
  for (size_t i = 0; i < kElements; ++i)
    ASSERT_NEAR(moved[i], AdamW(first[i], gradient[i], 2), 2e-6) << i;
  std::vector<float> masters(kElements);
  SPW_ASSERT_OK(spw_optimizer_masters(optimizer_, parameter, masters.data(), kElements));
  EXPECT_EQ(masters, moved);

  const uint32_t in_engine = Register("g", SPW_F32, kRows, kColumns);
  spw_parameter other;
  spw_parameter_init(&other, sizeof other);
  other.name = "v";
  other.weight = {weight_.data(), SPW_F32, 0};
  other.has_gradient = 1;
  other.gradient = {nullptr, 0, in_engine};
  other.shape = shape_;
  other.rank = 2;
  SPW_ASSERT_OK(spw_optimizer_add(optimizer_, &other, &update.parameter));
  update.step = 1;
  SPW_EXPECT_ERROR(spw_optimizer_step(optimizer_, &update, 1), SPW_INVALID_ARGUMENT,
                   "has its gradient in the engine");
}

TEST_F(CapiOptimizerTest, StateIsNamedAfterItsParameter) {
  Create();
  Add("block.0.w");
  char* json = nullptr;
  SPW_ASSERT_OK(spw_optimizer_state_json(optimizer_, 0, &json));
  const auto state = nlohmann::json::parse(Taken(json));
  ASSERT_EQ(state.size(), 2u);
  for (const auto& each : state) {
    EXPECT_TRUE(std::string(each["name"]).starts_with("block.0.w/"));
    uint32_t id = 0;
    SPW_EXPECT_OK(spw_find(engine_, std::string(each["name"]).c_str(), &id));
    EXPECT_EQ(each["id"], id);
  }
  EXPECT_GT(spw_optimizer_min_pinned_bytes(optimizer_), 3 * kColumns * 4u);
  const size_t numbers[] = {0};
  spw_use* uses = nullptr;
  size_t count = 0;
  SPW_ASSERT_OK(spw_optimizer_uses(optimizer_, numbers, 1, &uses, &count));
  EXPECT_EQ(count, 6u);  // two tensors of three tiles each
  EXPECT_EQ(uses[0].tier, SPW_PINNED);
  spw_free(uses);
}

// A 16-bit weight and its gradient are in the engine. Each format returns the master weights.
TEST_F(CapiOptimizerTest, EveryFormatGivesItsMasterWeights) {
  std::vector<uint16_t> halves(kElements), gradients(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    const auto bf16 = [](float value) {
      uint32_t bits = 0;
      std::memcpy(&bits, &value, 4);
      return static_cast<uint16_t>(bits >> 16);
    };
    halves[i] = bf16(weight_[i]);
    gradients[i] = bf16(gradient_[i]);
    const uint32_t cut = uint32_t{halves[i]} << 16, cut_gradient = uint32_t{gradients[i]} << 16;
    std::memcpy(&weight_[i], &cut, 4);
    std::memcpy(&gradient_[i], &cut_gradient, 4);
  }
  for (int32_t format = SPW_STATE_F32; format <= SPW_STATE_COMPACT; ++format) {
    Create(SPW_ADAMW, format);
    const std::string name = "w." + std::to_string(format), of = "g." + std::to_string(format);
    const uint32_t weight = Register(name.c_str(), SPW_BF16, kRows, kColumns);
    const uint32_t gradient = Register(of.c_str(), SPW_BF16, kRows, kColumns);
    SPW_ASSERT_OK(spw_write(engine_, weight, 0, halves.data(), 2 * kElements));
    SPW_ASSERT_OK(spw_write(engine_, gradient, 0, gradients.data(), 2 * kElements));
    spw_parameter parameter;
    spw_parameter_init(&parameter, sizeof parameter);
    parameter.weight = {nullptr, 0, weight};
    parameter.has_gradient = 1;
    parameter.gradient = {nullptr, 0, gradient};
    size_t number = 0;
    SPW_ASSERT_OK(spw_optimizer_add(optimizer_, &parameter, &number));
    std::vector<float> masters(kElements);
    SPW_ASSERT_OK(spw_optimizer_masters(optimizer_, number, masters.data(), kElements));
    for (size_t i = 0; i < kElements; ++i) ASSERT_NEAR(masters[i], weight_[i], 1e-5) << i;
    Step(number, 1);
    SPW_ASSERT_OK(spw_optimizer_masters(optimizer_, number, masters.data(), kElements));
    for (size_t i = 0; i < kElements; ++i) {
      const double expected = AdamW(weight_[i], gradient_[i], 1);
      ASSERT_NEAR(masters[i], expected, 2e-3) << "format " << format << ", element " << i;
    }
    SPW_EXPECT_ERROR(spw_optimizer_masters(optimizer_, number, masters.data(), 3),
                     SPW_INVALID_ARGUMENT, "has 2048 elements, not 3");
  }
}

// The weights are in memory. The state that is written is read back, as exactly as the format
// stores it. A part of the state that is not given stays unchanged, bit for bit.
TEST_F(CapiOptimizerTest, EveryFormatsStateIsReadAndWritten) {
  std::vector<float> given[3] = {weight_, gradient_, gradient_};  // master weights and moments
  for (float& square : given[2]) square *= square;
  for (float& moment : given[1])
    moment = -moment;  // also tests blocks whose value of largest magnitude is negative
  for (int32_t format = SPW_STATE_F32; format <= SPW_STATE_COMPACT; ++format) {
    Create(SPW_ADAMW, format);
    std::vector<uint16_t> halves(kElements);
    const std::string name = "w." + std::to_string(format);
    spw_parameter parameter;
    spw_parameter_init(&parameter, sizeof parameter);
    parameter.name = name.c_str();
    parameter.weight = {halves.data(), SPW_BF16, 0};
    parameter.has_gradient = 1;
    parameter.gradient = {gradient_.data(), SPW_F32, 0};
    parameter.shape = shape_;
    parameter.rank = 2;
    parameter.tile_rows = 3;
    spw_state state;
    spw_state_init(&state, sizeof state);
    SPW_ASSERT_OK(spw_optimizer_add(optimizer_, &parameter, &state.parameter));
    std::vector<float> read[3], again[3];
    for (int i = 0; i < 3; ++i) read[i] = again[i] = std::vector<float>(kElements);
    const auto pass = [&](std::vector<float>(&values)[3], auto call) {
      float* const moments[] = {values[1].data(), values[2].data()};
      state.masters = values[0].data();
      state.moments = moments;
      state.num_moments = 2;
      state.num_elements = kElements;
      SPW_ASSERT_OK(call(optimizer_, &state));
    };
    pass(given, spw_optimizer_write_state);
    pass(read, spw_optimizer_read_state);
    for (size_t i = 0; i < kElements; ++i) {
      const uint32_t bits = uint32_t{halves[i]} << 16;
      float half = 0;
      std::memcpy(&half, &bits, 4);
      const float weight = format == SPW_STATE_COMPACT ? given[0][i] : 0;  // others: not written
      ASSERT_NEAR(half, weight, 0.004 * std::abs(weight)) << i;
      ASSERT_NEAR(read[0][i], given[0][i], 2e-5 * std::abs(given[0][i])) << i;
      ASSERT_NEAR(read[1][i], given[1][i], 0.004) << i;
      ASSERT_NEAR(read[2][i], given[2][i], 0.001) << i;
    }
    if (format == SPW_STATE_F32) {
      for (int i = 0; i < 3; ++i) EXPECT_EQ(read[i], given[i]);
    }
    // Writes the master weights alone, then the moments alone.
    state.moments = nullptr;
    state.num_moments = 0;
    std::vector<float> masters = read[0];
    for (float& master : masters) master += 0.25f;
    state.masters = masters.data();
    SPW_ASSERT_OK(spw_optimizer_write_state(optimizer_, &state));
    pass(again, spw_optimizer_read_state);
    EXPECT_EQ(again[1], read[1]) << "format " << format;
    EXPECT_EQ(again[2], read[2]) << "format " << format;
    for (size_t i = 0; i < kElements; ++i)
      ASSERT_NEAR(again[0][i], masters[i], 2e-5 * std::abs(masters[i])) << i;
    const std::vector<float> zeros(kElements);
    std::vector<float> first = zeros, second = zeros;
    float* const moments[] = {first.data(), second.data()};
    state.masters = nullptr;
    state.moments = moments;
    state.num_moments = 2;
    SPW_ASSERT_OK(spw_optimizer_write_state(optimizer_, &state));
    const std::vector<float> kept = again[0];
    pass(again, spw_optimizer_read_state);
    EXPECT_EQ(again[0], kept);
    EXPECT_EQ(again[1], zeros);
    state.num_moments = 1;
    SPW_EXPECT_ERROR(spw_optimizer_read_state(optimizer_, &state), SPW_INVALID_ARGUMENT,
                     "num_moments is 1: the state of parameter '" + name + "' has 2");
    state.num_moments = 0;
    state.num_elements = 7;
    SPW_EXPECT_ERROR(spw_optimizer_read_state(optimizer_, &state), SPW_INVALID_ARGUMENT,
                     "has 2048 elements, not 7");
    state.parameter = 5;
    SPW_EXPECT_ERROR(spw_optimizer_read_state(optimizer_, &state), SPW_NOT_FOUND, "was not added");
  }
}

// An fp32 weight is its own master weight, in memory or in the engine.
TEST_F(CapiOptimizerTest, TheMasterWeightsOfAnFp32WeightAreTheWeight) {
  Create();
  std::vector<float> given = gradient_, read(kElements);
  spw_state state;
  spw_state_init(&state, sizeof state);
  state.num_elements = kElements;
  spw_parameter parameter;
  spw_parameter_init(&parameter, sizeof parameter);
  const uint32_t in_engine = Register("in_engine", SPW_F32, kRows, kColumns);
  parameter.weight = {nullptr, 0, in_engine};
  parameter.tile_rows = 3;
  SPW_ASSERT_OK(spw_optimizer_add(optimizer_, &parameter, &state.parameter));
  for (const size_t number : {state.parameter, Add("in_memory")}) {
    state.parameter = number;
    state.masters = given.data();
    SPW_ASSERT_OK(spw_optimizer_write_state(optimizer_, &state));
    state.masters = read.data();
    SPW_ASSERT_OK(spw_optimizer_read_state(optimizer_, &state));
    EXPECT_EQ(read, given);
  }
  EXPECT_EQ(Read<float>(in_engine, kElements), given);
  EXPECT_EQ(weight_, given);
}

// The master weight of a long vector has several tiles, and its encoded moments have one.
TEST_F(CapiOptimizerTest, TheStateOfAVectorOfSeveralTilesIsReadAndWritten) {
  std::vector<float> given[3] = {weight_, gradient_, gradient_};  // master weights and moments
  for (float& square : given[2]) square *= square;
  const int64_t shape = kElements;
  for (int32_t format = SPW_STATE_F32; format <= SPW_STATE_COMPACT; ++format) {
    Create(SPW_ADAMW, format);
    std::vector<uint16_t> halves(kElements);
    const std::string name = "v." + std::to_string(format);
    spw_parameter parameter;
    spw_parameter_init(&parameter, sizeof parameter);
    parameter.name = name.c_str();
    parameter.weight = {halves.data(), SPW_BF16, 0};
    parameter.has_gradient = 1;
    parameter.gradient = {gradient_.data(), SPW_F32, 0};
    parameter.shape = &shape;
    parameter.rank = 1;
    parameter.tile_rows = 256;
    spw_state state;
    spw_state_init(&state, sizeof state);
    SPW_ASSERT_OK(spw_optimizer_add(optimizer_, &parameter, &state.parameter));
    float* moments[] = {given[1].data(), given[2].data()};
    state.masters = given[0].data();
    state.moments = moments;
    state.num_moments = 2;
    state.num_elements = kElements;
    SPW_ASSERT_OK(spw_optimizer_write_state(optimizer_, &state));
    std::vector<float> read[3];
    for (std::vector<float>& values : read) values = std::vector<float>(kElements);
    moments[0] = read[1].data();
    moments[1] = read[2].data();
    state.masters = read[0].data();
    SPW_ASSERT_OK(spw_optimizer_read_state(optimizer_, &state));
    for (size_t i = 0; i < kElements; ++i) {
      ASSERT_NEAR(read[0][i], given[0][i], 2e-5 * std::abs(given[0][i])) << format << ", " << i;
      ASSERT_NEAR(read[1][i], given[1][i], 0.004) << format << ", " << i;
      ASSERT_NEAR(read[2][i], given[2][i], 0.001) << format << ", " << i;
    }
  }
}

// The refused step names new memory for the weight, which the caller may then free.
TEST_F(CapiOptimizerTest, ARefusedStepLeavesTheWeightWhereItWas) {
  Create();
  spw_update update;
  spw_update_init(&update, sizeof update);
  update.parameter = Add("w");
  update.step = 1;
  update.learning_rate = -1;
  std::vector<float> other(kElements, 7);
  update.weight_memory = other.data();
  SPW_EXPECT_ERROR(spw_optimizer_step(optimizer_, &update, 1), SPW_INVALID_ARGUMENT, "");
  std::vector<float> masters(kElements);
  SPW_ASSERT_OK(spw_optimizer_masters(optimizer_, update.parameter, masters.data(), kElements));
  EXPECT_EQ(masters, weight_);
}

// The step fails when it declares its uses, because a state tensor of the second parameter is gone.
// The caller may then free the memory that the first parameter had before.
TEST_F(CapiOptimizerTest, AStepThatFailsBeforeItUpdatesMovesTheMemory) {
  Create();
  spw_update updates[2];
  for (spw_update& update : updates) {
    spw_update_init(&update, sizeof update);
    update.learning_rate = 0.01;
  }
  updates[0].parameter = Add("w");
  updates[1].parameter = Add("v");
  const std::vector<float> first = weight_;
  std::vector<float> moved = weight_, gradient = gradient_;
  updates[0].weight_memory = moved.data();
  updates[0].gradient_memory = gradient.data();
  uint32_t gone = 0;
  SPW_ASSERT_OK(spw_find(engine_, "v/exp_avg", &gone));
  SPW_ASSERT_OK(spw_unregister(engine_, gone));
  SPW_EXPECT_ERROR(spw_optimizer_step(optimizer_, updates, 2), SPW_NOT_FOUND, "was unregistered");
  EXPECT_EQ(moved, first);
  std::fill(gradient_.begin(), gradient_.end(), 100.0f);
  Step(updates[0].parameter, 1);
  EXPECT_EQ(weight_, first);
  for (size_t i = 0; i < kElements; ++i)
    ASSERT_NEAR(moved[i], AdamW(first[i], gradient[i], 1), 2e-6) << i;
  std::vector<float> masters(kElements);
  SPW_ASSERT_OK(spw_optimizer_masters(optimizer_, updates[0].parameter, masters.data(), kElements));
  EXPECT_EQ(masters, moved);
}

// Returns the names of a parameter's state tensors.
std::vector<std::string> StateOf(spw_optimizer* optimizer, size_t parameter) {
  char* text = nullptr;
  SPW_EXPECT_OK(spw_optimizer_state_json(optimizer, parameter, &text));
  std::vector<std::string> names;
  for (const auto& tensor : nlohmann::json::parse(text)) names.push_back(tensor["name"]);
  spw_free(text);
  return names;
}

TEST_F(CapiOptimizerTest, ParametersHaveTheStateOfTheirOwnRules) {
  spw_rule rule;
  spw_rule_init(&rule, sizeof rule, SPW_SGD);
  EXPECT_EQ(rule.dampening, 0);
  EXPECT_EQ(rule.nesterov + rule.centered + rule.amsgrad + rule.maximize, 0);
  spw_rule with_momentum = rule;
  with_momentum.momentum = 0.5;
  with_momentum.dampening = 0.25;
  with_momentum.maximize = 1;
  SPW_ASSERT_OK(spw_optimizer_create(engine_, &rule, SPW_STATE_F32, 2, &optimizer_));
  const std::vector<float> first = weight_;
  const size_t plain = Add("plain"), fast = Add("fast", &with_momentum);
  EXPECT_EQ(StateOf(optimizer_, plain), std::vector<std::string>());
  EXPECT_EQ(StateOf(optimizer_, fast), std::vector<std::string>{"fast/momentum_buffer"});

  spw_update update;
  spw_update_init(&update, sizeof update);
  update.parameter = fast;
  update.learning_rate = 0.5;
  for (update.step = 1; update.step <= 2; ++update.step)
    SPW_ASSERT_OK(spw_optimizer_step(optimizer_, &update, 1));
  for (size_t i = 0; i < kElements; ++i) {  // the first step has no dampening
    const double m1 = -gradient_[i], m2 = 0.5 * m1 - 0.75 * gradient_[i];
    ASSERT_NEAR(weight_[i], first[i] - 0.5 * (m1 + m2), 1e-6) << i;
  }

  // Without momentum for a step, the buffer stays.
  std::vector<float> before(kElements), after(kElements);
  float* moments[] = {before.data()};
  spw_state state;
  spw_state_init(&state, sizeof state);
  state.parameter = fast;
  state.moments = moments;
  state.num_moments = 1;
  state.num_elements = kElements;
  SPW_ASSERT_OK(spw_optimizer_read_state(optimizer_, &state));
  update.rule = &rule;
  SPW_ASSERT_OK(spw_optimizer_step(optimizer_, &update, 1));
  moments[0] = after.data();
  SPW_ASSERT_OK(spw_optimizer_read_state(optimizer_, &state));
  EXPECT_EQ(before, after);
  update.parameter = plain;
  update.rule = &with_momentum;
  SPW_EXPECT_ERROR(spw_optimizer_step(optimizer_, &update, 1), SPW_INVALID_ARGUMENT,
                   "needs momentum_buffer, which the parameter's state does not have");
  with_momentum.nesterov = 1;
  SPW_EXPECT_ERROR(spw_optimizer_step(optimizer_, &update, 1), SPW_INVALID_ARGUMENT,
                   "dampening is 0.25; it must be 0 with nesterov");
}

TEST_F(CapiOptimizerTest, AParameterThatWasRemovedIsAddedAgainWithOtherState) {
  Create(SPW_ADAM);
  const size_t first = Add("w");
  SPW_ASSERT_OK(spw_optimizer_remove(optimizer_, first));
  char* json = nullptr;
  std::vector<float> masters(kElements);
  for (spw_status* status :
       {spw_optimizer_remove(optimizer_, first), spw_optimizer_state_json(optimizer_, first, &json),
        spw_optimizer_masters(optimizer_, first, masters.data(), kElements)})
    SPW_EXPECT_ERROR(status, SPW_NOT_FOUND, "parameter 0 was removed");
  spw_rule rule;
  spw_rule_init(&rule, sizeof rule, SPW_ADAM);
  rule.amsgrad = 1;
  is_fresh_ = 1;
  const size_t second = Add("w", &rule);
  EXPECT_EQ(second, 1u);
  EXPECT_EQ(StateOf(optimizer_, second),
            (std::vector<std::string>{"w/exp_avg", "w/exp_avg_sq", "w/max_exp_avg_sq"}));
  Step(second, 1);
  SPW_EXPECT_ERROR(spw_optimizer_remove(optimizer_, 2), SPW_NOT_FOUND, "no parameter 2");
}

// A caller that was built with an older header gives no members that came later.
TEST_F(CapiOptimizerTest, AnOlderCallersStructsMeanWhatTheyMeant) {
  spw_rule rule;
  spw_rule_init(&rule, sizeof rule, SPW_SGD);
  rule.momentum = 0.5;
  rule.maximize = 1;  // past the struct's end
  rule.size = offsetof(spw_rule, dampening);
  SPW_ASSERT_OK(spw_optimizer_create(engine_, &rule, SPW_STATE_F32, 2, &optimizer_));
  spw_parameter parameter;
  spw_parameter_init(&parameter, sizeof parameter);
  parameter.name = "w";
  parameter.weight = {weight_.data(), SPW_F32, 0};
  parameter.has_gradient = 1;
  parameter.gradient = {gradient_.data(), SPW_F32, 0};
  parameter.shape = shape_;
  parameter.rank = 2;
  parameter.rule = reinterpret_cast<const spw_rule*>(1);  // past the struct's end
  parameter.size = offsetof(spw_parameter, rule);
  size_t number = 0;
  SPW_ASSERT_OK(spw_optimizer_add(optimizer_, &parameter, &number));
  const std::vector<float> first = weight_;
  Step(number, 1);
  for (size_t i = 0; i < kElements; ++i)
    ASSERT_NEAR(weight_[i], first[i] - 0.01 * (gradient_[i] + 0.1 * first[i]), 1e-6) << i;
}

TEST_F(CapiOptimizerTest, WhatCannotBeIsNamed) {
  spw_rule rule;
  spw_rule_init(&rule, sizeof rule, 99);
  spw_optimizer* none = nullptr;
  SPW_EXPECT_ERROR(spw_optimizer_create(engine_, &rule, SPW_STATE_F32, 0, &none),
                   SPW_INVALID_ARGUMENT, "rule.kind is 99");
  spw_rule_init(&rule, sizeof rule, SPW_ADAFACTOR);
  EXPECT_EQ(spw_rule_exists(&rule, SPW_STATE_F32), 1);
  EXPECT_EQ(spw_rule_exists(&rule, SPW_STATE_8BIT), 0);
  SPW_EXPECT_ERROR(spw_optimizer_create(engine_, &rule, SPW_STATE_8BIT, 0, &none),
                   SPW_INVALID_ARGUMENT, "adafactor");
  rule.kind = SPW_ADAMW;
  SPW_EXPECT_ERROR(spw_optimizer_create(engine_, &rule, SPW_STATE_F32, -1, &none),
                   SPW_INVALID_ARGUMENT, "num_threads is -1");

  Create();
  spw_parameter parameter;
  spw_parameter_init(&parameter, sizeof parameter);
  parameter.weight = {weight_.data(), SPW_F32, 0};
  parameter.shape = shape_;
  parameter.rank = 2;
  parameter.tile_rows = 3;
  size_t number = 0;
  SPW_EXPECT_ERROR(spw_optimizer_add(optimizer_, &parameter, &number), SPW_INVALID_ARGUMENT,
                   "spw_parameter.name is NULL");
  const uint32_t shorter = Register("g", SPW_F32, 1, kColumns);
  parameter.name = "w";
  parameter.has_gradient = 1;
  parameter.gradient = {nullptr, 0, shorter};
  SPW_EXPECT_ERROR(spw_optimizer_add(optimizer_, &parameter, &number), SPW_INVALID_ARGUMENT, "'g'");
  char* json = nullptr;
  SPW_EXPECT_ERROR(spw_optimizer_state_json(optimizer_, 0, &json), SPW_NOT_FOUND, "was not added");
  spw_update update;
  spw_update_init(&update, sizeof update);
  SPW_EXPECT_ERROR(spw_optimizer_step(optimizer_, &update, 1), SPW_NOT_FOUND, "parameter 0");
  // Ids of no tensor, given as the gradient and as the state.
  parameter.gradient.id = 12345;
  SPW_EXPECT_ERROR(spw_optimizer_add(optimizer_, &parameter, &number), SPW_INVALID_ARGUMENT,
                   "12345");
  const uint32_t state[] = {54321, 54322};
  parameter.gradient = {gradient_.data(), SPW_F32, 0};
  parameter.state = state;
  parameter.num_state = 2;
  SPW_EXPECT_ERROR(spw_optimizer_add(optimizer_, &parameter, &number), SPW_INVALID_ARGUMENT,
                   "54321");
  Add("w");
  update.step = 0;
  SPW_EXPECT_ERROR(spw_optimizer_step(optimizer_, &update, 1), SPW_INVALID_ARGUMENT, "step");
}

}  // namespace
}  // namespace spillway::test
