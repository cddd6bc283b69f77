// SPDX-License-Identifier: Apache-2.0
//
// Random steps over tiles whose values are known. Every lease must find the last value written,
// however the engine moves the bytes. Tests repeat these steps, vary them and disturb them.

#ifndef SPILLWAY_TESTS_ENGINE_RANDOM_STEPS_H_
#define SPILLWAY_TESTS_ENGINE_RANDOM_STEPS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "spillway/engine.h"

namespace spillway::engine {

inline constexpr int kTensors = 6;
inline constexpr int kTiles = 8;
inline constexpr int64_t kRowBytes = 4096;

// One action of a step: leases a tile, reads or writes it, and ends the lease.
struct StepAction {
  int tensor = 0;
  uint64_t tile = 0;
  Tier tier = Tier::kDevice;
  Access access = Access::kRead;
  bool held = false;     // the lease ends after that of the next action
  bool discard = false;  // discards the tile afterwards; only if the tensor is transient
};
using Step = std::vector<StepAction>;

inline bool IsTransient(int tensor) { return tensor >= kTensors - 2; }
inline Role RoleOf(int tensor) { return static_cast<Role>(tensor % kNumRoles); }
inline int64_t RowsOf(int tensor) { return 1 + tensor % 4; }

// Runs steps on an engine. The tiles have 4 to 16 KiB each, 416 KiB together.
class RandomSteps {
 public:
  using Values = std::array<std::array<uint64_t, kTiles>, kTensors>;
  // Whether a call that failed this many times is to be made again.
  using TryAgain = std::function<bool(const absl::Status&, int)>;

  // REQUIRES: the engine outlives it. `values` are those that an opened store holds.
  RandomSteps(Engine* engine, uint64_t seed, const Values& values = {})
      : engine_(*engine), random_(seed), value_(values) {
    for (const auto& tensor : values) {
      for (const uint64_t version : tensor) versions_ = std::max(versions_, version);
    }
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      const int64_t rows = RowsOf(tensor);
      TensorSpec spec;
      spec.name = "t" + std::to_string(tensor);
      spec.shape = {rows * kTiles, kRowBytes / 4};
      spec.tile_rows = rows;
      spec.role = RoleOf(tensor);
      spec.transient = IsTransient(tensor);
      const auto id = engine_.Register(spec);
      EXPECT_TRUE(id.ok()) << id.status();
      if (id.ok()) ids_[tensor] = *id;
    }
  }

  void set_try_again(TryAgain try_again) { try_again_ = std::move(try_again); }

  Step MakeStep(size_t length) {
    Step step(length);
    for (StepAction& action : step) {
      action.tensor = Below(kTensors);
      action.tile = static_cast<uint64_t>(Below(kTiles));
      action.tier = Below(3) == 0 ? Tier::kPinned : Tier::kDevice;
      action.access = static_cast<Access>(Below(4));
      action.held = Below(3) == 0;
      action.discard = IsTransient(action.tensor) && Below(3) == 0;
    }
    return step;
  }

  // Returns the step cut short, or with one more action somewhere.
  Step Vary(Step step) {
    const auto at = static_cast<ptrdiff_t>(Below(static_cast<int>(step.size())));
    if (Below(2) == 0) {
      step.resize(static_cast<size_t>(at));
    } else {
      step.insert(step.begin() + at, MakeStep(1).front());
    }
    return step;
  }

  // Runs the step, on a stream now and then. Calls `between` where no lease is held.
  void Run(const Step& step, const std::function<void()>& between = {}) {
    Lease held;
    std::pair<int, uint64_t> holds{-1, 0};
    std::unique_ptr<Stream> stream = *engine_.CreateStream();
    for (size_t i = 0; i < step.size(); ++i) {
      const StepAction& action = step[i];
      if (between && holds.first < 0) {
        ASSERT_TRUE(stream->Synchronize().ok());  // a lease released on it may last until then
        between();
      }
      // The same thread may not lease a tile again that it already holds.
      if (holds == std::pair{action.tensor, action.tile}) held.Release();
      const bool on_stream = action.tier == Tier::kDevice && i % 5 == 0;
      const TileRef ref = Ref(action.tensor, action.tile);
      Lease lease;
      ASSERT_TRUE(Do([&] {
                    auto got = action.tier == Tier::kPinned
                                   ? engine_.AcquireHost(ref, action.access)
                                   : engine_.Acquire(ref, action.access,
                                                     on_stream ? stream.get() : nullptr);
                    if (got.ok()) lease = *std::move(got);
                    return got.status();
                  }).ok());
      if (on_stream) {
        ASSERT_TRUE(stream->Synchronize().ok());
      }
      Use(action, lease);
      if (::testing::Test::HasFatalFailure()) return;
      held.Release();
      holds = {-1, 0};
      if (action.held && !action.discard) {
        held = std::move(lease);
        holds = {action.tensor, action.tile};
        continue;
      }
      lease.Release();
      // Leases of earlier actions may also last until then.
      if (on_stream || action.discard) {
        ASSERT_TRUE(stream->Synchronize().ok());
      }
      if (!action.discard) continue;
      ASSERT_TRUE(Do([&] { return engine_.Discard(ref); }).ok());
      value_[action.tensor][action.tile] = 0;
    }
    held.Release();
    ASSERT_TRUE(stream->Synchronize().ok());
  }

  // Checks every tile that a commit has.
  void CheckAll() {
    Step step;
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      for (uint64_t tile = 0; !IsTransient(tensor) && tile < kTiles; ++tile) {
        step.push_back({.tensor = tensor, .tile = tile, .tier = Tier::kPinned});
      }
    }
    Run(step);
  }

  // Makes the call, and repeats it as long as TryAgain returns true. Reports a failure that
  // remains.
  absl::Status Do(const std::function<absl::Status()>& call) {
    absl::Status status = call();
    for (int tries = 1; !status.ok() && try_again_ && try_again_(status, tries); ++tries) {
      status = call();
    }
    EXPECT_TRUE(status.ok()) << status;
    return status;
  }

  // Returns what the tiles hold now. Transient tiles are lost with the engine.
  Values values() const { return value_; }
  TileRef Ref(int tensor, uint64_t tile) const { return {ids_[tensor], tile}; }
  int Below(int limit) { return static_cast<int>(random_() % static_cast<uint64_t>(limit)); }

 private:
  // Checks a tile and, if the access writes, writes a new version. Every word is determined by the
  // tile's version and the word's position. A tile without bytes holds zeros.
  void Use(const StepAction& action, const Lease& lease) {
    const std::span<uint64_t> words = lease.as<uint64_t>();
    uint64_t& version = value_[action.tensor][action.tile];
    if (action.access != Access::kDiscard) {
      for (size_t i = 0; i < words.size(); ++i) {
        ASSERT_EQ(words[i], version == 0 ? 0 : version * 1000003 + i)
            << "tensor " << action.tensor << " tile " << action.tile << " word " << i;
      }
    }
    if (!Writes(action.access)) return;
    version = ++versions_;
    for (size_t i = 0; i < words.size(); ++i) words[i] = version * 1000003 + i;
  }

  Engine& engine_;
  std::mt19937_64 random_;
  TryAgain try_again_;
  TensorId ids_[kTensors];
  Values value_ = {};
  uint64_t versions_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_TESTS_ENGINE_RANDOM_STEPS_H_
