// SPDX-License-Identifier: Apache-2.0
//
// What `spillway plan --techniques` says: what each technique changes, the order of the rows, and
// that costs in accuracy are those of the measurements.

#include "tools/spillway/plan/techniques.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/spillway/command.h"

namespace spillway::test {
namespace {

using command::AccuracyOf;
using ::testing::HasSubstr;

// 1.1 billion parameters on a GPU of 24 GB, which they do not fit in without Spillway.
Arguments Small(const Arguments& more = {}) {
  return Arguments{"plan",   "--model", "1.1B",   "--gpu",        "rtx4090",
                   "--dram", "32GB",    "--nvme", "2x7GB/s:1TB",  "--tokens",
                   "16384",  "--batch", "4",      "--techniques", "--json"} +
         more;
}

// The rows by their techniques, as "offload_state+checkpointing".
std::map<std::string, Json> RowsOf(const Json& plan) {
  std::map<std::string, Json> rows;
  for (const Json& row : plan["techniques"]) {
    std::string name = row["by_spillway"] ? "" : "without: ";
    for (const Json& technique : row["techniques"])
      name += (name.empty() || name.ends_with(' ') ? "" : "+") + technique.get<std::string>();
    EXPECT_TRUE(rows.emplace(name, row).second) << name << " twice";
  }
  return rows;
}

class Techniques : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const Ended ended = RunCommand(Small());
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    plan_ = new Json(ended.json());
    rows_ = new std::map<std::string, Json>(RowsOf(*plan_));
  }
  static void TearDownTestSuite() { delete plan_, delete rows_; }

  static double Bytes(const std::string& name, const char* tier) {
    const auto row = rows_->find(name);
    EXPECT_NE(row, rows_->end()) << name;
    return row == rows_->end() ? 0 : row->second["bytes"][tier].get<double>();
  }

  static Json* plan_;
  static std::map<std::string, Json>* rows_;
};
Json* Techniques::plan_ = nullptr;
std::map<std::string, Json>* Techniques::rows_ = nullptr;

TEST_F(Techniques, EachTakesItsBytesOffTheGpu) {
  constexpr double kParameters = 1'100'048'384;
  const double base = Bytes("offload_state", "device");
  // 16-bit weights and fp32 gradients are on the GPU.
  EXPECT_GT(base, 6 * kParameters);
  const auto saved = [&](const char* technique) {
    return base - Bytes(std::string("offload_state+") + technique, "device");
  };
  // Tiles that are leased stay.
  EXPECT_NEAR(saved("offload_weights"), 2 * kParameters, 0.1 * kParameters);
  EXPECT_NEAR(saved("offload_gradients"), 4 * kParameters, 0.1 * kParameters);
  EXPECT_NEAR(saved("gradients_16bit"), 2 * kParameters, 0.1 * kParameters);
  EXPECT_GT(saved("checkpointing"), 1e9);
  EXPECT_GT(saved("offload_activations"), 1e9);
  EXPECT_GT(saved("micro_batch"), 1e8);
  EXPECT_EQ(saved("state_8bit"), 0) << "the state is off the GPU anyhow";
  const double state = Bytes("offload_state", "pinned");
  EXPECT_NEAR(state - Bytes("offload_state+state_8bit", "pinned"), (12 - 6.03) * kParameters,
              0.1 * kParameters);
  EXPECT_NEAR(state - Bytes("offload_state+state_compact", "pinned"), (12 - 3.06) * kParameters,
              0.1 * kParameters);
}

TEST_F(Techniques, TheCheapestWayThatFitsIsFirst) {
  double before = 0;
  bool fits = true, is_timed = true, is_measured = true;
  for (const Json& row : (*plan_)["techniques"]) {
    EXPECT_TRUE(fits || !row["fits"]) << row;
    fits = row["fits"];
    if (!fits) {
      EXPECT_TRUE(row["step_seconds"].is_null()) << row;
      continue;
    }
    EXPECT_EQ(row["step_seconds"].is_null(), !row["by_spillway"].get<bool>()) << row;
    if (row["step_seconds"].is_null())
      is_timed = false;
    else
      EXPECT_TRUE(is_timed) << row;
    if (is_measured &&
        row["accuracy"].get<std::string>().find("not measured") != std::string::npos) {
      is_measured = false;  // these come after the others
      before = 0;
    }
    const double seconds =
        row["step_seconds"].is_null() ? before : row["step_seconds"].get<double>();
    EXPECT_GE(seconds, before) << row;
    before = seconds;
  }
  EXPECT_FALSE(fits) << "without Spillway some do not fit";
}

TEST_F(Techniques, TheRecipeAsAskedCostsWhatThePlanSays) {
  const Json& asked = rows_->at("");
  EXPECT_EQ(asked["title"], "as asked");
  EXPECT_EQ(asked["step_seconds"], (*plan_)["step_seconds"]);
  EXPECT_EQ(asked["bytes"]["device"], (*plan_)["bytes"]["device"]["needed"]);
  EXPECT_EQ(asked["fits"], (*plan_)["fits"]);
}

TEST_F(Techniques, WithoutSpillwayTheyAreTheSameAsInTheAnswer) {
  const Json& without = (*plan_)["without_spillway"];
  EXPECT_EQ(without["amp"]["fits"], false);
  EXPECT_EQ(without.size(), 11U);
  for (const auto& [key, way] : without.items()) {
    const Json& row = rows_->at("without: " + key);
    EXPECT_EQ(row["bytes"]["device"], way["gpu_bytes"]);
    EXPECT_EQ(row["bytes"]["pinned"], way["host_bytes"]);
    EXPECT_EQ(row["fits"], way["fits"]);
    EXPECT_NEAR(way["gpu_bytes"].get<double>(),
                way["weights"].get<double>() + way["gradients"].get<double>() +
                    way["state"].get<double>() + way["activations"].get<double>() +
                    way["temporary"].get<double>(),
                5);
  }
}

TEST(TechniquesFlags, ChangeWhatIsCompared) {
  const Json few = RunCommand(Small({"--ranks", "2", "--lora-rank", "8"})).json();
  const Json many = RunCommand(Small({"--ranks", "64", "--lora-rank", "64"})).json();
  ASSERT_TRUE(few.is_object() && many.is_object());
  const auto gpu = [](const Json& plan, const char* key) {
    return plan["without_spillway"][key]["gpu_bytes"].get<double>();
  };
  EXPECT_GT(gpu(few, "zero_3"), gpu(many, "zero_3"));
  EXPECT_LT(gpu(few, "lora"), gpu(many, "lora"));
  EXPECT_EQ(gpu(few, "amp"), gpu(many, "amp"));
  for (const Arguments& bad :
       {Arguments{"--ranks", "0"}, Arguments{"--ranks", "nan"}, Arguments{"--lora-rank", "-1"},
        Arguments{"--lora-linears", "mlp"}, Arguments{"--ranks", "99999999999999999999"}}) {
    const Ended ended = RunCommand(Small(bad));
    EXPECT_EQ(ended.exit_code, 2) << ::testing::PrintToString(bad);
    EXPECT_THAT(ended.err, HasSubstr(bad.front()));
  }
}

TEST(TechniquesText, NamesTechniquesWaysAndMeasurements) {
  Arguments text = Small();
  text.pop_back();
  const Ended ended = RunCommand(text);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* words :
       {"techniques, the cheapest way first", "state off the GPU, checkpointing",
        "These do not fit:", "not measured", "state_quality_smollm2.json", "* without Spillway",
        "ZeRO-3 over 8 GPUs", "LoRA of rank 16", "fits"})
    EXPECT_THAT(ended.out, HasSubstr(words));
}

// --- Accuracy ---

std::string Words(const char* key, bool by_spillway = true) {
  return std::string(AccuracyOf(key, by_spillway).words);
}

// The mean loss at the end of a format's runs.
double LossOf(const Json& runs, const std::string& format) {
  double sum = 0;
  int count = 0;
  for (const Json& run : runs) {
    if (run["state_format"] != format) continue;
    sum += run["validation"].back()[1].get<double>();
    ++count;
  }
  EXPECT_EQ(count, 3) << format;
  return sum / count;
}

TEST(Accuracy, OfStateFormatsIsThatOfTheMeasurement) {
  for (const auto& [key, format] :
       {std::pair("state_8bit", "8bit"), {"state_compact", "compact"}}) {
    const std::string file(AccuracyOf(key, true).file);
    std::ifstream in(std::string(SPILLWAY_SOURCE_FOLDER) + "/" + file);
    std::stringstream text;
    text << in.rdbuf();
    const Json runs = ParseJson(text.str())["runs"];
    const double loss = 100 * (LossOf(runs, format) / LossOf(runs, "fp32") - 1);
    std::array<char, 32> percent;
    std::snprintf(percent.data(), percent.size(), "%+.3f%%", loss);
    EXPECT_THAT(Words(key), HasSubstr(percent.data())) << file;
  }
}

// The final losses of the ladder's rungs, from top to bottom.
std::vector<double> LadderLosses() {
  std::ifstream in(std::string(SPILLWAY_SOURCE_FOLDER) + "/README.md");
  std::vector<double> losses;
  bool is_inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("<!-- tools/ladder")) is_inside = line.find("begins") != std::string::npos;
    std::smatch loss;
    if (is_inside && std::regex_search(line, loss, std::regex("\\| ([0-9]+\\.[0-9]+) \\|$")))
      losses.push_back(std::stod(loss[1]));
  }
  return losses;
}

TEST(Accuracy, OfWhatMovesIsThatOfTheLadder) {
  const std::vector<double> losses = LadderLosses();
  ASSERT_EQ(losses.size(), 6U) << "fp32, fp16-amp, accumulated, checkpointed, pinned, NVMe";
  EXPECT_THAT(Words("amp", false), HasSubstr("within 0.1%"));
  EXPECT_LE(std::abs(losses[1] / losses[0] - 1), 0.001);
  EXPECT_THAT(Words("micro_batch"), HasSubstr("within 0.01%"));
  EXPECT_LE(std::abs(losses[2] / losses[1] - 1), 0.0001);
  for (const char* key : {"checkpointing", "offload_state", "offload_gradients",
                          "offload_activations", "offload_weights"})
    EXPECT_EQ(Words(key), "none: the same bits");
  for (const size_t rung : {3, 4, 5}) EXPECT_EQ(losses[rung], losses[2]);
}

}  // namespace
}  // namespace spillway::test
