// SPDX-License-Identifier: Apache-2.0
//
// The public engine over a disk that fails. Each kind of fault is injected at a sample of the reads
// and writes of a run that computes, commits, takes a snapshot and restores it. The run ends with
// the values of a run without faults, or with one clear error and an intact last commit.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/faulty_io_engine.h"
#include "spillway/interrupt.h"
#include "src/base/status_macros.h"
#include "tests/engine/faulty_machine.h"
#include "tests/exhaustive.h"
#include "tests/io/fault_cases.h"
#include "tests/io/io_uring_here.h"
#include "tests/io/sampled_requests.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"

namespace spillway::engine {
namespace {

using io::Fault;
using io::IoOp;

constexpr uint64_t kTiles = 6;
constexpr int kSteps = 6;

// Values are integers, so that any lost update shows.
uint32_t Gradient(int step, uint64_t tile, uint32_t weight) {
  return weight * 2654435761u + static_cast<uint32_t>(step) * 97 + static_cast<uint32_t>(tile);
}
struct Values {
  uint32_t weight = 0;
  uint32_t moment = 0;
};
Values ValuesAfter(int steps, uint64_t tile) {
  Values values;
  for (int step = 1; step <= steps; ++step) {
    values.moment = values.moment * 3 + Gradient(step, tile, values.weight);
    values.weight += values.moment;
  }
  return values;
}

// Trains matrices in tiles of two pages, and small tensors that share packs. Each has moments, and
// gradients that no commit includes.
class Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Open(const std::string& folder, IoKind io,
                                                       uint64_t seed) {
    auto run = std::unique_ptr<Trainer>(new Trainer);
    SPILLWAY_ASSIGN_OR_RETURN(run->machine_, OpenMachine({.store = {folder + "/a", folder + "/b"},
                                                          .mode = OpenMode::kOpenOrCreate,
                                                          .device_bytes = 3 * 20 * kKiB,
                                                          .pinned_bytes = 6 * 20 * kKiB,
                                                          .page_bytes = 16 * kKiB,
                                                          .io = io},
                                                         seed));
    const std::optional<std::string> state = run->engine().UserState();
    run->steps_ = state ? std::stoi(*state) : 0;
    for (const auto& [name, columns] : {std::pair("matrix", 5000), std::pair("norm", 576)}) {
      Group group;
      SPILLWAY_ASSIGN_OR_RETURN(group.weight, run->Register(name, "", columns));
      SPILLWAY_ASSIGN_OR_RETURN(group.moment, run->Register(name, ".moment", columns));
      SPILLWAY_ASSIGN_OR_RETURN(group.gradient, run->Register(name, ".gradient", columns));
      run->groups_.push_back(group);
    }
    return run;
  }

  Engine& engine() { return *machine_.engine; }
  io::FaultyIoEngine& disk() { return *machine_.disk; }
  int steps() const { return steps_; }

  // Runs up to step `steps` and commits. `states` receives the steps that may be found on
  // reopening.
  absl::Status GoOn(int steps, std::set<int>* states) {
    while (steps_ < steps) {
      ++steps_;
      for (const Group& group : groups_) {
        for (uint64_t tile = 0; tile < kTiles; ++tile) {
          SPILLWAY_RETURN_IF_ERROR(Backward(group, tile));
          SPILLWAY_RETURN_IF_ERROR(Update(group, tile));
        }
      }
      SPILLWAY_RETURN_IF_ERROR(engine().EndStep());
      SPILLWAY_RETURN_IF_ERROR(engine().WaitForPlan());
    }
    states->insert(steps_);
    SPILLWAY_RETURN_IF_ERROR(engine().Commit(absl::StrCat(steps_)));
    *states = {steps_};
    return absl::OkStatus();
  }

  absl::Status GoBack(const std::string& label, int steps, std::set<int>* states) {
    states->insert(steps);
    SPILLWAY_RETURN_IF_ERROR(engine().Restore(label));
    *states = {steps};
    steps_ = steps;
    return absl::OkStatus();
  }

  absl::Status Check() {
    for (const Group& group : groups_) {
      for (uint64_t tile = 0; tile < kTiles; ++tile) {
        const Values values = ValuesAfter(steps_, tile);
        SPILLWAY_RETURN_IF_ERROR(CheckTile({group.weight, tile}, values.weight));
        SPILLWAY_RETURN_IF_ERROR(CheckTile({group.moment, tile}, values.moment));
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Group {
    TensorId weight, moment, gradient;
  };

  Trainer() = default;

  absl::StatusOr<TensorId> Register(const std::string& name, const std::string& kind,
                                    int64_t columns) {
    return engine().Register({.name = name + kind,
                              .shape = {kTiles, columns},
                              .tile_rows = 1,
                              .transient = kind == ".gradient"});
  }

  // Computes the gradient from the weight, on the device.
  absl::Status Backward(const Group& group, uint64_t tile) {
    SPILLWAY_ASSIGN_OR_RETURN(const Lease weight,
                              engine().Acquire({group.weight, tile}, Access::kRead));
    const uint32_t value = weight.as<uint32_t>()[0];
    SPILLWAY_RETURN_IF_ERROR(AllAre(weight, value));
    SPILLWAY_ASSIGN_OR_RETURN(const Lease gradient,
                              engine().Acquire({group.gradient, tile}, Access::kDiscard));
    std::ranges::fill(gradient.as<uint32_t>(), Gradient(steps_, tile, value));
    return absl::OkStatus();
  }

  // Updates the moment and the weight in pinned memory, then discards the gradient.
  absl::Status Update(const Group& group, uint64_t tile) {
    {
      SPILLWAY_ASSIGN_OR_RETURN(const Lease weight,
                                engine().AcquireHost({group.weight, tile}, Access::kReadWrite));
      SPILLWAY_ASSIGN_OR_RETURN(const Lease moment,
                                engine().AcquireHost({group.moment, tile}, Access::kReadWrite));
      SPILLWAY_ASSIGN_OR_RETURN(const Lease gradient,
                                engine().AcquireHost({group.gradient, tile}, Access::kRead));
      const auto weights = weight.as<uint32_t>(), moments = moment.as<uint32_t>(),
                 gradients = gradient.as<uint32_t>();
      for (size_t i = 0; i < weights.size(); ++i) {
        moments[i] = moments[i] * 3 + gradients[i];
        weights[i] += moments[i];
      }
    }
    return engine().Discard({group.gradient, tile});
  }

  absl::Status CheckTile(TileRef tile, uint32_t value) {
    SPILLWAY_ASSIGN_OR_RETURN(const Lease lease, engine().AcquireHost(tile, Access::kRead));
    return AllAre(lease, value);
  }
  static absl::Status AllAre(const Lease& lease, uint32_t value) {
    const auto values = lease.as<uint32_t>();
    const bool same = std::ranges::all_of(values, [&](uint32_t v) { return v == value; });
    return same ? absl::OkStatus() : absl::InternalError("a wrong value was computed with");
  }

  Machine machine_;
  std::vector<Group> groups_;
  int steps_ = 0;
};

// The power is not cut here.
constexpr int kNumCases = static_cast<int>(std::size(io::kFaultCases)) - 1;
static_assert(io::kFaultCases[kNumCases].outcome == io::FaultOutcome::kPowerCut);

class EngineFaultTest : public testing::TestWithParam<io::FaultOfEngine> {
 protected:
  void SetUp() override {
    if (!io::CanRun(io())) GTEST_SKIP() << io::kNoIoUring;
  }
  IoKind io() const { return std::get<0>(GetParam()); }
  const io::FaultCase& fault() const { return io::kFaultCases[std::get<1>(GetParam())]; }

  // Runs with the fault at request number `at` of the fault's kind of request. Returns what is
  // wrong with the run, or an empty string.
  std::string RunWith(const std::string& folder, uint64_t at, bool* was_met) const {
    std::set<int> states = {0};
    absl::Status ended;
    {
      auto run = Trainer::Open(folder, io(), at);
      if (!run.ok()) return run.status().ToString();
      (*run)->disk().Inject({.kind = fault().kind, .op = fault().op, .skip = at});
      ended = WholeRun(**run, &states);
      *was_met = (*run)->disk().faults_met() > 0;
      if (ended.ok() && (*run)->steps() != kSteps) return "it ended early";
    }
    if (!IsAllowed(ended, folder)) return absl::StrCat("ended with ", ended.ToString());
    return Reopen(folder, states);
  }

  // Counts the requests of a run that are of the kind that the fault affects.
  void CountRequests(uint64_t* requests) const {
    const test::TempFolder folder(test::FastPlace());
    auto run = Trainer::Open(folder.path(), io(), 0);
    ASSERT_TRUE(run.ok()) << run.status();
    (*run)->disk().Inject(io::CountOnly(fault().op));
    std::set<int> states = {0};
    const absl::Status status = WholeRun(**run, &states);
    ASSERT_TRUE(status.ok()) << status;
    *requests = (*run)->disk().faults_met();
  }

  static absl::Status WholeRun(Trainer& run, std::set<int>* states) {
    SPILLWAY_RETURN_IF_ERROR(run.GoOn(2, states));
    SPILLWAY_RETURN_IF_ERROR(run.engine().Snapshot("two"));
    SPILLWAY_RETURN_IF_ERROR(run.GoOn(4, states));
    SPILLWAY_RETURN_IF_ERROR(run.GoBack("two", 2, states));
    SPILLWAY_RETURN_IF_ERROR(run.Check());
    SPILLWAY_RETURN_IF_ERROR(run.GoOn(kSteps, states));
    return run.Check();
  }

  // Reopens the store and returns what is wrong, or an empty string. One of the states must be
  // there, and the run must go on from it, unless the fault damaged durable bytes.
  std::string Reopen(const std::string& folder, std::set<int> states) const {
    auto run = Trainer::Open(folder, io(), 0);
    if (!run.ok()) return absl::StrCat("reopening: ", run.status().ToString());
    if (!states.contains((*run)->steps()))
      return absl::StrCat("the commit after step ", (*run)->steps(), " is there");
    absl::Status status = (*run)->Check();
    if (status.ok()) status = (*run)->GoOn(kSteps + 1, &states);
    if (status.ok()) status = (*run)->Check();
    const bool damaged = fault().outcome == io::FaultOutcome::kDamages && IsDamage(status, folder);
    return status.ok() || damaged ? "" : absl::StrCat("after reopening: ", status.ToString());
  }

  bool IsAllowed(const absl::Status& status, const std::string& folder) const {
    if (status.ok()) return true;
    if (fault().outcome == io::FaultOutcome::kCompletes) return false;
    if (fault().outcome == io::FaultOutcome::kDamages && IsDamage(status, folder)) return true;
    return absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
  }
  // Whether the status is data loss that names the tensor, the page, the offset and the folder.
  static bool IsDamage(const absl::Status& status, const std::string& folder) {
    const std::string message(status.message());
    const auto names = [&](const std::string& part) {
      return message.find(part) != std::string::npos;
    };
    return absl::IsDataLoss(status) && names("tensor '") && names("page ") && names("offset ") &&
           names(folder);
  }
};

TEST_P(EngineFaultTest, SameValuesOrOneErrorAndTheLastCommit) {
  std::mt19937_64 random(test::Seed());
  uint64_t requests = 0;
  ASSERT_NO_FATAL_FAILURE(CountRequests(&requests));
  const std::vector<uint64_t> sampled = io::SampledRequests(requests, random);
  ASSERT_GT(requests, 16 * sampled.size());
  for (const uint64_t at : sampled) {
    const test::TempFolder folder(test::FastPlace());
    bool was_met = false;
    const std::string wrong = RunWith(folder.path(), at, &was_met);
    ASSERT_EQ(wrong, "") << "request " << at;
    EXPECT_TRUE(was_met || at == sampled.back()) << at << " of " << requests;
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineFaultTest,
                         testing::Combine(testing::Values(IoKind::kUring, IoKind::kPosix),
                                          testing::Range(0, kNumCases)),
                         io::FaultName);

// --- Devices that cannot be measured ---

EngineOptions ToBeMeasured(const std::string& folder, Calibration calibration) {
  return {.store = {folder},
          .mode = OpenMode::kOpenOrCreate,
          .device_bytes = kMiB,
          .pinned_bytes = 16 * kMiB,
          .calibration = calibration};
}

const std::vector<Fault> kNoRoom = {
    {.kind = Fault::Kind::kEnospc, .op = IoOp::kWrite, .skip = 20, .count = 1}};

TEST(EngineCalibration, OnesThatCannotBeMeasuredAreUsedAsTheyAre) {
  const test::TempFolder folder(test::FastPlace());
  std::vector<std::string> announced;
  EngineOptions options = ToBeMeasured(folder / "s", Calibration::kIfNone);
  options.announce = [&](std::string_view what) { announced.emplace_back(what); };
  {
    auto machine = OpenMachine(options, 1, kNoRoom);
    ASSERT_TRUE(machine.ok()) << machine.status();
    EXPECT_EQ(machine->disk->faults_met(), 1u);
    const auto of_this = [](const std::string& what) {
      return what.find("could be measured") != std::string::npos &&
             what.find("No space left") != std::string::npos;
    };
    EXPECT_EQ(std::ranges::count_if(announced, of_this), 1) << testing::PrintToString(announced);
    EXPECT_EQ(std::ranges::count_if(machine->engine->Stats().fallbacks, of_this), 1);
    EXPECT_EQ(machine->engine->Stats().drives.at(0).read_bytes_per_second, 0);
    const auto id = machine->engine->Register({.name = "w", .shape = {1000}});
    ASSERT_TRUE(id.ok() && machine->engine->Commit("").ok());
  }
  if (SampleBegin() != 0) return;  // a calibration takes seconds
  announced.clear();
  const auto again = OpenMachine(options, 1);  // no profile was stored, so it is tried again
  ASSERT_TRUE(again.ok()) << again.status();
  for (const std::string& what : announced)
    EXPECT_EQ(what.find("could be measured"), std::string::npos) << what;
  const DriveStats drive = again->engine->Stats().drives.at(0);
  EXPECT_EQ(drive.folder, options.store[0]);
  EXPECT_GT(drive.read_bytes_per_second, 0);
  EXPECT_GT(drive.write_bytes_per_second, 0);
}

TEST(EngineCalibration, OneThatWasAskedForFailsOpening) {
  const test::TempFolder folder(test::FastPlace());
  const auto machine = OpenMachine(ToBeMeasured(folder / "s", Calibration::kNow), 1, kNoRoom);
  EXPECT_EQ(machine.status().code(), absl::StatusCode::kResourceExhausted) << machine.status();
}

TEST(EngineCalibration, IsCancelledByItsCaller) {
  const test::TempFolder folder(test::FastPlace());
  const std::atomic<bool> stop{true};
  for (const Calibration calibration : {Calibration::kIfNone, Calibration::kNow}) {
    EngineOptions options = ToBeMeasured(folder / "s", calibration);
    options.stop = &stop;
    EXPECT_EQ(Engine::Open(options).status().code(), absl::StatusCode::kCancelled);
    options.stop = nullptr;
    SetInterrupt([] { return true; });
    EXPECT_EQ(Engine::Open(options).status().code(), absl::StatusCode::kCancelled);
    SetInterrupt({});
  }
}

}  // namespace
}  // namespace spillway::engine
