// SPDX-License-Identifier: Apache-2.0
//
// `spillway train --auto` as its users run it, with a cache of its own. A profile is put there, so
// that nothing is measured.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>

#include "absl/strings/str_format.h"
#include "io/checksum.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"
#include "tools/spillway/machine/machine_profile.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Auto : public ::testing::Test {
 protected:
  Auto() {
    setenv("XDG_CACHE_HOME", (training_ / "cache").c_str(), 1);
    const std::string identity = command::MachineIdentity(training_.store(), 2);
    const command::MachineProfile profile = {.drive = simulation::Drive{},
                                             .copy_in = 5e9,
                                             .copy_out = 5e9,
                                             .checksum = 1e10,
                                             .memory = 2e10,
                                             .flops = 1e11,
                                             .update = {1e10, 1e10, 1e10, 1e10}};
    std::filesystem::create_directories(training_ / "cache/spillway");
    WriteFile(absl::StrFormat("%s/machine-%016x.json", training_ / "cache/spillway",
                              io::Checksum(std::as_bytes(std::span(identity)))),
              command::SerializeProfile(profile, identity, std::time(nullptr)));
  }
  ~Auto() override {
    unsetenv("XDG_CACHE_HOME");
    unsetenv("EMULATED_GPU");
  }

  const Training training_;
};

TEST_F(Auto, ChoosesSaysWhyAndComparesWithTheRun) {
  const Ended ended = RunCommand(training_.TrainInStore(6) +
                                 Arguments{"--auto", "--tokens", "64", "--memory", "80MiB"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("auto: reads 3 GB/s"));
  EXPECT_THAT(ended.err, Not(HasSubstr("measuring")));
  EXPECT_THAT(ended.err, HasSubstr("--device-bytes"));
  const Json json = ended.json();
  EXPECT_GT(json["auto"]["step_s"].get<double>(), 0);
  ASSERT_TRUE(json["predicted"].contains("step_s")) << json["predicted"];
  EXPECT_GT(json["predicted"]["step_s"].get<double>(), 0);
  for (const char* const name : {"read_bytes", "written_bytes"})
    EXPECT_EQ(json["predicted"][name], json["predicted"][std::string("real_") + name]);

  const Ended resumed =
      RunCommand(training_.TrainInStore(8) + Arguments{"--auto", "--resume", "--memory", "90MiB"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(resumed.json()["steps"], 8);
}

// What is foretold of a GPU that updates state is what it does.
TEST_F(Auto, ChoosesForAGpuAsForTheProcessor) {
  setenv("EMULATED_GPU", "rates=1000000000000 free=268435456", 1);
  const Arguments arguments =
      training_.TrainInStore(6) +
      Arguments{"--device", "cuda", "--auto", "--tokens", "64", "--memory", "1GiB"};
  const Ended ended = RunEmulated(arguments);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("auto: an emulated GPU; reads 3 GB/s"));
  EXPECT_THAT(ended.err, HasSubstr("optimizer=device"));
  const Json json = ended.json();
  EXPECT_GT(json["auto"]["step_s"].get<double>(), 0);
  ASSERT_TRUE(json["predicted"].contains("step_s")) << json["predicted"];
  for (const char* const name : {"read_bytes", "written_bytes"}) {
    EXPECT_EQ(json["predicted"][name], json["predicted"][std::string("real_") + name]);
    EXPECT_EQ(json["auto"][name], json["predicted"][std::string("real_") + name]) << name;
  }

  setenv("EMULATED_GPU", "free=268435456", 1);
  const Ended mute = RunEmulated(training_.Train(1) + Arguments{"--device", "cuda", "--auto"});
  EXPECT_EQ(mute.exit_code, 3) << mute.err;
  EXPECT_THAT(mute.err, HasSubstr("could not be measured"));
}

TEST_F(Auto, TakesFlagsFromAFileAndNamesItWhereTheyConflict) {
  WriteFile(training_ / "run.toml", "auto = true\ntokens = 96\nbatch = 2\n");
  const Ended ended =
      RunCommand(training_.TrainInStore(2) + Arguments{"--config", training_ / "run.toml"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("--batch 2 --accumulate 3"));
  WriteFile(training_ / "run.toml", "auto = true\ntokens = 96\nbatch = 4\n");
  const Ended wrong =
      RunCommand(training_.Train(2) + Arguments{"--config", training_ / "run.toml"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--batch is from"));
}

TEST_F(Auto, WhatBelongsToItIsRefusedWithoutIt) {
  for (const Arguments& flags : {Arguments{"--memory", "1GiB"}, Arguments{"--tokens", "64"}}) {
    const Ended ended = RunCommand(training_.Train(1) + flags);
    EXPECT_EQ(ended.exit_code, 2);
    EXPECT_THAT(ended.err, HasSubstr("give --auto too"));
  }
  for (const char* const size : {"0", "nan", "-1GiB", "unlimited", "99999999999999999999"}) {
    const Ended ended = RunCommand(training_.Train(1) + Arguments{"--auto", "--memory", size});
    EXPECT_EQ(ended.exit_code, 2) << size << ": " << ended.err;
  }
}

TEST_F(Auto, NothingFitsSaysWhatIsMissing) {
  const Ended ended =
      RunCommand(training_.TrainInStore(1) + Arguments{"--auto", "--memory", "1MiB"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, HasSubstr("are needed at least"));
}

}  // namespace
}  // namespace spillway::test
