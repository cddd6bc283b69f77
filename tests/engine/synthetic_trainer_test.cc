// SPDX-License-Identifier: Apache-2.0
//
// Tests the engine with the synthetic trainer on each device: every lease finds the bytes that were
// written last.

#include "tests/engine/synthetic_trainer.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "tests/engine/synthetic_kernels.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"
#include "tests/tiers/no_device.h"

namespace spillway::test {
namespace {

struct DeviceCase {
  std::string name;
  Device device;
  friend std::ostream& operator<<(std::ostream& out, const DeviceCase& c) { return out << c.name; }
};

class SyntheticTrainerTest : public testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    const auto engine =
        Engine::Open({.device = GetParam().device, .device_bytes = kMiB, .pinned_bytes = kMiB});
    const std::string why = WhyNoDevice(GetParam().device, engine.status());
    if (!why.empty()) GTEST_SKIP() << why;
    ASSERT_TRUE(engine.ok()) << engine.status();
  }

  void Run(uint64_t seed, uint64_t most_tile_bytes) {
    SCOPED_TRACE(SeedLine(seed));
    const auto result = RunSyntheticTrainer({.store = folder_ / std::to_string(seed),
                                             .device = GetParam().device,
                                             .seed = seed,
                                             .most_tile_bytes = most_tile_bytes});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_GT(result->commits, 0u);
    EXPECT_GT(result->bytes_checked, 0u);
    EXPECT_GT(result->stats.nvme.read_bytes, 0u);  // the budgets were too small for the state
    EXPECT_GT(result->stats.pinned.read_bytes, 0u);
    EXPECT_GT(result->stats.pinned.written_bytes, 0u);
  }

  TempFolder folder_;
};

TEST_P(SyntheticTrainerTest, EveryByteIsTheOneWrittenLast) {
  const uint64_t first = Seed();
  for (uint64_t seed = first; seed != first + 2; ++seed) Run(seed, 96 * kKiB);
}

TEST_P(SyntheticTrainerTest, SmallTiles) { Run(Seed(), 3000); }

TEST_P(SyntheticTrainerTest, LargeTiles) { Run(Seed(), kMiB); }

// Shows that the kernels detect a wrong byte.
TEST_P(SyntheticTrainerTest, ItsKernelsSeeAWrongByte) {
  auto engine =
      Engine::Open({.device = GetParam().device, .device_bytes = kMiB, .pinned_bytes = kMiB});
  ASSERT_TRUE(engine.ok()) << engine.status();
  auto kernels = MakeSyntheticKernels(GetParam().device);
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  auto stream = *(*engine)->CreateStream();
  const auto id = (*engine)->Register({.name = "t", .dtype = DType::kU8, .shape = {1003}});
  ASSERT_TRUE(id.ok());
  const auto launch = [&](Access access, const TileWork& what) {
    auto lease = (*engine)->Acquire(*id, access, stream.get());
    ASSERT_TRUE(lease.ok()) << lease.status();
    TileWork work = what;
    work.data = reinterpret_cast<uint8_t*>(lease->data());
    work.size_bytes = lease->size_bytes();
    ASSERT_TRUE((*kernels)->Launch(*stream, work).ok());
  };
  launch(Access::kReadWrite, {.check = true, .write = true, .next = 7});
  launch(Access::kRead, {.check = true, .expected = 7});
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(*(*kernels)->WrongBytes(), 0u);
  {
    auto lease = (*engine)->AcquireHost(*id, Access::kReadWrite);
    ASSERT_TRUE(lease.ok());
    lease->data()[1002] ^= std::byte{1};  // the last byte, after the last whole word
    lease->data()[0] ^= std::byte{128};
  }
  launch(Access::kRead, {.check = true, .expected = 7});
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(*(*kernels)->WrongBytes(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Devices, SyntheticTrainerTest,
                         testing::Values(DeviceCase{"host", Device::Host()},
                                         DeviceCase{"cuda", Device::Cuda(0)}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace spillway::test
