// SPDX-License-Identifier: Apache-2.0
//
// `spillway plan`: what it answers, that its advice holds, and what it refuses.

#include <cmath>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/spillway/tiny_model.h"
#include "tests/temp_folder.h"
#include "tools/hf/config.h"
#include "tools/trainer/parameters.h"

namespace spillway::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Arguments Plan(const Arguments& more) { return Arguments{"plan", "--json"} + more; }

Json Planned(const Arguments& more) {
  const Ended ended = RunCommand(Plan(more));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  return ended.json();
}

const Arguments kMachine = {"--gpu", "h200", "--dram", "2TB", "--nvme", "8x7GB/s:7.6TB"};

Arguments Trillion(const std::string& format) {
  return kMachine + Arguments{"--model",        "1T",   "--precision", "fp16-amp",
                              "--state-format", format, "--tokens",    "131072"};
}

TEST(Plan, TheTrillionLayoutHasItsBytes) {
  for (const auto& [format, state] : {std::pair{"fp32", 12.0}, {"compact", 3.06}}) {
    SCOPED_TRACE(format);
    const Json json = Planned(Trillion(format));
    const double parameters = json["parameters"];
    EXPECT_NEAR(parameters / 1.008e12, 1, 0.006);
    EXPECT_EQ(json["v"], 1);
    const Json& nvme = json["bytes"]["nvme"];
    EXPECT_EQ(nvme["weights"].get<double>(), 2 * parameters);
    EXPECT_EQ(nvme["gradients"].get<double>(), 2 * parameters);
    const double of_state = nvme["master_weights"].get<double>() + nvme["moments"].get<double>();
    EXPECT_NEAR(of_state / parameters, state, 0.1);
    EXPECT_NEAR(nvme["commit"].get<double>() / (of_state + 2 * parameters), 1, 1e-9);
    EXPECT_EQ(json["fits"], true);
    EXPECT_GT(json["step_seconds"], 0);
  }
}

TEST(Plan, SecondsAreThoseOfThePhasesAndNoLessThanTheBound) {
  const Json json = Planned(Trillion("compact"));
  double sum = 0;
  for (const auto& [phase, seconds] : json["seconds"].items()) sum += seconds.get<double>();
  const double seconds = json["step_seconds"];
  EXPECT_NEAR(sum / seconds, 1, 1e-6);
  EXPECT_GE(seconds * (1 + 1e-9), json["bound_seconds"].get<double>());
  for (const auto& [resource, with_more] : json["step_seconds_with"].items())
    EXPECT_LE(with_more.get<double>(), seconds) << resource;
  EXPECT_LT(json["step_seconds_with"]["gpu"].get<double>(), 0.8 * seconds);
}

// Removes a flag with its value.
Arguments Without(Arguments arguments, const std::string& flag) {
  for (size_t i = 0; i + 1 < arguments.size(); ++i)
    if (arguments[i] == flag)
      return arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i),
                             arguments.begin() + static_cast<std::ptrdiff_t>(i) + 2),
             arguments;
  return arguments;
}

// Applies a change that is one or more flags with their values.
Arguments With(Arguments arguments, const std::string& change) {
  Arguments words;
  for (size_t at = 0; at < change.size();) {
    const size_t end = std::min(change.find(' ', at), change.size());
    words.push_back(change.substr(at, end - at));
    at = end + 1;
  }
  for (size_t i = 0; i + 1 < words.size(); i += 2)
    arguments = Without(arguments, words[i]) + Arguments{words[i], words[i + 1]};
  return arguments;
}

TEST(Plan, EachChangeThatMakesItFitDoesSo) {
  const Arguments question = {"--model", "13B",   "--gpu",    "rtx4090", "--dram",
                              "64GB",    "--seq", "2048",     "--nvme",  "7GB/s:400GB",
                              "--batch", "1",     "--tokens", "32768"};
  const Json json = Planned(question);
  ASSERT_EQ(json["fits"], false);
  EXPECT_GT(json["missing_bytes"]["nvme"], 0);
  int applied = 0;
  for (const Json& change : json["fits_with"]["alone"]) {
    const std::string flags = change["change"];
    if (!flags.starts_with("--")) continue;
    EXPECT_EQ(Planned(With(question, flags))["fits"], true) << flags;
    ++applied;
  }
  EXPECT_GE(applied, 2) << json["fits_with"];
}

TEST(Plan, WhereNoChangeSufficesSeveralDoTogether) {
  const Arguments question = {"--model",      "13B",         "--gpu",        "rtx4090",
                              "--dram",       "64GB",        "--seq",        "2048",
                              "--nvme",       "7GB/s:100GB", "--durability", "none",
                              "--grad-dtype", "fp32",        "--batch",      "1"};
  const Json json = Planned(question);
  ASSERT_EQ(json["fits"], false);
  const Json& together = json["fits_with"]["together"];
  ASSERT_GE(together.size(), 2U) << json["fits_with"];
  Arguments changed = question;
  for (const Json& change : together) {
    EXPECT_EQ(Planned(changed)["fits"], false);
    changed = With(changed, change["change"]);
  }
  EXPECT_EQ(Planned(changed)["fits"], true) << together;
}

TEST(Plan, TheLargestModelFitsAndOneMoreLayerDoesNot) {
  const auto of_layers = [](int64_t layers) {
    return Arguments{"--layers", std::to_string(layers),
                     "--hidden", "4096",
                     "--gpu",    "a100",
                     "--dram",   "256GB",
                     "--nvme",   "2x5GB/s:1TB",
                     "--seq",    "1024",
                     "--batch",  "2"};
  };
  const Json json = Planned(of_layers(32));
  ASSERT_EQ(json["largest_is_limited_by"], "NVMe");
  const int64_t layers = json["largest_layers"];
  const Json largest = Planned(of_layers(layers));
  EXPECT_EQ(largest["fits"], true);
  EXPECT_EQ(largest["parameters"], json["largest_parameters"]);
  EXPECT_EQ(Planned(of_layers(layers + 1))["fits"], false);
}

TEST(Plan, DimensionsOfEveryTypeAreAModel) {
  for (const char* type : {"gpt2", "llama", "mistral", "qwen2", "qwen3"}) {
    const Json json = Planned(kMachine + Arguments{"--layers", "12", "--hidden", "768", "--type",
                                                   type, "--vocab", "50257", "--seq", "256"});
    EXPECT_NEAR(json["parameters"].get<double>() / 1e6, 140, 30) << type;
    EXPECT_EQ(json["fits"], true);
  }
}

TEST(Plan, ASliceOfAThousandTrillionParametersHasAnAnswer) {
  const Arguments question = {"--layers", "80",  "--hidden", "1000192",   "--type", "gpt2",
                              "--seq",    "512", "--batch",  "1",         "--gpu",  "h200",
                              "--dram",   "2TB", "--nvme",   "1024x7GB/s"};
  const Json json = Planned(question);
  EXPECT_GT(json["parameters"].get<double>(), 9.5e14);
  ASSERT_EQ(json["fits"], true);
  EXPECT_GT(json["step_seconds"].get<double>(), 1e5);
  const Ended simulated = RunCommand(Arguments{"simulate"} + question);
  EXPECT_EQ(simulated.exit_code, 2);
  EXPECT_THAT(simulated.err, HasSubstr("tiles"));
}

// Writes a file with these tensors of bf16, all zeros.
void WriteSafetensors(const std::string& path,
                      const std::vector<trainer::ParameterShape>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  uint64_t bytes = 0;
  for (const trainer::ParameterShape& tensor : tensors) {
    const uint64_t size = 2 * static_cast<uint64_t>(tensor.elements());
    header[tensor.name] = {
        {"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {bytes, bytes + size}}};
    bytes += size;
  }
  const std::string json = header.dump();
  const uint64_t length = json.size();
  WriteFile(path, std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + json +
                      std::string(bytes, '\0'));
}

TEST(Plan, SafetensorsOfAnyKindAreCounted) {
  const TempFolder folder;
  WriteTinyModel(folder / "model");
  const auto config = hf::ParseModelConfig(TinyConfig().dump(), "the tiny model");
  ASSERT_TRUE(config.ok()) << config.status();
  WriteSafetensors(folder / "model/model.safetensors", trainer::ListParameters(*config));
  const Json known = Planned(kMachine + Arguments{"--model", folder / "model", "--seq", "16"});
  std::filesystem::remove(folder / "model/config.json");
  const Json counted = Planned(kMachine + Arguments{"--model", folder / "model"});
  EXPECT_EQ(counted["parameters"], known["parameters"]);
  EXPECT_EQ(counted["fits"], true);
  EXPECT_FALSE(counted.contains("step_seconds"));
  for (const char* role : {"weights", "gradients", "master_weights", "moments", "commit"})
    EXPECT_EQ(counted["bytes"]["nvme"][role], known["bytes"]["nvme"][role]) << role;
  EXPECT_THAT(counted["today"][0], HasSubstr("config.json"));
  const Ended simulated = RunCommand(Arguments{"simulate", "--model", folder / "model"} + kMachine);
  EXPECT_EQ(simulated.exit_code, 2) << simulated.err;
}

TEST(Plan, TakesTheFileOfATrainRun) {
  const TempFolder folder;
  WriteFile(folder / "run.toml",
            "model = \"7B\"\ndata = \"text\"\nstore = [\"a\", \"b\"]\nlr = 1e-4\nsteps = 400\n"
            "state-format = \"compact\"\nprecision = \"fp16-amp\"\nbatch = 2\naccumulate = 4\n"
            "seq = 1024\npinned-bytes = \"100GB\"\n");
  const Json json = Planned(kMachine + Arguments{"--config", folder / "run.toml"});
  EXPECT_EQ(json["tokens"], 8192);
  EXPECT_EQ(json["bytes"]["pinned"]["room"], 100'000'000'000);
  EXPECT_THAT(json["train"].get<std::string>(),
              AllOf(HasSubstr("--state-format compact"), HasSubstr("--batch 2 --accumulate 4")));
  WriteFile(folder / "run.toml", "stat-format = \"compact\"\n");
  const Ended misspelt = RunCommand(Plan(kMachine + Arguments{"--config", folder / "run.toml"}));
  EXPECT_EQ(misspelt.exit_code, 2);
  EXPECT_THAT(misspelt.err, HasSubstr("did you mean state-format"));
}

TEST(Plan, TheTextSaysFirstWhetherItFits) {
  const Arguments question = {"plan",   "--model",     "7B",     "--gpu",     "rtx4090",
                              "--dram", "64GB",        "--nvme", "7GB/s:2TB", "--tokens",
                              "16384",  "--endurance", "1200TB"};
  const Ended fits = RunCommand(question);
  ASSERT_EQ(fits.exit_code, 0) << fits.err;
  EXPECT_TRUE(fits.out.starts_with("It fits: ")) << fits.out;
  for (const char* word : {"forward", "waiting", "bind", "tokens/s", "a second drive", "lasts",
                           "The largest model", "spillway train --model MODEL"})
    EXPECT_THAT(fits.out, HasSubstr(word));
  const Ended does_not = RunCommand(With(question, "--nvme 7GB/s:100GB"));
  EXPECT_EQ(does_not.exit_code, 0) << does_not.err;
  EXPECT_TRUE(does_not.out.starts_with("It does not fit: ")) << does_not.out;
  EXPECT_THAT(does_not.out, HasSubstr("makes it fit"));
}

TEST(Plan, NonsenseIsAUsageError) {
  const auto with = [](const Arguments& more) {
    return Arguments{"plan"} + more +
           Arguments{"--gpu", "h200", "--dram", "64GB", "--nvme", "7GB/s"};
  };
  for (const Arguments& arguments :
       {with({"--model", "9B"}), with({}), with({"--model", "7B", "--layers", "3"}),
        with({"--layers", "3"}), with({"--layers", "0", "--hidden", "64"}),
        with({"--layers", "2", "--hidden", "100", "--heads", "3"}),
        with({"--layers", "2", "--hidden", "128", "--type", "bert"}),
        with({"--layers", "100000", "--hidden", "2000000000"}),
        with({"--model", "7B", "--tokens", "-1"}), with({"--model", "7B", "--tokens", "1000"}),
        with({"--model", "7B", "--train-tokens", "nan"}),
        with({"--model", "7B", "--train-tokens", "0"}), with({"--model", "7B", "--endurance", "0"}),
        with({"--model", "7B", "--endurance", "-1TB"}),
        with({"--model", "7B", "--tokens", "9223372036854775808"}),
        with({"--model", "7B", "--state-format", "compact", "--precision", "fp32"}),
        Arguments{"plan", "--model", "7B", "--dram", "64GB", "--nvme", "0x7GB/s"},
        Arguments{"plan", "--model", "7B", "--dram", "99999PB", "--nvme", "7GB/s"}}) {
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, 2) << ::testing::PrintToString(arguments) << ended.out << ended.err;
    EXPECT_FALSE(ended.err.empty());
    EXPECT_TRUE(ended.out.empty()) << ended.out;
  }
}

// Measures once, and finds what it measured in the cache.
TEST(Plan, ForThisMachineIsMeasured) {
  const TempFolder cache;
  const std::string before = "XDG_CACHE_HOME=" + cache.path();
  const Arguments plan = {"plan",        "--model", "1.1B",     "--gpu", "this",
                          "--precision", "bf16",    "--tokens", "4096",  "--json"};
  const Ended first = RunInShell(before, plan), again = RunInShell(before, plan);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("note: measuring this machine"));
  EXPECT_THAT(again.err, Not(HasSubstr("measuring")));
  const Json json = again.json();
  EXPECT_EQ(json["parameters"], 1100048384);
  EXPECT_THAT(json["today"].dump(), HasSubstr("here the processors compute"));
  if (json["fits"] == true) {
    EXPECT_GT(json["step_seconds"], 0);
    EXPECT_THAT(json["train"].get<std::string>(), Not(HasSubstr("--device cuda")));
  }
}

}  // namespace
}  // namespace spillway::test
