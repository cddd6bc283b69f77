// SPDX-License-Identifier: Apache-2.0
//
// AdamW over the engine itself: within exactly the pinned bytes that it asks for, for any page
// size, prefetched or not, with a store or without, the bits are those of the kernel on whole
// tensors.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "src/optim/adamw_kernel.h"
#include "tests/optim/fake_engine.h"

namespace spillway {
namespace {

const AdamWOptions kOptions = {.weight_decay = 0.1};

// One parameter in memory: the reference, and what the engine's tensors start from.
struct Parameter {
  TensorSpec spec;  // of the master weight
  bool half = false;
  std::vector<float> master, moment1, moment2;
  std::vector<uint16_t> weight;
  std::vector<std::byte> gradient;
  AdamWTensors tensors;
};

std::vector<Parameter> MakeParameters() {
  struct Shape {
    std::vector<int64_t> shape;
    int64_t tile_rows;
    bool half;
  };
  const Shape shapes[] = {{{301, 129}, 37, true}, {{577}, 0, true},       {{}, 0, true},
                          {{64, 1024}, 16, true}, {{100, 333}, 1, false}, {{2000}, 0, false}};
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<Parameter> parameters;
  for (const Shape& shape : shapes) {
    Parameter p;
    p.spec.name = absl::StrCat("p", parameters.size());
    p.spec.shape = shape.shape;
    p.spec.tile_rows = shape.tile_rows;
    p.half = shape.half;
    const uint64_t n = p.spec.size_bytes() / sizeof(float);
    p.master.resize(n);
    for (float& value : p.master) value = normal(random);
    p.moment1.resize(n);
    p.moment2.resize(n);
    p.weight.resize(n);
    p.gradient.resize(n * (p.half ? 2 : 4));
    parameters.push_back(std::move(p));
  }
  return parameters;
}

void NewGradient(Parameter& p, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < p.master.size(); ++i) {
    const uint16_t half = random() & 0xb7ff;  // below 0.5, of either sign
    const float value = normal(random);
    if (p.half) {
      std::memcpy(&p.gradient[i * 2], &half, sizeof(half));
    } else {
      std::memcpy(&p.gradient[i * 4], &value, sizeof(value));
    }
  }
}

AdamWStep StepOf(int t) { return {.step = t, .learning_rate = 1e-2 / t, .gradient_scale = 0.5}; }

void UpdateReference(Parameter& p, int t) {
  optim::AdamWRun run;
  run.num_elements = static_cast<int64_t>(p.master.size());
  run.gradient = p.gradient.data();
  run.gradient_is_f16 = p.half;
  run.master = p.master.data();
  run.moment1 = p.moment1.data();
  run.moment2 = p.moment2.data();
  run.weight = p.half ? p.weight.data() : nullptr;
  optim::UpdateAdamW(optim::MakeAdamWFactors(kOptions, StepOf(t)), run);
}

void Register(Engine& engine, Parameter& p) {
  const auto add = [&](const char* suffix, DType dtype, Role role, const Reader& reader) {
    TensorSpec spec = p.spec;
    spec.name += suffix;
    spec.dtype = dtype;
    spec.role = role;
    spec.transient = role == Role::kGradient;
    const auto id = engine.Register(spec, reader);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(TensorId());
  };
  const Reader initial = [&p](uint64_t offset_bytes, std::span<std::byte> out) {
    const auto* master = reinterpret_cast<const std::byte*>(p.master.data());
    std::memcpy(out.data(), master + offset_bytes, out.size());
    return absl::OkStatus();
  };
  const DType low = p.half ? DType::kF16 : DType::kF32;
  p.tensors.gradient = add(".gradient", low, Role::kGradient, {});
  p.tensors.master = add(".master", DType::kF32, Role::kMasterWeight, initial);
  p.tensors.moment1 = add(".moment1", DType::kF32, Role::kMoment, {});
  p.tensors.moment2 = add(".moment2", DType::kF32, Role::kMoment, {});
  p.tensors.weight = p.half ? add("", DType::kF16, Role::kParameter, {}) : p.tensors.master;
}

// Copies a tensor out of the engine or into it, a tile at a time.
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

template <typename T>
void ExpectContent(Engine& engine, TensorId id, const std::vector<T>& expected) {
  std::vector<T> content(expected.size());
  CopyTiles(engine, id, Access::kRead, reinterpret_cast<std::byte*>(content.data()));
  EXPECT_EQ(std::memcmp(content.data(), expected.data(), expected.size() * sizeof(T)), 0)
      << engine.Spec(id).name;
}

// Registers every parameter and makes the optimizer over them.
std::unique_ptr<AdamW> CreateAdamW(Engine& engine, ThreadPool& pool,
                                   std::vector<Parameter>& parameters) {
  std::vector<AdamWTensors> tensors;
  for (Parameter& p : parameters) {
    Register(engine, p);
    tensors.push_back(p.tensors);
  }
  auto adamw = AdamW::Create(&engine, &pool, kOptions, tensors);
  EXPECT_TRUE(adamw.ok()) << adamw.status();
  return *std::move(adamw);
}

struct Case {
  std::string name;
  bool store = true;
  bool tight = true;  // exactly min_pinned_bytes
  uint64_t page_bytes = 0;
  bool prefetch = true;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

std::string CaseName(const testing::TestParamInfo<Case>& info_of_case) {
  return info_of_case.param.name;
}

class AdamWOverTheEngine : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    FakeEngine fake;
    const uint64_t least_bytes = CreateAdamW(fake, pool_, parameters_)->min_pinned_bytes();
    EngineOptions options;
    if (GetParam().store) options.store = {folder_};
    options.mode = OpenMode::kScratch;
    options.page_bytes = GetParam().page_bytes;
    options.pinned_bytes = GetParam().tight ? least_bytes : 64 * kMiB;
    options.device_bytes = kMiB;
    pinned_bytes_ = options.pinned_bytes;
    auto engine = Engine::Open(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    adamw_ = CreateAdamW(*engine_, pool_, parameters_);
  }

  // Step t, on the engine and on the reference.
  void Update(int t) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& p = parameters_[i];
      NewGradient(p, static_cast<uint32_t>(100 * t) + static_cast<uint32_t>(i));
      CopyTiles(*engine_, p.tensors.gradient, Access::kDiscard, p.gradient.data());
      UpdateReference(p, t);
    }
    if (GetParam().prefetch) {
      ASSERT_TRUE(engine_->Prefetch(adamw_->uses()).ok());
    }
    const absl::Status status = adamw_->Step(StepOf(t));
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(engine_->EndStep().ok());
    ASSERT_TRUE(engine_->WaitForPlan().ok());
  }

  const std::string folder_ = testing::TempDir() + "adamw_engine_test_" + GetParam().name;
  std::vector<Parameter> parameters_ = MakeParameters();
  ThreadPool pool_{2};
  uint64_t pinned_bytes_ = 0;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<AdamW> adamw_;
};

TEST_P(AdamWOverTheEngine, GivesTheKernelsBits) {
  for (int t = 1; t <= 3; ++t) Update(t);
  for (const Parameter& p : parameters_) {
    ExpectContent(*engine_, p.tensors.master, p.master);
    ExpectContent(*engine_, p.tensors.moment1, p.moment1);
    ExpectContent(*engine_, p.tensors.moment2, p.moment2);
    if (p.half) ExpectContent(*engine_, p.tensors.weight, p.weight);
  }
  const EngineStats stats = engine_->Stats();
  EXPECT_LE(stats.tiers[static_cast<size_t>(Tier::kPinned)].peak_bytes, pinned_bytes_);
  if (GetParam().tight) {
    EXPECT_GT(stats.nvme.read_bytes, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Budgets, AdamWOverTheEngine,
                         testing::Values(Case{"no_store", false, false}, Case{"roomy", true, false},
                                         Case{"tight", true, true},
                                         Case{"tight_small_pages", true, true, 4096},
                                         Case{"tight_odd_pages", true, true, 20480},
                                         Case{"tight_large_pages", true, true, 8 * kMiB},
                                         Case{"tight_on_demand", true, true, 65536, false}),
                         CaseName);

}  // namespace
}  // namespace spillway
