// SPDX-License-Identifier: Apache-2.0
//
// Tests updates on the device, as work on a stream: the bits are the reference's, whatever the
// formats, tiles and budgets are; a step does not wait for the stream; and only parameters whose
// state rests on the device, with a rule that has kernels, are updated there.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "src/base/bytes.h"
#include "tests/exhaustive.h"
#include "tests/heap_engine.h"
#include "tests/optim/reference_parameter.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"
#include "tests/tiers/no_device.h"

namespace spillway::optim {
namespace {

constexpr StateFormat kFormats[] = {StateFormat::kF32, StateFormat::kBf16, StateFormat::k8Bit,
                                    StateFormat::kCompact};
constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// State rests on the device.
Placement StateOnDevice() {
  Placement placement = {};
  placement[static_cast<size_t>(Role::kMasterWeight)] = Tier::kDevice;
  placement[static_cast<size_t>(Role::kMoment)] = Tier::kDevice;
  return placement;
}

bool AllIn(Tier tier, const std::vector<Use>& uses) {
  return !uses.empty() && std::ranges::all_of(uses, [&](const Use& u) { return u.tier == tier; });
}

// Runs closures at once. One of them may be refused.
class InlineStream : public Stream {
 public:
  absl::Status Launch(std::function<void()> work) override {
    if (launches++ == refuse_at) {
      at_refusal();
      return absl::AbortedError("the GPU is lost");
    }
    work();
    return absl::OkStatus();
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  void* native_handle() override { return nullptr; }

  size_t launches = 0;
  size_t refuse_at = std::numeric_limits<size_t>::max();
  std::function<void()> at_refusal;
};

Update UpdateOf(size_t parameter, int64_t step) {
  return {.parameter = parameter,
          .step = step,
          .learning_rate = 1e-2 / static_cast<double>(step),
          .weight_decay = 0.1,
          .gradient_scale = 0.5};
}

// Parameters with their references, in an engine.
class Training {
 public:
  Training(Engine* engine, Stream* stream, std::vector<ReferenceParameter> parameters,
           const Rule& rule, StateFormat format)
      : engine_(*engine), stream_(stream), parameters_(std::move(parameters)) {
    auto optimizer = Optimizer::Create(engine, &pool_, rule, format, stream);
    EXPECT_TRUE(optimizer.ok()) << optimizer.status();
    optimizer_ = *std::move(optimizer);
    for (const ReferenceParameter& p : parameters_) {
      tensors_.push_back(RegisterParameter(engine_, p));
      const auto number = optimizer_->Add(tensors_.back());
      EXPECT_TRUE(number.ok()) << number.status();
      numbers_.push_back(number.value_or(0));
    }
  }

  Optimizer& optimizer() { return *optimizer_; }
  const std::vector<size_t>& numbers() const { return numbers_; }
  const ParameterTensors& tensors(size_t i) const { return tensors_[i]; }
  ReferenceParameter& parameter(size_t i) { return parameters_[i]; }
  std::vector<Use> Uses() { return *optimizer_->Uses(numbers_); }
  std::vector<Use> Uses(size_t i) { return *optimizer_->Uses({&numbers_[i], 1}); }

  // Makes a step's gradients, writes them on the stream or from the host, and updates the
  // reference. Returns the step's updates.
  std::vector<Update> Begin(int64_t step, bool on_stream = false) {
    std::vector<Update> updates;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      ReferenceParameter& p = parameters_[i];
      p.NewGradient(static_cast<uint32_t>(100 * step) + static_cast<uint32_t>(i));
      const TensorId gradient = tensors_[i].gradient->tensor;
      on_stream ? WriteOnStream(gradient, p.gradient)
                : CopyTiles(engine_, gradient, Access::kDiscard, p.gradient.data());
      updates.push_back(UpdateOf(numbers_[i], step));
      p.Apply(updates.back());
    }
    return updates;
  }

  void ExpectReference() {
    for (size_t i = 0; i < parameters_.size(); ++i)
      ExpectParameter(engine_, tensors_[i], parameters_[i]);
  }

 private:
  void WriteOnStream(TensorId id, const Bytes& bytes) {
    const TensorSpec& spec = engine_.Spec(id);
    for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
      auto lease = engine_.Acquire({id, tile}, Access::kDiscard, stream_);
      ASSERT_TRUE(lease.ok()) << lease.status();
      const std::byte* const from = bytes.data() + spec.tile_offset_bytes(tile);
      const auto work = [to = lease->data(), part = Bytes(from, from + lease->size_bytes())] {
        std::memcpy(to, part.data(), part.size());
      };
      ASSERT_TRUE(stream_->Launch(work).ok());
    }
  }

  Engine& engine_;
  Stream* const stream_;
  ThreadPool pool_{2};
  std::vector<ReferenceParameter> parameters_;
  std::vector<ParameterTensors> tensors_;
  std::vector<size_t> numbers_;
  std::unique_ptr<Optimizer> optimizer_;
};

// --- Random parameters ---

class RandomTraining {
 public:
  explicit RandomTraining(uint64_t seed) : random_(seed) {}

  int64_t Draw(int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random_);
  }
  template <typename T, size_t kSize>
  T OneOf(const T (&values)[kSize]) {
    return values[static_cast<size_t>(Draw(0, kSize - 1))];
  }
  uint32_t Number() { return static_cast<uint32_t>(random_()); }

  std::vector<ReferenceParameter> Parameters(StateFormat format) {
    std::vector<ReferenceParameter> parameters;
    for (int64_t left = Draw(1, 4); left > 0; --left) {
      std::vector<int64_t> shape;
      const int64_t dimensions = Draw(0, 3);
      if (dimensions == 1) shape = {Draw(1, 3000)};
      if (dimensions > 1) shape = {Draw(1, 40), Draw(1, dimensions == 2 ? 700 : 30)};
      if (dimensions == 3) shape.push_back(Draw(1, 30));
      parameters.emplace_back(
          Spec(absl::StrCat("p", left), OneOf(kTypes), shape, TileRows(format, shape)),
          OneOf(kTypes), Rule{}, format, Number());
      for (TensorSpec& state : parameters.back().state_specs) {
        if (Draw(0, 1) == 0) state.tile_rows = TileRows(format, state.shape);
      }
    }
    return parameters;
  }

  // A role that is not the state's rests anywhere, or nowhere.
  Placement Placed() {
    Placement placement = StateOnDevice();
    const std::optional<Tier> places[] = {std::nullopt, Tier::kDevice, Tier::kPinned, Tier::kNvme};
    for (const Role role : {Role::kParameter, Role::kGradient})
      placement[static_cast<size_t>(role)] = OneOf(places);
    return placement;
  }

 private:
  int64_t TileRows(StateFormat format, const std::vector<int64_t>& shape) {
    const int64_t rows = shape.empty() ? 1 : shape[0];
    if (Draw(0, 2) == 0) return 0;
    // Tiles of vectors end with the blocks of encoded state.
    const int64_t unit = shape.size() > 1                  ? 1
                         : format == StateFormat::k8Bit    ? 256
                         : format == StateFormat::kCompact ? 64
                                                           : 1;
    return unit * Draw(1, (rows + unit - 1) / unit);
  }

  std::mt19937_64 random_;
};

// The bytes of the frames of all tiles that rest in a tier.
uint64_t RestingBytes(const HeapEngine& engine, Tier tier) {
  uint64_t bytes = 0;
  for (const TensorSpec& spec : engine.specs()) {
    if (engine.options().placement[static_cast<size_t>(spec.role)] != tier) continue;
    for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile)
      bytes += base::RoundUp(spec.tile_bytes(tile), 4096);
  }
  return bytes;
}

// Opens an engine on the device within the least memory, unless there is no such device.
void RunRandomSteps(Device device, uint64_t seed) {
  RandomTraining random(seed);
  const StateFormat format = random.OneOf(kFormats);
  const std::vector<ReferenceParameter> parameters = random.Parameters(format);
  EngineOptions options;
  options.placement = random.Placed();
  HeapEngine fake;
  fake.opened_with = options;
  InlineStream no_stream;
  Training dry(&fake, &no_stream, parameters, Rule{}, format);
  const test::TempFolder folder(test::FastPlace());
  options.store = {folder / "store"};
  options.mode = OpenMode::kScratch;
  options.device_bytes = RestingBytes(fake, Tier::kDevice) + dry.optimizer().min_device_bytes();
  options.pinned_bytes = RestingBytes(fake, Tier::kPinned) + dry.optimizer().min_pinned_bytes();
  options.plan_steps = random.Draw(0, 1) == 0;
  options.device = device;
  auto engine = Engine::Open(options);
  const std::string why = test::WhyNoDevice(device, engine.status());
  if (!why.empty()) GTEST_SKIP() << why;
  ASSERT_TRUE(engine.ok()) << engine.status();
  auto stream = (*engine)->CreateStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  Training training(engine->get(), stream->get(), parameters, Rule{}, format);
  EXPECT_TRUE(AllIn(Tier::kDevice, training.Uses()));
  const int64_t steps = random.Draw(2, 5);
  for (int64_t step = 1; step <= steps; ++step) {
    const bool on_stream = device.kind() == Device::Kind::kHost && random.Draw(0, 1) == 0;
    const std::vector<Update> updates = training.Begin(step, on_stream);
    if (random.Draw(0, 1) == 0) {
      ASSERT_TRUE((*engine)->Prefetch(training.Uses()).ok());
    }
    if (random.Draw(0, 1) == 0) {
      const std::chrono::microseconds time(random.Draw(0, 3000));
      ASSERT_TRUE((*stream)->Launch([time] { std::this_thread::sleep_for(time); }).ok());
    }
    const absl::Status status = training.optimizer().Step(updates);
    ASSERT_TRUE(status.ok()) << status;
    const absl::Status ended = (*engine)->EndStep();
    ASSERT_TRUE(ended.ok()) << ended;
    ASSERT_TRUE((*engine)->WaitForPlan().ok());
  }
  training.ExpectReference();
}

class DeviceUpdateOn : public testing::TestWithParam<Device::Kind> {};

TEST_P(DeviceUpdateOn, HasTheBitsOfTheReferenceWithinTheLeastMemory) {
  const Device device = GetParam() == Device::Kind::kCuda ? Device::Cuda(0) : Device::Host();
  const uint64_t first = test::Seed();
  const uint64_t rounds = 30 / SampleShare();
  for (uint64_t seed = first; seed != first + rounds && !HasFailure() && !IsSkipped(); ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    RunRandomSteps(device, seed);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceUpdateOn,
                         testing::Values(Device::Kind::kHost, Device::Kind::kCuda),
                         [](const auto& test) {
                           return test.param == Device::Kind::kCuda ? "cuda" : "host";
                         });

// --- The stream ---

class DeviceUpdateOnAStream : public testing::TestWithParam<StateFormat> {
 protected:
  void Open(OpenMode mode) {
    training_.reset();
    stream_.reset();
    engine_.reset();
    auto engine = Engine::Open({.store = {folder_ / "store"},
                                .mode = mode,
                                .device_bytes = 8 * kMiB,
                                .pinned_bytes = 8 * kMiB,
                                .placement = StateOnDevice()});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    auto stream = engine_->CreateStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
    training_ =
        std::make_unique<Training>(engine_.get(), stream_.get(), parameters_, Rule{}, GetParam());
  }

  const test::TempFolder folder_{test::FastPlace()};
  std::vector<ReferenceParameter> parameters_ = {
      {Spec("a", DType::kBF16, {70, 300}, 16), DType::kBF16, Rule{}, GetParam(), 1},
      {Spec("b", DType::kF16, {1000}, 0), DType::kF32, Rule{}, GetParam(), 2}};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Training> training_;
};

TEST_P(DeviceUpdateOnAStream, AStepDoesNotWaitForIt) {
  Open(OpenMode::kScratch);
  std::promise<void> gate;
  std::atomic<bool> has_run = false;
  const auto hold_up = [&has_run, opened = gate.get_future().share()] {
    opened.wait();
    has_run = true;
  };
  const std::vector<Update> updates = training_->Begin(1);
  ASSERT_TRUE(stream_->Launch(hold_up).ok());
  const absl::Status status = training_->optimizer().Step(updates);
  EXPECT_FALSE(has_run);
  gate.set_value();
  ASSERT_TRUE(status.ok()) << status;
  training_->ExpectReference();
  // The gradients were discarded.
  for (size_t i = 0; i < parameters_.size(); ++i) {
    ExpectContent(*engine_, training_->tensors(i).gradient->tensor,
                  Bytes(parameters_[i].gradient.size()));
  }
}

TEST_P(DeviceUpdateOnAStream, ACommitHasTheUpdatesThatWereLaunched) {
  Open(OpenMode::kCreate);
  for (int64_t step = 1; step <= 3; ++step) {
    const std::vector<Update> updates = training_->Begin(step, /*on_stream=*/true);
    const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
    ASSERT_TRUE(stream_->Launch(sleep).ok());
    ASSERT_TRUE(training_->optimizer().Step(updates).ok());
    if (step == 2) {
      ASSERT_TRUE(engine_->EndStep().ok());
    }
  }
  const absl::Status status = engine_->Commit("");
  ASSERT_TRUE(status.ok()) << status;
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i] = training_->parameter(i);
  Open(OpenMode::kOpenOrCreate);
  training_->ExpectReference();
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceUpdateOnAStream, testing::ValuesIn(kFormats),
                         [](const auto& test) { return std::string(Name(test.param)); });

// --- What is updated where ---

ReferenceParameter Matrix(const std::string& name, DType dtype, const Rule& rule,
                          StateFormat format) {
  return {Spec(name, dtype, {50, 100}, 20), DType::kBF16, rule, format, 1};
}

TEST(DeviceUpdate, LeasesWhatUsesSaysAndLaunchesOnceForEachSegment) {
  for (const StateFormat format : kFormats) {
    HeapEngine engine;
    engine.opened_with.placement = StateOnDevice();
    InlineStream stream;
    std::vector<ReferenceParameter> parameters = {Matrix("a", DType::kF16, Rule{}, format)};
    parameters.push_back(Matrix("b", DType::kF32, Rule{}, format));
    parameters[1].state_specs.back().tile_rows = 7;
    Training training(&engine, &stream, parameters, Rule{}, format);
    const std::vector<Update> updates = training.Begin(1);
    engine.uses.clear();
    const absl::Status status = training.optimizer().Step(updates);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(engine.uses, training.Uses());
    EXPECT_TRUE(AllIn(Tier::kDevice, engine.uses));
    EXPECT_EQ(engine.held(), 0);
    EXPECT_EQ(engine.discards.size(), 2 * 3U);  // gradients have three tiles
    EXPECT_EQ(stream.launches, 3U + 10U);       // 20, 40, 50, and 7, 14, 20, 21, 28, …, 49, 50
    training.ExpectReference();
  }
}

TEST(DeviceUpdate, IsOfParametersWhoseWholeStateRestsThere) {
  Placement placement = StateOnDevice();
  placement[static_cast<size_t>(Role::kMasterWeight)] = std::nullopt;
  auto engine = Engine::Open({.device_bytes = kMiB, .pinned_bytes = kMiB, .placement = placement});
  ASSERT_TRUE(engine.ok()) << engine.status();
  auto stream = *(*engine)->CreateStream();
  const StateFormat format = StateFormat::kF32;
  Training training(
      engine->get(), stream.get(),
      {Matrix("a", DType::kF32, Rule{}, format), Matrix("b", DType::kBF16, Rule{}, format),
       Matrix("c", DType::kF32, Rule{}, format)},
      Rule{}, format);
  EXPECT_TRUE(AllIn(Tier::kDevice, training.Uses(0)));
  EXPECT_TRUE(AllIn(Tier::kPinned, training.Uses(1)));
  EXPECT_TRUE(AllIn(Tier::kDevice, training.Uses(2)));
  EXPECT_GT(training.optimizer().min_device_bytes(), 0U);
  EXPECT_GT(training.optimizer().min_pinned_bytes(), 0U);
  for (int64_t step = 1; step <= 3; ++step) {
    const absl::Status status = training.optimizer().Step(training.Begin(step, step % 2 == 0));
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE((*engine)->EndStep().ok());
  }
  training.ExpectReference();
}

TEST(DeviceUpdate, IsOfAdamWAlone) {
  for (const auto& [rule, format] : AllPairs()) {
    HeapEngine engine;
    engine.opened_with.placement = StateOnDevice();
    InlineStream stream;
    Training training(&engine, &stream, {Matrix("a", DType::kBF16, rule, format)}, rule, format);
    ASSERT_TRUE(training.optimizer().Step(training.Begin(1)).ok());
    const bool on_device = rule.kind == RuleKind::kAdamW && !rule.amsgrad;
    EXPECT_TRUE(AllIn(on_device ? Tier::kDevice : Tier::kPinned, training.Uses()));
    EXPECT_EQ(stream.launches > 0, on_device);
    training.ExpectReference();
  }
}

TEST(DeviceUpdate, TakesTheConstantsOfAnUpdate) {
  for (const StateFormat format : kFormats) {
    HeapEngine engine;
    engine.opened_with.placement = StateOnDevice();
    InlineStream stream;
    Training training(&engine, &stream, {Matrix("a", DType::kF16, Rule{}, format)}, Rule{}, format);
    ReferenceParameter& p = training.parameter(0);
    p.NewGradient(1);
    CopyTiles(engine, training.tensors(0).gradient->tensor, Access::kDiscard, p.gradient.data());
    Update update = UpdateOf(training.numbers()[0], 3);
    update.rule = Rule{.beta1 = 0.5, .epsilon = 1e-4, .maximize = true};
    ASSERT_TRUE(training.optimizer().Step({&update, 1}).ok());
    EXPECT_GT(stream.launches, 0U);
    p.Apply(update);
    training.ExpectReference();
  }
}

TEST(DeviceUpdate, IsOfTensorsAlone) {
  HeapEngine engine;
  engine.opened_with.placement = StateOnDevice();
  InlineStream stream;
  ThreadPool pool(1);
  const auto optimizer = *Optimizer::Create(&engine, &pool, Rule{}, StateFormat::kF32, &stream);
  const auto tier_of = [&](const ParameterTensors& tensors) {
    const size_t number = *optimizer->Add(tensors);
    return optimizer->Uses({&number, 1})->front().tier;
  };
  std::vector<float> memory(50 * 100);
  const auto tensors_of = [&](const std::string& name) {
    return RegisterParameter(engine, Matrix(name, DType::kF32, Rule{}, StateFormat::kF32));
  };
  EXPECT_EQ(tier_of(tensors_of("tensors")), Tier::kDevice);
  ParameterTensors tensors = tensors_of("gradient");
  tensors.gradient = Values(memory.data(), DType::kF32);
  EXPECT_EQ(tier_of(tensors), Tier::kPinned);
  tensors = tensors_of("weight");
  tensors.weight = Values(memory.data(), DType::kF32);
  tensors.shape = {50, 100};
  EXPECT_EQ(tier_of(tensors), Tier::kPinned);
  tensors = tensors_of("frozen");
  tensors.gradient = std::nullopt;
  const size_t frozen = *optimizer->Add(tensors);
  EXPECT_TRUE(optimizer->Uses({&frozen, 1})->empty());
  const Update update = UpdateOf(frozen, 1);
  EXPECT_TRUE(optimizer->Step({&update, 1}).ok());
  EXPECT_EQ(stream.launches, 0U);
}

// Gradient and weight come and go; the state has its frames.
TEST(DeviceUpdate, NeedsRoomForWhatDoesNotRestThere) {
  constexpr uint64_t kTile = 100 * 2048;
  for (const StateFormat format : kFormats) {
    HeapEngine engine;
    engine.opened_with.placement = StateOnDevice();
    InlineStream stream;
    const ReferenceParameter p(Spec("a", DType::kBF16, {1000, 1024}, 100), DType::kBF16, Rule{},
                               format, 1);
    Training training(&engine, &stream, {p}, Rule{}, format);
    EXPECT_EQ(training.optimizer().min_device_bytes(), 3 * kTile);
    uint64_t largest = kTile;
    for (const TensorSpec& spec : p.state_specs) largest = std::max(largest, spec.tile_bytes(0));
    EXPECT_EQ(training.optimizer().min_pinned_bytes(), base::RoundUp(largest, 4096));
    HeapEngine all;
    all.opened_with.placement = StateOnDevice();
    all.opened_with.placement[static_cast<size_t>(Role::kParameter)] = Tier::kDevice;
    EXPECT_EQ(Training(&all, &stream, {p}, Rule{}, format).optimizer().min_device_bytes(), kTile);
  }
}

// --- Failures ---

// Expects the elements of a weight's tiles that were leased to be updated, or NaN.
void ExpectUpdatedOrNan(HeapEngine& engine, Training& training) {
  const TensorId weight = training.tensors(0).weight.tensor;
  const ReferenceParameter& p = training.parameter(0);
  const TensorSpec& spec = engine.Spec(weight);
  const auto elements = engine.Values<uint16_t>(weight);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    const bool was_leased = std::ranges::any_of(
        engine.uses, [&](const Use& use) { return use.tile == TileRef{weight, tile}; });
    if (!was_leased) continue;
    const uint64_t begin = spec.tile_offset_bytes(tile) / 2;
    for (uint64_t i = begin; i < begin + spec.tile_bytes(tile) / 2; ++i) {
      uint16_t updated = 0;
      std::memcpy(&updated, &p.weight[2 * i], 2);
      ASSERT_TRUE(elements[i] == updated || elements[i] == 0xFFFF) << i;
    }
  }
}

TEST(DeviceUpdate, ReturnsTheErrorOfALeaseOrALaunch) {
  for (const StateFormat format : {StateFormat::kF32, StateFormat::kBf16, StateFormat::k8Bit}) {
    for (size_t at = 0;; ++at) {
      bool has_failed = false;
      for (const bool of_launch : {false, true}) {
        HeapEngine engine;
        engine.opened_with.placement = StateOnDevice();
        InlineStream stream;
        ReferenceParameter p = Matrix("a", DType::kF16, Rule{}, format);
        p.state_specs[0].tile_rows = 7;  // a weight's tile has several segments
        Training training(&engine, &stream, {p}, Rule{}, format);
        const std::vector<Update> updates = training.Begin(1);
        engine.uses.clear();
        (of_launch ? stream.refuse_at : engine.refuse_at) = at;
        // The engine's leases begin as NaN; others begin as anything.
        const auto weight = engine.Values<uint16_t>(training.tensors(0).weight.tensor);
        stream.at_refusal = [weight] {
          std::ranges::replace(weight, uint16_t{0xFFFF}, uint16_t{0});
        };
        const absl::Status status = training.optimizer().Step(updates);
        EXPECT_EQ(engine.held(), 0);
        if (status.ok()) continue;
        has_failed = true;
        EXPECT_EQ(status, of_launch ? absl::AbortedError("the GPU is lost")
                                    : absl::DataLossError("the page is rotten"));
        ExpectUpdatedOrNan(engine, training);
      }
      if (!has_failed) break;
    }
  }
}

// A stream of another engine is refused by the first lease.
TEST(DeviceUpdate, RefusesAStreamOfAnotherEngine) {
  std::unique_ptr<Engine> engines[2];
  for (auto& engine : engines) {
    auto opened =
        Engine::Open({.device_bytes = kMiB, .pinned_bytes = kMiB, .placement = StateOnDevice()});
    ASSERT_TRUE(opened.ok()) << opened.status();
    engine = *std::move(opened);
  }
  const auto stream = *engines[1]->CreateStream();
  const StateFormat format = StateFormat::kF32;
  Training training(engines[0].get(), stream.get(), {Matrix("a", DType::kF32, Rule{}, format)},
                    Rule{}, format);
  const absl::Status status = training.optimizer().Step(training.Begin(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

}  // namespace
}  // namespace spillway::optim
