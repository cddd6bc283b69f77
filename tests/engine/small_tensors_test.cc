// SPDX-License-Identifier: Apache-2.0
//
// Tests small tensors among large ones. Whatever the budgets are, they are written to NVMe
// together, in few packs, and every value is read back.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "io/posix_io_engine.h"
#include "io/store/store_check.h"
#include "spillway/engine.h"
#include "tests/io/store/store_test_util.h"
#include "tests/temp_folder.h"

namespace spillway {
namespace {

constexpr int kLayers = 30;
constexpr uint64_t kSmall = 3 * kLayers;  // small tensors that are not transient

// Each layer has a matrix and a norm, each with its gradient and moments.
class SmallTensors : public testing::Test {
 protected:
  struct Tensors {
    TensorId parameter, gradient, first_moment, second_moment;
  };

  void Open(uint64_t device_bytes, uint64_t pinned_bytes) {
    layers_.clear();
    auto engine = Engine::Open({.store = {folder_ / "store"},
                                .mode = OpenMode::kOpenOrCreate,
                                .device_bytes = device_bytes,
                                .pinned_bytes = pinned_bytes});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    for (int layer = 0; layer < kLayers; ++layer) {
      layers_.push_back(Register("matrix." + std::to_string(layer), 64 * 576));
      layers_.push_back(Register("norm." + std::to_string(layer), norm_elements_));
    }
  }

  Tensors Register(const std::string& name, int64_t elements) {
    const auto add = [&](const char* kind, Role role) {
      TensorSpec spec;
      spec.name = name + kind;
      spec.shape = {elements};
      spec.role = role;
      spec.transient = role == Role::kGradient;
      auto id = engine_->Register(spec);
      EXPECT_TRUE(id.ok()) << id.status();
      return *id;
    };
    return {add("", Role::kParameter), add(".gradient", Role::kGradient),
            add(".first", Role::kMoment), add(".second", Role::kMoment)};
  }

  void Step(float step) {
    for (const Tensors& layer : layers_) {
      auto parameter = engine_->Acquire({layer.parameter, 0}, Access::kRead);
      auto gradient = engine_->Acquire({layer.gradient, 0}, Access::kDiscard);
      ASSERT_TRUE(parameter.ok() && gradient.ok()) << parameter.status() << gradient.status();
      const std::span<const float> values = parameter->as<float>();
      for (size_t i = 0; i < values.size(); ++i) gradient->as<float>()[i] = values[i] + step;
    }
    for (const Tensors& layer : layers_) {
      auto parameter = engine_->AcquireHost({layer.parameter, 0}, Access::kReadWrite);
      auto gradient = engine_->AcquireHost({layer.gradient, 0}, Access::kRead);
      auto first = engine_->AcquireHost({layer.first_moment, 0}, Access::kReadWrite);
      auto second = engine_->AcquireHost({layer.second_moment, 0}, Access::kReadWrite);
      ASSERT_TRUE(parameter.ok() && gradient.ok() && first.ok() && second.ok());
      for (size_t i = 0; i < parameter->as<float>().size(); ++i) {
        first->as<float>()[i] += gradient->as<float>()[i];
        second->as<float>()[i] += 2 * gradient->as<float>()[i];
        parameter->as<float>()[i] = first->as<float>()[i] + second->as<float>()[i];
      }
      gradient->Release();
      ASSERT_TRUE(engine_->Discard({layer.gradient, 0}).ok());
    }
    ASSERT_TRUE(engine_->EndStep().ok());
    ASSERT_TRUE(engine_->WaitForPlan().ok());
  }

  // Expects that every element has the value that so many steps compute from zero.
  void Check(int steps) {
    float parameter = 0, first = 0, second = 0;
    for (int step = 1; step <= steps; ++step) {
      const float gradient = parameter + static_cast<float>(step);
      first += gradient;
      second += 2 * gradient;
      parameter = first + second;
    }
    const auto holds = [&](TensorId tensor, float value) {
      auto lease = engine_->AcquireHost({tensor, 0}, Access::kRead);
      ASSERT_TRUE(lease.ok()) << lease.status();
      const std::span<const float> values = lease->as<float>();
      EXPECT_TRUE(std::all_of(values.begin(), values.end(), [&](float v) { return v == value; }))
          << engine_->Spec(tensor).name;
    };
    for (const Tensors& layer : layers_) {
      holds(layer.parameter, parameter);
      holds(layer.first_moment, first);
      holds(layer.second_moment, second);
    }
  }

  // Closes the engine. Expects that the store is undamaged and that all small pages lie in at most
  // `most` packs.
  void ExpectPacks(uint64_t most) {
    engine_.reset();
    const std::string catalog = folder_ / "store/spillway-catalog.sqlite";
    const auto number = [&](const char* sql) { return std::stoull(io::RunSql(catalog, sql)); };
    EXPECT_EQ(number("SELECT sum(num_references) FROM packs"), kSmall);
    const uint64_t packs = number("SELECT count(*) FROM packs");
    EXPECT_LE(packs, most);
    RecordProperty("packs", static_cast<int>(packs));
    auto view = io::StoreView::Open({folder_ / "store"}, io::StoreView::Wanted::kAlone);
    ASSERT_TRUE(view.ok()) << view.status();
    const auto report = io::CheckStore(**view, io::PosixIoEngine::Create({})->get(), {});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->damage, 0u) << report->findings[0].message;
    EXPECT_EQ(report->orphans.size(), 0u);
  }

  test::TempFolder folder_{test::FastPlace()};
  std::unique_ptr<Engine> engine_;
  std::vector<Tensors> layers_;
  int64_t norm_elements_ = 576;
};

TEST_F(SmallTensors, ShareFewPacksThoughMemoryIsShort) {
  Open(512 * kKiB, 2 * kMiB);
  for (int step = 1; step <= 6; ++step) {
    Step(static_cast<float>(step));
    if (step % 2 == 0) {
      ASSERT_TRUE(engine_->Commit("").ok());
    }
  }
  EXPECT_GT(engine_->Stats().nvme.read_bytes, 0u);
  ExpectPacks(20);
  Open(512 * kKiB, kMiB);
  Check(6);
}

TEST_F(SmallTensors, ShareFewPacksThatWereWrittenOnTheDevice) {
  Open(32 * kMiB, 32 * kMiB);
  for (const Tensors& layer : layers_) {
    for (const TensorId tensor : {layer.parameter, layer.first_moment, layer.second_moment}) {
      auto lease = engine_->Acquire({tensor, 0}, Access::kDiscard);
      ASSERT_TRUE(lease.ok()) << lease.status();
      std::fill(lease->as<float>().begin(), lease->as<float>().end(), 0.0f);
    }
  }
  ASSERT_TRUE(engine_->Commit("").ok());
  ExpectPacks((kSmall + 15) / 16);  // 16 norms fill a pack
  Open(kMiB, kMiB);
  Check(0);
}

TEST_F(SmallTensors, OfSeveralKiBShareAsManyPacksAsTheyFill) {
  norm_elements_ = 4096;  // four norms fill a pack
  Open(32 * kMiB, 32 * kMiB);
  Step(1);
  ASSERT_TRUE(engine_->Commit("").ok());
  ExpectPacks((kSmall + 3) / 4);
  Open(kMiB, kMiB);
  Check(1);
}

}  // namespace
}  // namespace spillway
