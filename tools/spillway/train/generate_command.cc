// SPDX-License-Identifier: Apache-2.0
//
// `spillway generate`: reads token ids and prints the token ids that continue them. Conversion from
// and to text is left to spillway-generate, which has a tokenizer.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "src/base/status_macros.h"
#include "tools/hf/config.h"
#include "tools/hf/file.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/interrupt.h"
#include "tools/spillway/command/json_text.h"
#include "tools/spillway/train/inference.h"
#include "tools/trainer/generator.h"

namespace spillway::command {
namespace {

constexpr char kDescription[] =
    "Continue a text given as token ids; prints the new ones.\n"
    "\n"
    "Examples:\n"
    "  spillway generate --model tuned --tokens 504,1089,253 --max-tokens 40\n"
    "  spillway generate --model tuned --tokens-file prompt.txt --temperature 0.8 --top-k 40 \\\n"
    "      --seed 7 --json\n";

constexpr uint64_t kMostPromptBytes = uint64_t{1} << 26;

struct GenerateFlags {
  std::string tokens;
  std::string tokens_file;
  bool json = false;
  trainer::GenerateOptions options;
  InferenceFlags inference;
};

// Parses ids that are separated by commas or white space.
absl::StatusOr<std::vector<int32_t>> ParseTokens(const std::string& text, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  std::vector<absl::string_view> parts;
  const std::vector<absl::string_view> between = absl::StrSplit(text, ',');
  for (const absl::string_view group : between) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(group, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty());
    if (words.empty() && between.size() > 1) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the prompt has nothing between two commas, after token %d", parts.size()));
    }
    parts.insert(parts.end(), words.begin(), words.end());
  }
  for (const absl::string_view part : parts) {
    const absl::StatusOr<int64_t> token = ParseInteger(std::string(part), 0, vocab_size - 1);
    if (!token.ok()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("prompt token %d: %s (the model's vocabulary)", tokens.size(),
                          std::string(token.status().message())));
    }
    tokens.push_back(static_cast<int32_t>(*token));
  }
  if (tokens.empty()) {
    return absl::InvalidArgumentError("the prompt has no tokens; at least one is needed");
  }
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> ReadPrompt(const GenerateFlags& flags, int64_t vocab_size) {
  if (flags.tokens.empty() == flags.tokens_file.empty()) {
    return UsageError("give the prompt as --tokens 1,2,3 or as --tokens-file FILE");
  }
  if (!flags.tokens.empty()) {
    auto tokens = ParseTokens(flags.tokens, vocab_size);
    if (!tokens.ok()) return WithExitCode(tokens.status(), ExitCode::kUsage);
    return tokens;
  }
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text,
                            hf::ReadTextFile(flags.tokens_file, kMostPromptBytes));
  return ParseTokens(text, vocab_size);
}

// Says that the start of a long prompt is not used.
void TellWhatIsUsed(int64_t prompt_tokens, int64_t sequence, const hf::ModelConfig& config) {
  if (prompt_tokens <= sequence) return;
  const int64_t most = std::min(prompt_tokens, config.max_position_embeddings);
  absl::FPrintF(
      stderr, "note: the prompt has %d tokens, and only its last %d are used%s\n", prompt_tokens,
      sequence,
      most > sequence
          ? absl::StrFormat("; --seq %d uses %s", most,
                            most == prompt_tokens ? "all of them" : "as many as the model can take")
          : ", as many as the model can take");
}

absl::Status RunGenerate(const GenerateFlags& flags) {
  SPILLWAY_RETURN_IF_ERROR(CheckInferenceFlags(flags.inference));
  if (flags.options.sampling.top_k > 0 && flags.options.sampling.temperature == 0) {
    return UsageError(
        "--top-k is for sampling, and --temperature 0 always takes the most likely token; give "
        "--temperature above 0 too, or leave --top-k out");
  }
  SPILLWAY_ASSIGN_OR_RETURN(const hf::ModelConfig config,
                            hf::ReadModelConfig(flags.inference.model));
  SPILLWAY_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, ReadPrompt(flags, config.vocab_size));
  const std::atomic<bool>& stop = CatchInterrupts();
  SPILLWAY_ASSIGN_OR_RETURN(const InferenceModel loaded,
                            LoadForInference(flags.inference, config, stop));

  trainer::GenerateOptions options = flags.options;
  SPILLWAY_ASSIGN_OR_RETURN(options.sequence, SequenceFor(flags.inference.sequence, config));
  options.eos_token_ids = config.eos_token_ids;
  TellWhatIsUsed(static_cast<int64_t>(prompt.size()), options.sequence, config);
  SPILLWAY_ASSIGN_OR_RETURN(
      const trainer::Generated generated,
      trainer::Generate(loaded.model.get(), std::move(prompt), options, stop));
  if (flags.json) {
    const nlohmann::ordered_json json = {
        {"v", 1},
        {"tokens", generated.tokens},
        {"finish_reason", generated.reached_eos ? "eos" : "length"}};
    absl::PrintF("%s\n", JsonText(json));
  } else {
    absl::PrintF("%s\n", absl::StrJoin(generated.tokens, ","));
  }
  return absl::OkStatus();
}

}  // namespace

void AddGenerateCommand(CLI::App* app, Run* run) {
  CLI::App* const generate = AddCommand(app, "generate", kDescription);
  const auto flags = std::make_shared<GenerateFlags>();
  trainer::SamplingOptions* const sampling = &flags->options.sampling;
  AddInferenceFlags(generate, &flags->inference);
  AddText(generate, "--tokens", &flags->tokens, "The prompt: token ids, 1,2,3").Type("LIST");
  AddText(generate, "--tokens-file", &flags->tokens_file,
          "A file of token ids, separated by commas or white space");
  AddInteger(generate, "--max-tokens", &flags->options.max_tokens, 0, int64_t{1} << 30,
             "New tokens at most");
  AddNumber(generate, "--temperature", &sampling->temperature, {0, 1000},
            "0: always the most likely token");
  AddInteger(generate, "--top-k", &sampling->top_k, 0, int64_t{1} << 30,
             "Sample among the K most likely; 0: all");
  AddSeed(generate, "--seed", &sampling->seed, "Of the sampling");
  AddFlag(generate, "--json", &flags->json, "One JSON object on stdout, nothing else there");
  WhenChosen(generate, [flags, run] { *run = [flags] { return RunGenerate(*flags); }; });
}

}  // namespace spillway::command
