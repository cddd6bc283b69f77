// SPDX-License-Identifier: Apache-2.0
//
// Numbers that others print, beside ours: the table of src/plan/MODEL.md. Each row has its source,
// and where ours differs the term that makes the difference. The page's rows must be these.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "src/plan/zero_bytes.h"
#include "tools/hf/config.h"
#include "tools/spillway/plan/model_presets.h"
#include "tools/spillway/plan/without_spillway.h"

namespace spillway::command {
namespace {

using plan::Divided;

constexpr double kGB = 1e9, kTiB = 1024.0 * 1024 * 1024 * 1024;

struct Row {
  std::string what;
  std::string source;
  double published = 0;
  double ours = 0;
  const char* unit = "";
  double most_deviation = 0;  // of ours from what is published, as a share of it
  std::string term;           // why ours differs; empty: it does not, but for rounding
};

trainer::Description Described(const std::string& json) {
  const absl::StatusOr<hf::ModelConfig> config = hf::ParseModelConfig(json, "a test");
  EXPECT_TRUE(config.ok()) << config.status();
  return trainer::Describe(*config);
}

trainer::Description Gpt(int64_t layers, int64_t hidden, int64_t heads) {
  return Described(absl::StrFormat(
      R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
          "activation_function": "gelu_new", "vocab_size": 50257, "n_embd": %d, "n_layer": %d,
          "n_head": %d, "n_positions": 2048, "layer_norm_epsilon": 1e-5,
          "tie_word_embeddings": true})",
      hidden, layers, heads));
}

trainer::Description Preset(const char* name) {
  const absl::StatusOr<hf::ModelConfig> config = ConfigOf(*FindModelPreset(name));
  EXPECT_TRUE(config.ok()) << config.status();
  return trainer::Describe(*config);
}

double Parameters(const trainer::Description& model) {
  double parameters = 0;
  for (const trainer::ParameterShape& shape : model.parameters) {
    double elements = 1;
    for (const int64_t size : shape.shape) elements *= static_cast<double>(size);
    parameters += elements;
  }
  return parameters;
}

WithoutSpillway Way(const trainer::Description& model, std::string_view key,
                    const WithoutOptions& options) {
  for (WithoutSpillway& way : WaysWithoutSpillway(model, options))
    if (way.key == key) return std::move(way);
  ADD_FAILURE() << key;
  return {};
}

// The parameters of the deepest GPT of this width that fits.
double Largest(std::string_view key, int64_t hidden, const WithoutOptions& options, double gpu,
               double host) {
  double largest = 0;
  for (int64_t layers = 1, step = 1 << 12; step > 0; step /= 2) {
    const trainer::Description model = Gpt(layers + step, hidden, hidden / 128);
    const WithoutSpillway way = Way(model, key, options);
    if (way.gpu() > gpu || way.host > host) continue;
    layers += step;
    largest = Parameters(model);
  }
  return largest;
}

// --- The rows ---

std::vector<Row> ZeroRows() {
  plan::RankSetup setup{.parameters = 7.5e9, .ranks = 64};
  const auto row = [&](const char* what, Divided divided, double published) {
    setup.divided = divided;
    return Row{absl::StrFormat("7.5 B parameters over 64 GPUs, %s", what),
               "ZeRO (arXiv:1910.02054), figure 1",
               published,
               plan::BytesOfRank(setup).gpu / kGB,
               "GB",
               0.02,
               ""};
  };
  return {row("data parallel", Divided::kNothing, 120), row("ZeRO-1", Divided::kState, 31.4),
          row("ZeRO-2", Divided::kGradients, 16.6), row("ZeRO-3", Divided::kWeights, 1.9)};
}

std::vector<Row> LargestRows() {
  constexpr double kV100 = 32e9, kNone = 1e30;
  constexpr double kHost = 1.5e12 / 16, kNvme = 28e12 / 16;  // of a DGX-2, for each of 16 GPUs
  const WithoutOptions one = {.sequence = 1024, .windows = 4, .ranks = 1};
  const WithoutOptions sixteen = {.sequence = 1024, .windows = 1, .ranks = 16};
  const char* const chart = "ZeRO-Infinity (arXiv:2104.07857), slides of SC21, page 17";
  return {
      {"Largest on one V100, ZeRO-Offload", "ZeRO-Offload (arXiv:2101.06840), abstract", 13,
       Largest("zero_offload", 4096, one, kV100, 1.5e12) / 1e9, "B", 0.06,
       "layers of 4096, 4 windows of 1,024: one layer more or less is 0.2 B"},
      {"Largest on a DGX-2, data parallel", chart, 1.4,
       Largest("checkpointing", 1536, sixteen, kV100, kHost) / 1e9, "B", 0.45,
       "weights, gradients and state of 1.4 B are 22 GB; the rest is buffers and fragments"},
      {"Largest on a DGX-2, ZeRO-Offload", chart, 13,
       Largest("zero_offload", 4096, sixteen, kV100, 1.5e12) / 1e9, "B", 0.25,
       "ours has one window of 1,024; with 4 it is 13.71 B, as in the row of one V100"},
      {"Largest on a DGX-2, all in memory", chart, 70,
       Largest("zero_3_offload", 8192, sixteen, kV100, kHost) / 1e9, "B", 0.35,
       "1.5 TB at 16 bytes a parameter; theirs are 20, with gradients in fp32, too: 75 B"},
      {"Largest on a DGX-2, all on NVMe", chart, 1000,
       Largest("zero_3_offload", 25600, sixteen, kNone, kNvme) / 1e9, "B", 0.8,
       "28 TB at 16 bytes a parameter; at their 20, 1,400 B; they report no larger one"},
  };
}

std::vector<Row> TutorialRows() {
  const auto of_parameter = [](double weights, double gradients, double state) {
    return plan::BytesOfRank({.parameters = 1,
                              .weight_bytes = weights,
                              .gradient_bytes = gradients,
                              .state_bytes = state})
        .gpu;
  };
  const double state_fp32 = plan::StateBytes(StateFormat::kF32, 2, 4);
  const double state_16bit = plan::StateBytes(StateFormat::kF32, 2, 2);
  const char* const course = "DeepLearning.AI, Generative AI with large language models, week 1";
  return {
      {"1 B parameters in fp32, weights alone", course, 4, of_parameter(4, 0, 0), "GB", 0, ""},
      {"1 B parameters in fp32, trained with Adam", course, 24, of_parameter(4, 4, state_fp32),
       "GB", 0.34, "8 bytes a parameter for activations, which follow from tokens and shapes"},
      {"Bytes a parameter, AMP", "Hugging Face, Model training anatomy", 18,
       of_parameter(2, 4, state_16bit), "", 0, ""},
      {"Bytes a parameter, 16-bit gradients", "EleutherAI, Transformer math 101", 16,
       of_parameter(2, 2, state_16bit), "", 0, ""},
      {"Bytes a parameter of 8-bit Adam's state", "EleutherAI, Transformer math 101", 6,
       plan::StateBytes(StateFormat::k8Bit, 2, 2), "", 0.006, "the scales of blocks"},
  };
}

std::vector<Row> PresetRows() {
  std::vector<Row> rows;
  for (const ModelPreset& preset : ModelPresets()) {
    const absl::StatusOr<hf::ModelConfig> config = ConfigOf(preset);
    EXPECT_TRUE(config.ok()) << config.status();
    rows.push_back({absl::StrFormat("Parameters of %s", std::string(preset.title)),
                    std::string(preset.source), preset.published_parameters / 1e9,
                    Parameters(trainer::Describe(*config)) / 1e9, "B", 0.006, ""});
  }
  return rows;
}

std::vector<Row> ActivationRows() {
  // The share of a layer's activations that are scores.
  const auto scores = [](const char* preset) {
    const trainer::Description model = Preset(preset);
    AutogradOptions options = {.sequence = 2048, .flash_attention = false, .dropout = true};
    const double all = CountAutogradBytes(model, options).blocks;
    options.flash_attention = true;
    return 100 * (1 - CountAutogradBytes(model, options).blocks / all);
  };
  const char* const korthikanti = "Korthikanti et al. (arXiv:2205.05198), section 5";
  const trainer::Description gpt2 = Gpt(48, 1600, 25);
  const AutogradBytes gpt2_bytes = CountAutogradBytes(gpt2, {.sequence = 1024, .windows = 32});
  const auto inputs = [](int64_t layers, int64_t hidden, int64_t heads) {
    return CountAutogradBytes(Gpt(layers, hidden, heads), {.sequence = 1024, .windows = 32})
               .block_inputs /
           kTiB;
  };
  const char* const zero = "ZeRO (arXiv:1910.02054), section 3.2";
  const char* const infinity = "ZeRO-Infinity (arXiv:2104.07857), figure 2a";
  return {
      {"Activations of GPT-3 that are scores", korthikanti, 70, scores("GPT-3"), "%", 0.01, ""},
      {"Activations of MT-NLG that are scores", korthikanti, 65, scores("MT-NLG"), "%", 0.01, ""},
      {"Activations of GPT-2 1.5B, 32 windows of 1,024", zero, 60, gpt2_bytes.blocks / kGB, "GB",
       0.35, "they count 12 values of each width; ours are 16"},
      {"The same with checkpointing", zero, 8,
       (gpt2_bytes.block_inputs + gpt2_bytes.largest_block) / kGB, "GB", 0.2,
       "they estimate a square root; ours are 48 inputs and a block, without the logits' 13 GB"},
      {"Checkpoints of 1 T parameters, 32 windows", infinity, 0.20, inputs(128, 25600, 160), "TiB",
       0.03, ""},
      {"Checkpoints of 10 T parameters, 32 windows", infinity, 0.76, inputs(195, 65536, 512), "TiB",
       0.01, ""},
  };
}

std::vector<Row> AdapterRows() {
  const trainer::Description gpt3 = Preset("GPT-3");
  const auto adapters = [&](int64_t rank) {
    return LoraParameters(gpt3, {.rank = rank, .linears = LoraLinears::kQueryValue}) / 1e6;
  };
  const char* const lora = "LoRA (arXiv:2106.09685), table 4 and appendix D.4";
  const char* const qlora = "QLoRA (arXiv:2305.14314), section 1";
  const trainer::Description llama = Described(
      R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
       "hidden_act": "silu", "vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 22016,
       "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 64,
       "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
       "tie_word_embeddings": false})");
  const WithoutOptions options = {.sequence = 512, .lora = {.rank = 64}};
  return {
      {"Adapters of GPT-3, rank 1 of queries and values", lora, 4.7, adapters(1), "M", 0.01, ""},
      {"Adapters of GPT-3, rank 8 of queries and values", lora, 37.7, adapters(8), "M", 0.01, ""},
      {"Llama 65B with 16 bits, trained whole: more than", qlora, 780,
       Way(llama, "checkpointing", options).gpu() / kGB, "GB", 0.36,
       "theirs is 12 bytes a parameter; ours 16 have fp32 master weights"},
      {"Llama 65B with QLoRA, a window of 512", "QLoRA (arXiv:2305.14314), appendix G", 45,
       Way(llama, "qlora", options).gpu() / kGB, "GB", 0.08,
       "our adapters and their gradients in fp32 take 5.6 GB more, our 4-bit model 2.6 GB less"},
  };
}

std::vector<Row> ReportedRows() {
  const trainer::Description llama = Preset("7B");
  const double embedding = static_cast<double>(llama.vocabulary) * static_cast<double>(llama.width);
  const trainer::Description qwen = Described(
      R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu",
       "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 24576,
       "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 64,
       "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
       "use_sliding_window": false, "tie_word_embeddings": false})");
  AutogradOptions saved = {.sequence = 2048, .flash_attention = false};
  const WithoutSpillway zero = Way(llama, "zero_3_offload", {.sequence = 2048, .ranks = 5});
  const double without = zero.temporary + ActivationBytes(llama, saved);
  return {
      {"Llama 7B, ZeRO-3 in memory: a GPU as DeepSpeed estimates it", "deepspeedai/DeepSpeed#4527",
       0.49, 4 * embedding / (1024.0 * 1024 * 1024), "GiB", 0.01,
       "this is the embedding in fp32 alone; the next row has the rest"},
      {"The same as it was used, and with activations of 2,048 tokens",
       "deepspeedai/DeepSpeed#4527", 21272.0 / 1024, without / (1024.0 * 1024 * 1024), "GiB", 0.1,
       "no checkpointing, whole scores; the report tells no length, and 13 GB were cached"},
      {"Parameters of Qwen1.5-72B", "EleutherAI/cookbook#36", 72.3, Parameters(qwen) / 1e9, "B",
       0.006, "the calculator there said 56 B: two linears of an MLP's three"},
  };
}

std::vector<Row> Rows() {
  std::vector<Row> rows;
  for (const std::vector<Row>& some : {ZeroRows(), LargestRows(), TutorialRows(), PresetRows(),
                                       ActivationRows(), AdapterRows(), ReportedRows()}) {
    rows.insert(rows.end(), some.begin(), some.end());
  }
  return rows;
}

double Deviation(const Row& row) {
  const double deviation = row.ours / row.published - 1;
  return std::abs(deviation) < 0.0005 ? 0 : deviation;
}

// As the page has it.
std::string Line(const Row& row) {
  const auto number = [&](double value) {
    return absl::StrFormat("%.4g%s%s", value, *row.unit == 0 ? "" : " ", row.unit);
  };
  return absl::StrFormat("| %s | %s | %s | %+.1f%% | %s | %s |", row.what, number(row.published),
                         number(row.ours), 100 * Deviation(row), row.term, row.source);
}

TEST(PublishedNumbers, AreOursWithinTheDeviationThatTheTermExplains) {
  for (const Row& row : Rows()) {
    EXPECT_LE(std::abs(Deviation(row)), row.most_deviation) << Line(row);
    EXPECT_TRUE(!row.term.empty() || row.most_deviation <= 0.03) << Line(row);
  }
}

TEST(PublishedNumbers, AreThoseOfThePage) {
  std::ifstream file(SPILLWAY_MODEL_PAGE);
  std::string expected, found;
  for (const Row& row : Rows()) expected += Line(row) + "\n";
  bool is_in_table = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| What is published"))
      is_in_table = true;
    else if (is_in_table && !line.starts_with("|"))
      break;
    else if (is_in_table && !line.starts_with("| ---"))
      found += line + "\n";
  }
  EXPECT_EQ(found, expected) << "in " << SPILLWAY_MODEL_PAGE;
}

}  // namespace
}  // namespace spillway::command
