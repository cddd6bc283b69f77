// SPDX-License-Identifier: Apache-2.0
//
// Injects each kind of fault at each read and write of a short run with the access pattern of
// training. The run ends with the numbers of a run without faults, or with one clear error and an
// intact last commit. Bytes that were damaged after they were durable are reported, and never
// computed with.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/faulty_io_engine.h"
#include "io/make_io_engine.h"
#include "src/base/status_macros.h"
#include "tests/engine/open_mover.h"
#include "tests/exhaustive.h"
#include "tests/io/fault_cases.h"
#include "tests/io/io_uring_here.h"
#include "tests/io/sampled_requests.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"
#include "tiers/make_device_runtime.h"

namespace spillway::engine {
namespace {

constexpr uint64_t kTileBytes = 20480;  // two pages of 16 KiB, the last one short
constexpr size_t kElements = kTileBytes / 4;
constexpr uint32_t kTiles = 6;  // tiles of weights; there are as many of moments and of gradients
constexpr int kSteps = 6;
constexpr int kCommitEvery = 2;

// The value of every element of a tile after some steps. It is an integer, so that any lost update
// shows.
struct Values {
  std::array<uint32_t, kTiles> weights = {};
  std::array<uint32_t, kTiles> moments = {};
};
uint32_t Gradient(int step, uint32_t tile, uint32_t weight) {
  return weight * 2654435761u + static_cast<uint32_t>(step) * 97 + tile;
}
Values ValuesAfter(int steps) {
  Values values;
  for (int step = 1; step <= steps; ++step) {
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
      const uint32_t gradient = Gradient(step, tile, values.weights[tile]);
      values.moments[tile] = values.moments[tile] * 3 + gradient;
      values.weights[tile] += values.moments[tile];
    }
  }
  return values;
}

// Trains with a mover over a store in a folder, on a disk that can be made to fail.
class Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Open(const std::string& folder, IoKind kind,
                                                       uint64_t seed) {
    auto trainer = std::unique_ptr<Trainer>(new Trainer);
    SPILLWAY_ASSIGN_OR_RETURN(auto runtime, tiers::MakeDeviceRuntime(Device::Host()));
    SPILLWAY_ASSIGN_OR_RETURN(
        auto faulty, io::FaultyIoEngine::Create(seed, [&](io::ResultHook hook) {
          return io::MakeIoEngine(kind, {.result_hook = std::move(hook)}, folder);
        }));
    trainer->faulty_ = faulty.get();
    SPILLWAY_ASSIGN_OR_RETURN(trainer->mover_,
                              OpenMover({folder + "/a", folder + "/b"}, std::move(runtime),
                                        std::move(faulty), 2 * kTileBytes, 5 * kTileBytes));
    std::optional<std::string> state;
    trainer->mover_->transfers().RunWithStore(
        [&](io::Store* store) { state = store->UserState(); });
    trainer->steps_ = state ? std::stoi(*state) : 0;
    SPILLWAY_RETURN_IF_ERROR(trainer->Register());
    return trainer;
  }

  io::FaultyIoEngine& faulty() { return *faulty_; }
  int steps() const { return steps_; }

  // Runs up to step kSteps. `committed` receives the last committed step.
  absl::Status Run(int* committed) {
    while (steps_ < kSteps) {
      SPILLWAY_RETURN_IF_ERROR(Step(steps_ + 1));
      ++steps_;
      SPILLWAY_RETURN_IF_ERROR(mover_->EndStep());
      SPILLWAY_RETURN_IF_ERROR(mover_->WaitForPlan());
      if (steps_ % kCommitEvery != 0) continue;
      const absl::Status status = mover_->Commit([&](io::Store* store) {
        absl::Status committing = store->Commit(std::to_string(steps_));
        if (committing.ok()) faulty_->Synced();
        return committing;
      });
      SPILLWAY_RETURN_IF_ERROR(status);
      *committed = steps_;
    }
    return absl::OkStatus();
  }

  // Reads every weight and moment. Returns Internal if a value is wrong.
  absl::Status Check() {
    const Values values = ValuesAfter(steps_);
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
      SPILLWAY_RETURN_IF_ERROR(CheckTile(Weights(tile), values.weights[tile]));
      SPILLWAY_RETURN_IF_ERROR(CheckTile(Moments(tile), values.moments[tile]));
    }
    return absl::OkStatus();
  }

  // Simulates a power cut. Each sector written since the last commit then holds what it held at the
  // commit, or what one of the later writes put there.
  absl::Status PowerCut() {
    absl::Status status = absl::AbortedError("requests are in flight");
    while (absl::IsAborted(status)) {  // requests from before the ring died still end
      (void)FlushAll(*mover_);
      mover_->transfers().RunWithStore([&](io::Store*) {
        if (faulty_->in_flight() == 0) status = faulty_->PowerCut();
      });
    }
    return status;
  }

 private:
  Trainer() = default;

  static TileIndex Weights(uint32_t tile) { return tile; }
  static TileIndex Moments(uint32_t tile) { return kTiles + tile; }
  static TileIndex Gradients(uint32_t tile) { return 2 * kTiles + tile; }

  absl::Status Register() {
    for (const char* name : {"weights", "moments", "gradients"}) {
      const bool transient = *name == 'g';
      absl::StatusOr<std::optional<io::TensorIndex>> tensor;
      bool stored = true;
      mover_->transfers().RunWithStore([&](io::Store* store) {
        tensor = store->FindTensor(name);
        if (!tensor.ok() || *tensor) return;
        stored = false;
        const auto added = store->AddTensor({name, "{}", 2 * kTiles}, transient);
        if (added.ok()) {
          tensor = *added;
        } else {
          tensor = added.status();
        }
      });
      if (!tensor.ok()) return tensor.status();
      for (uint64_t tile = 0; tile < kTiles; ++tile) {
        mover_->AddTile(kTileBytes, Role::kParameter, transient, stored, {**tensor, tile * 2});
      }
    }
    return absl::OkStatus();
  }

  // Holds a lease while `use` runs.
  template <typename Use>
  absl::Status With(TileIndex tile, Tier tier, Access access, const Use& use) {
    SPILLWAY_ASSIGN_OR_RETURN(const Grant lease, mover_->Acquire(tile, tier, access, nullptr));
    const absl::Status status = use(reinterpret_cast<uint32_t*>(lease.data));
    mover_->EndLease(tile, tier, access, nullptr);
    return status;
  }

  absl::Status Step(int step) {
    // The backward pass computes gradients from weights on the device.
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
      uint32_t weight = 0;
      SPILLWAY_RETURN_IF_ERROR(
          With(Weights(tile), Tier::kDevice, Access::kRead, [&](const uint32_t* weights) {
            weight = weights[0];
            return AllAre(weights, weight);
          }));
      SPILLWAY_RETURN_IF_ERROR(
          With(Gradients(tile), Tier::kDevice, Access::kReadWrite, [&](uint32_t* gradients) {
            std::fill_n(gradients, kElements, Gradient(step, tile, weight));
            return absl::OkStatus();
          }));
    }
    for (uint32_t tile = 0; tile < kTiles; ++tile) SPILLWAY_RETURN_IF_ERROR(Update(tile));
    return absl::OkStatus();
  }

  // Updates the moments and the weights in pinned memory, then discards the gradients.
  absl::Status Update(uint32_t tile) {
    const auto update = [&](uint32_t* weights) {
      return With(Moments(tile), Tier::kPinned, Access::kReadWrite, [&](uint32_t* moments) {
        return With(Gradients(tile), Tier::kPinned, Access::kRead, [&](const uint32_t* gradients) {
          for (size_t i = 0; i < kElements; ++i) {
            moments[i] = moments[i] * 3 + gradients[i];
            weights[i] += moments[i];
          }
          return absl::OkStatus();
        });
      });
    };
    SPILLWAY_RETURN_IF_ERROR(With(Weights(tile), Tier::kPinned, Access::kReadWrite, update));
    return mover_->Discard(Gradients(tile));
  }

  absl::Status CheckTile(TileIndex tile, uint32_t value) {
    return With(tile, Tier::kPinned, Access::kRead,
                [&](const uint32_t* elements) { return AllAre(elements, value); });
  }

  static absl::Status AllAre(const uint32_t* elements, uint32_t value) {
    const bool same =
        std::all_of(elements, elements + kElements, [&](uint32_t e) { return e == value; });
    return same ? absl::OkStatus() : absl::InternalError("a wrong value was computed with");
  }

  io::FaultyIoEngine* faulty_ = nullptr;
  std::unique_ptr<Mover> mover_;
  int steps_ = 0;
};

bool NamesPage(const absl::Status& status, const std::string& folder) {
  const std::string message(status.message());
  for (const std::string& part :
       {std::string("tile "), std::string("page "), std::string("offset "), folder}) {
    if (message.find(part) == std::string::npos) return false;
  }
  return true;
}

bool IsClear(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
}

class FaultEverywhereTest : public testing::TestWithParam<io::FaultOfEngine> {
 protected:
  const io::FaultCase& fault() const { return io::kFaultCases[std::get<1>(GetParam())]; }
  IoKind kind() const { return std::get<0>(GetParam()); }

  // Runs with the fault at request number `at`. Returns what is wrong with the run, or an empty
  // string.
  std::string RunWith(uint64_t at, bool* was_met) {
    int committed = 0;
    absl::Status ended;
    {
      auto trainer = Trainer::Open(folder_.path(), kind(), at);
      if (!trainer.ok()) return trainer.status().ToString();
      if (fault().outcome == io::FaultOutcome::kPowerCut) (*trainer)->faulty().TrackWrites();
      (*trainer)->faulty().Inject({.kind = fault().kind, .op = fault().op, .skip = at});
      ended = (*trainer)->Run(&committed);
      if (ended.ok()) ended = (*trainer)->Check();
      *was_met = (*trainer)->faulty().faults_met() > 0;
      if (ended.ok() && (*trainer)->steps() != kSteps) return "it ended early";
      if (fault().outcome == io::FaultOutcome::kPowerCut && !ended.ok()) {
        if (const absl::Status cut = (*trainer)->PowerCut(); !cut.ok()) return cut.ToString();
      }
    }
    if (ended.ok() && committed != kSteps) return "its last commit is missing";
    const bool reported = fault().outcome == io::FaultOutcome::kDamages &&
                          absl::IsDataLoss(ended) && NamesPage(ended, folder_.path());
    if (!ended.ok() && !reported &&
        (fault().outcome == io::FaultOutcome::kCompletes || !IsClear(ended)))
      return absl::StrCat("ended with ", ended.ToString());
    return Reopen(committed);
  }

  // Reopens the store and returns what is wrong, or an empty string. The last commit must be there
  // and the run must complete, unless the fault damaged durable bytes.
  std::string Reopen(int committed) {
    auto trainer = Trainer::Open(folder_.path(), kind(), 0);
    if (!trainer.ok()) return absl::StrCat("reopening: ", trainer.status().ToString());
    const int found = (*trainer)->steps();
    if (found != committed && found != committed + kCommitEvery)
      return absl::StrCat("the commit after step ", found, " is there, not ", committed);
    absl::Status status = (*trainer)->Check();
    if (status.ok()) status = (*trainer)->Run(&committed);
    if (status.ok()) status = (*trainer)->Check();
    if (status.ok()) return "";
    if (fault().outcome == io::FaultOutcome::kDamages && absl::IsDataLoss(status) &&
        NamesPage(status, folder_.path()))
      return "";
    return absl::StrCat("after reopening: ", status.ToString());
  }

  void SetUp() override {
    if (!io::CanRun(kind())) GTEST_SKIP() << io::kNoIoUring;
  }

  void RunAt(uint64_t at, bool* was_met) {
    Empty();
    const std::string wrong = RunWith(at, was_met);
    ASSERT_EQ(wrong, "") << "request " << at;
  }
  // Counts the requests of a run that are of the kind that the fault affects.
  void CountRequests(uint64_t* requests) {
    Empty();
    auto trainer = Trainer::Open(folder_.path(), kind(), 0);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    (*trainer)->faulty().Inject(io::CountOnly(fault().op));
    int committed = 0;
    absl::Status status = (*trainer)->Run(&committed);
    if (status.ok()) status = (*trainer)->Check();
    ASSERT_TRUE(status.ok()) << status;
    *requests = (*trainer)->faulty().faults_met();
  }
  void Empty() {
    for (const char* name : {"a", "b"}) std::filesystem::remove_all(folder_ / name);
  }

  const test::TempFolder folder_{test::FastPlace()};
};

TEST_P(FaultEverywhereTest, SameNumbersOrOneErrorAndTheLastCommit) {
  if (IsExhaustive()) {
    bool was_met = true;
    uint64_t at = 0;
    for (; was_met; ++at) ASSERT_NO_FATAL_FAILURE(RunAt(at, &was_met));
    EXPECT_GT(at, 100u);
    std::cout << at - 1 << " points\n";
    return;
  }
  std::mt19937_64 random(test::Seed());
  uint64_t requests = 0;
  ASSERT_NO_FATAL_FAILURE(CountRequests(&requests));
  const std::vector<uint64_t> sampled = io::SampledRequests(requests, random);
  ASSERT_GT(requests, 16 * sampled.size());
  for (const uint64_t at : sampled) {
    bool was_met = false;
    ASSERT_NO_FATAL_FAILURE(RunAt(at, &was_met));
    EXPECT_TRUE(was_met || at == sampled.back()) << at << " of " << requests;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Engines, FaultEverywhereTest,
    testing::Combine(testing::Values(IoKind::kUring, IoKind::kPosix),
                     testing::Range(0, static_cast<int>(std::size(io::kFaultCases)))),
    io::FaultName);

}  // namespace
}  // namespace spillway::engine
