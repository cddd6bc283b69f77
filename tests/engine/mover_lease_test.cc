// SPDX-License-Identifier: Apache-2.0
//
// A read lease on a resident tile takes no lock, not even the mover's.

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/make_io_engine.h"
#include "tests/engine/open_mover.h"
#include "tests/temp_folder.h"
#include "tiers/make_device_runtime.h"

namespace spillway::engine {
namespace {

constexpr uint64_t kTileBytes = 16 * kKiB;
constexpr uint64_t kRoom = 2 * kTileBytes;  // bytes of each tier
constexpr TileIndex kThere = 0, kTooLarge = 1;

class MoverLeaseTest : public testing::TestWithParam<Tier> {
 protected:
  void SetUp() override {
    auto io = io::MakeIoEngine(IoKind::kPosix, {}, folder_.path());
    ASSERT_TRUE(io.ok()) << io.status();
    auto mover = OpenMover({folder_ / "s"}, *tiers::MakeDeviceRuntime(Device::Host()),
                           *std::move(io), kRoom, kRoom, [this](TileIndex tile) {
                             if (under_lock_) std::exchange(under_lock_, nullptr)();
                             return absl::StrCat("tile ", tile);
                           });
    ASSERT_TRUE(mover.ok()) << mover.status();
    mover_ = *std::move(mover);
    io::TensorIndex tensor = 0;
    mover_->transfers().RunWithStore(
        [&](io::Store* store) { tensor = *store->AddTensor({"w", "{}", 8}, false); });
    mover_->AddTile(kTileBytes, Role::kParameter, false, false, {tensor, 0});
    mover_->AddTile(2 * kRoom, Role::kParameter, false, false, {tensor, 1});
  }

  test::TempFolder folder_;
  std::function<void()> under_lock_;  // called once, under the mover's lock
  std::unique_ptr<Mover> mover_;
};

// A request that cannot fit fails under the lock. Meanwhile another thread reads a resident tile.
TEST_P(MoverLeaseTest, OfAResidentTileNeedsNoLock) {
  const Tier tier = GetParam();
  ASSERT_TRUE(mover_->Acquire(kThere, tier, Access::kReadWrite, nullptr).ok());
  mover_->EndLease(kThere, tier, Access::kReadWrite, nullptr);

  std::future<bool> reader;
  under_lock_ = [&] {
    reader = std::async(std::launch::async,
                        [&] { return mover_->Acquire(kThere, tier, Access::kRead, nullptr).ok(); });
    reader.wait();  // blocks forever if it needs the lock
  };
  EXPECT_FALSE(mover_->Acquire(kTooLarge, tier, Access::kRead, nullptr).ok());
  ASSERT_TRUE(reader.valid()) << "nothing was done under the lock";
  ASSERT_TRUE(reader.get());
  mover_->EndLease(kThere, tier, Access::kRead, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Tiers, MoverLeaseTest, testing::Values(Tier::kDevice, Tier::kPinned),
                         [](const auto& tier) {
                           return tier.param == Tier::kDevice ? "Device" : "Pinned";
                         });

}  // namespace
}  // namespace spillway::engine
