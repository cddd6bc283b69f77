// SPDX-License-Identifier: Apache-2.0
//
// What a dry run records is what a run leases, event by event: training steps and evaluations of
// every kind of model, precision, order and rule, within budgets that hold as little as possible.
// The same steps on a stream of the engine give the same bits and the same events.

#include "tools/trainer/dry_run.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "tests/exhaustive.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"
#include "tests/trainer/small_model.h"
#include "tests/trainer/stream_compute.h"
#include "tests/trainer/watched_engine.h"
#include "tools/hf/model_types.h"
#include "tools/trainer/compute/host_compute.h"
#include "tools/trainer/master_weights.h"
#include "tools/trainer/parameter_groups.h"
#include "tools/trainer/parameters.h"
#include "tools/trainer/updates.h"

namespace spillway::trainer {

void PrintTo(const LeaseEvent& event, std::ostream* out) {
  constexpr const char* kKinds[] = {"acquire", "release", "discard"};
  *out << kKinds[static_cast<size_t>(event.kind)] << " tensor " << event.tile.tensor.value
       << " tile " << event.tile.tile << " " << Name(event.tier) << " " << Name(event.access);
}

namespace {

using test::TempFolder;

struct Case {
  std::string name;
  hf::ModelConfig config;
  ModelOptions options;
};

// Every row of the table, tied and untied. Larger tensors have several tiles.
std::vector<std::pair<std::string, hf::ModelConfig>> Models() {
  std::vector<std::pair<std::string, hf::ModelConfig>> models;
  for (const auto& [type, row] : hf::ModelTypes().items()) {
    for (const bool tied : {true, false}) {
      hf::ModelConfig config = SmallConfigOf(type);
      config.vocab_size = 2100;
      config.hidden_size = 33;
      config.intermediate_size = 2003;
      config.max_position_embeddings = 2500;
      config.tie_word_embeddings = tied;
      models.emplace_back(absl::StrCat(type, tied ? "Tied" : "Untied"), config);
    }
  }
  return models;
}

// Shell globs for parameters of a model type, with the names that the table gives them.
std::string TokensOf(const std::string& type) {
  const auto& names = hf::ModelTypeOf(type).at("names");
  return absl::StrCat("*", names.at("tokens").get<std::string>(), ".*");
}
std::string FirstBlockOf(const std::string& type) {
  const auto& names = hf::ModelTypeOf(type).at("names");
  return absl::StrCat("*", names.at("block").get<std::string>(), ".0.*");
}
std::vector<std::string> NormsOf(const std::string& type) {
  const auto& row = hf::ModelTypeOf(type);
  std::vector<std::string> globs = {
      absl::StrCat("*", row.at("names").at("last").get<std::string>(), ".*")};
  for (const auto& sublayer : row.at("sublayers"))
    globs.push_back(absl::StrCat("*", sublayer.at("norm").get<std::string>(), ".*"));
  return globs;
}

ModelOptions SmallOptions() {
  ModelOptions options;
  options.sequence = 9;
  options.micro_batch = 2;
  return options;
}

// Each model in each precision, order and way to keep activations, then rules, formats and groups.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const auto& [name, config] : Models()) {
    for (const Precision precision : {Precision::kFp32, Precision::kFp16Amp, Precision::kBf16}) {
      for (const bool checkpoint : {true, false}) {
        for (const int64_t accumulate : {1, 3}) {
          for (const auto order : {AccumulationOrder::kMicroBatch, AccumulationOrder::kLayer}) {
            Case c = {.name = absl::StrCat(name, std::string(Name(precision)),
                                           checkpoint ? "Checkpointed" : "Saved", accumulate,
                                           order == AccumulationOrder::kLayer ? "ByLayer" : ""),
                      .config = config,
                      .options = SmallOptions()};
            c.options.precision = precision;
            c.options.gradient_dtype = ElementType(precision);
            c.options.checkpoint_activations = checkpoint;
            c.options.accumulate = accumulate;
            c.options.accumulation_order = order;
            if (accumulate > 1 || order == AccumulationOrder::kMicroBatch) cases.push_back(c);
          }
        }
      }
    }
    for (int kind = 0; kind < kNumRuleKinds; ++kind) {
      for (int format = 0; format < kNumStateFormats; ++format) {
        Case c = {.name = absl::StrCat(name, "Rule", kind, "Format", format),
                  .config = config,
                  .options = SmallOptions()};
        c.options.rule = UsualRule(static_cast<RuleKind>(kind));
        c.options.state_format = static_cast<StateFormat>(format);
        c.options.precision = Precision::kBf16;
        if (Exists(c.options.rule, c.options.state_format)) cases.push_back(c);
      }
    }
    for (const Precision precision : {Precision::kFp32, Precision::kFp16Amp, Precision::kBf16}) {
      for (const auto order : {AccumulationOrder::kMicroBatch, AccumulationOrder::kLayer}) {
        Case frozen = {.name = absl::StrCat(name, "Frozen", std::string(Name(precision)),
                                            order == AccumulationOrder::kLayer ? "ByLayer" : ""),
                       .config = config,
                       .options = SmallOptions()};
        frozen.options.precision = precision;
        frozen.options.gradient_dtype = ElementType(precision);
        frozen.options.accumulate = 2;
        frozen.options.accumulation_order = order;
        frozen.options.groups.frozen = {TokensOf(config.model_type),
                                        FirstBlockOf(config.model_type)};
        cases.push_back(frozen);
      }
    }
    for (const Precision precision : {Precision::kFp16Amp, Precision::kBf16}) {
      Case mixed = {.name = absl::StrCat(name, "Fp32Norms", std::string(Name(precision))),
                    .config = config,
                    .options = SmallOptions()};
      mixed.options.precision = precision;
      mixed.options.groups.fp32 = NormsOf(config.model_type);
      cases.push_back(mixed);
    }
  }
  for (Case& c : cases) std::erase(c.name, '-');
  return cases;
}

// Returns the cases to try: some of them, which the seed draws, or all in the slow run.
std::vector<Case> DrawnCases(size_t count) {
  std::vector<Case> cases = Cases();
  if (IsExhaustive()) return cases;
  std::mt19937_64 random(test::Seed());
  std::shuffle(cases.begin(), cases.end(), random);
  cases.resize(count / SampleShare());
  return cases;
}

// A model in an engine with the smallest budgets, and its optimizer, which updates on the stream if
// options.on_gpu.
class ModelRun {
 public:
  explicit ModelRun(const Case& c, bool on_stream = false, const Placement& placement = {})
      : pool_(2), options_(c.options) {
    const MinimumBudgets budgets = SmallestBudgets(c.config, c.options, placement);
    EngineOptions engine_options;
    engine_options.placement = placement;
    engine_options.store = {folder_.path() + "/store"};
    engine_options.device_bytes = std::max<uint64_t>(4096, budgets.device_bytes);
    engine_options.pinned_bytes = std::max<uint64_t>(4096, budgets.pinned_bytes);
    auto opened = Engine::Open(engine_options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    engine_ = *std::move(opened);
    watched_ = std::make_unique<WatchedEngine>(engine_.get());
    std::unique_ptr<Compute> compute = *HostCompute::Create(&pool_);
    if (on_stream) {
      auto on = std::make_unique<StreamCompute>(*engine_->CreateStream(), std::move(compute));
      stream_ = on.get();
      compute = std::move(on);
    }
    auto model =
        Model::Create(watched_.get(), std::move(compute), c.config, c.options, TestWeights());
    EXPECT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    if (!c.options.training) return;
    Stream* const updates_on = c.options.on_gpu ? stream_->stream() : nullptr;
    optimizer_ = *Optimizer::Create(watched_.get(), &pool_, c.options.rule, c.options.state_format,
                                    updates_on);
    updates_ = AddTrained(optimizer_.get(), c.options, model_->parameters(), 0.01)->updates;
  }

  // Returns the loss.
  double Step(const TestBatch& batch) {
    watched_->TakeEvents();
    const auto loss =
        model_->Train({.inputs = batch.inputs, .targets = batch.targets, .gradient_scale = 1});
    EXPECT_TRUE(loss.ok()) << loss.status();
    for (Update& update : updates_) {
      update.step = 1;
      update.learning_rate = 1e-3;
    }
    const absl::Status updated = optimizer_->Step(updates_);
    EXPECT_TRUE(updated.ok()) << updated;
    events = watched_->TakeEvents();
    const absl::Status ended = engine_->EndStep();
    EXPECT_TRUE(ended.ok()) << ended;
    EXPECT_TRUE(engine_->WaitForPlan().ok());
    return loss.value_or(0);
  }

  double Loss(const TestBatch& batch) {
    watched_->TakeEvents();
    const auto loss = model_->Loss(batch.inputs, batch.targets);
    EXPECT_TRUE(loss.ok()) << loss.status();
    events = watched_->TakeEvents();
    return loss.value_or(0);
  }

  std::string Hash() { return *HashWeights(watched_.get(), model_->parameters()); }
  std::vector<TensorSpec> Tensors(size_t count) const {
    std::vector<TensorSpec> specs;
    for (size_t i = 0; i < count; ++i)
      specs.push_back(engine_->Spec(TensorId{static_cast<uint32_t>(i)}));
    return specs;
  }
  const StreamCompute& stream() const { return *stream_; }
  const GradientSummary gradients() const { return model_->gradients(); }
  Model* model() { return model_.get(); }
  const std::vector<Use>& declared() const { return watched_->declared; }

  std::vector<LeaseEvent> events;  // of the last step

 private:
  const TempFolder folder_{test::FastPlace()};
  ThreadPool pool_;
  const ModelOptions options_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<WatchedEngine> watched_;
  StreamCompute* stream_ = nullptr;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Update> updates_;
};

TestBatch BatchFor(const Case& c, uint64_t seed) {
  return RandomBatch(c.config, c.options.accumulate * c.options.micro_batch * c.options.sequence,
                     seed);
}

void ExpectSameEvents(const std::vector<LeaseEvent>& run, const std::vector<LeaseEvent>& dry) {
  EXPECT_EQ(run.size(), dry.size());
  const auto [at, other] = std::mismatch(run.begin(), run.end(), dry.begin(), dry.end());
  if (at == run.end() || other == dry.end()) return;
  EXPECT_EQ(*at, *other) << "event " << at - run.begin();
}

TEST(DryRun, TheCasesGroupsAreParametersOfTheirModels) {
  size_t with_groups = 0;
  for (const Case& c : Cases()) {
    std::vector<std::string> names;
    for (const ParameterShape& shape : ListParameters(c.config)) names.push_back(shape.name);
    const ParameterGroups& groups = c.options.groups;
    EXPECT_EQ(FirstWithoutMatch(groups.frozen, names), "") << c.name;
    EXPECT_EQ(FirstWithoutMatch(groups.fp32, names), "") << c.name;
    EXPECT_FALSE(std::all_of(names.begin(), names.end(),
                             [&](const std::string& name) { return groups.IsFrozen(name); }));
    with_groups += groups == ParameterGroups() ? 0 : 1;
  }
  EXPECT_EQ(with_groups, Models().size() * 8);
}

TEST(DryRun, RecordsWhatATrainingStepLeases) {
  for (const Case& c : DrawnCases(24)) {
    SCOPED_TRACE(c.name);
    const auto dry = RecordStep(c.config, c.options);
    ASSERT_TRUE(dry.ok()) << dry.status();
    ModelRun run(c);
    EXPECT_TRUE(run.Tensors(dry->tensors.size()) == dry->tensors);
    for (const uint64_t seed : {1, 2}) {
      run.Step(BatchFor(c, seed));
      ExpectSameEvents(run.events, dry->events);
    }
  }
}

// State that rests on the device is leased there, where AdamW has kernels.
TEST(DryRun, RecordsWhereAGpuUpdatesState) {
  Placement placement;
  placement[static_cast<size_t>(Role::kMasterWeight)] = Tier::kDevice;
  placement[static_cast<size_t>(Role::kMoment)] = Tier::kDevice;
  for (Case c : DrawnCases(12)) {
    SCOPED_TRACE(c.name);
    c.options.on_gpu = true;
    const auto dry = RecordStep(c.config, c.options, StepKind::kTraining, placement);
    ASSERT_TRUE(dry.ok()) << dry.status();
    ModelRun run(c, /*on_stream=*/true, placement);
    run.Step(BatchFor(c, 1));
    ExpectSameEvents(run.events, dry->events);
    const bool on_device = std::ranges::any_of(dry->events, [&](const LeaseEvent& event) {
      return dry->tensors[event.tile.tensor.value].role == Role::kMoment &&
             event.kind == LeaseEvent::Kind::kAcquire && event.tier == Tier::kDevice;
    });
    EXPECT_EQ(on_device, c.options.rule.kind == RuleKind::kAdamW);
  }
}

TEST(DryRun, RecordsWhatAnEvaluationLeases) {
  for (Case c : DrawnCases(12)) {
    SCOPED_TRACE(c.name);
    for (const bool training : {true, false}) {
      c.options.training = training;
      const auto dry = RecordStep(c.config, c.options, StepKind::kEvaluation);
      ASSERT_TRUE(dry.ok()) << dry.status();
      ModelRun run(c);
      EXPECT_TRUE(run.Tensors(dry->tensors.size()) == dry->tensors);
      run.Loss(RandomBatch(c.config, c.options.sequence, 3));
      ExpectSameEvents(run.events, dry->events);
      EXPECT_EQ(run.declared().size() * 2, run.events.size());
    }
  }
}

TEST(DryRun, AStepThatIsNotTrainedIsRefused) {
  ModelOptions options = SmallOptions();
  options.training = false;
  EXPECT_EQ(RecordStep(SmallConfig(), options).status().code(), absl::StatusCode::kInvalidArgument);
  options.training = true;
  options.sequence = 0;
  EXPECT_EQ(RecordStep(SmallConfig(), options).status().code(), absl::StatusCode::kInvalidArgument);
}

// The caller runs ahead of the stream, and waits for it once a step.
TEST(StreamedCompute, GivesTheBitsAndTheEventsOfTheHost) {
  for (const Case& c : DrawnCases(9)) {
    SCOPED_TRACE(c.name);
    ModelRun host(c);
    ModelRun streamed(c, /*on_stream=*/true);
    int waits = streamed.stream().waits();
    for (const uint64_t seed : {1, 2, 3}) {
      const TestBatch batch = BatchFor(c, seed);
      const double expected = host.Step(batch);
      const double loss = streamed.Step(batch);
      EXPECT_EQ(std::bit_cast<uint64_t>(loss), std::bit_cast<uint64_t>(expected));
      EXPECT_EQ(std::bit_cast<uint64_t>(streamed.gradients().sum_of_squares),
                std::bit_cast<uint64_t>(host.gradients().sum_of_squares));
      ExpectSameEvents(streamed.events, host.events);
      EXPECT_EQ(streamed.stream().waits(), ++waits);
    }
    EXPECT_EQ(streamed.Hash(), host.Hash());
    const TestBatch window = RandomBatch(c.config, c.options.sequence, 4);
    EXPECT_EQ(std::bit_cast<uint64_t>(streamed.Loss(window)),
              std::bit_cast<uint64_t>(host.Loss(window)));
    EXPECT_TRUE(*streamed.model()->NextTokenLogits(std::span(window.inputs).first(5)) ==
                *host.model()->NextTokenLogits(std::span(window.inputs).first(5)));
  }
}

}  // namespace
}  // namespace spillway::trainer
