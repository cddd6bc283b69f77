// SPDX-License-Identifier: Apache-2.0

#include "tests/optim/reference_parameter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "src/optim/element_codecs.h"
#include "src/optim/state_specs.h"
#include "tests/optim/norm_reference.h"
#include "tests/optim/rule_reference.h"
#include "tests/optim/sum_reference.h"

namespace spillway::optim {

float ValueAt(const Bytes& bytes, DType dtype, size_t i) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, &bytes[i * 4], 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, &bytes[i * 2], 2);
  return dtype == DType::kF16 ? FloatOfHalf(bits) : FloatOfBf16(bits);
}

void PutValue(float value, DType dtype, size_t i, Bytes* bytes) {
  if (dtype == DType::kF32) {
    std::memcpy(&(*bytes)[i * 4], &value, 4);
    return;
  }
  const uint16_t bits = dtype == DType::kF16 ? HalfOfFloat(value) : Bf16OfFloat(value);
  std::memcpy(&(*bytes)[i * 2], &bits, 2);
}

TensorSpec Spec(std::string name, DType dtype, std::vector<int64_t> shape, int64_t tile_rows) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.dtype = dtype;
  spec.shape = std::move(shape);
  spec.tile_rows = tile_rows;
  return spec;
}

ReferenceParameter::ReferenceParameter(TensorSpec spec, DType gradient_type, const Rule& of_rule,
                                       StateFormat of_format, uint32_t seed)
    : weight_spec(std::move(spec)),
      gradient_dtype(gradient_type),
      rule(of_rule),
      format(of_format) {
  if (is_compact() && weight_spec.dtype == DType::kF32) weight_spec.dtype = DType::kBF16;
  state_specs = *StateSpecs(rule, format, weight_spec);
  const size_t n = weight_spec.size_bytes() / ElementBytes(weight_spec.dtype);
  master.resize(n);
  weight.resize(weight_spec.size_bytes());
  gradient.resize(n * ElementBytes(gradient_dtype));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < n; ++i) {
    PutValue(normal(random), weight_spec.dtype, i, &weight);
    master[i] = ValueAt(weight, weight_spec.dtype, i);
  }
  for (const TensorSpec& state_spec : state_specs) {
    Bytes bytes(state_spec.size_bytes());
    if (state_spec.role == Role::kMasterWeight)
      std::memcpy(bytes.data(), master.data(), bytes.size());
    state.push_back(std::move(bytes));
  }
  for (size_t i = 0; is_compact() && i < n; ++i)
    state.back()[ResidualAt(i)] = static_cast<std::byte>(random());
}

void ReferenceParameter::NewGradient(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < size(); ++i) PutValue(normal(random) * 0.1F, gradient_dtype, i, &gradient);
}

void ReferenceParameter::Apply(const Update& update) {
  const Rule& by = update.rule.value_or(rule);
  if (IsFactored(rule, weight_spec.shape)) return ApplyFactored(by, update);
  RuleFactors factors = MakeFactors(by, update);
  std::vector<std::vector<float>> moments = DecodeMoments();
  if (is_compact()) JoinMasters();
  if (NeedsNorms(by, weight_spec.shape.size())) {
    factors.step_size =
        ReferenceStepSize(by, update, Length(master), Length(Directions(factors, moments)), size());
  }
  for (size_t i = 0; i < size(); ++i) {
    float direction = 0;
    UpdateReference(factors, ValueAt(gradient, gradient_dtype, i), &master[i],
                    MomentsAt(&moments, i), &direction);
    PutValue(master[i], weight_spec.dtype, i, &weight);
  }
  EncodeMoments(moments, update.step, MomentNames(by));
  if (is_compact()) SplitMasters(update.step);
  if (has_master()) std::memcpy(state[0].data(), master.data(), state[0].size());
}

std::vector<float> ReferenceParameter::Directions(const RuleFactors& factors,
                                                  Moments moments) const {
  std::vector<float> directions(size()), weights = master;
  for (size_t i = 0; i < size(); ++i) {
    UpdateReference(factors, ValueAt(gradient, gradient_dtype, i), &weights[i],
                    MomentsAt(&moments, i), &directions[i]);
  }
  return directions;
}

double ReferenceParameter::Length(const std::vector<float>& values) const {
  return std::sqrt(ReferenceSumOfSquares(values, size() / num_rows()));
}

void ReferenceParameter::ApplyFactored(const Rule& by, const Update& update) {
  std::vector<float> gradients(size());
  for (size_t i = 0; i < size(); ++i) gradients[i] = ValueAt(gradient, gradient_dtype, i);
  Moments means = DecodeMoments();
  UpdateFactoredReference(by, update, weight_spec.shape, gradients, &master, &means[0], &means[1]);
  for (size_t i = 0; i < size(); ++i) PutValue(master[i], weight_spec.dtype, i, &weight);
  EncodeMoments(means, update.step, MomentNames(rule, true));
  if (has_master()) std::memcpy(state[0].data(), master.data(), state[0].size());
}

size_t ReferenceParameter::num_rows() const {
  return weight_spec.shape.size() < 2 ? 1 : static_cast<size_t>(weight_spec.shape[0]);
}

std::vector<CodeMap> ReferenceParameter::Maps() const {
  std::vector<CodeMap> maps;
  for (const std::string_view name : MomentNames(rule)) {
    const bool is_square = name.find("sq") != std::string_view::npos || name == "grad_var";
    maps.push_back(name.starts_with("max") ? CodeMap::kGrowing
                   : is_square             ? CodeMap::kUnsigned
                                           : CodeMap::kSigned);
  }
  return maps;
}

std::array<float*, kMostMoments> ReferenceParameter::MomentsAt(Moments* moments, size_t i) const {
  std::array<float*, kMostMoments> at = {};
  const std::vector<std::string_view> names = MomentNames(rule);
  for (size_t m = 0; m < names.size(); ++m) at[SlotOf(rule.kind, names[m])] = &(*moments)[m][i];
  return at;
}

ReferenceRow ReferenceParameter::Row() const { return {.n = size() / num_rows(), .maps = Maps()}; }

CompactRow ReferenceParameter::Compact() const {
  return {.n = size() / num_rows(), .maps = Maps()};
}

size_t ReferenceParameter::ResidualAt(size_t i) const {
  const CompactRow row = Compact();
  return i / row.n * row.size_bytes() + i % row.n;
}

void ReferenceParameter::JoinMasters() {
  for (size_t i = 0; i < size(); ++i) {
    SplitMaster split;
    std::memcpy(&split.weight, &weight[2 * i], 2);
    split.residual = static_cast<int8_t>(state.back()[ResidualAt(i)]);
    master[i] = ReferenceJoin(weight_spec.dtype, split);
  }
}

void ReferenceParameter::SplitMasters(int64_t step) {
  const uint64_t key = RoundingKey(state_specs.back().name, step);
  for (size_t i = 0; i < size(); ++i) {
    const SplitMaster split = ReferenceSplit(weight_spec.dtype, master[i], ReferenceWord(key, i));
    std::memcpy(&weight[2 * i], &split.weight, 2);
    state.back()[ResidualAt(i)] = static_cast<std::byte>(split.residual);
  }
}

ReferenceParameter::Moments ReferenceParameter::DecodeMoments() const {
  Moments moments(MomentNames(rule, IsFactored(rule, weight_spec.shape)).size());
  if (is_compact()) {
    const CompactRow row = Compact();
    for (size_t m = 0; m < moments.size(); ++m) {
      for (size_t i = 0; i < size(); ++i)
        moments[m].push_back(
            row.DecodeMoment(&state.back()[i / row.n * row.size_bytes()], m, i % row.n));
    }
    return moments;
  }
  if (format == StateFormat::k8Bit) {
    for (std::vector<float>& moment : moments) moment.resize(size());
  }
  if (format != StateFormat::k8Bit) {
    for (size_t m = 0; m < moments.size(); ++m) {
      const size_t tensor = first_moment() + m;
      const size_t n = state[tensor].size() / ElementBytes(state_specs[tensor].dtype);
      moments[m].resize(n);
      for (size_t i = 0; i < n; ++i)
        moments[m][i] = ValueAt(state[tensor], state_specs[tensor].dtype, i);
    }
    return moments;
  }
  const ReferenceRow row = Row();
  for (size_t r = 0; !moments.empty() && r < num_rows(); ++r) {
    const Moments decoded = row.Decode(&state.back()[r * row.size_bytes()]);
    for (size_t m = 0; m < moments.size(); ++m)
      std::copy(decoded[m].begin(), decoded[m].end(), &moments[m][r * row.n]);
  }
  return moments;
}

void ReferenceParameter::EncodeMoments(const Moments& moments, int64_t step,
                                       const std::vector<std::string_view>& used) {
  const std::vector<std::string_view> names =
      MomentNames(rule, IsFactored(rule, weight_spec.shape));
  const auto is_used = [&](size_t m) { return std::ranges::find(used, names[m]) != used.end(); };
  if (is_compact()) {
    const CompactRow row = Compact();
    for (size_t m = 0; m < moments.size(); ++m) {
      if (!is_used(m)) continue;
      // The second signed moment, and the second unsigned one, have words of their own.
      const auto is_signed = [&](CodeMap map) { return map == CodeMap::kSigned; };
      const auto same = std::count_if(row.maps.begin(), row.maps.begin() + m, [&](CodeMap map) {
        return is_signed(map) == is_signed(row.maps[m]);
      });
      const uint64_t key = RoundingKey(state_specs.back().name + (same > 0 ? ":2" : ""), step);
      for (size_t r = 0; r < num_rows(); ++r) {
        row.EncodeMoment({&moments[m][r * row.n], &moments[m][r * row.n] + row.n}, key, r * row.n,
                         m, &state.back()[r * row.size_bytes()]);
      }
    }
    return;
  }
  if (format != StateFormat::k8Bit) {
    for (size_t m = 0; m < moments.size(); ++m) {
      for (size_t i = 0; is_used(m) && i < moments[m].size(); ++i)
        PutMoment(first_moment() + m, i, moments[m][i], step);
    }
    return;
  }
  const ReferenceRow row = Row();
  for (size_t r = 0; !moments.empty() && r < num_rows(); ++r) {
    Moments of_row;
    for (const std::vector<float>& moment : moments)
      of_row.emplace_back(&moment[r * row.n], &moment[r * row.n] + row.n);
    std::byte* const bytes = &state.back()[r * row.size_bytes()];
    const Bytes before(bytes, bytes + row.size_bytes());
    row.Encode(of_row, bytes);
    for (size_t m = 0; m < moments.size(); ++m) {
      if (!is_used(m)) row.CopyMoment(m, before.data(), bytes);
    }
  }
}

void ReferenceParameter::PutMoment(size_t tensor, size_t i, float value, int64_t step) {
  if (format == StateFormat::kF32) return PutValue(value, DType::kF32, i, &state[tensor]);
  const uint16_t bits = RandomlyRounded(value, RoundingKey(state_specs[tensor].name, step), i);
  std::memcpy(&state[tensor][i * 2], &bits, 2);
}

void CopyTiles(Engine& engine, TensorId id, Access access, std::byte* memory) {
  const TensorSpec& spec = engine.Spec(id);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    auto lease = engine.AcquireHost({id, tile}, access);
    ASSERT_TRUE(lease.ok()) << lease.status();
    std::byte* const at = memory + spec.tile_offset_bytes(tile);
    std::memcpy(Writes(access) ? lease->data() : at, Writes(access) ? at : lease->data(),
                lease->size_bytes());
  }
}

void ExpectContent(Engine& engine, TensorId id, const Bytes& expected) {
  Bytes content(expected.size());
  CopyTiles(engine, id, Access::kRead, content.data());
  EXPECT_TRUE(content == expected) << engine.Spec(id).name;
}

ParameterTensors RegisterParameter(Engine& engine, const ReferenceParameter& p) {
  const auto add = [&](const TensorSpec& spec, const Bytes& bytes) {
    const Reader reader = [&bytes](uint64_t offset_bytes, std::span<std::byte> out) {
      std::memcpy(out.data(), bytes.data() + offset_bytes, out.size());
      return absl::OkStatus();
    };
    const auto id = engine.Register(spec, reader);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(TensorId());
  };
  TensorSpec gradient = p.weight_spec;
  gradient.name += ".gradient";
  gradient.dtype = p.gradient_dtype;
  gradient.role = Role::kGradient;
  gradient.transient = true;
  ParameterTensors tensors = {.weight = add(p.weight_spec, p.weight)};
  tensors.gradient = add(gradient, p.gradient);
  for (size_t i = 0; i < p.state.size(); ++i)
    tensors.state.push_back(add(p.state_specs[i], p.state[i]));
  return tensors;
}

void ExpectParameter(Engine& engine, const ParameterTensors& tensors, const ReferenceParameter& p) {
  ExpectContent(engine, tensors.weight.tensor, p.weight);
  for (size_t i = 0; i < p.state.size(); ++i) ExpectContent(engine, tensors.state[i], p.state[i]);
}

std::vector<RuleAndFormat> AllPairs() {
  std::vector<RuleAndFormat> pairs;
  for (const Rule& rule : AllRules()) {
    for (int format = 0; format < kNumStateFormats; ++format) {
      if (Exists(rule, static_cast<StateFormat>(format)))
        pairs.push_back({rule, static_cast<StateFormat>(format)});
    }
  }
  return pairs;
}

std::string PairName(const testing::TestParamInfo<RuleAndFormat>& test) {
  return RuleName(test.param.rule) + "_" + std::string(Name(test.param.format));
}

}  // namespace spillway::optim
