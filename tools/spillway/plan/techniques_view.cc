// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/techniques_view.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "src/base/bytes.h"
#include "tools/spillway/plan/answer_words.h"

namespace spillway::command {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kUsualRanks = 8;
constexpr int64_t kMostRanks = 1 << 20;
constexpr int64_t kMostLoraRank = 1 << 16;
constexpr std::array<const char*, kNumTiers> kTechniqueTiers = {"device", "pinned", "nvme"};

// Bytes as an integer, unless they are too many for one.
ordered_json BytesJson(double bytes) {
  if (bytes < 9e18) return static_cast<uint64_t>(bytes);
  return bytes;
}

// Of a column of width 9; "-" for none.
std::string SizeText(double bytes) {
  if (bytes == 0) return "-";
  return base::FormatBytes(static_cast<uint64_t>(std::min(bytes, 1.8e19)));
}

absl::StatusOr<LoraLinears> ParseLinears(const std::string& text) {
  if (text == "query-value") return LoraLinears::kQueryValue;
  if (text == "attention") return LoraLinears::kAttention;
  if (text == "all") return LoraLinears::kAll;
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not one of query-value|attention|all"));
}

}  // namespace

WithoutOptions WithoutFlags::OptionsFor(const Hardware& hardware) const {
  const int64_t usual = hardware.gpu.count > 1 ? hardware.gpu.count : kUsualRanks;
  return {.ranks = static_cast<uint32_t>(ranks.value_or(usual)), .lora = lora};
}

void AddWithoutFlags(CLI::App* app, WithoutFlags* flags) {
  AddParsed(
      app, "--ranks", &flags->ranks,
      [](const std::string& text) { return ParseInteger(text, 1, kMostRanks); },
      "GPUs of ZeRO (default: the machine's; of a machine with one, 8)")
      .Type("N");
  AddInteger(app, "--lora-rank", &flags->lora.rank, 1, kMostLoraRank, "Of LoRA's adapters");
  AddParsed(app, "--lora-linears", &flags->lora.linears, ParseLinears,
            "Which linears of each block have an adapter")
      .Type("query-value|attention|all")
      .Default("all");
}

ordered_json ToJson(const std::vector<WithoutSpillway>& ways, const Question& question) {
  ordered_json json = ordered_json::object();
  for (const WithoutSpillway& way : ways) {
    json[std::string(way.key)] = {
        {"fits", FitsRank(way, question)},      {"title", way.title},
        {"gpu_bytes", BytesJson(way.gpu())},    {"host_bytes", BytesJson(way.host)},
        {"weights", BytesJson(way.weights)},    {"gradients", BytesJson(way.gradients)},
        {"state", BytesJson(way.state)},        {"activations", BytesJson(way.activations)},
        {"temporary", BytesJson(way.temporary)}};
  }
  return json;
}

std::string ToText(const std::vector<WithoutSpillway>& ways, const Question& question) {
  std::vector<std::string> fit;
  double least = 0;
  for (const WithoutSpillway& way : ways) {
    if (FitsRank(way, question)) fit.push_back(way.title);
    if (way.key == "checkpointing") least = way.gpu();
  }
  return absl::StrCat("Without Spillway AMP with checkpointing takes ", SizeText(least),
                      " of a GPU's ", SizeText(RankDeviceBytes(question)),
                      fit.empty() ? "; nothing usual fits" : "; these fit: ",
                      absl::StrJoin(fit, "; "), ". --techniques compares all.\n");
}

ordered_json ToJson(const std::vector<TechniqueRow>& rows) {
  ordered_json json = ordered_json::array();
  for (const TechniqueRow& row : rows) {
    ordered_json& entry = json.emplace_back();
    entry["title"] = row.title;
    entry["techniques"] = ordered_json::array();
    for (const std::string_view key : row.keys)
      if (!key.empty()) entry["techniques"].push_back(std::string(key));
    entry["by_spillway"] = row.by_spillway;
    entry["fits"] = row.fits();
    for (size_t tier = 0; tier < kNumTiers; ++tier) {
      entry["bytes"][kTechniqueTiers[tier]] = BytesJson(row.bytes[tier]);
      entry["missing_bytes"][kTechniqueTiers[tier]] = BytesJson(row.missing[tier]);
    }
    entry["step_seconds"] = row.step_seconds ? ordered_json(*row.step_seconds) : ordered_json();
    entry["accuracy"] = row.accuracy;
    entry["measured_in"] = ordered_json::array();
    for (const std::string& file : FilesOf(row)) entry["measured_in"].push_back(file);
  }
  return json;
}

std::string ToText(const std::vector<TechniqueRow>& rows, const Question& question) {
  std::string text = absl::StrFormat("%11s %11s %11s %9s  techniques, the cheapest way first\n",
                                     "GPU", "memory", "NVMe", "s a step");
  bool said = false;
  std::set<std::string> files;
  for (const TechniqueRow& row : rows) {
    if (!row.fits() && !std::exchange(said, true)) absl::StrAppend(&text, "These do not fit:\n");
    const bool has_words = row.by_spillway && !row.keys.front().empty();
    absl::StrAppendFormat(&text, "%11s %11s %11s %9s  %s%s\n", SizeText(row.bytes[0]),
                          SizeText(row.bytes[1]), SizeText(row.bytes[2]),
                          row.step_seconds ? absl::StrFormat("%.4g", *row.step_seconds) : "-",
                          row.title, row.by_spillway ? "" : " *");
    if (has_words) absl::StrAppendFormat(&text, "%47saccuracy: %s\n", "", row.accuracy);
    for (const std::string& file : FilesOf(row)) files.insert(file);
  }
  const int64_t windows = question.chose_micro_batch ? 1 : question.options.micro_batch;
  absl::StrAppendFormat(
      &text,
      "* without Spillway: of one GPU, for %s of %s tokens; the CUDA context, fragments and\n"
      "  buckets are not counted, and accuracy was not measured here.\n"
      "Measured: %s.\n",
      base::FormatCount(static_cast<uint64_t>(windows), "window"),
      Commas(question.options.sequence), absl::StrJoin(files, "; "));
  return text;
}

}  // namespace spillway::command
