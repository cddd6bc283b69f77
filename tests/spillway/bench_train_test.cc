// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench train` on a tiny model: its rows, on the host and on the emulated GPU, and what
// it says of models for which there is no room.

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"
#include "tests/temp_folder.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;

Arguments Bench(const Training& training) {
  return {"bench", "train",     "--model", training.model(), "--seq", "16", "--steps",
          "2",     "--threads", "2",       "--json"};
}

void CheckRow(const Json& row, const std::string& where) {
  EXPECT_EQ(row["model"], "model");
  EXPECT_EQ(row["where"], where);
  EXPECT_EQ(row["tokens"], 16);
  ASSERT_FALSE(row.contains("skipped")) << row;
  const double step = row["step_seconds"];
  EXPECT_NEAR(row["tokens_per_second"].get<double>(), 16 / step, 1e-6 * 16 / step);
  EXPECT_GT(row["walk_seconds"], 0);
  EXPECT_GT(row["update_seconds"], 0);
  for (const char* operation : {"products", "attention"})
    EXPECT_GT(row["operations"][operation]["flops_per_second"], 0) << operation;
  for (const char* operation : {"norms and rope", "activations", "softmax and loss"})
    EXPECT_GT(row["operations"][operation]["bytes_per_second"], 0) << operation;
  // A layer has seven weights in three products each, and six of them once more, since activations
  // are computed again; the head has four. Tiles are whole tensors.
  EXPECT_EQ(row["operations"]["products"]["calls"], 2 * 27 + 4);
}

TEST(BenchTrain, MeasuresEachPlaceAndLeavesNothing) {
  const Training training;
  const TempFolder drive;
  const Ended ended = RunCommand(Bench(training) + Arguments{drive.path()});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  EXPECT_EQ(json["device"], "host");
  EXPECT_GT(json["product_flops_per_second"], 0);
  EXPECT_GT(json["copy_bytes_per_second"], 0);
  ASSERT_EQ(json["rows"].size(), 3);
  CheckRow(json["rows"][0], "device");
  CheckRow(json["rows"][1], "pinned");
  CheckRow(json["rows"][2], "nvme");
  EXPECT_EQ(json["rows"][0]["nvme_bytes"], 0);
  EXPECT_EQ(json["rows"][1]["nvme_bytes"], 0);
  EXPECT_TRUE(std::filesystem::is_empty(drive.path()));
}

TEST(BenchTrain, RunsOnAGpu) {
  const Training training;
  const Ended ended =
      RunEmulated(Bench(training) + Arguments{"--device", "cuda", "--place", "pinned"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  EXPECT_EQ(json["device"], "an emulated GPU");
  EXPECT_EQ(json["product_flops_per_second"], nullptr);
  CheckRow(json["rows"][0], "pinned");
}

TEST(BenchTrain, SkipsWhatHasNoRoomAndSaysWhy) {
  const Training training;
  const Ended ended = RunCommand({"bench", "train", "--model", "1T," + training.model(), "--seq",
                                  "16", "--steps", "1", "--place", "device,nvme", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json rows = ended.json()["rows"];
  ASSERT_EQ(rows.size(), 4);
  EXPECT_THAT(rows[0]["skipped"].get<std::string>(), HasSubstr("of memory are needed"));
  EXPECT_THAT(rows[1]["skipped"].get<std::string>(), HasSubstr("no DIR was given"));
  CheckRow(rows[2], "device");
  EXPECT_THAT(rows[3]["skipped"].get<std::string>(), HasSubstr("no DIR was given"));
}

TEST(BenchTrain, RefusesWhatItCannotMeasure) {
  const auto refused = [](const Arguments& flags) {
    const Ended ended = RunCommand(Arguments{"bench", "train"} + flags);
    EXPECT_EQ(ended.exit_code, 2) << ended.err;
    return ended.err;
  };
  EXPECT_THAT(refused({"--model", "5Q"}), HasSubstr("neither a folder nor a model by name"));
  EXPECT_THAT(refused({"--place", "moon"}), HasSubstr("not one of device|pinned|nvme"));
  EXPECT_THAT(refused({"--seq", "4096", "--model", "1.1B"}), HasSubstr("2048 positions of 1.1B"));
  EXPECT_THAT(refused({"--steps", "0"}), HasSubstr("--steps"));
}

}  // namespace
}  // namespace spillway::test
