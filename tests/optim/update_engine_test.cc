// SPDX-License-Identifier: Apache-2.0
//
// Tests an optimizer over the engine itself. The bits are the reference's within exactly the pinned
// bytes that the optimizer requires, for any page size, prefetched or not, with a store or without.

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "tests/exhaustive.h"
#include "tests/heap_engine.h"
#include "tests/optim/reference_parameter.h"
#include "tests/optim/rule_reference.h"
#include "tests/temp_folder.h"

namespace spillway::optim {
namespace {

std::vector<ReferenceParameter> MakeParameters(const RuleAndFormat& pair) {
  struct Shape {
    std::vector<int64_t> shape;
    int64_t tile_rows;
    DType dtype;
  };
  const Shape shapes[] = {{{301, 129}, 37, DType::kF16}, {{577}, 0, DType::kF16},
                          {{}, 0, DType::kBF16},         {{64, 1024}, 16, DType::kBF16},
                          {{100, 333}, 1, DType::kF32},  {{2000}, 0, DType::kF32}};
  std::vector<ReferenceParameter> parameters;
  for (const Shape& shape : shapes) {
    TensorSpec spec;
    spec.name = absl::StrCat("p", parameters.size());
    spec.dtype = shape.dtype;
    spec.shape = shape.shape;
    spec.tile_rows = shape.tile_rows;
    parameters.emplace_back(spec, shape.dtype, pair.rule, pair.format,
                            static_cast<uint32_t>(parameters.size()));
  }
  return parameters;
}

struct Case {
  std::string name;
  bool store = true;
  bool tight = true;  // exactly min_pinned_bytes
  uint64_t page_bytes = 0;
  bool prefetch = true;
  RuleAndFormat pair = {{}, StateFormat::kF32};
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

std::vector<Case> AllCases() {
  std::vector<Case> cases = {{"no_store", false, false},
                             {"roomy", true, false},
                             {"tight_small_pages", true, true, 4096},
                             {"tight_odd_pages", true, true, 20480},
                             {"tight_large_pages", true, true, 8 * kMiB},
                             {"tight_on_demand", true, true, 65536, false}};
  for (const RuleAndFormat& pair : SampleOf(AllPairs())) {
    cases.push_back(
        {.name = absl::StrCat("tight_", RuleName(pair.rule), "_", std::string(Name(pair.format))),
         .pair = pair});
  }
  return cases;
}

class OptimizerOverTheEngine : public testing::TestWithParam<Case> {
 protected:
  // Registers every parameter and makes the optimizer over them.
  std::unique_ptr<Optimizer> CreateOptimizer(Engine& engine) {
    auto optimizer =
        Optimizer::Create(&engine, &pool_, GetParam().pair.rule, GetParam().pair.format);
    EXPECT_TRUE(optimizer.ok()) << optimizer.status();
    tensors_.clear();
    numbers_.clear();
    for (const ReferenceParameter& p : parameters_) {
      tensors_.push_back(RegisterParameter(engine, p));
      numbers_.push_back(*(*optimizer)->Add(tensors_.back()));
    }
    return *std::move(optimizer);
  }

  void SetUp() override {
    HeapEngine fake;
    const uint64_t least_bytes = CreateOptimizer(fake)->min_pinned_bytes();
    EngineOptions options;
    if (GetParam().store) options.store = {folder_ / "store"};
    options.mode = OpenMode::kScratch;
    options.page_bytes = GetParam().page_bytes;
    options.pinned_bytes = GetParam().tight ? least_bytes : 64 * kMiB;
    options.device_bytes = kMiB;
    pinned_bytes_ = options.pinned_bytes;
    auto engine = Engine::Open(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    optimizer_ = CreateOptimizer(*engine_);
  }

  // Runs a step on the engine and on the reference.
  void UpdateAll(int64_t step) {
    std::vector<Update> updates;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      ReferenceParameter& p = parameters_[i];
      p.NewGradient(static_cast<uint32_t>(100 * step) + static_cast<uint32_t>(i));
      CopyTiles(*engine_, tensors_[i].gradient->tensor, Access::kDiscard, p.gradient.data());
      updates.push_back({.parameter = numbers_[i],
                         .step = step,
                         .learning_rate = 1e-2 / static_cast<double>(step),
                         .weight_decay = 0.1,
                         .gradient_scale = 0.5});
      p.Apply(updates.back());
    }
    if (GetParam().prefetch) {
      ASSERT_TRUE(engine_->Prefetch(*optimizer_->Uses(numbers_)).ok());
    }
    const absl::Status status = optimizer_->Step(updates);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(engine_->EndStep().ok());
    ASSERT_TRUE(engine_->WaitForPlan().ok());
  }

  const test::TempFolder folder_;
  std::vector<ReferenceParameter> parameters_ = MakeParameters(GetParam().pair);
  std::vector<ParameterTensors> tensors_;
  std::vector<size_t> numbers_;
  ThreadPool pool_{2};
  uint64_t pinned_bytes_ = 0;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Optimizer> optimizer_;
};

TEST_P(OptimizerOverTheEngine, GivesTheReferencesBits) {
  for (int64_t step = 1; step <= 3; ++step) UpdateAll(step);
  for (size_t i = 0; i < parameters_.size(); ++i)
    ExpectParameter(*engine_, tensors_[i], parameters_[i]);
  const EngineStats stats = engine_->Stats();
  EXPECT_LE(stats.tiers[static_cast<size_t>(Tier::kPinned)].peak_bytes, pinned_bytes_);
  if (GetParam().tight) {
    EXPECT_GT(stats.nvme.read_bytes, 0U);
  }
}

// Pinned memory holds one of several parameters with its moments. What the pass for the norms reads
// stays for the update, so that a step reads and writes each byte once.
TEST(OptimizerOverTheEngineInTurns, ReadsWhatStaysBetweenPassesOnce) {
  constexpr int64_t kRows = 256, kColumns = 1024, kParameters = 4;
  constexpr uint64_t kBytes = kRows * kColumns * sizeof(float);
  for (const RuleKind kind : {RuleKind::kLamb, RuleKind::kLars, RuleKind::kAdafactor}) {
    SCOPED_TRACE(std::string(Name(kind)));
    const Rule rule = UsualRule(kind);
    const test::TempFolder folder;
    EngineOptions options;
    options.store = {folder / "store"};
    options.mode = OpenMode::kScratch;
    options.pinned_bytes = 4 * kBytes;
    options.device_bytes = kMiB;
    auto engine = Engine::Open(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    ThreadPool pool(1);
    const auto optimizer = *Optimizer::Create(engine->get(), &pool, rule, StateFormat::kF32);
    std::vector<float> gradient(kRows * kColumns, 0.01F);
    std::vector<Update> updates;
    uint64_t state_bytes = 0;
    for (int64_t i = 0; i < kParameters; ++i) {
      const TensorSpec weight = {
          .name = absl::StrCat("w", i), .shape = {kRows, kColumns}, .tile_rows = 32};
      ParameterTensors tensors = {.weight = *(*engine)->Register(weight, {}),
                                  .gradient = Values(gradient.data(), DType::kF32)};
      state_bytes += kBytes;
      const auto specs = StateSpecs(rule, StateFormat::kF32, weight);
      for (const TensorSpec& spec : *specs) {
        tensors.state.push_back(*(*engine)->Register(spec, {}));
        state_bytes += spec.size_bytes();
      }
      updates.push_back({.parameter = *optimizer->Add(tensors), .learning_rate = 0.1});
    }
    std::vector<size_t> numbers;
    for (const Update& update : updates) numbers.push_back(update.parameter);
    const std::vector<Use> uses = *optimizer->Uses(numbers);
    // The engine follows a plan before the counted steps begin. A write that a step starts, or a
    // read for the next step, may end in the next step. At either end of the counted steps, such
    // bytes are no more than pinned memory holds.
    constexpr int kCounted = 4, kSteps = 5 + kCounted;
    Traffic before;
    for (int step = 1; step <= kSteps; ++step) {
      if (step == kSteps - kCounted + 1) before = (*engine)->Stats().nvme;
      for (Update& update : updates) update.step = step;
      ASSERT_TRUE((*engine)->Prefetch(uses).ok());
      ASSERT_TRUE(optimizer->Step(updates).ok());
      ASSERT_TRUE((*engine)->EndStep().ok());
      ASSERT_TRUE((*engine)->WaitForPlan().ok());
    }
    const Traffic after = (*engine)->Stats().nvme;
    const uint64_t most = kCounted * state_bytes + options.pinned_bytes;
    EXPECT_LE(after.read_bytes - before.read_bytes, most);
    EXPECT_LE(after.written_bytes - before.written_bytes, most);
    if (kind == RuleKind::kLamb) {
      EXPECT_GT(after.read_bytes - before.read_bytes, kCounted * state_bytes / 4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Budgets, OptimizerOverTheEngine, testing::ValuesIn(AllCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace spillway::optim
