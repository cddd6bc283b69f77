// SPDX-License-Identifier: Apache-2.0
//
// Whole models through GpuCompute, on the emulated device over an engine: losses and gradients near
// the host's, and the same bits whatever the budgets, the order of micro-batches and what is saved.
//
// Limits in 16 bits derive from the distance of the host's bf16 from fp32, with weights that both
// hold. There the host rounds what the GPU rounds, except in backward. fp16 has three bits more, so
// an eighth of the distance. And the distance of host and GPU must be at most the root of the sum
// of the squares of both distances from fp32: that of two computations whose rounding errors are
// independent. Distances are 2-norms over all elements of all gradients.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "tests/exhaustive.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"
#include "tests/trainer/small_model.h"
#include "tools/hf/model_types.h"
#include "tools/trainer/compute/elements.h"
#include "tools/trainer/compute/gpu/emulated_device.h"
#include "tools/trainer/compute/gpu_compute.h"
#include "tools/trainer/compute/host_compute.h"
#include "tools/trainer/gpu_needs.h"
#include "tools/trainer/master_weights.h"
#include "tools/trainer/updates.h"

namespace spillway::trainer {
namespace {

enum class On : uint8_t { kHost, kGpu };

// Every row of the table; larger tensors have several tiles, but not under a sanitizer, where the
// emulator takes ten times as long.
std::vector<std::pair<std::string, hf::ModelConfig>> Families() {
  std::vector<std::pair<std::string, hf::ModelConfig>> families;
  for (const auto& [type, row] : hf::ModelTypes().items()) {
    hf::ModelConfig config = SmallConfigOf(type);
    config.vocab_size = SPILLWAY_IS_SANITIZED ? 210 : 2100;
    config.hidden_size = 33;
    config.intermediate_size = SPILLWAY_IS_SANITIZED ? 203 : 2003;
    config.max_position_embeddings = 64;
    config.tie_word_embeddings = families.size() % 2 == 0;
    families.emplace_back(type, config);
  }
  return families;
}

// Some families, which the seed draws, or all in the slow run: the emulator takes a second a step.
std::vector<std::pair<std::string, hf::ModelConfig>> DrawnFamilies(size_t count) {
  auto families = Families();
  if (IsExhaustive()) return families;
  std::mt19937_64 random(test::Seed());
  std::shuffle(families.begin(), families.end(), random);
  families.resize(TriesOnePoint() ? 1 : count);
  return families;
}

// Weights that 16 bits hold, so that every precision starts from the same.
WeightSource RoundedWeights(DType type) {
  return [type](const ParameterShape& parameter) -> absl::StatusOr<Reader> {
    std::vector<float> values =
        WeightsOf(parameter.name, static_cast<size_t>(parameter.elements()));
    std::vector<std::byte> narrow(values.size() * ElementBytes(type));
    WriteElements(type, values, narrow.data());
    ReadElements(type, narrow.data(), values);
    return Reader([values](uint64_t offset, std::span<std::byte> out) {
      std::memcpy(out.data(), reinterpret_cast<const std::byte*>(values.data()) + offset,
                  out.size());
      return absl::OkStatus();
    });
  };
}

// A model in an engine, and its optimizer.
class TrainedModel {
 public:
  TrainedModel(On on, const hf::ModelConfig& config, const ModelOptions& options,
               const WeightSource& source, uint64_t more_device_bytes = 16 * kMiB,
               uint64_t more_pinned_bytes = 16 * kMiB)
      : pool_(1), config_(config), options_(options) {
    const MinimumBudgets budgets = SmallestBudgets(config, options);
    EngineOptions engine_options;
    engine_options.store = {folder_.path() + "/store"};
    engine_options.device_bytes =
        std::max<uint64_t>(4096, budgets.device_bytes) + more_device_bytes;
    engine_options.pinned_bytes =
        std::max<uint64_t>(4096, budgets.pinned_bytes) + more_pinned_bytes;
    auto opened = Engine::Open(engine_options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    engine_ = *std::move(opened);
    std::unique_ptr<Compute> compute;
    if (on == On::kGpu) {
      auto device = std::make_unique<gpu::EmulatedDevice>(test::Seed());
      device_ = device.get();
      auto on_gpu = std::make_unique<GpuCompute>(std::move(device), ElementType(options.precision));
      EXPECT_TRUE(on_gpu->Begin(engine_.get()).ok());
      compute = std::move(on_gpu);
    } else {
      compute = *HostCompute::Create(&pool_);
    }
    auto model = Model::Create(engine_.get(), std::move(compute), config, options, source);
    EXPECT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    optimizer_ = *Optimizer::Create(engine_.get(), &pool_, options.rule, options.state_format);
    updates_ = AddTrained(optimizer_.get(), options, model_->parameters(), 0.01)->updates;
  }

  // Returns the loss.
  double Gradients(uint64_t seed) {
    const TestBatch batch =
        RandomBatch(config_, options_.accumulate * options_.micro_batch * options_.sequence, seed);
    const int64_t waits = this->waits();
    const auto loss = model_->Train({.inputs = batch.inputs,
                                     .targets = batch.targets,
                                     .gradient_scale = 64.0 / options_.accumulate});
    EXPECT_TRUE(loss.ok()) << loss.status();
    EXPECT_EQ(this->waits(), device_ == nullptr ? 0 : waits + 1);
    return loss.value_or(0);
  }
  double Step(uint64_t seed) {
    const double loss = Gradients(seed);
    for (Update& update : updates_) {
      update.step = static_cast<int64_t>(seed);
      update.learning_rate = 1e-2;
    }
    const absl::Status updated = optimizer_->Step(updates_);
    EXPECT_TRUE(updated.ok()) << updated;
    EXPECT_TRUE(engine_->EndStep().ok());
    return loss;
  }
  double Loss(uint64_t seed, int64_t windows = 1) {
    const TestBatch batch = RandomBatch(config_, windows * options_.sequence, seed);
    const auto loss = model_->Loss(batch.inputs, batch.targets);
    EXPECT_TRUE(loss.ok()) << loss.status();
    return loss.value_or(0);
  }
  std::vector<float> Logits(int64_t length) {
    const TestBatch batch = RandomBatch(config_, length, 5);
    const auto logits = model_->NextTokenLogits(batch.inputs);
    EXPECT_TRUE(logits.ok()) << logits.status();
    return logits.value_or(std::vector<float>());
  }

  std::map<std::string, std::vector<float>> ReadGradients() {
    std::map<std::string, std::vector<float>> gradients;
    for (const Parameter& parameter : model_->parameters()) {
      const TensorSpec& spec = engine_->Spec(parameter.tensors.gradient);
      std::vector<float>& values = gradients[parameter.name];
      for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
        const Lease lease =
            *engine_->AcquireHost({parameter.tensors.gradient, tile}, Access::kRead);
        std::vector<float> of_tile(lease.size_bytes() / ElementBytes(spec.dtype));
        ReadElements(spec.dtype, lease.data(), of_tile);
        values.insert(values.end(), of_tile.begin(), of_tile.end());
      }
    }
    return gradients;
  }
  std::string Hash() { return *HashWeights(engine_.get(), model_->parameters()); }
  GradientSummary gradients() const { return model_->gradients(); }
  int64_t waits() const { return device_ == nullptr ? 0 : device_->waits(); }
  const gpu::EmulatedDevice& device() const { return *device_; }
  uint64_t workspace_bytes() const { return model_->workspace_bytes(); }

 private:
  const test::TempFolder folder_{test::FastPlace()};
  ThreadPool pool_;
  const hf::ModelConfig config_;
  const ModelOptions options_;
  std::unique_ptr<Engine> engine_;
  gpu::EmulatedDevice* device_ = nullptr;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Update> updates_;
};

using Gradients = std::map<std::string, std::vector<float>>;

double Distance(const Gradients& a, const Gradients& b) {
  double squares = 0;
  for (const auto& [name, values] : a) {
    const std::vector<float>& others = b.at(name);
    for (size_t i = 0; i < values.size(); ++i)
      squares += (double{values[i]} - others[i]) * (double{values[i]} - others[i]);
  }
  return std::sqrt(squares);
}

ModelOptions OptionsOf(Precision precision, int64_t accumulate = 1) {
  ModelOptions options;
  options.precision = precision;
  options.sequence = 9;
  options.micro_batch = 2;
  options.accumulate = accumulate;
  return options;
}

class GpuModel : public testing::Test {
 protected:
  void SetUp() override {
    if (SPILLWAY_IS_THREAD_SANITIZED) {
      GTEST_SKIP()
          << "the thread sanitizer has room for 255 threads and fibers, and a block has 256";
    }
  }
};

TEST_F(GpuModel, InFp32IsTheHostsUpToTheOrderOfSums) {
  for (const auto& [name, config] : DrawnFamilies(2)) {
    SCOPED_TRACE(name);
    const ModelOptions options = OptionsOf(Precision::kFp32);
    TrainedModel host(On::kHost, config, options, TestWeights());
    TrainedModel on_gpu(On::kGpu, config, options, TestWeights());
    EXPECT_NEAR(on_gpu.Gradients(1), host.Gradients(1), 1e-5);
    const Gradients exact = host.ReadGradients();
    const double size = Distance(exact, [&] {
      Gradients zeros = exact;
      for (auto& [unused, values] : zeros) std::fill(values.begin(), values.end(), 0.0f);
      return zeros;
    }());
    EXPECT_LE(Distance(on_gpu.ReadGradients(), exact), 1e-5 * size);
    EXPECT_NEAR(on_gpu.gradients().sum_of_squares, size * size, 2e-5 * size * size);
    EXPECT_NEAR(on_gpu.Loss(2), host.Loss(2), 1e-5);
    const std::vector<float> logits = on_gpu.Logits(7), expected = host.Logits(7);
    ASSERT_EQ(logits.size(), expected.size());
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-4);
  }
}

// The GPU rounds the operands of every product in backward, too. Twice as many independent errors
// are √2 times as far.
constexpr double kRoundingsOfBackward = 1.4142135623730951;
// What one sample of a distance may be above its mean: bf16_test.py allows as much.
constexpr double kOneSample = 1.2;

TEST_F(GpuModel, InSixteenBitsIsAsNearTheHostAsRoundingAllows) {
  const WeightSource weights = RoundedWeights(DType::kBF16);
  for (const auto& [name, config] : DrawnFamilies(2)) {
    const auto gradients_of = [&](On on, Precision precision) {
      TrainedModel model(on, config, OptionsOf(precision), weights);
      model.Gradients(1);
      return model.ReadGradients();
    };
    const Gradients exact = gradients_of(On::kHost, Precision::kFp32);
    const Gradients host_bf16 = gradients_of(On::kHost, Precision::kBf16);
    const double bf16_to_fp32 = Distance(host_bf16, exact);
    for (const Precision precision : GridOf<Precision>({Precision::kFp16Amp, Precision::kBf16})) {
      SCOPED_TRACE(absl::StrCat(name, " ", std::string(Name(precision))));
      const bool is_bf16 = precision == Precision::kBf16;
      const Gradients host = is_bf16 ? host_bf16 : gradients_of(On::kHost, precision);
      const Gradients of_gpu = gradients_of(On::kGpu, precision);
      const double to_fp32 = Distance(of_gpu, exact);
      EXPECT_GT(to_fp32, 0);
      EXPECT_LE(to_fp32, kOneSample * kRoundingsOfBackward * bf16_to_fp32 / (is_bf16 ? 1 : 8));
      EXPECT_LE(Distance(of_gpu, host), kOneSample * std::hypot(Distance(host, exact), to_fp32));
    }
  }
}

// What a run gives after two steps, in bits.
struct Bits {
  std::vector<uint64_t> numbers;
  std::string hash;
  friend bool operator==(const Bits&, const Bits&) = default;
};

Bits BitsOfRun(const hf::ModelConfig& config, const ModelOptions& options, uint64_t device_bytes,
               uint64_t pinned_bytes) {
  TrainedModel model(On::kGpu, config, options, TestWeights(), device_bytes, pinned_bytes);
  Bits bits;
  for (const uint64_t seed : {1, 2}) {
    bits.numbers.push_back(std::bit_cast<uint64_t>(model.Step(seed)));
    bits.numbers.push_back(std::bit_cast<uint64_t>(model.gradients().sum_of_squares));
  }
  bits.numbers.push_back(std::bit_cast<uint64_t>(model.Loss(3)));
  for (const float logit : model.Logits(4)) bits.numbers.push_back(std::bit_cast<uint32_t>(logit));
  bits.hash = model.Hash();
  return bits;
}

TEST_F(GpuModel, BudgetsOrdersAndSavedActivationsDoNotChangeABit) {
  std::mt19937_64 random(test::Seed());
  for (const auto& [name, config] : DrawnFamilies(1)) {
    const Precision precision =
        std::array{Precision::kFp32, Precision::kFp16Amp, Precision::kBf16}[random() % 3];
    SCOPED_TRACE(absl::StrCat(name, " ", std::string(Name(precision))));
    ModelOptions options = OptionsOf(precision, 3);
    options.gradient_dtype = ElementType(precision);
    const Bits expected = BitsOfRun(config, options, 0, 0);
    for (const auto order :
         GridOf<AccumulationOrder>({AccumulationOrder::kMicroBatch, AccumulationOrder::kLayer})) {
      for (const bool checkpoint : GridOf<bool>({true, false})) {
        options.accumulation_order = order;
        options.checkpoint_activations = checkpoint;
        const uint64_t device_bytes = random() % (1 * kMiB), pinned_bytes = random() % (2 * kMiB);
        SCOPED_TRACE(absl::StrCat("by layer ", options.by_layer(), ", checkpointing ", checkpoint,
                                  ", ", device_bytes, " and ", pinned_bytes, " more bytes"));
        EXPECT_TRUE(BitsOfRun(config, options, device_bytes, pinned_bytes) == expected);
      }
    }
  }
}

// A dry walk finds the scratch and the products of a run, so that algorithms can be chosen first.
TEST_F(GpuModel, ADryWalkFindsWhatARunNeeds) {
  for (const auto& [name, config] : DrawnFamilies(1)) {
    for (const bool checkpoint : {true, false}) {
      SCOPED_TRACE(absl::StrCat(name, ", checkpointing ", checkpoint));
      ModelOptions options = OptionsOf(Precision::kBf16, 2);
      options.checkpoint_activations = checkpoint;
      const absl::StatusOr<GpuNeeds> needs = GpuNeedsOf(config, options);
      ASSERT_TRUE(needs.ok()) << needs.status();
      TrainedModel model(On::kGpu, config, options, TestWeights());
      model.Step(1);
      model.Loss(2, options.micro_batch);
      EXPECT_EQ(needs->scratch_bytes, model.workspace_bytes());
      const std::set<gpu::ProductCall>& products = model.device().products();
      EXPECT_TRUE(std::ranges::equal(needs->products, products))
          << needs->products.size() << " products, and not " << products.size();
    }
  }
}

}  // namespace
}  // namespace spillway::trainer
