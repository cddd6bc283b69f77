// SPDX-License-Identifier: Apache-2.0
//
// C ABI: the optimizer. Adding a parameter registers its state, unless the caller passes the
// state's tensors. One call updates many parameters. optimizer_state.cc reads and writes the
// contents of the state.

#include "spillway/optimizer.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "src/base/interrupt.h"
#include "src/base/status_macros.h"
#include "src/capi/calls.h"
#include "src/capi/handles.h"
#include "src/capi/json.h"
#include "src/optim/element_codecs.h"
#include "src/optim/tensor_bytes.h"

namespace spillway::capi {
namespace {

using base::MutexLock;

spw_rule DefaultRule(RuleKind kind) {
  const Rule usual = UsualRule(kind);
  spw_rule rule = {};
  rule.kind = static_cast<int32_t>(kind);
  rule.beta1 = usual.beta1;
  rule.beta2 = usual.beta2;
  rule.epsilon = usual.epsilon;
  rule.alpha = usual.alpha;
  rule.momentum = usual.momentum;
  rule.trust_coefficient = usual.trust_coefficient;
  rule.beta2_decay = usual.beta2_decay;
  rule.epsilon2 = usual.epsilon2;
  rule.clipping_threshold = usual.clipping_threshold;
  rule.dampening = usual.dampening;
  rule.nesterov = usual.nesterov ? 1 : 0;
  rule.centered = usual.centered ? 1 : 0;
  rule.amsgrad = usual.amsgrad ? 1 : 0;
  rule.maximize = usual.maximize ? 1 : 0;
  return rule;
}

absl::StatusOr<Rule> ToRule(const spw_rule* rule) {
  SPILLWAY_RETURN_IF_ERROR(CheckStruct(rule, "spw_rule"));
  Rule to;
  const int32_t kind = Grown(rule, rule->size, DefaultRule(RuleKind::kAdamW)).kind;
  SPILLWAY_RETURN_IF_ERROR(ToEnum(kind, RuleKind::kAdafactor, "rule.kind", &to.kind));
  const spw_rule given = Grown(rule, rule->size, DefaultRule(to.kind));
  to.beta1 = given.beta1;
  to.beta2 = given.beta2;
  to.epsilon = given.epsilon;
  to.alpha = given.alpha;
  to.momentum = given.momentum;
  to.trust_coefficient = given.trust_coefficient;
  to.beta2_decay = given.beta2_decay;
  to.epsilon2 = given.epsilon2;
  to.clipping_threshold = given.clipping_threshold;
  to.dampening = given.dampening;
  to.nesterov = given.nesterov != 0;
  to.centered = given.centered != 0;
  to.amsgrad = given.amsgrad != 0;
  to.maximize = given.maximize != 0;
  return to;
}

spw_update DefaultUpdate() {
  spw_update update = {};
  update.step = 1;
  update.gradient_scale = 1;
  return update;
}

absl::StatusOr<Values> ToValues(const spw_values& given) {
  if (given.memory == nullptr) return Values(TensorId{given.id});
  auto dtype = DType::kF32;
  SPILLWAY_RETURN_IF_ERROR(ToEnum(given.dtype, DType::kBF16, "dtype", &dtype));
  return Values(given.memory, dtype);
}

// Returns the spec of the weight, from which the names and tiles of its state follow. A weight in
// the caller's memory gets the spec that it would have as a tensor.
absl::StatusOr<TensorSpec> WeightSpec(const Engine& engine, const spw_parameter& given,
                                      const Values& weight) {
  if (weight.memory == nullptr) {
    SPILLWAY_RETURN_IF_ERROR(engine.CheckTile(weight.tensor));
    TensorSpec spec = engine.Spec(weight.tensor);
    if (given.tile_rows > 0) spec.tile_rows = given.tile_rows;
    if (given.name != nullptr) spec.name = given.name;
    return spec;
  }
  SPILLWAY_RETURN_IF_ERROR(CheckNotNull(given.name, "spw_parameter.name"));
  if (given.rank > 0) SPILLWAY_RETURN_IF_ERROR(CheckNotNull(given.shape, "spw_parameter.shape"));
  return TensorSpec{.name = given.name,
                    .dtype = weight.dtype,
                    .shape = {given.shape, given.shape + given.rank},
                    .tile_rows = given.tile_rows};
}

// Returns a Reader of a weight's values in fp32. It reads a tensor in pieces, to bound the buffer
// for encoded elements.
Reader ReadWeight(Engine* engine, const Values& weight) {
  return [=](uint64_t offset_bytes, std::span<std::byte> out) -> absl::Status {
    constexpr uint64_t kPiece = 65536;
    const std::span<float> values(reinterpret_cast<float*>(out.data()), out.size() / sizeof(float));
    const uint64_t first = offset_bytes / sizeof(float);
    if (weight.memory != nullptr) {
      const optim::ElementCodec& codec = optim::CodecOf(weight.dtype);
      codec.decode(static_cast<const std::byte*>(weight.memory) + first * codec.element_bytes,
                   static_cast<int64_t>(values.size()), values.data());
      return absl::OkStatus();
    }
    for (uint64_t done = 0; done < values.size(); done += kPiece) {
      const auto piece = values.subspan(done, std::min(kPiece, values.size() - done));
      SPILLWAY_RETURN_IF_ERROR(optim::ReadValues(*engine, weight.tensor, first + done, piece));
    }
    return absl::OkStatus();
  };
}

// Registers the tensors of a parameter's state. Tensors registered before a failure stay: they may
// belong to another user or to the last commit, and a later call finds them.
absl::StatusOr<std::vector<TensorId>> RegisterState(Engine* engine, StateFormat format,
                                                    const std::vector<TensorSpec>& specs,
                                                    const TensorSpec& weight, const Values& values,
                                                    bool is_fresh) {
  std::vector<TensorId> made;
  for (const TensorSpec& spec : specs) {
    const absl::Status forgotten = is_fresh ? engine->ForgetName(spec.name) : absl::OkStatus();
    if (!forgotten.ok() && !absl::IsNotFound(forgotten)) return forgotten;
    const Reader first = FirstValues(format, weight, spec, ReadWeight(engine, values));
    SPILLWAY_ASSIGN_OR_RETURN(made.emplace_back(), engine->Register(spec, first));
  }
  return made;
}

// Returns the parameter's tensors, and registers those of its state if the caller passes none. A
// parameter that Add would refuse is refused before that, so that its old state stays.
absl::StatusOr<ParameterTensors> ToTensors(spw_optimizer* optimizer, const spw_parameter& given,
                                           const Values& weight, const TensorSpec& spec)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(optimizer->mu) {
  ParameterTensors tensors;
  tensors.weight = weight;
  if (given.has_gradient != 0) {
    SPILLWAY_ASSIGN_OR_RETURN(tensors.gradient, ToValues(given.gradient));
  }
  if (weight.memory != nullptr) tensors.shape = spec.shape;
  if (given.rule != nullptr) {
    SPILLWAY_ASSIGN_OR_RETURN(tensors.rule, ToRule(given.rule));
  }
  if (given.state != nullptr) {
    for (size_t i = 0; i < given.num_state; ++i) tensors.state.push_back(TensorId{given.state[i]});
    return tensors;
  }
  SPILLWAY_ASSIGN_OR_RETURN(
      const std::vector<TensorSpec> specs,
      StateSpecs(tensors.rule.value_or(optimizer->rule), optimizer->format, spec));
  SPILLWAY_RETURN_IF_ERROR(optimizer->optimizer->CheckAdd(tensors, specs));
  SPILLWAY_ASSIGN_OR_RETURN(tensors.state, RegisterState(optimizer->engine.get(), optimizer->format,
                                                         specs, spec, weight, given.is_fresh != 0));
  return tensors;
}

}  // namespace
}  // namespace spillway::capi

using namespace spillway;        // NOLINT(google-build-using-namespace): for the calls below
using namespace spillway::capi;  // NOLINT(google-build-using-namespace)

extern "C" {

void spw_rule_init(spw_rule* rule, size_t size, int32_t kind) {
  auto known = RuleKind::kAdamW;
  const bool exists = ToEnum(kind, RuleKind::kAdafactor, "kind", &known).ok();
  spw_rule usual = DefaultRule(known);
  if (!exists) usual.kind = kind;  // spw_optimizer_create rejects it
  Init(rule, size, usual);
}

int32_t spw_rule_exists(const spw_rule* rule, int32_t state_format) {
  auto format = StateFormat::kF32;
  const auto known = ToRule(rule);
  const bool exists = known.ok() &&
                      ToEnum(state_format, StateFormat::kCompact, "state_format", &format).ok() &&
                      Exists(*known, format);
  return exists ? 1 : 0;
}

void spw_parameter_init(spw_parameter* parameter, size_t size) {
  Init(parameter, size, spw_parameter{});
}

void spw_update_init(spw_update* update, size_t size) { Init(update, size, DefaultUpdate()); }

spw_status* spw_optimizer_create(spw_engine* engine, const spw_rule* rule, int32_t state_format,
                                 int32_t num_threads, spw_optimizer** optimizer) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(optimizer, "optimizer"));
    auto made = std::make_unique<spw_optimizer>();
    SPILLWAY_ASSIGN_OR_RETURN(made->rule, ToRule(rule));
    SPILLWAY_RETURN_IF_ERROR(
        ToEnum(state_format, StateFormat::kCompact, "state_format", &made->format));
    if (num_threads < 0 || num_threads > 1024) {
      return absl::InvalidArgumentError(
          absl::StrCat("num_threads is ", num_threads, ": it must be from 0 to 1024"));
    }
    const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    made->engine = engine->engine;
    made->pool = std::make_unique<ThreadPool>(num_threads > 0 ? num_threads : processors);
    SPILLWAY_ASSIGN_OR_RETURN(made->optimizer,
                              Optimizer::Create(&in, made->pool.get(), made->rule, made->format));
    *optimizer = made.release();
    return absl::OkStatus();
  });
}

void spw_optimizer_release(spw_optimizer* optimizer) { delete optimizer; }

spw_status* spw_optimizer_add(spw_optimizer* optimizer, const spw_parameter* parameter,
                              size_t* number) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckUsable(optimizer));
    SPILLWAY_RETURN_IF_ERROR(CheckStruct(parameter, "spw_parameter"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(number, "number"));
    const spw_parameter given = Grown(parameter, parameter->size, spw_parameter{});
    SPILLWAY_ASSIGN_OR_RETURN(const Values weight, ToValues(given.weight));
    SPILLWAY_ASSIGN_OR_RETURN(const TensorSpec spec, WeightSpec(*optimizer->engine, given, weight));
    const base::Uninterrupted whole;
    MutexLock lock(&optimizer->mu);
    SPILLWAY_ASSIGN_OR_RETURN(const ParameterTensors tensors,
                              ToTensors(optimizer, given, weight, spec));
    const absl::StatusOr<size_t> added = optimizer->optimizer->Add(tensors);
    if (!added.ok()) return added.status();
    optimizer->parameters.push_back({spec, tensors});
    *number = *added;
    return absl::OkStatus();
  });
}

spw_status* spw_optimizer_remove(spw_optimizer* optimizer, size_t parameter) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckUsable(optimizer));
    MutexLock lock(&optimizer->mu);
    SPILLWAY_RETURN_IF_ERROR(optimizer->optimizer->Remove(parameter));
    optimizer->parameters[parameter].is_removed = true;
    return absl::OkStatus();
  });
}

spw_status* spw_optimizer_state_json(spw_optimizer* optimizer, size_t parameter, char** json) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckUsable(optimizer));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    MutexLock lock(&optimizer->mu);
    SPILLWAY_RETURN_IF_ERROR(CheckNumber(parameter, optimizer->parameters));
    std::vector<NamedId> state;
    for (const TensorId id : optimizer->parameters[parameter].tensors.state)
      state.push_back({optimizer->engine->Spec(id).name, id});
    *json = CopyText(ToJson(state));
    return absl::OkStatus();
  });
}

spw_status* spw_optimizer_step(spw_optimizer* optimizer, const spw_update* updates,
                               size_t num_updates) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckUsable(optimizer));
    if (num_updates == 0) return absl::OkStatus();
    SPILLWAY_RETURN_IF_ERROR(CheckStruct(updates, "spw_update"));
    std::vector<Update> given(num_updates);
    std::vector<size_t> parameters(num_updates);
    for (size_t i = 0; i < num_updates; ++i) {
      const auto* const at = reinterpret_cast<const spw_update*>(
          reinterpret_cast<const std::byte*>(updates) + i * updates->size);
      const spw_update update = Grown(at, updates->size, DefaultUpdate());
      given[i] = {.parameter = update.parameter,
                  .step = update.step,
                  .learning_rate = update.learning_rate,
                  .weight_decay = update.weight_decay,
                  .gradient_scale = update.gradient_scale,
                  .weight_memory = update.weight_memory,
                  .gradient_memory = update.gradient_memory,
                  .take_changed_weight = update.take_changed_weight != 0};
      if (update.rule != nullptr) {
        SPILLWAY_ASSIGN_OR_RETURN(given[i].rule, ToRule(update.rule));
      }
      parameters[i] = update.parameter;
    }
    MutexLock lock(&optimizer->mu);
    const base::Uninterrupted whole;
    // A step that is refused declares no uses, and leaves the weights where they are. After any
    // other failure, no parameter keeps an address that the caller may free.
    SPILLWAY_RETURN_IF_ERROR(optimizer->optimizer->Check(given));
    optimizer->optimizer->MoveMemory(given);
    for (const Update& update : given) {
      void*& memory = optimizer->parameters[update.parameter].tensors.weight.memory;
      if (update.weight_memory != nullptr && memory != nullptr) memory = update.weight_memory;
    }
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<Use> uses, optimizer->optimizer->Uses(parameters));
    SPILLWAY_RETURN_IF_ERROR(optimizer->engine->Prefetch(uses));
    return optimizer->optimizer->Step(given);
  });
}

spw_status* spw_optimizer_uses(spw_optimizer* optimizer, const size_t* parameters,
                               size_t num_parameters, spw_use** uses, size_t* num_uses) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckUsable(optimizer));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(uses, "uses"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(num_uses, "num_uses"));
    if (num_parameters > 0) SPILLWAY_RETURN_IF_ERROR(CheckNotNull(parameters, "parameters"));
    MutexLock lock(&optimizer->mu);
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<Use> given,
                              optimizer->optimizer->Uses({parameters, num_parameters}));
    std::vector<spw_use> out;
    for (const Use& use : given) {
      out.push_back({use.tile.tensor.value, static_cast<int32_t>(use.tier),
                     static_cast<int32_t>(use.access), use.tile.tile});
    }
    *uses = reinterpret_cast<spw_use*>(
        CopyText({reinterpret_cast<const char*>(out.data()), out.size() * sizeof(spw_use)}));
    *num_uses = out.size();
    return absl::OkStatus();
  });
}

uint64_t spw_optimizer_min_pinned_bytes(spw_optimizer* optimizer) {
  if (!CheckUsable(optimizer).ok()) return 0;
  MutexLock lock(&optimizer->mu);
  return optimizer->optimizer->min_pinned_bytes();
}

}  // extern "C"
