// SPDX-License-Identifier: Apache-2.0
//
// Tests updates over a disk that flips bits: what a flipped bit may change in the tiles of an
// update, and in other leases of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/faulty_io_engine.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "tests/engine/faulty_machine.h"
#include "tests/exhaustive.h"
#include "tests/heap_engine.h"
#include "tests/optim/reference_parameter.h"
#include "tests/temp_folder.h"

namespace spillway::optim {
namespace {

using io::Fault;
using io::IoOp;

// A tile is a multiple of the I/O alignment in every format, so each bit of a request is a bit of a
// tile.
constexpr uint64_t kPageBytes = 20 * kKiB;
constexpr int64_t kTileRows = 128;
constexpr uint64_t kAll = uint64_t{1} << 40;

class UpdateFaults : public testing::TestWithParam<StateFormat> {
 protected:
  void SetUp() override {
    for (const auto& [name, tiles] : {std::pair("a", 2), std::pair("b", 1)}) {
      TensorSpec spec;
      spec.name = name;
      spec.dtype = DType::kF16;
      spec.shape = {tiles * kTileRows, 1024};
      spec.tile_rows = kTileRows;
      parameters_.emplace_back(spec, DType::kF16, Rule{}, GetParam(), 1);
    }
    HeapEngine fake;
    Register(fake);
    pinned_bytes_ = optimizer_->min_pinned_bytes();
    Open(OpenMode::kCreate);
    const absl::Status status = UpdateAll();
    ASSERT_TRUE(status.ok()) << status;
  }

  void Open(OpenMode mode) {
    optimizer_.reset();
    machine_ = {};
    auto machine = engine::OpenMachine({.store = {folder_.path()},
                                        .mode = mode,
                                        .device_bytes = 4 * kMiB,
                                        .pinned_bytes = pinned_bytes_,
                                        .page_bytes = kPageBytes,
                                        .plan_steps = false},
                                       /*seed=*/1);
    ASSERT_TRUE(machine.ok()) << machine.status();
    machine_ = *std::move(machine);
    Register(engine());
  }

  void Register(Engine& engine) {
    auto optimizer = Optimizer::Create(&engine, &pool_, Rule{}, GetParam());
    ASSERT_TRUE(optimizer.ok()) << optimizer.status();
    optimizer_ = *std::move(optimizer);
    tensors_.clear();
    numbers_.clear();
    for (const ReferenceParameter& p : parameters_) {
      tensors_.push_back(RegisterParameter(engine, p));
      numbers_.push_back(*optimizer_->Add(tensors_.back()));
    }
  }

  Engine& engine() { return *machine_.engine; }
  TensorId moments() const { return tensors_[0].state.back(); }
  const Bytes& moments_bytes() const { return parameters_[0].state.back(); }

  // Returns the updates of the next step. Writes its gradients, and evicts all state to NVMe.
  std::vector<Update> NextUpdates() {
    std::vector<Update> updates;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].NewGradient(static_cast<uint32_t>(100 * step_) + static_cast<uint32_t>(i));
      CopyTiles(engine(), tensors_[i].gradient->tensor, Access::kDiscard,
                parameters_[i].gradient.data());
      updates.push_back({.parameter = numbers_[i], .step = step_, .learning_rate = 1e-2});
    }
    EvictAll();
    return updates;
  }

  // Runs a step on the engine and, if it succeeds there, on the reference.
  absl::Status UpdateAll() {
    const std::vector<Update> updates = NextUpdates();
    if (absl::Status status = optimizer_->Step(updates); !status.ok()) return status;
    for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].Apply(updates[i]);
    ++step_;
    return engine().EndStep();
  }

  // Evicts all state, so that it is on NVMe only.
  void EvictAll() {
    for (const ParameterTensors& tensors : tensors_) {
      for (const TensorId id : tensors.state) {
        for (uint64_t tile = 0; tile < engine().Spec(id).num_tiles(); ++tile)
          ASSERT_TRUE(engine().Evict({id, tile}).ok());
      }
    }
  }

  void ExpectReference() {
    for (size_t i = 0; i < parameters_.size(); ++i)
      ExpectParameter(engine(), tensors_[i], parameters_[i]);
  }
  void ExpectReferenceAfterReopening() {
    const absl::Status status = engine().Commit("");
    ASSERT_TRUE(status.ok()) << status;
    Open(OpenMode::kOpenOrCreate);
    ExpectReference();
  }

  // Expects each tile of a weight, together with that tile of all its state, to be either the one
  // of `before` or the one of `after`.
  void ExpectWholeTilesOf(const std::vector<ReferenceParameter>& before,
                          const std::vector<ReferenceParameter>& after) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      for (uint64_t tile = 0; tile < engine().Spec(tensors_[i].state[0]).num_tiles(); ++tile) {
        std::vector<bool> are_after = {
            IsAfter({tensors_[i].weight.tensor, tile}, before[i].weight, after[i].weight)};
        for (size_t s = 0; s < before[i].state.size(); ++s) {
          are_after.push_back(
              IsAfter({tensors_[i].state[s], tile}, before[i].state[s], after[i].state[s]));
        }
        EXPECT_EQ(are_after, std::vector<bool>(are_after.size(), are_after[0]))
            << "tile " << tile << " of parameter " << i;
      }
    }
  }
  bool IsAfter(TileRef tile, const Bytes& before, const Bytes& after) {
    const TensorSpec& spec = engine().Spec(tile.tensor);
    const uint64_t begin = spec.tile_offset_bytes(tile.tile);
    auto lease = engine().AcquireHost(tile, Access::kRead);
    EXPECT_TRUE(lease.ok()) << lease.status();
    if (!lease.ok()) return false;
    const bool is_after = std::memcmp(lease->data(), &after[begin], lease->size_bytes()) == 0;
    EXPECT_TRUE(is_after || std::memcmp(lease->data(), &before[begin], lease->size_bytes()) == 0)
        << spec.name << " tile " << tile.tile;
    return is_after;
  }

  // Copies the engine's weights and state to the reference.
  void TakeOver() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      ReferenceParameter& p = parameters_[i];
      CopyTiles(engine(), tensors_[i].weight.tensor, Access::kRead, p.weight.data());
      for (size_t s = 0; s < p.state.size(); ++s)
        CopyTiles(engine(), tensors_[i].state[s], Access::kRead, p.state[s].data());
      if (p.has_master()) std::memcpy(p.master.data(), p.state[0].data(), p.state[0].size());
    }
  }

  void ExpectBytes(const Lease& lease, const Bytes& tensor) {
    EXPECT_EQ(std::memcmp(lease.data(), tensor.data(), lease.size_bytes()), 0);
  }

  const test::TempFolder folder_{test::FastPlace()};
  std::vector<ReferenceParameter> parameters_;
  std::vector<ParameterTensors> tensors_;
  std::vector<size_t> numbers_;
  ThreadPool pool_{2};
  uint64_t pinned_bytes_ = 0;
  int64_t step_ = 1;
  engine::Machine machine_;
  std::unique_ptr<Optimizer> optimizer_;
};

TEST_P(UpdateFaults, AFlippedBitOnTheWayIsReadAgain) {
  for (const uint64_t skip : {0, 1, 2}) {
    const uint64_t met = machine_.disk->faults_met();
    machine_.disk->Inject({.kind = Fault::Kind::kBitFlip, .op = IoOp::kRead, .skip = skip});
    const absl::Status status = UpdateAll();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(machine_.disk->faults_met(), met + 1);
  }
  ExpectReference();
  ExpectReferenceAfterReopening();
}

TEST_P(UpdateFaults, AFlippedBitThatStaysChangesNothing) {
  const std::vector<ReferenceParameter> before = parameters_;
  machine_.disk->Inject({.kind = Fault::Kind::kBitFlip, .op = IoOp::kRead, .count = kAll});
  const absl::Status status = UpdateAll();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  for (const char* part : {"tensor 'a", "tile 0", "page ", "offset "})
    EXPECT_NE(status.message().find(part), absl::string_view::npos) << part << " in: " << status;
  machine_.disk->Clear();
  ExpectReference();
  for (size_t i = 0; i < before.size(); ++i) ExpectParameter(engine(), tensors_[i], before[i]);
  ASSERT_TRUE(UpdateAll().ok());
  ExpectReference();
  ExpectReferenceAfterReopening();
}

// Wherever bytes are lost, each tile is updated as a whole or not at all, in memory and after a
// commit.
TEST_P(UpdateFaults, AFlippedBitThatStaysLeavesItsTileAsItWas) {
  for (const uint64_t skip : {1, 2}) {
    const std::vector<ReferenceParameter> before = parameters_;
    std::vector<Update> updates = NextUpdates();
    machine_.disk->Inject(
        {.kind = Fault::Kind::kBitFlip, .op = IoOp::kRead, .skip = skip, .count = kAll});
    const absl::Status status = optimizer_->Step(updates);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    machine_.disk->Clear();
    for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].Apply(updates[i]);
    ExpectWholeTilesOf(before, parameters_);
    const absl::Status committed = engine().Commit("");
    ASSERT_TRUE(committed.ok()) << committed;
    Open(OpenMode::kOpenOrCreate);
    ExpectWholeTilesOf(before, parameters_);
    TakeOver();
    ASSERT_TRUE(UpdateAll().ok());
    ExpectReference();
  }
}

TEST_P(UpdateFaults, OtherLeasesGetNoDamagedBytes) {
  for (const Access access : {Access::kRead, Access::kReadWrite}) {
    ASSERT_TRUE(UpdateAll().ok());
    EvictAll();
    const uint64_t met = machine_.disk->faults_met();
    machine_.disk->Inject({.kind = Fault::Kind::kBitFlip, .op = IoOp::kRead});
    {
      auto lease = engine().AcquireHost({moments(), 0}, access);
      ASSERT_TRUE(lease.ok()) << lease.status();
      EXPECT_EQ(machine_.disk->faults_met(), met + 1);
      ExpectBytes(*lease, moments_bytes());
    }
    ASSERT_TRUE(UpdateAll().ok());
    EvictAll();
    machine_.disk->Inject({.kind = Fault::Kind::kBitFlip, .op = IoOp::kRead, .count = kAll});
    const absl::Status lost = engine().AcquireHost({moments(), 0}, access).status();
    EXPECT_EQ(lost.code(), absl::StatusCode::kDataLoss) << lost;
    machine_.disk->Clear();
    ExpectReference();
  }
  ExpectReferenceAfterReopening();
}

TEST_P(UpdateFaults, TheDeviceGetsNoDamagedBytes) {
  EvictAll();
  machine_.disk->Inject({.kind = Fault::Kind::kBitFlip, .op = IoOp::kRead});
  {
    auto lease = engine().Acquire({moments(), 0}, Access::kRead);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_EQ(machine_.disk->faults_met(), 1U);
    ExpectBytes(*lease, moments_bytes());
  }
  ASSERT_TRUE(UpdateAll().ok());
  EvictAll();
  machine_.disk->Inject({.kind = Fault::Kind::kBitFlip, .op = IoOp::kRead, .count = kAll});
  const absl::Status lost = engine().Acquire({moments(), 0}, Access::kRead).status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kDataLoss) << lost;
  machine_.disk->Clear();
  ExpectReference();
}

TEST_P(UpdateFaults, AStreamGetsNoBytesThatAreLost) {
  for (const Access access : {Access::kRead, Access::kReadWrite}) {
    auto stream = engine().CreateStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    EvictAll();
    machine_.disk->Inject({.kind = Fault::Kind::kBitFlip, .op = IoOp::kRead, .count = kAll});
    const absl::Status lost = engine().Acquire({moments(), 0}, access, stream->get()).status();
    EXPECT_EQ(lost.code(), absl::StatusCode::kDataLoss) << lost;
    machine_.disk->Clear();
    EXPECT_TRUE(engine().EndStep().ok()) << "the failure was reported once";
    ExpectReference();
  }
  ExpectReferenceAfterReopening();
}

INSTANTIATE_TEST_SUITE_P(
    Formats, UpdateFaults,
    testing::ValuesIn(GridOf<StateFormat>({StateFormat::kF32, StateFormat::kBf16,
                                           StateFormat::k8Bit, StateFormat::kCompact})),
    [](const auto& test) { return std::string(Name(test.param)); });

}  // namespace
}  // namespace spillway::optim
