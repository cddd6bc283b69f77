// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench io` as a child process: its JSON, that it leaves no files however it ends, and
// its messages for bad input. No test asserts on a rate.

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "io/make_io_engine.h"
#include "tests/io/io_uring_here.h"
#include "tests/spillway/bench_test.h"
#include "tests/spillway/command.h"
#include "tests/temp_folder.h"

namespace spillway::test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class BenchIoTest : public BenchTest {
 protected:
  // Arguments of the shortest run.
  Arguments Short(const std::string& folders) const {
    return {"bench", "io", folders, "--size", "64MiB", "--memory", "64MiB", "--seconds", "1"};
  }
  // Arguments of a run that lasts until it is interrupted.
  Arguments Long() const {
    return {"bench",    "io",    a_,          "--size", "512MiB",
            "--memory", "64MiB", "--seconds", "600",    "--full"};
  }
};

TEST_F(BenchIoTest, ItsJsonKeepsItsWordAndNothingStays) {
  const std::string html = folder_ / "io.html";
  const Ended ended = RunCommand(Short(a_) + Arguments{"--json", "--no-fio", "--html", html});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  ExpectNothingLeft();
  const Json json = ended.json();
  ASSERT_FALSE(json.is_discarded()) << ended.out;
  EXPECT_EQ(json["v"], 1);
  ASSERT_GT(json["rows"].size(), 6u);
  int mixed = 0, store = 0, without_checksums = 0;
  for (const Json& row : json["rows"]) {
    SCOPED_TRACE(row.dump());
    const std::string op = row.at("op");
    EXPECT_TRUE(op == "read" || op == "write" || op == "mixed");
    mixed += op == "mixed" ? 1 : 0;
    const std::string pattern = row.at("pattern");
    EXPECT_TRUE(pattern == "sequential" || pattern == "random");
    EXPECT_GE(row.at("block_bytes").get<uint64_t>(), 4096u);
    EXPECT_GE(row.at("depth").get<int>(), 1);
    EXPECT_EQ(row.at("checksums").get<bool>(), row.at("through") == "store");
    store += row.at("through") == "store" ? 1 : 0;
    EXPECT_EQ(row.at("memory_bytes").get<uint64_t>(), uint64_t{64} << 20);
    EXPECT_GT(row.at("bytes_per_second").get<double>(), 0);
    EXPECT_TRUE(row.at("fio_bytes_per_second").is_null());
    EXPECT_GE(row.at("cpu_seconds_per_gib").get<double>(), 0);
    if (row.contains("without_checksums")) {
      ++without_checksums;
      EXPECT_TRUE(row.at("checksums").get<bool>());
      EXPECT_GT(row["without_checksums"].at("bytes_per_second").get<double>(), 0);
      EXPECT_GE(row["without_checksums"].at("cpu_seconds_per_gib").get<double>(), 0);
    }
    const Json& latency = row.at("latency_seconds");
    EXPECT_GT(latency.at("p50").get<double>(), 0);
    EXPECT_LE(latency.at("p50").get<double>(), latency.at("p99").get<double>());
    EXPECT_LE(latency.at("p99").get<double>(), latency.at("p99_9").get<double>());
    EXPECT_TRUE(row.at("doubts").is_array());
  }
  EXPECT_GE(mixed, 2);
  EXPECT_GE(store, 6);
  EXPECT_EQ(without_checksums, 6);
  const Json& machine = json["machine"];
  EXPECT_FALSE(machine.at("kernel").get<std::string>().empty());
  EXPECT_EQ(machine.at("devices").size(), 1u);
  EXPECT_FALSE(machine["devices"][0].at("filesystem").get<std::string>().empty());
  EXPECT_TRUE(json.contains("commit"));

  const std::string page = ReadFile(html);
  EXPECT_THAT(page, HasSubstr("<svg"));
  EXPECT_THAT(page, HasSubstr("</html>"));
  EXPECT_EQ(page.find("http://", page.find("</svg>")), std::string::npos);
}

TEST_F(BenchIoTest, WithoutUringItsRowsNameThreadsAndFioRunsAllTheSame) {
  const Ended ended = Command(Short(a_) + Arguments{"--json"}, /*without_uring=*/true).Wait();
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, Not(HasSubstr("fio could not")));
  const Json json = ended.json();
  ASSERT_FALSE(json.is_discarded()) << ended.out;
  ASSERT_GT(json["rows"].size(), 6u);
  for (const Json& row : json["rows"]) {
    EXPECT_EQ(row.at("engine"), "posix") << row;
    EXPECT_EQ(row.at("fio_bytes_per_second").is_null(), json.at("fio").is_null()) << row;
  }
}

TEST_F(BenchIoTest, RatesOfAFileSystemInMemoryAreDoubted) {
  const TempFolder folder(FastPlace());
  if (!IsInMemory(folder.path())) GTEST_SKIP() << "no file system in memory";
  const Ended ended = RunCommand(Short(folder.path()) + Arguments{"--json", "--no-fio"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  ASSERT_GT(json["rows"].size(), 6u);
  for (const Json& row : json["rows"])
    EXPECT_THAT(row.at("doubts").dump(), HasSubstr("page cache")) << row;
}

// A benchmark that was killed while it calibrated left an empty folder. Another one runs, and holds
// its folder by a lock.
TEST_F(BenchIoTest, WhatAKilledBenchmarkLeftIsRemoved) {
  const std::string left = a_ + "/spillway-bench-AbCdEf", held = a_ + "/spillway-bench-GhIjKl";
  ASSERT_TRUE(std::filesystem::create_directory(left));
  ASSERT_TRUE(std::filesystem::create_directory(held));
  const int fd = ::open(held.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  const Ended ended = RunCommand({"bench", "io", a_, "--ceiling", "--memory", "64MiB"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_TRUE(std::filesystem::exists(held));
  ::close(fd);
}

TEST_F(BenchIoTest, TwoFoldersVerified) {
  const Ended ended = RunCommand(Short(a_ + "," + b_) + Arguments{"--verify", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.json()["machine"]["devices"].size(), 2u);
  ExpectNothingLeft();
}

TEST_F(BenchIoTest, TheTableHasALineForEachRow) {
  const Ended ended = RunCommand(Short(a_) + Arguments{"--no-fio"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* word : {"kernel", "CPU s/GiB", "mixed", "random", "posix file", "first"}) {
    EXPECT_THAT(ended.out, HasSubstr(word));
  }
}

TEST_F(BenchIoTest, ARowSaysWhatItsLimitIs) {
  const Ended ended = RunCommand(Short(a_) + Arguments{"--json", "--no-fio"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  int rows = 0;
  for (const Json& row : json["rows"]) {
    if (row["through"] != "store") {
      EXPECT_FALSE(row.contains("limit")) << row;
      continue;
    }
    ++rows;
    EXPECT_EQ(row.at("limit"), "hash") << "without fio nothing else is known";
    const double limit = row.at("limit_bytes_per_second");
    EXPECT_NEAR(limit, 0.9 * row.at("hash_bytes_per_second").get<double>(), limit / 2);
    const Json& share = row.at("share_of_limit");
    EXPECT_LE(share.at("low").get<double>(), share.at("median").get<double>());
    EXPECT_LE(share.at("median").get<double>(), share.at("high").get<double>());
  }
  EXPECT_GE(rows, 7);
  const Json& calibration = json["machine"]["devices"][0]["calibration"];
  EXPECT_GT(calibration.at("seconds_behind_writes").get<double>(), 0);
}

// In fio's place is a script that does the first touch, and fails at every other job.
TEST_F(BenchIoTest, WhatFioDidBeforeItFailedIsNamed) {
  WriteFile(folder_ / "fio", R"(#!/bin/sh
case "$*" in
  *--version*) echo fio-9.9; exit 0 ;;
  *--overwrite=0*) ;;
  *) exit 1 ;;
esac
echo '{"jobs":[{"usr_cpu":1,"sys_cpu":1,"job_runtime":100,'
echo '"write":{"io_bytes":67108864,"runtime":100}}]}'
)");
  std::filesystem::permissions(folder_ / "fio", std::filesystem::perms::owner_all);
  const Ended ended =
      RunInShell("export PATH=" + folder_.path() + ":$PATH;", Short(a_) + Arguments{"--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("and is not run again"));
  const Json json = ended.json();
  EXPECT_EQ(json["fio"], "fio-9.9");
  int rows = 0;
  for (const Json& row : json["rows"]) {
    if (row["fio_bytes_per_second"].is_null()) continue;
    ++rows;
    EXPECT_EQ(row["first_touch"], true);
    EXPECT_EQ(row["fio_rounds"], 1);
  }
  EXPECT_EQ(rows, 1);
}

// In fio's place is a script that moves 1 GB/s at every job.
TEST_F(BenchIoTest, MainRowsAreComparedWithFioBesideHashingToo) {
  WriteFile(folder_ / "fio", R"(#!/bin/sh
[ "$1" = --version ] && exec echo fio-9.9
echo '{"jobs":[{"usr_cpu":1,"sys_cpu":1,"job_runtime":100,'
echo '"write":{"io_bytes":100000000,"runtime":100}}]}'
)");
  std::filesystem::permissions(folder_ / "fio", std::filesystem::perms::owner_all);
  const std::string with_fio = "export PATH=" + folder_.path() + ":$PATH;";
  const Ended ended = RunInShell(with_fio, Short(a_) + Arguments{"--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  int rows = 0;
  for (const Json& row : json["rows"]) {
    SCOPED_TRACE(row.dump());
    ASSERT_EQ(row.contains("fio_beside_hashing"), row.contains("without_checksums"));
    if (!row.contains("fio_beside_hashing")) continue;
    ++rows;
    const Json& beside = row["fio_beside_hashing"];
    EXPECT_EQ(beside.at("bytes_per_second"), 1e9);
    EXPECT_EQ(beside.at("share"), row.at("share_of_fio")) << "the script is as fast as before";
  }
  EXPECT_EQ(rows, 6) << "reads, writes and both, of 1 and 4 MiB";
  const Ended table = RunInShell(with_fio, Short(a_));
  EXPECT_THAT(table.out, HasSubstr("hashing: fio's GB/s while"));
}

TEST_F(BenchIoTest, TheCeilingMovesNothingAndSaysWhatEachPartTakes) {
  if (!io::CanRun(IoKind::kUring)) GTEST_SKIP() << io::kNoIoUring;
  const Ended ended = RunCommand({"bench", "io", a_, "--ceiling", "--memory", "64MiB", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  ExpectNothingLeft();
  const Json json = ended.json();
  EXPECT_EQ(json["v"], 1);
  ASSERT_GE(json["rows"].size(), 2u);
  for (const Json& row : json["rows"]) {
    SCOPED_TRACE(row.dump());
    EXPECT_TRUE(row.at("op") == "read" || row.at("op") == "write");
    EXPECT_GE(row.at("hash_threads").get<int>(), 1);
    EXPECT_GT(row.at("bytes_per_second").get<double>(), 0);
    EXPECT_GT(row.at("memory_hash_bytes_per_second").get<double>(), 0);
    EXPECT_GT(row.at("hash_cpu_seconds_per_gib").get<double>(), 0);
    EXPECT_GE(row.at("bookkeeping_cpu_seconds_per_gib").get<double>(), 0);
    EXPECT_GT(row.at("submission_cpu_seconds_per_gib").get<double>(), 0);
  }
  EXPECT_EQ(json["rows"][0]["hash_threads"], 1);
  const Ended table = RunCommand({"bench", "io", a_, "--ceiling", "--memory", "64MiB"});
  EXPECT_THAT(table.out, HasSubstr("bookkeeping"));
}

TEST_F(BenchIoTest, InterruptedItRemovesEverythingAndSays130) {
  ExpectInterrupted(Long(), {50, 300, 900}, 1);
}

// In fio's place is a script that does not end when it is told to, so the first press does not end
// the command. The script ends when the test's folder is removed.
TEST_F(BenchIoTest, InterruptedTwiceItRemovesEverything) {
  WriteFile(folder_ / "fio", R"(#!/bin/sh
[ "$1" = --version ] && exec echo fio-9.9
trap '' TERM
>"$0.runs"
while [ -e "$0" ]; do sleep 0.1; done
)");
  std::filesystem::permissions(folder_ / "fio", std::filesystem::perms::owner_all);
  const std::string path = std::getenv("PATH");
  setenv("PATH", (folder_.path() + ":" + path).c_str(), /*overwrite=*/1);
  Command command(Long());
  setenv("PATH", path.c_str(), /*overwrite=*/1);
  const auto await = [&](const auto& condition) {
    while (!command.has_ended() && !condition()) usleep(2000);
  };
  await([&] { return std::filesystem::exists(folder_ / "fio.runs"); });
  command.Signal(SIGINT);
  await([&] { return command.err().find("finishing what is under way") != std::string::npos; });
  usleep(310'000);  // a signal within 300 ms counts as the same press
  ASSERT_FALSE(command.has_ended()) << "the first press ended it: " << command.Wait().err;
  EXPECT_FALSE(std::filesystem::is_empty(a_));
  command.Signal(SIGINT);
  const Ended ended = command.Wait();
  EXPECT_EQ(ended.exit_code, 130);
  EXPECT_THAT(ended.err, EndsWith("again to stop at once\n"));
  ExpectNothingLeft();
}

TEST_F(BenchIoTest, ADiskIsNeverFilled) {
  const Ended ended = RunCommand({"bench", "io", a_, "--size", "4000TiB"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("give a smaller --size"));
  const Ended slack = RunCommand({"bench", "io", a_, "--size", "4000TiB", "--memory", "8GiB"});
  EXPECT_THAT(slack.err, HasSubstr("give a smaller --size or --memory"));
  const Ended ceiling = RunCommand({"bench", "io", a_, "--ceiling", "--memory", "4000TiB"});
  EXPECT_EQ(ceiling.exit_code, 1);
  EXPECT_THAT(ceiling.err, HasSubstr("there for a while: give a smaller --memory"));
  ExpectNothingLeft();
}

TEST_F(BenchIoTest, BadInputIsExplained) {
  ExpectExplained({
      {{"bench"}, 2, "a command is needed: io"},
      {{"bench", "oi"}, 2, "did you mean io?"},
      {{"bench", "io"}, 2, "required"},
      {{"bench", "io", a_ + "/none"}, 1, "/none"},
      {{"bench", "io", a_ + ",,b"}, 2, "empty part"},
      {{"bench", "io", a_ + "," + a_ + "/"}, 2, "named before already"},
      {{"bench", "io", a_, "--size", "1MiB"}, 2, "--size"},
      {{"bench", "io", a_, "--memory", "unlimited"}, 2, "--memory"},
      {{"bench", "io", a_, "--seconds", "0"}, 2, "--seconds"},
      {{"bench", "io", a_, "--ful"}, 2, "--full"},
      {{"bench", "io", a_, "--ceiling", "--full"}, 2, "--ceiling"},
      {{"bench", "io", a_, "--ceiling", "--verify"}, 2, "--verify"},
      {{"bench", "io", a_, "--ceiling", "--size", "2GiB"}, 2, "--size"},
      {{"bench", "io", a_, "--ceiling", "--seconds", "60"}, 2, "--seconds"},
      {{"bench", "io", a_, "--ceiling", "--no-fio"}, 2, "--no-fio"},
      {{"bench", "io", a_, "--ceiling", "--html", a_ + "/x.html"}, 2, "--html"},
      {{"bench", "io", a_, "--force", "--ceiling"}, 2, "--force"},
      {{"bench", "io", a_ + "," + b_, "--ceiling"}, 2, "one folder"},
      {{"bench", "io", a_, "--size", "64MiB", "--html", folder_ / "x/y.html"}, 1, "y.html"},
  });
}

}  // namespace
}  // namespace spillway::test
