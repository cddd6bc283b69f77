// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench io` as a child process: its JSON, that nothing stays behind however it ends, and
// what it says to bad input. It asserts on no rate.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "tests/spillway/command.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;

class BenchIoTest : public ::testing::Test {
 protected:
  BenchIoTest() {
    std::string name = testing::TempDir() + "spillway-bench-io-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    std::filesystem::create_directory(folder_ + "/a");
    std::filesystem::create_directory(folder_ + "/b");
  }
  ~BenchIoTest() override { std::filesystem::remove_all(folder_); }

  // As short as it gets.
  Arguments Short(const std::string& folders) const {
    return {"bench", "io", folders, "--size", "64MiB", "--memory", "64MiB", "--seconds", "1"};
  }
  void ExpectNothingLeft() const {
    for (const char* name : {"/a", "/b"}) {
      EXPECT_TRUE(std::filesystem::is_empty(folder_ + name)) << name;
    }
  }

  std::string folder_;
};

TEST_F(BenchIoTest, ItsJsonKeepsItsWordAndNothingStays) {
  const std::string html = folder_ + "/io.html";
  const Ended ended =
      RunCommand(Short(folder_ + "/a") + Arguments{"--json", "--no-fio", "--html", html});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  ExpectNothingLeft();
  const Json json = ended.json();
  ASSERT_FALSE(json.is_discarded()) << ended.out;
  EXPECT_EQ(json["v"], 1);
  ASSERT_GT(json["rows"].size(), 6u);
  int mixed = 0, store = 0;
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
    const Json& latency = row.at("latency_seconds");
    EXPECT_GT(latency.at("p50").get<double>(), 0);
    EXPECT_LE(latency.at("p50").get<double>(), latency.at("p99").get<double>());
    EXPECT_LE(latency.at("p99").get<double>(), latency.at("p99_9").get<double>());
    EXPECT_TRUE(row.at("doubts").is_array());
  }
  EXPECT_GE(mixed, 2);
  EXPECT_GE(store, 6);
  const Json& machine = json["machine"];
  EXPECT_FALSE(machine.at("kernel").get<std::string>().empty());
  EXPECT_EQ(machine.at("devices").size(), 1u);
  EXPECT_FALSE(machine["devices"][0].at("filesystem").get<std::string>().empty());
  EXPECT_TRUE(json.contains("commit"));

  std::ifstream in(html);
  std::stringstream page;
  page << in.rdbuf();
  EXPECT_THAT(page.str(), HasSubstr("<svg"));
  EXPECT_THAT(page.str(), HasSubstr("</html>"));
  EXPECT_EQ(page.str().find("http://", page.str().find("</svg>")), std::string::npos);
}

TEST_F(BenchIoTest, TwoFoldersVerified) {
  const Ended ended =
      RunCommand(Short(folder_ + "/a," + folder_ + "/b") + Arguments{"--verify", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.json()["machine"]["devices"].size(), 2u);
  ExpectNothingLeft();
}

TEST_F(BenchIoTest, TheTableHasALineForEachRow) {
  const Ended ended = RunCommand(Short(folder_ + "/a") + Arguments{"--no-fio"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* word : {"kernel", "CPU s/GiB", "mixed", "random", "posix file", "first"}) {
    EXPECT_THAT(ended.out, HasSubstr(word));
  }
}

TEST_F(BenchIoTest, InterruptedItRemovesEverythingAndSays130) {
  for (const int milliseconds : {50, 300, 900}) {
    SCOPED_TRACE(milliseconds);
    Command command({"bench", "io", folder_ + "/a", "--size", "512MiB", "--memory", "64MiB",
                     "--seconds", "600", "--full"});
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    command.Signal(SIGINT);
    const Ended ended = command.Wait();
    // A signal before the handler is there ends the process as any other would.
    EXPECT_TRUE(ended.exit_code == 130 || ended.exit_code == -SIGINT) << ended.exit_code;
    ExpectNothingLeft();
  }
}

TEST_F(BenchIoTest, InterruptedTwiceItRemovesEverything) {
  for (const int milliseconds : {50, 500, 1500}) {
    SCOPED_TRACE(milliseconds);
    Command command({"bench", "io", folder_ + "/a", "--size", "512MiB", "--memory", "64MiB",
                     "--seconds", "600", "--full"});
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    command.Signal(SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(310));  // sooner is the same press
    command.Signal(SIGINT);
    const Ended ended = command.Wait();
    EXPECT_TRUE(ended.exit_code == 130 || ended.exit_code == -SIGINT) << ended.exit_code;
    ExpectNothingLeft();
  }
}

TEST_F(BenchIoTest, ADiskIsNeverFilled) {
  const Ended ended = RunCommand({"bench", "io", folder_ + "/a", "--size", "4000TiB"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("give a smaller --size"));
  ExpectNothingLeft();
}

TEST_F(BenchIoTest, BadInputIsExplained) {
  const struct {
    Arguments arguments;
    int exit_code;
    const char* word;
  } cases[] = {
      {{"bench"}, 2, "a command is needed: io"},
      {{"bench", "oi"}, 2, "did you mean io?"},
      {{"bench", "io"}, 2, "required"},
      {{"bench", "io", folder_ + "/none"}, 1, "/none"},
      {{"bench", "io", folder_ + "/a,,b"}, 2, "empty part"},
      {{"bench", "io", folder_ + "/a", "--size", "1MiB"}, 2, "--size"},
      {{"bench", "io", folder_ + "/a", "--memory", "unlimited"}, 2, "--memory"},
      {{"bench", "io", folder_ + "/a", "--seconds", "0"}, 2, "--seconds"},
      {{"bench", "io", folder_ + "/a", "--ful"}, 2, "--full"},
      {{"bench", "io", folder_ + "/a", "--size", "64MiB", "--html", folder_ + "/x/y.html"},
       1,
       "y.html"},
  };
  for (const auto& bad : cases) {
    const Ended ended = RunCommand(bad.arguments);
    EXPECT_EQ(ended.exit_code, bad.exit_code) << bad.word << ": " << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(bad.word));
    ExpectNothingLeft();
  }
}

}  // namespace
}  // namespace spillway::test
