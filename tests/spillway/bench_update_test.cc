// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench update` as a child process: its JSON, the bytes that it moves, that it leaves no
// files however it ends, and its messages for bad input. No test asserts on a rate.

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "tests/spillway/bench_test.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;

class BenchUpdateTest : public BenchTest {
 protected:
  // Arguments of the shortest run, in memory.
  static Arguments Short() {
    return {"bench", "update", "--parameters", "1048576", "--memory", "64MiB", "--seconds", "1"};
  }
  // Arguments of a run that lasts until it is interrupted.
  Arguments Long() const {
    return {"bench", "update",    a_,      "--parameters", "4194304", "--memory",
            "64MiB", "--seconds", "86400", "--optimizer",  "adamw"};
  }
  static void ExpectARow(const Json& row) {
    SCOPED_TRACE(row.dump());
    EXPECT_GT(row.at("parameters_per_second").get<double>(), 0);
    EXPECT_GT(row.at("limit_parameters_per_second").get<double>(), 0);
    EXPECT_GE(row.at("rounds").get<int>(), 1);
    EXPECT_LE(row.at("lowest_share").get<double>(), row.at("share").get<double>());
    EXPECT_LE(row.at("share").get<double>(), row.at("highest_share").get<double>());
  }
};

TEST_F(BenchUpdateTest, InMemoryItsJsonHasEveryPairOfRuleAndFormat) {
  const Ended ended = RunCommand(Short() + Arguments{"--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  ASSERT_FALSE(json.is_discarded()) << ended.out;
  EXPECT_EQ(json["v"], 1);
  std::map<std::string, std::pair<double, double>> bytes;
  for (const Json& row : json["rows"]) {
    ExpectARow(row);
    EXPECT_EQ(row.at("where"), "dram");
    EXPECT_EQ(row.at("limit"), "memory");
    const bool has_momentum = row.at("momentum").get<double>() > 0;
    const std::string name = row.at("optimizer").get<std::string>() + (has_momentum ? "+" : "") +
                             " " + row.at("state_format").get<std::string>();
    EXPECT_TRUE(bytes
                    .emplace(name, std::pair(row.at("read_bytes_per_parameter"),
                                             row.at("written_bytes_per_parameter")))
                    .second)
        << name;
  }
  // A master weight of 4 bytes and its moments are read and written; a weight of 2 bytes is
  // written. In compact state, the weight and one more byte are read and written, and 1 + 1/32
  // bytes for each moment. To compute its norms, LAMB reads the master weight and the moments once
  // more. LARS reads only the master weight once more; in compact state it cannot be read without
  // the moments.
  const std::map<std::string, std::pair<double, double>> expected = {
      {"adamw fp32", {12, 14}},
      {"adamw bf16", {8, 10}},
      {"adam fp32", {12, 14}},
      {"adam bf16", {8, 10}},
      {"sgd fp32", {4, 6}},
      {"sgd+ fp32", {8, 10}},
      {"sgd+ bf16", {6, 8}},
      {"rmsprop fp32", {8, 10}},
      {"rmsprop bf16", {6, 8}},
      {"rmsprop+ fp32", {12, 14}},
      {"rmsprop+ bf16", {8, 10}},
      {"lion fp32", {8, 10}},
      {"lion bf16", {6, 8}},
      {"lamb fp32", {24, 14}},
      {"lamb bf16", {16, 10}},
      {"lars+ fp32", {12, 10}},
      {"lars+ bf16", {10, 8}},
      {"adamw compact", {5.0625, 5.0625}},
      {"adam compact", {5.0625, 5.0625}},
      {"sgd compact", {3, 3}},
      {"sgd+ compact", {4.03125, 4.03125}},
      {"rmsprop compact", {4.03125, 4.03125}},
      {"rmsprop+ compact", {5.0625, 5.0625}},
      {"lion compact", {4.03125, 4.03125}},
      {"lamb compact", {10.125, 5.0625}},
      {"lars+ compact", {8.0625, 4.03125}}};
  for (const auto& [name, pair] : expected) {
    ASSERT_TRUE(bytes.contains(name)) << name;
    EXPECT_EQ(bytes[name], pair) << name;
  }
  // Adafactor reads the master weight twice. The means of its 1024 rows of 1024 are read three
  // times and written once, and so are the means of its columns.
  const double means = 4.0 / 1024 + 4.0 / 1024;
  EXPECT_DOUBLE_EQ(bytes.at("adafactor fp32").first, 8 + 3 * means);
  EXPECT_DOUBLE_EQ(bytes.at("adafactor fp32").second, 6 + means);
  EXPECT_GE(json["machine"].at("threads").get<int>(), 1);
  EXPECT_EQ(json.at("parameters"), 1048576);
  EXPECT_TRUE(json.contains("commit"));
  EXPECT_TRUE(json["doubts"].is_array());
}

TEST_F(BenchUpdateTest, OnAFolderItAlsoHasNvmeAndNothingStays) {
  const Ended ended = RunCommand(Short() + Arguments{a_, "--optimizer", "adamw,lion",
                                                     "--state-format", "fp32,bf16", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  ExpectNothingLeft();
  const Json json = ended.json();
  ASSERT_FALSE(json.is_discarded()) << ended.out;
  std::multiset<std::string> seen;
  for (const Json& row : json["rows"]) {
    ExpectARow(row);
    seen.insert(row.at("where").get<std::string>() + " " + row.at("optimizer").get<std::string>() +
                " " + row.at("state_format").get<std::string>());
    if (row["where"] == "dram") continue;
    EXPECT_TRUE(row.at("limit") == "fio" || row.at("limit") == "kernel+hash");
    EXPECT_GT(row.at("kernel_hash_parameters_per_second").get<double>(), 0);
    EXPECT_EQ(row.at("fio_parameters_per_second").is_null(), json.at("fio").is_null());
  }
  for (const char* where : {"dram", "nvme"}) {
    for (const char* pair : {"adamw fp32", "adamw bf16", "lion fp32", "lion bf16"})
      EXPECT_EQ(seen.count(std::string(where) + " " + pair), 1u) << where << " " << pair;
  }
  EXPECT_FALSE(json["machine"].at("filesystem").get<std::string>().empty());
}

// An update reads 96 MiB and writes 112 MiB. Pinned memory holds less than that at a time, because
// all state rests on NVMe.
TEST_F(BenchUpdateTest, OnNvmeEachByteOfStateIsReadAndWrittenOnce) {
  const Ended ended =
      RunCommand({"bench", "update", a_, "--parameters", "8388608", "--memory", "64MiB",
                  "--optimizer", "adamw", "--state-format", "fp32", "--seconds", "1", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  ASSERT_FALSE(json.is_discarded()) << ended.out;
  const Json& row = json["rows"].back();
  EXPECT_EQ(row.at("where"), "nvme");
  EXPECT_EQ(row.at("read_bytes_per_parameter"), 12);
  EXPECT_EQ(row.at("written_bytes_per_parameter"), 14);
  for (const auto& [name, bytes] : {std::pair("kernel_read_bytes_per_parameter", 12),
                                    {"kernel_written_bytes_per_parameter", 14}}) {
    // The value is null if the file system is in memory.
    if (row.at(name).is_null()) continue;
    EXPECT_NEAR(row.at(name), bytes, 0.02 * bytes) << name;
  }
}

// The gradients add a read to each pass over the parameter, and are never written.
TEST_F(BenchUpdateTest, GradientsOnNvmeAreReadAndNotWritten) {
  const Ended ended = RunCommand({"bench", "update", a_, "--parameters", "8388608", "--memory",
                                  "64MiB", "--optimizer", "adamw,lamb", "--state-format", "bf16",
                                  "--gradients", "nvme", "--seconds", "1", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  ASSERT_FALSE(json.is_discarded()) << ended.out;
  EXPECT_EQ(json.at("gradients"), "nvme");
  const std::map<std::string, std::pair<double, double>> expected = {{"adamw nvme", {10, 10}},
                                                                     {"lamb nvme", {20, 10}},
                                                                     {"adamw dram", {8, 10}},
                                                                     {"lamb dram", {16, 10}}};
  for (const Json& row : json["rows"]) {
    const std::string name =
        row.at("optimizer").get<std::string>() + " " + row.at("where").get<std::string>();
    EXPECT_NEAR(row.at("read_bytes_per_parameter"), expected.at(name).first, 0.03) << name;
    EXPECT_NEAR(row.at("written_bytes_per_parameter"), expected.at(name).second, 0.03) << name;
  }
  EXPECT_EQ(json["rows"].size(), 4u);
}

// State that a rule reads only for its norms is not written, and is read again for the update.
TEST_F(BenchUpdateTest, OnNvmeARuleWithNormsReadsMoreAndWritesEachByteOnce) {
  const Ended ended = RunCommand({"bench", "update", a_, "--parameters", "8388608", "--memory",
                                  "64MiB", "--optimizer", "lamb,lars,adafactor", "--state-format",
                                  "fp32", "--seconds", "1", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  ASSERT_FALSE(json.is_discarded()) << ended.out;
  // Adafactor has one mean for each row of 1024, and 1024 column means for each 4096 rows.
  const double means = 4.0 / 1024 + 4.0 / 4096;
  const std::map<std::string, std::pair<double, double>> expected = {
      {"lamb", {24, 14}}, {"lars", {12, 10}}, {"adafactor", {8 + 3 * means, 6 + means}}};
  int rows = 0;
  for (const Json& row : json["rows"]) {
    if (row.at("where") == "dram") continue;
    const auto name = row.at("optimizer").get<std::string>();
    EXPECT_NEAR(row.at("read_bytes_per_parameter"), expected.at(name).first, 0.03) << name;
    EXPECT_NEAR(row.at("written_bytes_per_parameter"), expected.at(name).second, 0.03) << name;
    ++rows;
  }
  EXPECT_EQ(rows, 3);
}

// In fio's place is a script that does two jobs, one for each format, and fails at every other one.
TEST_F(BenchUpdateTest, RoundsAfterFioFailedDoNotCount) {
  WriteFile(folder_ / "fio", R"(#!/bin/sh
case "$*" in *--version*) echo fio-9.9; exit 0 ;; esac
cd "${0%/*}"; echo >>jobs
[ $(wc -l <jobs) -le 2 ] || exit 1
echo '{"jobs":[{"usr_cpu":1,"sys_cpu":1,"job_runtime":100,'
echo '"read":{"io_bytes":67108864,"runtime":100000}}]}'
)");
  std::filesystem::permissions(folder_ / "fio", std::filesystem::perms::owner_all);
  const Ended ended = RunInShell(
      "export PATH=" + folder_.path() + ":$PATH;",
      {"bench", "update", a_, "--parameters", "1048576", "--memory", "64MiB", "--seconds", "86400",
       "--optimizer", "lion", "--state-format", "fp32,bf16", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  EXPECT_EQ(json["fio"], "fio-9.9");
  for (const Json& row : json["rows"]) {
    ExpectARow(row);
    if (row["where"] == "dram") continue;
    EXPECT_EQ(row["limit"], "fio");
    EXPECT_EQ(row["fio_rounds"], 1);
    EXPECT_GT(row["rounds"], 2);
    EXPECT_EQ(row["limit_parameters_per_second"], row["fio_parameters_per_second"]);
    EXPECT_EQ(row["lowest_share"], row["highest_share"]) << "of one round";
  }
}

TEST_F(BenchUpdateTest, RatesOfAFileSystemInMemoryAreDoubtedAlsoWithoutFio) {
  const TempFolder folder(FastPlace());
  if (!IsInMemory(folder.path())) GTEST_SKIP() << "no file system in memory";
  const Ended ended =
      RunInShell("PATH=/none;", Short() + Arguments{folder.path(), "--optimizer", "lion",
                                                    "--state-format", "bf16", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  EXPECT_TRUE(json.at("fio").is_null());
  EXPECT_THAT(json["doubts"].dump(), HasSubstr("page cache"));
}

TEST_F(BenchUpdateTest, TheTableHasALineForEachRow) {
  const Ended ended =
      RunCommand(Short() + Arguments{a_, "--optimizer", "lion", "--state-format", "fp32,bf16"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* word : {"dram", "nvme", "lion", "fp32", "bf16", "share", "CPUs"})
    EXPECT_THAT(ended.out, HasSubstr(word));
}

TEST_F(BenchUpdateTest, InterruptedItRemovesEverythingAndSays130) {
  ExpectInterrupted(Long(), {50, 300, 800, 2500}, 1);
}

TEST_F(BenchUpdateTest, InterruptedTwiceItRemovesEverything) {
  ExpectInterrupted(Long(), {1000}, 2);
}

TEST_F(BenchUpdateTest, BadInputIsExplained) {
  const std::string most = std::to_string(int64_t{1} << 40);
  ExpectExplained({
      {{"bench", "updat"}, 2, "did you mean update?"},
      {{"bench", "update", a_ + "/none"}, 1, "/none"},
      {{"bench", "update", "--parameters", "1000"}, 2, "--parameters"},
      {{"bench", "update", "--parameters", "1048577"}, 2, "multiple of 1024"},
      {{"bench", "update", "--parameters", most}, 1, "give fewer --parameters"},
      {{"bench", "update", a_, "--parameters", most}, 1, "give fewer --parameters"},
      {{"bench", "update", a_, "--memory", "unlimited"}, 2, "--memory"},
      {{"bench", "update", a_, "--memory", "1MiB"}, 2, "--memory"},
      {{"bench", "update", "--optimizer", "adamv"}, 2, "'adamv' is not one of adamw"},
      {{"bench", "update", "--state-format", "fp31"}, 2, "'fp31' is not one of fp32"},
      {{"bench", "update", "--threads", "0"}, 2, "--threads"},
      {{"bench", "update", "--gradients", "nvme"}, 2, "--gradients nvme needs DIR"},
      {{"bench", "update", a_, "--gradients", "disk"}, 2, "--gradients"},
      {{"bench", "update", "--seconds", "0"}, 2, "--seconds"},
      {{"bench", "update", "--jsn"}, 2, "--json"},
  });
}

}  // namespace
}  // namespace spillway::test
