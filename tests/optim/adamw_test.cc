// SPDX-License-Identifier: Apache-2.0
//
// AdamW over an engine: what it leases and in which order, that tiles and threads change no bit,
// and what it refuses. The arithmetic itself is adamw_kernel_test's.

#include "src/optim/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "src/optim/adamw_kernel.h"
#include "tests/optim/fake_engine.h"

namespace spillway {
namespace {

const AdamWOptions kOptions = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};

TensorSpec Spec(std::string name, DType dtype, std::vector<int64_t> shape, int64_t tile_rows) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.dtype = dtype;
  spec.shape = std::move(shape);
  spec.tile_rows = tile_rows;
  return spec;
}

enum class Precision { kF32, kHalf };

// Registers the tensors of one parameter: all F32 with one weight, or F16 weight and gradient.
AdamWTensors RegisterParameter(FakeEngine& engine, const std::string& name,
                               std::vector<int64_t> shape, int64_t tile_rows, Precision precision) {
  const DType low = precision == Precision::kHalf ? DType::kF16 : DType::kF32;
  const auto add = [&](const char* suffix, DType dtype) {
    return *engine.Register(Spec(name + suffix, dtype, shape, tile_rows), {});
  };
  AdamWTensors tensors;
  tensors.gradient = add(".gradient", low);
  tensors.master = add(".master", DType::kF32);
  tensors.moment1 = add(".moment1", DType::kF32);
  tensors.moment2 = add(".moment2", DType::kF32);
  tensors.weight = precision == Precision::kHalf ? add("", DType::kF16) : tensors.master;
  return tensors;
}

void FillRandom(FakeEngine& engine, const AdamWTensors& tensors, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (float& value : engine.Content<float>(tensors.master)) value = normal(random);
  if (engine.Spec(tensors.gradient).dtype == DType::kF32) {
    for (float& value : engine.Content<float>(tensors.gradient)) value = normal(random);
  } else {
    for (uint16_t& half : engine.Content<uint16_t>(tensors.gradient)) half = random() & 0xb7ff;
  }
}

std::unique_ptr<AdamW> Create(FakeEngine& engine, ThreadPool& pool,
                              std::vector<AdamWTensors> parameters) {
  auto adamw = AdamW::Create(&engine, &pool, kOptions, std::move(parameters));
  EXPECT_TRUE(adamw.ok()) << adamw.status();
  return *std::move(adamw);
}

template <typename T>
std::vector<T> Copy(std::span<T> values) {
  return {values.begin(), values.end()};
}

TEST(StreamingAdamW, UpdatesEveryParameterAsTheKernelDoesInOnePiece) {
  for (const Precision precision : {Precision::kF32, Precision::kHalf}) {
    for (const int threads : {1, 3}) {
      FakeEngine engine;
      ThreadPool pool(threads);
      const std::vector<AdamWTensors> parameters = {
          RegisterParameter(engine, "a", {13, 77}, 3, precision),
          RegisterParameter(engine, "b", {100003}, 0, precision),
          RegisterParameter(engine, "c", {}, 0, precision),
          RegisterParameter(engine, "d", {4, 5, 6}, 4, precision),
      };
      for (uint32_t i = 0; i < parameters.size(); ++i) FillRandom(engine, parameters[i], i);

      const AdamWStep step = {.step = 2, .learning_rate = 1e-3, .gradient_scale = 0.25};
      struct Expected {
        std::vector<float> master, moment1, moment2;
        std::vector<uint16_t> weight;
      };
      std::vector<Expected> expected;
      for (const AdamWTensors& tensors : parameters) {
        Expected e;
        e.master = Copy(engine.Content<float>(tensors.master));
        e.moment1.resize(e.master.size());
        e.moment2.resize(e.master.size());
        e.weight.resize(e.master.size());
        optim::AdamWRun run;
        run.num_elements = static_cast<int64_t>(e.master.size());
        run.gradient = engine.Content<std::byte>(tensors.gradient).data();
        run.gradient_is_f16 = precision == Precision::kHalf;
        run.master = e.master.data();
        run.moment1 = e.moment1.data();
        run.moment2 = e.moment2.data();
        run.weight = e.weight.data();
        optim::UpdateAdamW(optim::MakeAdamWFactors(kOptions, step), run);
        expected.push_back(std::move(e));
      }

      const auto adamw = Create(engine, pool, parameters);
      ASSERT_TRUE(adamw->Step(step).ok());
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_EQ(Copy(engine.Content<float>(parameters[i].master)), expected[i].master);
        EXPECT_EQ(Copy(engine.Content<float>(parameters[i].moment1)), expected[i].moment1);
        EXPECT_EQ(Copy(engine.Content<float>(parameters[i].moment2)), expected[i].moment2);
        if (precision == Precision::kF32) continue;
        EXPECT_EQ(Copy(engine.Content<uint16_t>(parameters[i].weight)), expected[i].weight);
      }
    }
  }
}

TEST(StreamingAdamW, LeasesWhatItDeclaresInThatOrderOneTileSetAtATime) {
  FakeEngine engine;
  ThreadPool pool(2);
  const AdamWTensors half = RegisterParameter(engine, "half", {5, 8}, 2, Precision::kHalf);
  const AdamWTensors full = RegisterParameter(engine, "full", {6}, 0, Precision::kF32);
  const auto adamw = Create(engine, pool, {half, full});
  const auto use = [](TensorId id, uint64_t tile, Access access) {
    return Use{TileRef(id, tile), Tier::kPinned, access};
  };
  std::vector<Use> expected;
  for (uint64_t tile = 0; tile < 3; ++tile) {
    expected.push_back(use(half.gradient, tile, Access::kRead));
    expected.push_back(use(half.master, tile, Access::kReadWrite));
    expected.push_back(use(half.moment1, tile, Access::kReadWrite));
    expected.push_back(use(half.moment2, tile, Access::kReadWrite));
    expected.push_back(use(half.weight, tile, Access::kDiscard));
  }
  expected.push_back(use(full.gradient, 0, Access::kRead));
  expected.push_back(use(full.master, 0, Access::kReadWrite));
  expected.push_back(use(full.moment1, 0, Access::kReadWrite));
  expected.push_back(use(full.moment2, 0, Access::kReadWrite));
  EXPECT_EQ(adamw->uses(), expected);
  ASSERT_TRUE(adamw->Step({.step = 1, .learning_rate = 0.1}).ok());
  EXPECT_EQ(engine.uses, expected);
  EXPECT_EQ(engine.max_held, 5);
  EXPECT_EQ(engine.held, 0);
}

TEST(StreamingAdamW, ReturnsTheEnginesFailureWithNothingHeldAndTheTileAsItWas) {
  FakeEngine engine;
  ThreadPool pool(1);
  const AdamWTensors tensors = RegisterParameter(engine, "w", {4, 8}, 2, Precision::kHalf);
  FillRandom(engine, tensors, 1);
  const std::vector<float> before = Copy(engine.Content<float>(tensors.master));
  const auto adamw = Create(engine, pool, {tensors});
  engine.refuse_at = 8;  // the second tile's second moment
  EXPECT_EQ(adamw->Step({.step = 1, .learning_rate = 0.1}),
            absl::DataLossError("the page is rotten"));
  EXPECT_EQ(engine.held, 0);
  const std::vector<float> after = Copy(engine.Content<float>(tensors.master));
  EXPECT_NE(std::vector(after.begin(), after.begin() + 16),
            std::vector(before.begin(), before.begin() + 16));
  EXPECT_EQ(std::vector(after.begin() + 16, after.end()),
            std::vector(before.begin() + 16, before.end()));
}

TEST(StreamingAdamW, WithoutParametersDoesNothing) {
  FakeEngine engine;
  ThreadPool pool(1);
  const auto adamw = Create(engine, pool, {});
  EXPECT_TRUE(adamw->Step({.step = 1, .learning_rate = 0.1}).ok());
  EXPECT_TRUE(adamw->uses().empty());
  EXPECT_EQ(adamw->min_pinned_bytes(), 0u);
}

// Whether leases i, i+1, … always find room, wherever an adversary puts each. One char a frame.
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

TEST(StreamingAdamW, PinnedBytesHoldTheLeasesWhereverTheyArePlaced) {
  for (size_t a = 1; a <= 3; ++a) {
    for (size_t b = 1; b <= 3; ++b) {
      for (size_t c = 1; c <= 3; ++c) {
        for (const std::vector<size_t>& leases :
             {std::vector<size_t>{a}, std::vector<size_t>{a, b}, std::vector<size_t>{a, b, c}}) {
          std::vector<uint64_t> bytes;
          for (size_t lease : leases) bytes.push_back(lease * 4096 - 1);
          std::string frames(optim::PinnedBytesForLeases(bytes) / 4096, '.');
          EXPECT_TRUE(AlwaysFits(frames, leases, 0)) << a << b << c;
        }
      }
    }
  }
  std::string frames(5, '.');
  EXPECT_FALSE(AlwaysFits(frames, {1, 3}, 0));  // their sum with room to spare is not enough
}

TEST(StreamingAdamW, PinnedBytesOfATileSet) {
  const auto bytes = [](std::vector<uint64_t> leases) {
    return optim::PinnedBytesForLeases(leases);
  };
  EXPECT_EQ(bytes({}), 0u);
  EXPECT_EQ(bytes({1}), 4096u);
  EXPECT_EQ(bytes({4096, 8192}), 5 * 4096u);
  EXPECT_EQ(bytes({8192, 4096}), 4 * 4096u);
  EXPECT_EQ(bytes({2, 4, 4, 4, 2}), 4096u * (4 + 5));
  constexpr uint64_t kTile = 1 << 20;
  EXPECT_EQ(bytes({kTile / 2, kTile, kTile, kTile, kTile / 2}), kTile * 13 / 2);
}

TEST(StreamingAdamW, MinPinnedBytesFollowTheLargestTileSet) {
  FakeEngine engine;
  ThreadPool pool(1);
  const AdamWTensors tiled = RegisterParameter(engine, "a", {1000, 1024}, 100, Precision::kF32);
  const AdamWTensors whole = RegisterParameter(engine, "b", {50, 1024}, 0, Precision::kHalf);
  const uint64_t tile_bytes = 100 * 4096;
  EXPECT_EQ(Create(engine, pool, {tiled, whole})->min_pinned_bytes(), 7 * tile_bytes);
  const uint64_t half_bytes = 50 * 2048, full_bytes = 50 * 4096;
  // 102400 bytes are 25 frames.
  EXPECT_EQ(Create(engine, pool, {whole})->min_pinned_bytes(),
            half_bytes + 2 * full_bytes + 4 * full_bytes);
}

class AdamWCreate : public testing::Test {
 protected:
  absl::Status Status(AdamWTensors tensors, AdamWOptions options = kOptions) {
    return AdamW::Create(&engine_, &pool_, options, {tensors}).status();
  }
  void ExpectRefused(const absl::Status& status, const std::string& part) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.ToString().find(part), std::string::npos) << status;
  }
  TensorId Add(const std::string& name, DType dtype, std::vector<int64_t> shape,
               int64_t tile_rows) {
    return *engine_.Register(Spec(name, dtype, std::move(shape), tile_rows), {});
  }

  FakeEngine engine_;
  ThreadPool pool_{1};
  AdamWTensors full_ = RegisterParameter(engine_, "full", {4, 8}, 2, Precision::kF32);
  AdamWTensors half_ = RegisterParameter(engine_, "half", {4, 8}, 2, Precision::kHalf);
};

TEST_F(AdamWCreate, RefusesOptionsOutOfRange) {
  const double nan = std::nan("");
  const double infinity = HUGE_VAL;
  for (double beta : {-0.1, 1.0, 2.0, nan}) {
    ExpectRefused(Status(full_, {.beta1 = beta}), "beta1");
    ExpectRefused(Status(full_, {.beta2 = beta}), "beta2");
  }
  for (double epsilon : {0.0, -1e-8, 1e-60, nan, infinity}) {
    ExpectRefused(Status(full_, {.epsilon = epsilon}), "epsilon");
  }
  for (double decay : {-0.1, nan, infinity}) {
    ExpectRefused(Status(full_, {.weight_decay = decay}), "weight_decay");
  }
  EXPECT_TRUE(Status(full_, {.beta1 = 0, .beta2 = 0, .epsilon = 1, .weight_decay = 0}).ok());
}

TEST_F(AdamWCreate, RefusesDTypes) {
  const std::vector<int64_t> shape = {4, 8};
  AdamWTensors tensors = half_;
  tensors.gradient = Add("g16", DType::kBF16, shape, 2);
  ExpectRefused(Status(tensors), "gradient 'g16' is bf16; it must be f16 or f32");
  tensors = half_;
  tensors.moment2 = Add("v16", DType::kF16, shape, 2);
  ExpectRefused(Status(tensors), "moment 'v16' is f16");
  tensors = half_;
  tensors.master = half_.weight;
  ExpectRefused(Status(tensors), "master weight 'half' is f16");
  tensors = half_;
  tensors.weight = Add("w8", DType::kU8, shape, 2);
  ExpectRefused(Status(tensors), "weight 'w8' is u8");
  tensors.weight = Add("w32", DType::kF32, shape, 2);
  ExpectRefused(Status(tensors), "'w32' is f32 and must then be the master weight itself");
  tensors = half_;
  tensors.gradient = Add("g32", DType::kF32, shape, 2);
  EXPECT_TRUE(Status(tensors).ok());
}

TEST_F(AdamWCreate, RefusesShapesAndTilesThatDiffer) {
  AdamWTensors tensors = half_;
  tensors.gradient = Add("g", DType::kF16, {8, 4}, 2);
  ExpectRefused(Status(tensors),
                "gradient 'g' and master weight 'half.master' have different shapes");
  tensors = half_;
  tensors.moment1 = Add("m", DType::kF32, {4, 8}, 1);
  ExpectRefused(Status(tensors), "moment 'm'");
  tensors = half_;
  tensors.weight = Add("w", DType::kF16, {4, 9}, 2);
  ExpectRefused(Status(tensors), "weight 'w'");
}

TEST_F(AdamWCreate, RefusesATensorGivenTwice) {
  AdamWTensors tensors = full_;
  tensors.moment2 = tensors.moment1;
  ExpectRefused(Status(tensors), "'full.moment1' is given twice");
  ExpectRefused(AdamW::Create(&engine_, &pool_, kOptions, {half_, half_}).status(),
                "is given twice");
}

TEST_F(AdamWCreate, StepRefusesWhatCannotBeApplied) {
  const auto adamw = Create(engine_, pool_, {full_});
  ExpectRefused(adamw->Step({.step = 0, .learning_rate = 0.1}), "step is 0");
  ExpectRefused(adamw->Step({.step = 1, .learning_rate = -0.1}), "learning_rate");
  ExpectRefused(adamw->Step({.step = 1, .learning_rate = std::nan("")}), "learning_rate");
  ExpectRefused(adamw->Step({.step = 1, .learning_rate = 0.1, .gradient_scale = HUGE_VAL}),
                "gradient_scale");
  EXPECT_TRUE(engine_.uses.empty());
}

}  // namespace
}  // namespace spillway
