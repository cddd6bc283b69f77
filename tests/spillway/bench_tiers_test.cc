// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench tiers` as a child process: its JSON, that it leaves no files however it ends, and
// its messages for bad input. No test asserts on a rate.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "spillway/types.h"
#include "tests/spillway/bench_test.h"
#include "tools/spillway/bench/tiers/edges.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;

class BenchTiersTest : public BenchTest {
 protected:
  // Arguments of the shortest run.
  Arguments Short() const {
    return {"bench", "tiers",   a_,     "--size",    "64MiB", "--memory",
            "64MiB", "--block", "1MiB", "--seconds", "1"};
  }
  // Arguments of a run that lasts until it is interrupted.
  Arguments Long() const {
    return {"bench", "tiers",   a_,     "--size",    "256MiB", "--memory",
            "64MiB", "--block", "1MiB", "--seconds", "600"};
  }
};

TEST_F(BenchTiersTest, ItsJsonHasEveryEdgeAndNothingStays) {
  const Ended ended = RunCommand(Short() + Arguments{"--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  ExpectNothingLeft();
  const Json json = ended.json();
  ASSERT_FALSE(json.is_discarded()) << ended.out;
  EXPECT_EQ(json["v"], 1);
  std::map<std::pair<std::string, bool>, int> seen;
  for (const Json& row : json["rows"]) {
    SCOPED_TRACE(row.dump());
    ++seen[{row.at("edge"), row.at("beside_nvme")}];
    EXPECT_EQ(row.at("block_bytes").get<uint64_t>(), uint64_t{1} << 20);
    EXPECT_GT(row.at("bytes_per_second").get<double>(), 0);
    EXPECT_GT(row.at("ceiling_bytes_per_second").get<double>(), 0);
    EXPECT_GE(row.at("rounds").get<int>(), 1);
    EXPECT_LE(row.at("lowest_share").get<double>(), row.at("share").get<double>());
    EXPECT_LE(row.at("share").get<double>(), row.at("highest_share").get<double>());
    if (row["rounds"] == 1) {
      EXPECT_DOUBLE_EQ(
          row["share"].get<double>(),
          row["bytes_per_second"].get<double>() / row["ceiling_bytes_per_second"].get<double>());
    }
    if (row["beside_nvme"]) {
      EXPECT_GT(row.at("nvme_bytes_per_second").get<double>(), 0);
    }
  }
  const std::map<std::pair<std::string, bool>, int> expected = {
      {{"nvme-pinned", false}, 1},   {{"pinned-nvme", false}, 1}, {{"pinned-device", false}, 1},
      {{"device-pinned", false}, 1}, {{"nvme-device", false}, 1}, {{"pinned-device", true}, 1},
      {{"device-pinned", true}, 1}};
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(json["machine"].at("device"), "host");
  EXPECT_FALSE(json["machine"].at("filesystem").get<std::string>().empty());
  EXPECT_TRUE(json.contains("commit"));
  EXPECT_TRUE(json["doubts"].is_array());
}

// The content is as large as one tile, then smaller, and not a divisor of it.
TEST_F(BenchTiersTest, TilesMayBeAsLargeAsTheContentAndLarger) {
  for (const uint64_t content_bytes : {2 * kMiB, kMiB + 4096}) {
    const std::vector<std::byte> content(content_bytes);
    const std::atomic<bool> interrupted = false;
    const auto edges = bench_tiers::Edges::Create({.store = a_ + "/store",
                                                   .size_bytes = 8 * kMiB,
                                                   .memory_bytes = 64 * kMiB,
                                                   .block_bytes = 2 * kMiB,
                                                   .content = content},
                                                  interrupted);
    EXPECT_TRUE(edges.ok()) << edges.status();
  }
}

// A tile that one thread leases cannot be evicted by another, so each thread has tiles of its own.
TEST_F(BenchTiersTest, FewTilesCanBeReadBesideCopies) {
  for (const uint64_t num_tiles : {uint64_t{1}, uint64_t{5}}) {
    const std::vector<std::byte> content(kMiB);
    const std::atomic<bool> interrupted = false;
    const auto edges = bench_tiers::Edges::Create({.store = a_ + "/store",
                                                   .size_bytes = num_tiles * kMiB,
                                                   .memory_bytes = 64 * kMiB,
                                                   .block_bytes = kMiB,
                                                   .content = content},
                                                  interrupted);
    ASSERT_TRUE(edges.ok()) << edges.status();
    for (int round = 0; round < 3; ++round) {
      const auto rate = (*edges)->Measure(bench_tiers::Edge::kPinnedDevice, /*beside_nvme=*/true);
      EXPECT_TRUE(rate.ok()) << num_tiles << " tiles: " << rate.status();
    }
  }
}

TEST_F(BenchTiersTest, DecimalSizesAreAccepted) {
  const Ended ended = RunCommand({"bench", "tiers", a_, "--size", "70MB", "--memory", "70MB",
                                  "--block", "1MiB", "--seconds", "1", "--json"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.json()["rows"].size(), 7u) << ended.out;
}

TEST_F(BenchTiersTest, RatesOfAFileSystemInMemoryAreDoubted) {
  const TempFolder folder(FastPlace());
  if (!IsInMemory(folder.path())) GTEST_SKIP() << "no file system in memory";
  Arguments arguments = Short() + Arguments{"--json"};
  arguments[2] = folder.path();
  const Ended ended = RunCommand(arguments);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.json()["doubts"].dump(), HasSubstr("page cache"));
}

TEST_F(BenchTiersTest, AFolderWhoseNameIsNotUtf8IsInItsJson) {
  const std::string folder = a_ + "/caf\xe9";
  std::filesystem::create_directory(folder);
  Arguments arguments = Short() + Arguments{"--json"};
  arguments[2] = folder;
  const Ended ended = RunCommand(arguments);
  std::filesystem::remove(folder);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("caf\xef\xbf\xbd"));
  EXPECT_FALSE(ended.json().is_discarded()) << ended.out;
}

TEST_F(BenchTiersTest, TheTableHasALineForEachEdge) {
  const Ended ended = RunCommand(Short());
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* word : {"nvme-pinned", "pinned-nvme", "pinned-device", "device-pinned",
                           "nvme-device", "beside NVMe", "ceiling", "device: host"}) {
    EXPECT_THAT(ended.out, HasSubstr(word));
  }
}

TEST_F(BenchTiersTest, InterruptedItRemovesEverythingAndSays130) {
  ExpectInterrupted(Long(), {50, 300, 900, 2500}, 1);
}

TEST_F(BenchTiersTest, InterruptedTwiceItRemovesEverything) { ExpectInterrupted(Long(), {700}, 2); }

// If there is a GPU, the command measures it. Otherwise the error gives the reason and the remedy.
TEST_F(BenchTiersTest, AGpuIsMeasuredOrExplained) {
  const Ended ended = RunCommand(Short() + Arguments{"--device", "cuda:0", "--json"});
  ExpectNothingLeft();
  if (ended.exit_code == 0) {
    EXPECT_NE(ended.json()["machine"]["device"], "host");
    return;
  }
  EXPECT_EQ(ended.exit_code, 3) << ended.err;
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, HasSubstr("CUDA device 0"));
  EXPECT_THAT(ended.err, testing::AnyOf(HasSubstr("install it"), HasSubstr("update the driver"),
                                        HasSubstr("nvidia-smi"), HasSubstr("use the host")));
}

TEST_F(BenchTiersTest, ADeviceThatIsNotThereEndsWith3) {
  const Ended ended = RunCommand(Short() + Arguments{"--device", "cuda:999"});
  EXPECT_EQ(ended.exit_code, 3) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("CUDA device 999"));
  ExpectNothingLeft();
}

TEST_F(BenchTiersTest, BadInputIsExplained) {
  ExpectExplained({
      {{"bench", "tier"}, 2, "did you mean tiers?"},
      {{"bench", "tiers", a_ + "/none"}, 1, "/none"},
      {{"bench", "tiers", a_, "--size", "1MiB"}, 2, "--size"},
      {{"bench", "tiers", a_, "--size", "4000TiB"}, 1, "give a smaller --size"},
      {{"bench", "tiers", a_, "--memory", "unlimited"}, 2, "--memory"},
      {{"bench", "tiers", a_, "--memory", "4000TiB"}, 1, "smaller --"},
      {{"bench", "tiers", a_, "--block", "3MiB"}, 2, "--block"},
      {{"bench", "tiers", a_, "--block", "64MiB"}, 2, "a 32nd of --memory"},
      {{"bench", "tiers", a_, "--device", "tpu"}, 2, "is not host, cuda or cuda:N"},
      {{"bench", "tiers", a_, "--seconds", "0"}, 2, "--seconds"},
      {{"bench", "tiers", a_, "--jsn"}, 2, "--json"},
  });
}

}  // namespace
}  // namespace spillway::test
