// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/config.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/hf/status_matchers.h"
#include "tests/hf/test_files.h"

namespace spillway::hf {
namespace {

using nlohmann::json;

// Parses the valid config with `key` set to the JSON text `value`, or with `key` removed if `value`
// is empty.
absl::StatusOr<ModelConfig> With(const std::string& key, const std::string& value) {
  json config = json::parse(ValidConfig());
  if (value.empty()) {
    config.erase(key);
  } else {
    config[key] = json::parse(value);
  }
  return ParseModelConfig(config.dump(), "config.json");
}

TEST(ModelConfig, ReadsAPublishedModel) {
  const TempFolder folder;
  WriteFile(folder / "config.json", ValidConfig());
  const auto config = ReadModelConfig(folder.path());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->vocab_size, 49152);
  EXPECT_EQ(config->hidden_size, 576);
  EXPECT_EQ(config->intermediate_size, 1536);
  EXPECT_EQ(config->num_layers, 30);
  EXPECT_EQ(config->num_heads, 9);
  EXPECT_EQ(config->num_kv_heads, 3);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_EQ(config->rope_theta, 100000.0);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->max_position_embeddings, 8192);
  EXPECT_EQ(config->eos_token_ids, (std::vector<int64_t>{0}));
  EXPECT_EQ(config->json, ValidConfig());
}

TEST(ModelConfig, AbsentAndNullKeysTakeHuggingFacesDefaults) {
  for (const char* value : {"", "null"}) {
    EXPECT_EQ(With("num_key_value_heads", value)->num_kv_heads, 9);
    EXPECT_EQ(With("head_dim", value)->head_dim, 64);
    EXPECT_EQ(With("rms_norm_eps", value)->rms_norm_eps, 1e-6);
    EXPECT_EQ(With("rope_theta", value)->rope_theta, 10000.0);
    EXPECT_FALSE(With("tie_word_embeddings", value)->tie_word_embeddings);
    EXPECT_EQ(With("max_position_embeddings", value)->max_position_embeddings, 2048);
    EXPECT_TRUE(With("eos_token_id", value)->eos_token_ids.empty());
    for (const char* key :
         {"architectures", "hidden_act", "attention_bias", "mlp_bias", "rope_scaling"}) {
      EXPECT_THAT(With(key, value), IsOk()) << key;
    }
  }
}

TEST(ModelConfig, HeadDimMayDifferFromTheQuotient) {
  EXPECT_EQ(With("head_dim", "128")->head_dim, 128);
  EXPECT_THAT(With("head_dim", "63"), IsInvalid("rope needs an even one"));
  EXPECT_THAT(With("hidden_size", "577"),
              IsInvalid("without head_dim a multiple of num_attention_heads, 9,"));
  EXPECT_THAT(With("hidden_size", "9"),
              IsInvalid("head_dim is missing; rope needs an even one; this model's is 1"));
  EXPECT_THAT(With("head_dim", "2147483646"), IsInvalid("wide"));
}

TEST(ModelConfig, RopeThetaIsReadFromEitherPlace) {
  json config = json::parse(ValidConfig());
  config.erase("rope_theta");
  config.erase("rope_scaling");
  config["rope_parameters"] = {{"rope_theta", 500000.0}, {"rope_type", "default"}};
  EXPECT_EQ(ParseModelConfig(config.dump(), "f")->rope_theta, 500000.0);
  config["rope_theta"] = 500000;
  EXPECT_EQ(ParseModelConfig(config.dump(), "f")->rope_theta, 500000.0);
  config["rope_theta"] = 10000;
  EXPECT_THAT(ParseModelConfig(config.dump(), "f"), IsInvalid("the two must agree"));
  EXPECT_EQ(With("rope_parameters", "{}")->rope_theta, 100000.0);
}

TEST(ModelConfig, OtherRopeScalingIsRefused) {
  for (const char* scaling :
       {R"({"type":"linear"})", R"({"rope_type":"llama3","factor":8.0})",
        R"({"type":"linear","factor":2.0,"beta_fast":32})", R"({"type":"dynamic","factor":2.0})",
        R"({"rope_type":"default","type":"yarn"})", R"({"factor":2.0})", "{}", "\"linear\"",
        R"({"type":7})"}) {
    EXPECT_THAT(With("rope_scaling", scaling), IsInvalid("config.json: rope_scaling")) << scaling;
  }
  EXPECT_THAT(With("rope_scaling", R"({"rope_type":"default"})"), IsOk());
  EXPECT_THAT(With("rope_scaling", R"({"type":"default"})"), IsOk());
  for (const char* parameters : {R"({"rope_type":"yarn"})", R"({"rope_type":"default","factor":2})",
                                 "[]", R"({"partial_rotary_factor":0.5})", R"({"rope_theta":0})",
                                 R"({"full_attention":{"rope_theta":1.0}})"}) {
    EXPECT_THAT(With("rope_parameters", parameters), IsInvalid("config.json: rope_parameters"))
        << parameters;
  }
}

TEST(ModelConfig, OtherMathsIsRefusedByName) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"architectures", R"(["MistralForCausalLM"])"},
      {"architectures", R"(["LlamaForCausalLM","LlamaForCausalLM"])"},
      {"architectures", "\"LlamaForCausalLM\""},
      {"architectures", "[]"},
      {"model_type", "\"mixtral\""},
      {"model_type", ""},
      {"model_type", "7"},
      {"hidden_act", "\"gelu\""},
      {"attention_bias", "true"},
      {"mlp_bias", "true"},
      {"rope_interleaved", "true"},
      {"attention_dropout", "1"},
      {"attention_dropout", "-0.1"},
      {"partial_rotary_factor", "0.5"},
      {"quantization_config", "{}"},
  };
  for (const auto& [key, value] : cases) {
    EXPECT_THAT(With(key, value), IsInvalid((std::string("config.json: ") + key + " is ").c_str()))
        << value;
  }
}

TEST(ModelConfig, NonsensicalSizesAreRefused) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const char* value : {"0", "-1", "1.5", "576.0", "\"576\"", "true", "[]", "{}",
                              "2147483648", "1e400000", "18446744073709551615"}) {
      if (std::string(value) == "1e400000")
        continue;  // outside the range of the JSON library's numbers
      EXPECT_THAT(With(key, value), IsInvalid("a whole number from 1 to")) << key << " " << value;
    }
  }
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads"}) {
    EXPECT_THAT(With(key, ""), IsInvalid("is missing")) << key;
  }
  EXPECT_THAT(With("num_key_value_heads", "2"),
              IsInvalid("a divisor of num_attention_heads, 9, is expected"));
  EXPECT_THAT(With("num_key_value_heads", "18"), IsInvalid("a divisor"));
  EXPECT_THAT(With("num_hidden_layers", "100001"), IsInvalid("from 1 to 100000"));
}

TEST(ModelConfig, NumbersMustMakeSense) {
  for (const char* value : {"0", "-1e-5", "\"1e-5\"", "[1]"}) {
    EXPECT_THAT(With("rms_norm_eps", value), IsInvalid("a positive number")) << value;
    EXPECT_THAT(With("rope_theta", value), IsInvalid("a positive number")) << value;
  }
  EXPECT_THAT(With("rms_norm_eps", "1"), IsInvalid("below 1"));
  EXPECT_THAT(With("tie_word_embeddings", "1"), IsInvalid("true or false"));
}

TEST(ModelConfig, EosMayBeOneOrSeveral) {
  EXPECT_EQ(With("eos_token_id", "[2, 49151]")->eos_token_ids, (std::vector<int64_t>{2, 49151}));
  for (const char* value : {"49152", "[0, 49152]", "-1", "1.0", "\"2\"", "[[2]]", "{\"a\":2}"}) {
    EXPECT_THAT(With("eos_token_id", value), IsInvalid("tokens below vocab_size")) << value;
  }
}

TEST(ModelConfig, TextThatIsNoObjectIsRefused) {
  for (const char* text :
       {"", "[]", "7", "null", "{", "{\"a\":1,}", "// comment\n{}", "{\"rope_theta\":1e999}"}) {
    EXPECT_THAT(ParseModelConfig(text, "config.json"), IsInvalid("config.json: ")) << text;
  }
  EXPECT_THAT(ParseModelConfig(R"({"vocab_size":1,"vocab_size":2})", "config.json"),
              IsInvalid("holds the name \"vocab_size\" twice"));
}

// Fuzzing found this case: the JSON library's message repeats all that it has read of a token.
TEST(ModelConfig, TheMessageAboutALongMalformedTokenIsShort) {
  const std::string token = "\"" + std::string(10'000, '\r');
  const auto config = ParseModelConfig("{" + token, "config.json");
  ASSERT_THAT(config, IsInvalid("config.json: is not valid JSON at byte"));
  EXPECT_LT(config.status().message().size(), 400u);
}

// Returns the config text of a case of config_cases.json: the case's own text, or a good one with
// the values that the case sets. These values need not be valid JSON. An empty value removes its
// key.
std::string CaseText(const json& cases, const json& given) {
  if (given.contains("text")) return given["text"];
  json rest = given.contains("of") ? cases["others"][given["of"]] : cases["good"];
  std::string text;
  for (const auto& [key, value] : given["set"].items()) {
    rest.erase(key);
    if (value != "") absl::StrAppend(&text, ",\"", key, "\":", value.get<std::string>());
  }
  const std::string unchanged = rest.dump();
  return unchanged.substr(0, unchanged.size() - 1) + text + "}";
}

// tests/python/model_config_test.py tests the importer with the same cases.
TEST(ModelConfig, JudgesEveryCaseAsTheImporterDoes) {
  const json cases = json::parse(ReadFile(SPILLWAY_CONFIG_CASES));
  ASSERT_GT(cases["cases"].size(), 400u);
  for (const json& given : cases["cases"]) {
    const std::string text = CaseText(cases, given);
    const auto config = ParseModelConfig(text, "config.json");
    EXPECT_EQ(config.ok(), given["accepted"].get<bool>()) << given.dump().substr(0, 200) << "\n"
                                                          << config.status();
  }
}

TEST(ModelConfig, AMissingFileIsNamed) {
  const TempFolder folder;
  EXPECT_THAT(ReadModelConfig(folder.path()), IsError(absl::StatusCode::kNotFound, "config.json"));
}

}  // namespace
}  // namespace spillway::hf
