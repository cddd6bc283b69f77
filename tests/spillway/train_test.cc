// SPDX-License-Identifier: Apache-2.0
//
// `spillway train` as a user sees it: what it reports, what it refuses, and what files it leaves.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"
#include "tools/hf/model_types.h"

namespace spillway::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> Keys(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

TEST(Train, TheSummaryIsOneObjectWithEverythingPromised) {
  const Training training;
  const Ended ended = RunCommand(training.TrainInStore(3));
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.out.find('\n'), ended.out.size() - 1) << "one line and nothing else";
  const Json json = ended.json();
  ASSERT_TRUE(json.is_object()) << ended.out;
  EXPECT_EQ(json["v"], 1);
  EXPECT_EQ(json["exit_reason"], "done");
  EXPECT_EQ(json["steps"], 3);
  EXPECT_EQ(json["weights_hash"].get<std::string>().size(), 32U);
  EXPECT_THAT(Keys(json["peak_bytes"]), ElementsAre("device", "pinned", "nvme", "roles"));
  const Json roles = json["peak_bytes"]["roles"];
  EXPECT_THAT(Keys(roles),
              ElementsAre("parameter", "gradient", "master_weight", "moment", "activation"));
  for (const auto& [role, tiers] : roles.items()) {
    EXPECT_THAT(Keys(tiers), ElementsAre("device", "pinned", "nvme"));
  }
  EXPECT_GT(json["peak_bytes"]["device"], 0);
  EXPECT_GT(json["peak_bytes"]["nvme"], 0) << "the commit wrote the state";
  EXPECT_GT(json["workspace_bytes"], 0);
  EXPECT_GT(json["written_bytes"]["nvme"], 0);
  EXPECT_EQ(json["ssd_bytes_written"], json["written_bytes"]["nvme"]);
  EXPECT_TRUE(json["final_loss"].is_number());
  EXPECT_EQ(json["commits"], 1);
  EXPECT_GT(json["commit_s"], 0);
  EXPECT_GT(json["tokens_per_s"], 0);
  EXPECT_GE(json["overlap"], 0);
  EXPECT_LE(json["overlap"], 1);
  EXPECT_TRUE(json["fallbacks"].is_array());
}

TEST(Train, FlagsThatDoNothingAreTold) {
  const Training training;
  const auto told = [&](const Arguments& flags) {
    const Ended ended = RunCommand(training.Train(1) + flags);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended.err;
  };
  EXPECT_THAT(told({"--precision", "bf16", "--loss-scale-growth", "3"}),
              HasSubstr("warning: --loss-scale, and flags that begin with it, do nothing under "
                        "--precision bf16"));
  EXPECT_THAT(told({"--calibrate", "off"}), HasSubstr("do nothing without --store"));
  EXPECT_THAT(told({"--precision", "fp16-amp", "--loss-scale", "3"}), Not(HasSubstr("warning")));
  EXPECT_THAT(told({}), Not(HasSubstr("warning")));
}

TEST(Train, TheSummarySaysHowLongADriveLasts) {
  const Training training;
  const auto summary = [](Arguments arguments) {
    std::erase(arguments, "--json");
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended.out;
  };
  EXPECT_THAT(summary(training.TrainInStore(4)),
              ContainsRegex("drive wear: [0-9.]+ [KM]iB written in 4 steps, .* rated for lasts "
                            "[0-9]+ steps"));
  EXPECT_THAT(summary(training.Train(4)), Not(HasSubstr("drive wear")));
}

TEST(Train, TheSummaryHasTheTimeOfItsCommits) {
  const Training training;
  Arguments arguments = training.TrainInStore(4) + Arguments{"--commit-every", "2"};
  std::erase(arguments, "--json");
  const Ended ended = RunCommand(arguments);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, ContainsRegex("\ncommits: 2, [0-9]+[.][0-9] s in all\n"));
  const std::vector<Json> lines = ReadLog(training.log());
  ASSERT_EQ(lines.size(), 4U);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i].contains("commit_s"), i == 2) << i;
}

TEST(Train, TheLogHasALineAStep) {
  const Training training;
  ASSERT_EQ(RunCommand(training.Train(4) + Arguments{"--eval-every", "2"}).exit_code, 0);
  const std::vector<Json> lines = ReadLog(training.log());
  ASSERT_EQ(lines.size(), 4U);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["step"], i + 1);
    EXPECT_EQ(lines[i].contains("eval_loss"), i % 2 == 1);
  }
}

TEST(Train, TheMetricsHaveTheWholeRunsBytesAndItsLastEvaluation) {
  const Training training;
  const std::string metrics = training / "metrics.prom";
  const Ended ended = RunCommand(training.TrainInStore(5) +
                                 Arguments{"--device-bytes", "16KiB", "--pinned-bytes", "64KiB",
                                           "--page-bytes", "4KiB", "--eval-every", "2",
                                           "--commit-every", "2", "--metrics-file", metrics});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const std::string text = ReadFile(metrics);
  const Json json = ended.json();
  for (const char* tier : {"nvme", "pinned"}) {
    const std::string labels = std::string("spillway_bytes_total{tier=\"") + tier;
    EXPECT_THAT(text, HasSubstr(labels + "\",direction=\"read\"} " +
                                json["read_bytes"][tier].dump() + "\n"));
    EXPECT_THAT(text, HasSubstr(labels + "\",direction=\"write\"} " +
                                json["written_bytes"][tier].dump() + "\n"));
  }
  EXPECT_THAT(text, HasSubstr("\nspillway_step 5\n"));
  const size_t at = text.find("\nspillway_eval_loss ");
  ASSERT_NE(at, std::string::npos) << "also after a step without an evaluation";
  EXPECT_EQ(std::stod(text.substr(at + 20)), json["eval_loss"].get<double>());
}

TEST(Train, LearnsWhatThereIsToLearn) {
  const Training training;
  ASSERT_EQ(RunCommand(training.Train(60) + Arguments{"--batch", "4"}).exit_code, 0);
  const std::vector<Json> lines = ReadLog(training.log());
  ASSERT_EQ(lines.size(), 60U);
  EXPECT_NEAR(lines.front()["loss"].get<double>(), 4.16, 0.1)
      << "ln 64, as of a model that knows nothing";
  EXPECT_LT(lines.back()["loss"].get<double>(), 3.0);
}

TEST(Train, PeopleGetATableOnStdoutAndALineAStepOnStderr) {
  const Training training;
  Arguments arguments = training.Train(2);
  std::erase(arguments, "--json");
  const Ended ended = RunCommand(arguments);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("step 1/2  loss "));
  EXPECT_THAT(ended.err, HasSubstr("step 2/2  loss "));
  EXPECT_THAT(ended.out, HasSubstr("master_weight"));
  EXPECT_THAT(ended.out, HasSubstr("overlap"));
  EXPECT_THAT(ended.out, Not(HasSubstr("step 1/2")));
}

TEST(Train, AStoreThatIsThereIsRefusedAndLeftAlone) {
  const Training training;
  const Ended first = RunCommand(training.TrainInStore(2));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Ended second = RunCommand(training.TrainInStore(2));
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, AllOf(HasSubstr(training.store()), HasSubstr("add --resume to go on"),
                                Not(HasSubstr("OpenMode"))));
  EXPECT_THAT(second.out, IsEmpty());
  const Ended resumed = RunCommand(training.TrainInStore(2) + Arguments{"--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(resumed.json()["weights_hash"], first.json()["weights_hash"]);
}

// Returns the arguments with this flag, instead of the same flag's if they have it.
Arguments With(Arguments arguments, const Arguments& flag) {
  const auto at = std::ranges::find(arguments, flag[0]);
  if (at == arguments.end()) return arguments + flag;
  at[1] = flag[1];
  return arguments;
}

TEST(Train, AResumeUnderOtherNumbersNamesTheFlagAndBothValues) {
  const Training training;
  ASSERT_EQ(RunCommand(training.TrainInStore(1)).exit_code, 0);
  const Arguments resume = training.TrainInStore(2) + Arguments{"--resume"};
  const std::string data = training / "other";
  WriteTinyData(data, 4000, /*seed=*/2);
  const std::vector<Arguments> others = {
      {"--batch", "2"},         {"--accumulate", "2"},    {"--precision", "fp16-amp"},
      {"--betas", "0.9,0.999"}, {"--clip", "0.5"},        {"--order", "shuffled"},
      {"--eps", "1e-6"},        {"--warmup-steps", "3"},  {"--schedule", "cosine"},
      {"--threads", "3"},       {"--data", data},         {"--seq", "8"},
      {"--lr", "2e-2"},         {"--no-decay", "*norm*"}, {"--lr-for", "*norm*=0.5"},
      {"--freeze", "*norm*"}};
  for (const Arguments& other : others) {
    const Ended ended = RunCommand(With(resume, other));
    EXPECT_EQ(ended.exit_code, 2) << other[0] << ": " << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(other[0] + " was "));
  }
  const Ended page = RunCommand(resume + Arguments{"--page-bytes", "64KiB"});
  EXPECT_EQ(page.exit_code, 2) << page.err;
}

TEST(Train, AShuffledRunResumesUnderItsSeedOnly) {
  const Training training;
  const Arguments run = training.TrainInStore(1) + Arguments{"--order", "shuffled"};
  ASSERT_EQ(RunCommand(run).exit_code, 0);
  const Ended ended = RunCommand(With(run, {"--seed", "8"}) + Arguments{"--resume"});
  EXPECT_EQ(ended.exit_code, 2) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("--seed was 7"));
}

TEST(Train, AStoreOfAnotherModelIsRefused) {
  const Training training;
  ASSERT_EQ(RunCommand(training.TrainInStore(1)).exit_code, 0);
  nlohmann::json config = TinyConfig();
  config["num_hidden_layers"] = 3;
  WriteTinyModel(training.model(), config);
  const Ended ended = RunCommand(training.TrainInStore(2) + Arguments{"--resume"});
  EXPECT_EQ(ended.exit_code, 2) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("num_layers 2"));
  EXPECT_THAT(ended.err, HasSubstr("num_layers 3"));
}

// The flags that place roles, and the words of the refusal of a device or pinned budget.
struct PlacedRoles {
  Arguments flags;
  const char* on_device;
  const char* in_pinned;
};

class BudgetTooSmall : public ::testing::TestWithParam<PlacedRoles> {};

TEST_P(BudgetTooSmall, NamesTheSmallestThatWorks) {
  const Training training;
  nlohmann::json config = TinyConfig();
  config["num_hidden_layers"] = 6;
  config["vocab_size"] = 3000;
  WriteTinyModel(training.model(), config);
  std::string device = "4000";
  std::string pinned = "4000";
  const auto run = [&] {
    return RunCommand(training.TrainInStore(4) + GetParam().flags +
                      Arguments{"--device-bytes", device, "--pinned-bytes", pinned});
  };
  Ended ended = run();
  ASSERT_EQ(ended.exit_code, 2) << ended.err;
  ASSERT_THAT(ended.err, HasSubstr("--device-bytes"));
  EXPECT_THAT(ended.err, HasSubstr(GetParam().on_device));
  device = BytesNamedIn(ended.err);
  ended = run();
  ASSERT_EQ(ended.exit_code, 2) << ended.err;
  ASSERT_THAT(ended.err, HasSubstr("--pinned-bytes"));
  EXPECT_THAT(ended.err, HasSubstr(GetParam().in_pinned));
  pinned = BytesNamedIn(ended.err);
  EXPECT_FALSE(std::filesystem::exists(training.store())) << "a refusal costs nothing";
  ended = run();
  EXPECT_EQ(ended.exit_code, 0) << "the figures named work: " << ended.err;
  device = std::to_string(std::stoull(device) - 1);
  EXPECT_EQ(run().exit_code, 2) << "and a byte less does not";
}

constexpr char kNothing[] = "for this model, sequence and batch";

INSTANTIATE_TEST_SUITE_P(
    Placed, BudgetTooSmall,
    ::testing::Values(PlacedRoles{{}, kNothing, kNothing},
                      PlacedRoles{{"--place", "optimizer=nvme"}, kNothing, kNothing},
                      PlacedRoles{{"--place", "parameters=device,gradients=pinned"},
                                  "placed there (parameter ",
                                  "placed there (gradient "},
                      PlacedRoles{{"--place", "optimizer=pinned", "--activation-tier", "device",
                                   "--precision", "fp16-amp"},
                                  "placed there (activation ",
                                  "placed there (master_weight "},
                      PlacedRoles{
                          {"--place", "parameters=device,gradients=device,activations=device"},
                          "placed there (parameter ",
                          kNothing},
                      PlacedRoles{{"--place",
                                   "parameters=pinned,gradients=pinned,optimizer=pinned,"
                                   "activations=pinned"},
                                  kNothing,
                                  "placed there (parameter "}));

// Runs with and without memory for everything, and with one commit or several.
class StoreBytes : public ::testing::TestWithParam<Arguments> {};

TEST_P(StoreBytes, TooFewAreRefusedBeforeTheFirstStepAndTheFigureNamedIsEnough) {
  const Training training;
  const Arguments arguments = training.TrainInStore(6) + GetParam();
  const Ended ended = RunCommand(arguments + Arguments{"--store-bytes", "64KiB"});
  ASSERT_EQ(ended.exit_code, 2) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("--store-bytes"));
  EXPECT_FALSE(std::filesystem::exists(training.store()));
  const Ended enough = RunCommand(arguments + Arguments{"--store-bytes", BytesNamedIn(ended.err)});
  EXPECT_EQ(enough.exit_code, 0) << enough.err;
}

INSTANTIATE_TEST_SUITE_P(
    All, StoreBytes,
    ::testing::Values(Arguments{}, Arguments{"--commit-every", "2"},
                      Arguments{"--device-bytes", "16KiB", "--pinned-bytes", "64KiB"},
                      Arguments{"--device-bytes", "16KiB", "--pinned-bytes", "64KiB",
                                "--commit-every", "2", "--page-bytes", "4KiB"}));

TEST(Train, ThePinnedBudgetNamedIsEnoughWithoutAStore) {
  const Training training;
  const Ended ended = RunCommand(training.Train(2) + Arguments{"--pinned-bytes", "200KiB"});
  ASSERT_EQ(ended.exit_code, 2) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("--store DIR"));
  const Ended enough =
      RunCommand(training.Train(2) + Arguments{"--pinned-bytes", BytesNamedIn(ended.err)});
  EXPECT_EQ(enough.exit_code, 0) << enough.err;
}

TEST(Train, ExportsAFolderThatEvaluatesTheSameAndOverwritesNothing) {
  const Training training;
  const std::string saved = training / "saved";
  const Arguments save = {"--save", saved, "--eval-every", "3", "--eval-batches", "4"};
  const Ended ended = RunCommand(training.Train(3) + save);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Ended eval = RunCommand({"eval", "--model", saved, "--data", training.data(), "--seq", "16",
                                 "--batches", "4", "--threads", "2", "--json"});
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_EQ(eval.json()["loss"], ended.json()["eval_loss"]);

  const Ended again = RunCommand(training.Train(3) + save);
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr(saved));
  EXPECT_THAT(again.err, Not(HasSubstr("step 1/3"))) << "refused before the work, not after";
}

TEST(Train, ALogThatCannotBeWrittenIsRefusedBeforeAStoreIsMade) {
  const Training training;
  Arguments arguments = training.TrainInStore(2);
  std::replace(arguments.begin(), arguments.end(), training.log(), training / "absent/log");
  EXPECT_EQ(RunCommand(arguments).exit_code, 1);
  EXPECT_FALSE(std::filesystem::exists(training.store()));
}

TEST(Train, ARefusedRunLeavesTheLogOfTheOneBefore) {
  const Training training;
  ASSERT_EQ(RunCommand(training.TrainInStore(2)).exit_code, 0);
  ASSERT_EQ(RunCommand(training.TrainInStore(2)).exit_code, 1);
  EXPECT_EQ(ReadLog(training.log()).size(), 2U);
}

TEST(Train, AStoreThatCannotBeWrittenIsAFailure) {
  const Training training;
  WriteFile(training / "file", "not a folder");
  for (const std::string& store : {std::string("/proc/spillway"), training / "file"}) {
    const Ended ended = RunCommand(training.Train(1) + Arguments{"--store", store});
    EXPECT_EQ(ended.exit_code, 1) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(store));
  }
}

bool NamesIoUring(const Json& fallback) {
  return fallback.get<std::string>().find("io_uring") != std::string::npos;
}

TEST(Train, WithoutIoUringItSaysSoOrFallsBackAudibly) {
  const Training training;
  const auto run = [&](const std::string& io) {
    return Command(training.TrainInStore(2) + Arguments{"--io", io}, /*without_uring=*/true).Wait();
  };
  const Ended forced = run("uring");
  if (forced.exit_code == 126) GTEST_SKIP() << "the kernel takes no seccomp filter";
  EXPECT_EQ(forced.exit_code, 3) << forced.err;
  EXPECT_THAT(forced.err, HasSubstr("io_uring"));
  const Ended fallen_back = run("auto");
  ASSERT_EQ(fallen_back.exit_code, 0) << fallen_back.err;
  EXPECT_THAT(fallen_back.err, HasSubstr("note: io_uring does not work here"));
  const Json json = fallen_back.json();
  EXPECT_EQ(json["io"], "posix");
  // There are others where memory cannot be locked or has no huge pages.
  EXPECT_EQ(std::ranges::count_if(json["fallbacks"], NamesIoUring), 1) << json["fallbacks"];
}

// Each key that gives a rate is named. What is trained and saved without dropout keeps the rates of
// its configuration, and evaluates and generates.
TEST(Train, ADropoutRateWantsToBeTurnedOff) {
  for (const char* type : {"gpt2", "llama"}) {
    for (const auto& dropout : hf::ModelTypeOf(type).at("dropouts")) {
      const auto key = dropout.get<std::string>();
      SCOPED_TRACE(key);
      const Training training;
      nlohmann::json config = TinyConfigOf(type);
      config[key] = 0.1;
      WriteTinyModel(training.model(), config);
      const Ended refused = RunCommand(training.TrainInStore(1));
      EXPECT_EQ(refused.exit_code, 2);
      EXPECT_THAT(refused.err, HasSubstr(training.model() + "/config.json: " + key + " is 0.1"));
      EXPECT_THAT(refused.err, HasSubstr("give --dropout 0 to train without it"));
      EXPECT_FALSE(std::filesystem::exists(training.store()));
      EXPECT_EQ(RunCommand(training.Train(1) + Arguments{"--dropout", "0.1"}).exit_code, 2);
      const std::string saved = training / "saved";
      const Ended trained =
          RunCommand(training.Train(1) + Arguments{"--dropout", "0", "--save", saved});
      EXPECT_EQ(trained.exit_code, 0) << trained.err;
      EXPECT_EQ(ParseJson(ReadFile(saved + "/config.json"))[key], 0.1);
      const Ended evaluated = RunCommand({"eval", "--model", saved, "--data", training.data(),
                                          "--seq", "16", "--batches", "2", "--json"});
      EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
      const Ended generated = RunCommand(
          {"generate", "--model", saved, "--tokens", "1,8", "--max-tokens", "2", "--seq", "16"});
      EXPECT_EQ(generated.exit_code, 0) << generated.err;
    }
  }
}

TEST(Train, DataOfAnotherVocabularyIsRefused) {
  const Training training;
  std::vector<uint16_t> tokens(100, 3);
  tokens[70] = kTinyVocabulary;
  WriteNpy(training.data() + "/train.npy", tokens);
  const Ended ended = RunCommand(training.TrainInStore(1));
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("token 64 at index 70"));
  EXPECT_FALSE(std::filesystem::exists(training.store()));
}

// Damages every byte of every segment file of the store. Returns the number of segment files.
size_t DamageSegments(const std::string& store) {
  size_t damaged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store)) {
    if (entry.path().filename().string().find("segment") == std::string::npos) continue;
    std::string bytes = ReadFile(entry.path());
    for (char& byte : bytes) byte = static_cast<char>(~byte);
    WriteFile(entry.path(), bytes);
    ++damaged;
  }
  return damaged;
}

TEST(Train, DamageInTheStoreIsFoundAndNamed) {
  const Training training;
  ASSERT_EQ(RunCommand(training.TrainInStore(1)).exit_code, 0);
  ASSERT_GT(DamageSegments(training.store()), 0U);
  const Ended ended = RunCommand(training.TrainInStore(2) + Arguments{"--resume"});
  EXPECT_EQ(ended.exit_code, 4) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("segment"));
  EXPECT_THAT(ended.out, IsEmpty());
}

TEST(Train, AGradientThatIsNotFiniteWithoutALossScaleStopsTheRun) {
  for (const char* precision : {"fp32", "bf16"}) {
    const Training training;
    Arguments arguments = training.Train(50) + Arguments{"--clip", "0",           "--weight-decay",
                                                         "100",    "--precision", precision};
    std::replace(arguments.begin(), arguments.end(), std::string("1e-2"), std::string("10"));
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, 1) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("not finite"));
  }
}

TEST(Train, AnOverflowUnderAmpHalvesTheScaleAndSkips) {
  const Training training;
  const Ended ended =
      RunCommand(training.Train(40) + Arguments{"--precision", "fp16-amp", "--loss-scale", "1e9"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const std::vector<Json> lines = ReadLog(training.log());
  ASSERT_EQ(lines.size(), 40U);
  EXPECT_EQ(lines[0]["skipped"], true);
  EXPECT_TRUE(lines[0]["grad_norm"].is_null());
  for (size_t i = 1; i < lines.size(); ++i) {
    const double before = lines[i - 1]["loss_scale"].get<double>();
    EXPECT_EQ(lines[i]["loss_scale"].get<double>(),
              lines[i - 1]["skipped"] == true ? before / 2 : before);
  }
  EXPECT_EQ(lines.back()["skipped"], false) << "it found a scale that works";
}

}  // namespace
}  // namespace spillway::test
