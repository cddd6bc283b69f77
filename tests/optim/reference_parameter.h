// SPDX-License-Identifier: Apache-2.0
//
// A parameter in plain memory that is updated one element at a time. An optimizer must give the
// engine's tensors the same bits.

#ifndef SPILLWAY_TESTS_OPTIM_REFERENCE_PARAMETER_H_
#define SPILLWAY_TESTS_OPTIM_REFERENCE_PARAMETER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "src/optim/rule_kernels.h"
#include "tests/optim/block_reference.h"
#include "tests/optim/compact_reference.h"

namespace spillway::optim {

using Bytes = std::vector<std::byte>;

float ValueAt(const Bytes& bytes, DType dtype, size_t i);

void PutValue(float value, DType dtype, size_t i, Bytes* bytes);

TensorSpec Spec(std::string name, DType dtype, std::vector<int64_t> shape, int64_t tile_rows);

struct ReferenceParameter {
  // Weights are random, and moments are zeros. Residuals of compact state are random too. Compact
  // state has no fp32 weights: the constructor makes them bf16.
  ReferenceParameter(TensorSpec spec, DType gradient_type, const Rule& of_rule,
                     StateFormat of_format, uint32_t seed);

  size_t size() const { return master.size(); }
  bool has_master() const { return weight_spec.dtype != DType::kF32 && !is_compact(); }
  bool is_compact() const { return format == StateFormat::kCompact; }

  void NewGradient(uint32_t seed);
  void Apply(const Update& update);

  TensorSpec weight_spec;
  DType gradient_dtype;
  Rule rule;
  StateFormat format;
  std::vector<TensorSpec> state_specs;
  std::vector<float> master;
  Bytes weight, gradient;
  std::vector<Bytes> state;

 private:
  using Moments = std::vector<std::vector<float>>;

  // Returns the direction of each element's step, whose norm the rule takes.
  std::vector<float> Directions(const RuleFactors& factors, Moments moments) const;
  double Length(const std::vector<float>& values) const;
  void ApplyFactored(const Rule& by, const Update& update);

  size_t first_moment() const { return has_master() ? 1 : 0; }

  // Rows, and the codec of 8-bit state.
  size_t num_rows() const;
  std::vector<CodeMap> Maps() const;
  ReferenceRow Row() const;

  // Compact state.
  CompactRow Compact() const;
  size_t ResidualAt(size_t i) const;
  void JoinMasters();
  void SplitMasters(int64_t step);

  Moments DecodeMoments() const;
  // Encodes the moments of these names. The others stay as they are.
  void EncodeMoments(const Moments& moments, int64_t step,
                     const std::vector<std::string_view>& used);
  // Returns where an element's moments are, each at its SlotOf.
  std::array<float*, kMostMoments> MomentsAt(Moments* moments, size_t i) const;
  void PutMoment(size_t tensor, size_t i, float value, int64_t step);
};

// Copies a tensor into the engine if `access` writes, else out of it, one tile at a time.
void CopyTiles(Engine& engine, TensorId id, Access access, std::byte* memory);
void ExpectContent(Engine& engine, TensorId id, const Bytes& expected);

// Registers the parameter's tensors with the engine. They begin with its values.
ParameterTensors RegisterParameter(Engine& engine, const ReferenceParameter& p);

// Expects the engine's weight and state to have the reference's bytes.
void ExpectParameter(Engine& engine, const ParameterTensors& tensors, const ReferenceParameter& p);

struct RuleAndFormat {
  Rule rule;
  StateFormat format;
};

// Returns every pair that exists.
std::vector<RuleAndFormat> AllPairs();

std::string PairName(const testing::TestParamInfo<RuleAndFormat>& test);

}  // namespace spillway::optim

#endif  // SPILLWAY_TESTS_OPTIM_REFERENCE_PARAMETER_H_
