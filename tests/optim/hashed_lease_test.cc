// SPDX-License-Identifier: Apache-2.0
//
// Tests the checksums that the update pass gives to the engine for the tiles that it compares and
// hashes, for every rule and format, and for tiles and rows of many sizes. The test's engine
// computes the checksums itself.

#include "src/optim/hashed_lease.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/checksum.h"
#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "tests/exhaustive.h"
#include "tests/heap_engine.h"
#include "tests/optim/reference_parameter.h"

namespace spillway::optim {
namespace {

// Reports every tile that is not transient as read from NVMe and not compared yet.
class HashingEngine final : public HeapEngine, public engine::UncheckedLeases {
 public:
  uint64_t page_bytes() const override { return 12 * kKiB; }

  absl::StatusOr<Lease> AcquireUnchecked(TileRef tile, Access access,
                                         std::vector<uint64_t>* checksums) override {
    auto lease = AcquireHost(tile, access);
    checksums->clear();
    if (!lease.ok() || Spec(tile.tensor).transient || access == Access::kDiscard) return lease;
    *checksums = ChecksumsOf(*lease);
    if (tiles_until_lost > 0 && --tiles_until_lost == 0) checksums->back() ^= 1;
    return lease;
  }
  absl::Status ReadAgain(const Lease&, uint64_t, uint64_t) override {
    ++read_again;
    return is_lost ? absl::DataLossError("the page is rotten") : absl::OkStatus();
  }
  void SetChecked(const Lease&) override { ++checked; }
  void Release(Lease lease, std::vector<uint64_t> checksums) override {
    EXPECT_EQ(checksums, ChecksumsOf(lease));
    ++released;
  }
  void GiveUp(Lease) override { ++given_up; }

  int tiles_until_lost = 0;  // the last page of the last of so many does not match; 0: none
  bool is_lost = false;      // that page does not match when it is read again either
  int read_again = 0, checked = 0, released = 0, given_up = 0;

 private:
  std::vector<uint64_t> ChecksumsOf(const Lease& lease) const {
    std::vector<uint64_t> checksums;
    for (uint64_t begin = 0; begin < lease.size_bytes(); begin += page_bytes()) {
      checksums.push_back(
          io::Checksum({lease.data() + begin, std::min(page_bytes(), lease.size_bytes() - begin)}));
    }
    return checksums;
  }
};

class EachPairHashed : public testing::TestWithParam<RuleAndFormat> {
 protected:
  void SetUp() override {
    for (const TensorSpec& spec :
         {Spec("a", DType::kF16, {13, 77}, 3), Spec("b", DType::kBF16, {70003}, 0),
          Spec("c", DType::kBF16, {}, 0), Spec("d", DType::kF16, {4, 50, 60}, 4),
          Spec("e", DType::kF16, {140, 500}, 110), Spec("f", DType::kBF16, {1, 66000}, 1)}) {
      parameters_.emplace_back(spec, DType::kF16, GetParam().rule, GetParam().format, 1);
      parameters_.back().NewGradient(2);
      tensors_.push_back(RegisterParameter(engine_, parameters_.back()));
    }
    auto optimizer = Optimizer::Create(&engine_, &pool_, GetParam().rule, GetParam().format);
    ASSERT_TRUE(optimizer.ok()) << optimizer.status();
    optimizer_ = *std::move(optimizer);
    for (const ParameterTensors& tensors : tensors_)
      updates_.push_back(
          {.parameter = *optimizer_->Add(tensors), .step = 1, .learning_rate = 1e-2});
  }

  HashingEngine engine_;
  ThreadPool pool_{3};
  std::vector<ReferenceParameter> parameters_;
  std::vector<ParameterTensors> tensors_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Update> updates_;
};

TEST_P(EachPairHashed, GivesTheChecksumsOfWhatItLeaves) {
  engine_.tiles_until_lost = 3;
  const absl::Status status = optimizer_->Step(updates_);
  ASSERT_TRUE(status.ok()) << status;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].Apply(updates_[i]);
    ExpectParameter(engine_, tensors_[i], parameters_[i]);
  }
  EXPECT_EQ(engine_.read_again, 1);
  EXPECT_EQ(engine_.given_up, 0);
  EXPECT_GT(engine_.released, 0);
}

TEST_P(EachPairHashed, ATileThatIsLostIsGivenUpAndNothingIsWritten) {
  engine_.tiles_until_lost = 1;
  engine_.is_lost = true;
  const absl::Status status = optimizer_->Step(updates_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(engine_.released, 0);
  EXPECT_EQ(engine_.held(), 0);
  for (size_t i = 0; i < parameters_.size(); ++i)
    ExpectParameter(engine_, tensors_[i], parameters_[i]);
}

INSTANTIATE_TEST_SUITE_P(Rules, EachPairHashed, testing::ValuesIn(SampleOf(AllPairs())), PairName);

}  // namespace
}  // namespace spillway::optim
