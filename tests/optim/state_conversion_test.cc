// SPDX-License-Identifier: Apache-2.0
//
// Tests the conversion of state from fp32 to each format and back. What the new format can hold
// stays exact, the rest is as near as the format allows, and the reported change is what changed.

#include "spillway/state_conversion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spillway/optimizer.h"
#include "src/optim/element_codecs.h"
#include "src/optim/resting_state.h"
#include "src/optim/state_specs.h"
#include "tests/heap_engine.h"
#include "tests/seed.h"

namespace spillway::optim {
namespace {

struct Shape {
  const char* name;
  DType dtype;
  std::vector<int64_t> shape;
  int64_t tile_rows;
  int64_t state_rows = 0;  // of a tile of the state; 0: as the weight's
};

const Shape kShapes[] = {{"Matrix", DType::kF16, {37, 129}, 10},
                         {"Rows", DType::kBF16, {9, 64}, 1},
                         {"Vector", DType::kBF16, {300}, 0},
                         {"CutVector", DType::kF16, {1000}, 256},
                         {"Scalar", DType::kF16, {}, 0},
                         {"Single", DType::kF32, {20, 33}, 7},
                         {"SingleVector", DType::kF32, {513}, 256},
                         {"CutState", DType::kBF16, {37, 129}, 12, 4},
                         {"StateOfOneTile", DType::kF16, {37, 129}, 0, 8},
                         {"SingleCutState", DType::kF32, {20, 33}, 15, 5}};

constexpr StateFormat kFormats[] = {StateFormat::kF32, StateFormat::kBf16, StateFormat::k8Bit,
                                    StateFormat::kCompact};

// Returns the largest mean change of a moment, as a part of its magnitude: at most a step between
// two values of the format, which random rounding may take.
double MeanChange(StateFormat format) {
  switch (format) {
    case StateFormat::kF32: return 0;
    case StateFormat::kBf16: return 0.008;
    case StateFormat::k8Bit: return 0.03;
    case StateFormat::kCompact: return 0.03;
  }
  return 0;
}

class Parameter {
 public:
  Parameter(const Shape& shape, const Rule& rule) : rule_(rule) {
    spec_.name = "w";
    spec_.dtype = shape.dtype;
    spec_.shape = shape.shape;
    spec_.tile_rows = shape.tile_rows;
    spec_of_state_ = spec_;
    if (shape.state_rows > 0) spec_of_state_.tile_rows = shape.state_rows;
    weight_ = *engine_.Register(spec_, {});
  }

  // Registers new tensors of a format, which hold zeros.
  StateTensors Make(StateFormat format) {
    StateTensors state = {.format = format, .tensors = {}};
    const auto specs = StateSpecs(rule_, format, spec_of_state_);
    for (const TensorSpec& spec : *specs) state.tensors.push_back(*engine_.Register(spec, {}));
    return state;
  }
  // Makes fp32 state with random values. A 16-bit weight is the nearest to its master weight.
  StateTensors MakeRandom(uint64_t seed) {
    StateTensors state = Make(StateFormat::kF32);
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    auto masters = spec_.dtype == DType::kF32 ? engine_.Values<float>(weight_)
                                              : engine_.Values<float>(state.tensors[0]);
    for (float& value : masters) value = 0.02F * normal(random);
    if (spec_.dtype != DType::kF32) {
      CodecOf(spec_.dtype)
          .encode(masters.data(), static_cast<int64_t>(masters.size()),
                  engine_.Values<uint16_t>(weight_).data());
    }
    const size_t first = spec_.dtype == DType::kF32 ? 0 : 1;
    for (size_t m = first; m < state.tensors.size(); ++m) {
      for (float& value : engine_.Values<float>(state.tensors[m])) {
        value = 1e-3F * normal(random);
        if (m > first) value *= value;
      }
    }
    return state;
  }
  DecodedTile Read(const StateTensors& state) {
    const auto resting =
        RestingState::Create(&engine_, rule_, state.format, spec_of_state_, weight_, state.tensors);
    EXPECT_TRUE(resting.ok()) << resting.status();
    DecodedTile all, piece;
    for (uint64_t tile = 0; tile < resting->num_tiles(); ++tile) {
      EXPECT_TRUE(resting->Read(tile, &piece).ok());
      all.master.insert(all.master.end(), piece.master.begin(), piece.master.end());
      for (size_t m = 0; m < piece.moments.size(); ++m)
        all.moments[m].insert(all.moments[m].end(), piece.moments[m].begin(),
                              piece.moments[m].end());
    }
    return all;
  }
  absl::Status Convert(const StateTensors& from, const StateTensors& to, StateChange* change) {
    return ConvertState(&engine_, rule_, weight_, from, to, change);
  }
  std::vector<std::byte> Bytes(TensorId id) {
    const auto content = engine_.Values<std::byte>(id);
    return {content.begin(), content.end()};
  }

  const TensorSpec& spec() const { return spec_; }
  TensorId weight() const { return weight_; }
  HeapEngine& engine() { return engine_; }

 private:
  HeapEngine engine_;
  const Rule rule_;
  TensorSpec spec_;
  TensorSpec spec_of_state_;  // for which StateSpecs lists the state
  TensorId weight_;
};

double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::fabs(double{a[i]} - double{b[i]});
  return sum;
}

class StateConversionTest : public testing::TestWithParam<std::tuple<Shape, StateFormat>> {
 protected:
  const Shape& shape() const { return std::get<0>(GetParam()); }
  StateFormat format() const { return std::get<1>(GetParam()); }
  bool Exists() const { return format() != StateFormat::kCompact || shape().dtype != DType::kF32; }
};

TEST_P(StateConversionTest, KeepsWhatTheFormatHolds) {
  if (!Exists()) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(StateSpecs({}, format(), Parameter(shape(), {}).spec()).status()));
    return;
  }
  Parameter parameter(shape(), {});
  const StateTensors from = parameter.MakeRandom(test::Seed()), to = parameter.Make(format());
  const DecodedTile before = parameter.Read(from);
  StateChange change;
  const absl::Status status = parameter.Convert(from, to, &change);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(parameter.engine().held(), 0);
  EXPECT_LE(parameter.engine().most_held(), 2);
  const DecodedTile after = parameter.Read(to);
  if (format() == StateFormat::kCompact) {
    for (size_t i = 0; i < before.master.size(); ++i)
      EXPECT_NEAR(after.master[i], before.master[i], std::fabs(before.master[i]) / 30000 + 1e-10);
  } else {
    EXPECT_EQ(after.master, before.master);
  }
  EXPECT_DOUBLE_EQ(change.master.difference, Difference(before.master, after.master));
  for (size_t m = 0; m < 2; ++m) {
    EXPECT_DOUBLE_EQ(change.moments[m].difference, Difference(before.moments[m], after.moments[m]));
    EXPECT_GT(change.moments[m].magnitude, 0);
    EXPECT_LE(change.moments[m].difference, MeanChange(format()) * change.moments[m].magnitude)
        << m;
  }
  for (size_t i = 0; i < before.moments[1].size(); ++i) {
    if (before.moments[1][i] <= 0) continue;
    EXPECT_GT(after.moments[1][i], 0) << "a step is divided by its root";
  }
}

// fp32 holds what any format decodes to, and a format holds its own values.
TEST_P(StateConversionTest, BackIntoFp32AndAgainChangesNoValueAnyMore) {
  if (!Exists() || format() == StateFormat::kF32) return;
  Parameter parameter(shape(), {});
  const StateTensors first = parameter.Make(format()), back = parameter.Make(StateFormat::kF32);
  StateChange change;
  ASSERT_TRUE(parameter.Convert(parameter.MakeRandom(test::Seed()), first, &change).ok());
  const DecodedTile before = parameter.Read(first);
  change = {};
  ASSERT_TRUE(parameter.Convert(first, back, &change).ok());
  EXPECT_EQ(change.master.difference, 0);
  EXPECT_EQ(change.moments[0].difference, 0);
  EXPECT_EQ(change.moments[1].difference, 0);
  const DecodedTile after = parameter.Read(back);
  EXPECT_EQ(after.master, before.master);
  EXPECT_EQ(after.moments, before.moments);
  // The weight is the master's nearest, ties to even, which compact state does not promise.
  std::vector<std::byte> weight(parameter.spec().size_bytes());
  CodecOf(shape().dtype)
      .encode(after.master.data(), static_cast<int64_t>(after.master.size()), weight.data());
  EXPECT_EQ(parameter.Bytes(parameter.weight()), weight);
}

INSTANTIATE_TEST_SUITE_P(All, StateConversionTest,
                         testing::Combine(testing::ValuesIn(kShapes), testing::ValuesIn(kFormats)),
                         [](const auto& of) {
                           return absl::StrCat(std::get<0>(of.param).name, "_",
                                               std::string(Name(std::get<1>(of.param))));
                         });

TEST(StateConversion, ARuleWithOneMomentOrNoneConvertsToo) {
  for (const double momentum : {0.9, 0.0}) {
    Parameter parameter(kShapes[0], {.kind = RuleKind::kSgd, .momentum = momentum});
    const StateTensors from = parameter.MakeRandom(test::Seed());
    const StateTensors to = parameter.Make(StateFormat::kCompact);
    StateChange change;
    ASSERT_TRUE(parameter.Convert(from, to, &change).ok());
    EXPECT_GT(change.master.magnitude, 0);
    EXPECT_EQ(change.moments[0].magnitude > 0, momentum > 0);
    EXPECT_EQ(change.moments[1].magnitude, 0);
  }
}

TEST(StateConversion, RulesWithThreeMomentsConvertToo) {
  const Rule amsgrad = {.kind = RuleKind::kAdam, .amsgrad = true};
  const Rule centered = {.kind = RuleKind::kRmsProp, .momentum = 0.9, .centered = true};
  for (const Rule& rule : {amsgrad, centered}) {
    for (const StateFormat format : kFormats) {
      Parameter parameter(kShapes[0], rule);
      const StateTensors from = parameter.MakeRandom(test::Seed()), to = parameter.Make(format);
      const StateTensors back = parameter.Make(StateFormat::kF32);
      // Averages of squares are not negative.
      for (size_t m = 0; m < 3; ++m) {
        if (MapOf(MomentNames(rule)[m]) == CodeMap::kSigned) continue;
        for (float& value : parameter.engine().Values<float>(from.tensors[1 + m]))
          value = std::fabs(value);
      }
      StateChange change, none;
      const absl::Status status = parameter.Convert(from, to, &change);
      ASSERT_TRUE(status.ok()) << status;
      for (const ValueChange& moment : change.moments) {
        EXPECT_GT(moment.magnitude, 0);
        EXPECT_LE(moment.difference, MeanChange(format) * moment.magnitude);
      }
      const DecodedTile stored = parameter.Read(to);
      ASSERT_TRUE(parameter.Convert(to, back, &none).ok());
      EXPECT_EQ(parameter.Read(back).moments, stored.moments);
    }
  }
}

TEST(StateConversion, ARuleWithoutMomentsKeepsItsMasterWeightInEachFormat) {
  Parameter parameter(kShapes[0], {.kind = RuleKind::kSgd});
  const StateTensors from = parameter.MakeRandom(test::Seed());
  const DecodedTile before = parameter.Read(from);
  for (const StateFormat format : {StateFormat::kBf16, StateFormat::k8Bit}) {
    StateTensors to = from;
    to.format = format;
    EXPECT_EQ(parameter.Read(to).master, before.master);
  }
}

TEST(StateConversion, RulesThatTakeNormsConvertToo) {
  for (const RuleKind kind : {RuleKind::kLamb, RuleKind::kLars}) {
    for (const StateFormat format : kFormats) {
      Parameter parameter(kShapes[0], UsualRule(kind));
      const StateTensors from = parameter.MakeRandom(test::Seed()), to = parameter.Make(format);
      StateChange change;
      const absl::Status status = parameter.Convert(from, to, &change);
      ASSERT_TRUE(status.ok()) << status;
      for (size_t m = 0; m < 2; ++m)
        EXPECT_LE(change.moments[m].difference, MeanChange(format) * change.moments[m].magnitude);
      EXPECT_EQ(change.moments[1].magnitude > 0, kind == RuleKind::kLamb);
    }
  }
}

// Adafactor's means of a matrix have fewer elements than the weight, and its state has no format
// but fp32.
TEST(StateConversion, RefusesAdafactorAndTouchesNothing) {
  for (const Shape& shape : {kShapes[0], kShapes[2], kShapes[5]}) {
    Parameter parameter(shape, UsualRule(RuleKind::kAdafactor));
    const StateTensors from = parameter.MakeRandom(1);
    for (const StateFormat format : kFormats) {
      StateTensors to = from;
      to.format = format;
      StateChange change;
      const absl::Status status = parameter.Convert(from, to, &change);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_NE(status.message().find("adafactor"), std::string::npos) << status;
    }
    EXPECT_TRUE(parameter.engine().uses.empty());
  }
}

TEST(StateConversion, FormatsMayShareTheMasterWeight) {
  Parameter parameter(kShapes[0], {});
  const StateTensors from = parameter.MakeRandom(test::Seed());
  StateTensors to = parameter.Make(StateFormat::k8Bit);
  to.tensors[0] = from.tensors[0];
  const auto master = parameter.Bytes(from.tensors[0]),
             weight = parameter.Bytes(parameter.weight());
  StateChange change;
  ASSERT_TRUE(parameter.Convert(from, to, &change).ok());
  EXPECT_EQ(parameter.Bytes(from.tensors[0]), master);
  EXPECT_EQ(parameter.Bytes(parameter.weight()), weight);
  for (const Use& use : parameter.engine().uses) {
    EXPECT_TRUE(use.tile.tensor != from.tensors[0] || use.access == Access::kRead);
  }
}

TEST(StateConversion, RefusesTensorsThatAreNotOfTheFormat) {
  Parameter parameter(kShapes[0], {});
  const StateTensors from = parameter.MakeRandom(1);
  StateTensors to = parameter.Make(StateFormat::k8Bit);
  StateChange change;
  to.format = StateFormat::kCompact;
  EXPECT_TRUE(absl::IsInvalidArgument(parameter.Convert(from, to, &change)));
  to.format = StateFormat::kBf16;
  EXPECT_TRUE(absl::IsInvalidArgument(parameter.Convert(from, to, &change)));
}

TEST(StateConversion, RefusesIdsOfNoTensor) {
  Parameter parameter(kShapes[0], {});
  const StateTensors from = parameter.MakeRandom(1), to = parameter.Make(StateFormat::kBf16);
  const TensorId unknown{12345};
  StateChange change;
  for (const size_t i : {0, 2}) {
    StateTensors wrong_from = from, wrong_to = to;
    wrong_from.tensors[i] = wrong_to.tensors[i] = unknown;
    EXPECT_TRUE(absl::IsInvalidArgument(parameter.Convert(wrong_from, to, &change)));
    EXPECT_TRUE(absl::IsInvalidArgument(parameter.Convert(from, wrong_to, &change)));
  }
  EXPECT_TRUE(
      absl::IsInvalidArgument(ConvertState(&parameter.engine(), {}, unknown, from, to, &change)));
  EXPECT_TRUE(parameter.engine().uses.empty());
}

TEST(StateConversion, RefusesVectorsThatAreCutInsideABlock) {
  Parameter parameter({"Cut", DType::kF16, {300}, 100}, {});
  const StateTensors from = parameter.MakeRandom(1);
  StateChange change;
  for (const StateFormat format : {StateFormat::k8Bit, StateFormat::kCompact})
    EXPECT_TRUE(absl::IsInvalidArgument(parameter.Convert(from, parameter.Make(format), &change)));
}

TEST(StateConversion, AnErrorOfTheEngineComesAsItIs) {
  Parameter parameter(kShapes[0], {});
  const StateTensors from = parameter.MakeRandom(1), to = parameter.Make(StateFormat::k8Bit);
  StateChange change;
  for (size_t at : {0, 1, 3, 5}) {
    parameter.engine().uses.clear();
    parameter.engine().refuse_at = at;
    EXPECT_TRUE(absl::IsDataLoss(parameter.Convert(from, to, &change))) << at;
    EXPECT_EQ(parameter.engine().held(), 0);
  }
}

}  // namespace
}  // namespace spillway::optim
