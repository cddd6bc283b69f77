// SPDX-License-Identifier: Apache-2.0
//
// The order in which a step's micro-batches pass through the model. It changes the bytes that move,
// but no loss and no weight. The bytes of each order are forecast before the run, and auto takes
// the cheaper order.

#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/exhaustive.h"
#include "tests/spillway/command.h"
#include "tests/spillway/same_numbers.h"
#include "tests/spillway/tiny_model.h"
#include "tests/spillway/training.h"
#include "tools/hf/model_types.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;

// With these flags, a run in fp16-amp begins with a step that overflows.
Arguments Flags(const std::string& precision, int accumulate) {
  return {"--precision",  precision, "--accumulate",         std::to_string(accumulate),
          "--batch",      "2",       "--loss-scale-backoff", "0.0001",
          "--loss-scale", "1e9"};
}

Arguments SmallestOf(const Arguments& arguments) {
  std::mt19937_64 unused;
  return Budgets(arguments, "smallest", unused);
}

Arguments InOrder(const std::string& order) { return {"--accumulation-order", order}; }

std::vector<std::string> Precisions() { return GridOf<std::string>({"fp32", "fp16-amp", "bf16"}); }

class EachAccumulation : public ::testing::TestWithParam<int> {};

TEST_P(EachAccumulation, OrdersGiveTheSameNumbersWithinAnyBudget) {
  for (const std::string& precision : Precisions()) {
    const Training in_memory;
    const Ended expected =
        RunCommand(in_memory.Train(4) + Flags(precision, GetParam()) + InOrder("micro-batch"));
    ASSERT_EQ(expected.exit_code, 0) << expected.err;
    EXPECT_EQ(expected.json()["skipped_this_run"], precision == "fp16-amp" ? 1 : 0);
    const Numbers numbers = in_memory.NumbersOf(expected.json());
    ASSERT_EQ(numbers.steps.size(), 4U);
    for (const std::string& order : GridOf<std::string>({"micro-batch", "layer", "auto"})) {
      for (const bool tight : GridOf<bool>({true, false})) {
        SCOPED_TRACE(
            absl::StrCat(precision, ", ", order, tight ? ", tight" : ", activations saved"));
        const Training training;
        Arguments arguments = training.TrainInStore(4) + Flags(precision, GetParam()) +
                              InOrder(order) +
                              Arguments{"--checkpoint-activations", tight ? "on" : "off"};
        if (tight) arguments = arguments + SmallestOf(arguments);
        const Ended ended = RunCommand(arguments);
        ASSERT_EQ(ended.exit_code, 0) << ended.err;
        EXPECT_EQ(training.NumbersOf(ended.json()), numbers);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(MicroBatches, EachAccumulation,
                         ::testing::ValuesIn(GridOf<int>({1, 3, 8})));

TEST(Accumulation, ARunMayGoOnInTheOtherOrder) {
  const Arguments flags = Flags("fp16-amp", 3);
  const Training uncut;
  const Ended whole = RunCommand(uncut.Train(6) + flags);
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  for (const bool layer_first : {true, false}) {
    const Training training;
    const Arguments arguments = training.TrainInStore(6) + flags;
    const Ended first = RunCommand(arguments + InOrder(layer_first ? "layer" : "micro-batch") +
                                   Arguments{"--stop-after", "3"});
    ASSERT_EQ(first.exit_code, 0) << first.err;
    const Ended second = RunCommand(arguments + InOrder(layer_first ? "micro-batch" : "layer") +
                                    Arguments{"--resume"});
    ASSERT_EQ(second.exit_code, 0) << second.err;
    EXPECT_EQ(training.NumbersOf(second.json()), uncut.NumbersOf(whole.json()));
  }
}

// A model whose embedding has several tiles, with budgets that hold a layer but not the model.
class TightTraining : public Training {
 public:
  explicit TightTraining(bool tied = true, const std::string& type = "llama") {
    nlohmann::json config = TinyConfigOf(type);
    config[type == "gpt2" ? "n_layer" : "num_hidden_layers"] = 6;
    config["vocab_size"] = 3000;
    config["tie_word_embeddings"] = tied;
    WriteTinyModel(model(), config);
  }
  Ended Run(const std::string& order, const std::string& precision = "fp32",
            const Arguments& more = {}) const {
    return RunCommand(TrainInStore(4) + InOrder(order) + more +
                      Arguments{"--precision", precision, "--accumulate", "8", "--device-bytes",
                                "320KiB", "--pinned-bytes",
                                precision == "fp32" ? "1400KiB" : "1600KiB"});
  }
};

uint64_t Forecast(const Json& json, const char* order) {
  const Json& of = json["accumulation"][order];
  return of["nvme_bytes"].get<uint64_t>() + of["device_bytes"].get<uint64_t>();
}

TEST(Accumulation, EachOrderMovesWhatTheForecastSays) {
  for (const bool tied : GridOf<bool>({true, false})) {
    for (const std::string& precision : Precisions()) {
      for (const std::string& order : GridOf<std::string>({"micro-batch", "layer"})) {
        SCOPED_TRACE(absl::StrCat(precision, ", ", order, tied ? ", tied" : ", activations saved"));
        const TightTraining training(tied);
        const Ended ended =
            training.Run(order, precision, {"--checkpoint-activations", tied ? "on" : "off"});
        ASSERT_EQ(ended.exit_code, 0) << ended.err;
        const Json json = ended.json();
        EXPECT_EQ(json["accumulation"]["order"], order);
        EXPECT_GT(json["plan"]["steps"], 0) << json["plan"];
        EXPECT_EQ(json["plan"]["moved_bytes"].get<uint64_t>(),
                  Forecast(json, order == "layer" ? "layer" : "micro_batch"));
      }
    }
  }
}

TEST(Accumulation, EachModelTypeMovesWhatTheForecastSays) {
  for (const auto& [type, row] : hf::ModelTypes().items()) {
    for (const std::string& order : GridOf<std::string>({"micro-batch", "layer"})) {
      SCOPED_TRACE(type + ", " + order);
      const TightTraining training(/*tied=*/false, type);
      const Ended ended = training.Run(order, "bf16");
      ASSERT_EQ(ended.exit_code, 0) << ended.err;
      const Json json = ended.json();
      EXPECT_GT(json["plan"]["steps"], 0) << json["plan"];
      EXPECT_EQ(json["plan"]["moved_bytes"].get<uint64_t>(),
                Forecast(json, order == "layer" ? "layer" : "micro_batch"));
    }
  }
}

TEST(Accumulation, TheForecastKnowsWhatIsFrozenAndWhichStateThereIs) {
  const std::vector<Arguments> ways =
      GridOf<Arguments>({{"--freeze", "*embed*", "--state-format", "8bit"},
                         {"--freeze", "lm_head*,*layers.0*", "--optimizer", "lion"},
                         {"--freeze", "*layers.1*", "--state-format", "compact"},
                         {"--optimizer", "lamb"},
                         {"--optimizer", "lars", "--state-format", "bf16"},
                         {"--optimizer", "lars", "--state-format", "compact"},
                         {"--optimizer", "adafactor"},
                         {"--optimizer", "sgd"}});
  for (const Arguments& more : ways) {
    for (const std::string& order : GridOf<std::string>({"micro-batch", "layer"})) {
      SCOPED_TRACE(Words(more) + ", " + order);
      const TightTraining training(/*tied=*/false);
      const Ended ended = training.Run(order, "fp16-amp", more);
      ASSERT_EQ(ended.exit_code, 0) << ended.err;
      const Json json = ended.json();
      EXPECT_GT(json["plan"]["steps"], 0) << json["plan"];
      EXPECT_EQ(json["plan"]["moved_bytes"].get<uint64_t>(),
                Forecast(json, order == "layer" ? "layer" : "micro_batch"));
    }
  }
}

TEST(Accumulation, TheForecastKnowsWhereRolesArePlaced) {
  using Placed = std::pair<const char*, const char*>;
  for (const auto& [place, order] :
       GridOf<Placed>({{"activations=nvme", "micro-batch"},
                       {"activations=nvme", "layer"},
                       {"optimizer=nvme,activations=pinned", "micro-batch"}})) {
    SCOPED_TRACE(testing::Message() << place << ", " << order);
    const TightTraining training;
    const Ended ended = training.Run(order, "fp32", {"--place", place});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const Json json = ended.json();
    EXPECT_GT(json["plan"]["steps"], 0) << json["plan"];
    EXPECT_EQ(json["plan"]["moved_bytes"].get<uint64_t>(),
              Forecast(json, std::string(order) == "layer" ? "layer" : "micro_batch"));
  }
}

TEST(Accumulation, AutoTakesTheOrderWhoseActivationsFitWhereTheyArePlaced) {
  const TightTraining training;
  const Arguments place = {"--place", "activations=device"};
  const Ended layer = training.Run("layer", "fp32", place);
  ASSERT_EQ(layer.exit_code, 2) << layer.err;
  EXPECT_THAT(layer.err, HasSubstr("--device-bytes"));
  EXPECT_THAT(layer.err, HasSubstr("placed there (activation "));
  const Ended by_itself = training.Run("auto", "fp32", place);
  ASSERT_EQ(by_itself.exit_code, 0) << by_itself.err;
  EXPECT_EQ(by_itself.json()["accumulation"]["order"], "micro-batch");
  EXPECT_THAT(by_itself.err, HasSubstr("layer order cannot be planned"));
}

TEST(Accumulation, TheForecastKnowsWhereRolesRest) {
  for (const std::string& place : GridOf<std::string>(
           {"activations=pinned,moments=nvme", "activations=device,parameters=nvme"})) {
    for (const std::string& order : GridOf<std::string>({"micro-batch", "layer"})) {
      SCOPED_TRACE(absl::StrCat(place, ", ", order));
      const TightTraining training;
      const Ended ended =
          RunCommand(training.TrainInStore(4) + InOrder(order) +
                     Arguments{"--place", place, "--accumulate", "8", "--device-bytes", "640KiB",
                               "--pinned-bytes", "1700KiB"});
      ASSERT_EQ(ended.exit_code, 0) << ended.err;
      const Json json = ended.json();
      EXPECT_GT(json["plan"]["steps"], 0) << json["plan"];
      EXPECT_EQ(json["plan"]["moved_bytes"].get<uint64_t>(),
                Forecast(json, order == "layer" ? "layer" : "micro_batch"));
    }
  }
}

TEST(Accumulation, InLayerOrderFewerBytesMove) {
  const TightTraining micro_batch, layer;
  const Ended one = micro_batch.Run("micro-batch");
  const Ended other = layer.Run("layer");
  ASSERT_EQ(one.exit_code, 0) << one.err;
  ASSERT_EQ(other.exit_code, 0) << other.err;
  const auto nvme = [](const Json& json) {
    return json["plan"]["read_bytes"]["nvme"].get<uint64_t>() +
           json["plan"]["written_bytes"]["nvme"].get<uint64_t>();
  };
  std::cout << "NVMe bytes of a step: " << nvme(one.json()) << " in micro-batch order, "
            << nvme(other.json()) << " in layer order\n";
  EXPECT_GT(2 * nvme(one.json()), 3 * nvme(other.json()));
  EXPECT_EQ(micro_batch.NumbersOf(one.json()), layer.NumbersOf(other.json()));
}

TEST(Accumulation, AutoTakesTheCheaper) {
  const TightTraining tight;
  const Ended by_layer = tight.Run("auto");
  ASSERT_EQ(by_layer.exit_code, 0) << by_layer.err;
  const Json json = by_layer.json();
  EXPECT_EQ(json["accumulation"]["order"], "layer");
  EXPECT_LT(Forecast(json, "layer"), Forecast(json, "micro_batch"));
  EXPECT_THAT(by_layer.err, HasSubstr("micro-batches in layer order"));

  const Training training;
  const Ended in_memory = RunCommand(training.Train(1) + Arguments{"--accumulate", "8"});
  ASSERT_EQ(in_memory.exit_code, 0) << in_memory.err;
  EXPECT_EQ(in_memory.json()["accumulation"]["order"], "micro-batch") << "nothing moves in either";
  const Ended alone = RunCommand(training.Train(1));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_FALSE(alone.json().contains("accumulation"));
  EXPECT_EQ(alone.err.find("micro-batches in"), std::string::npos);
}

// Whether to make long plans, which take seconds. A sanitizer build makes none. If each run tries
// only a sample, one run in three makes them.
bool MakesLongPlans() { return !SPILLWAY_IS_SANITIZED && SampleBegin() == 0; }

// A plan of all micro-batches would take minutes and gigabytes before the run prints anything.
TEST(Accumulation, OfVeryManyMicroBatchesAPartIsPlanned) {
  if (!MakesLongPlans()) GTEST_SKIP() << "the planner's own tests run under a sanitizer";
  const Training training;
  const Ended ended = RunCommand(training.TrainInStore(0) + Arguments{"--accumulate", "20000"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.json()["accumulation"]["planned_micro_batches"], 4096);
  EXPECT_THAT(ended.err, HasSubstr("a step of 4096 of them as planned"));
}

TEST(Accumulation, OfStepsTooLongToPlanItIsSaidOnceWithTheCure) {
  if (!MakesLongPlans()) GTEST_SKIP() << "the planner's own tests run under a sanitizer";
  const Training training;
  nlohmann::json config = TinyConfig();
  config["num_hidden_layers"] = 12;
  WriteTinyModel(training.model(), config);
  const Ended ended = RunCommand(training.TrainInStore(2) + InOrder("micro-batch") +
                                 Arguments{"--accumulate", "400", "--durability", "none"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const size_t note = ended.err.find("not planned");
  ASSERT_NE(note, std::string::npos) << ended.err;
  EXPECT_EQ(ended.err.find("not planned", note + 1), std::string::npos) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("fewer micro-batches"));
  EXPECT_THAT(ended.err, HasSubstr("--accumulation-order layer"));
}

TEST(Accumulation, AutoTakesTheOrderThatThereIsRoomFor) {
  const Training training;
  const Arguments arguments = training.Train(1) + Arguments{"--accumulate", "8"};
  // Without a store all tensors rest in pinned memory. Layer order needs room there for the
  // activations of all eight micro-batches.
  Arguments budgets = SmallestOf(arguments + InOrder("micro-batch"));
  const Ended refused = RunCommand(arguments + InOrder("micro-batch") + budgets);
  ASSERT_EQ(refused.exit_code, 2) << refused.err;
  budgets.back() = BytesNamedIn(refused.err);
  const Ended ended = RunCommand(arguments + budgets);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.json()["accumulation"]["order"], "micro-batch");
  const Ended layer = RunCommand(arguments + budgets + InOrder("layer"));
  EXPECT_EQ(layer.exit_code, 2);
  EXPECT_THAT(layer.err, HasSubstr("--pinned-bytes"));
}

}  // namespace
}  // namespace spillway::test
