// SPDX-License-Identifier: Apache-2.0
//
// What one who is out of memory may do: each technique alone and together, with its bytes in each
// tier, its seconds where Spillway does it, and its cost in accuracy where that was measured.
//
// Spillway's techniques begin with one: optimizer state off the GPU, where it always is. Weights,
// gradients and activations stay on the GPU until a technique moves them.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_TECHNIQUES_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_TECHNIQUES_H_

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/spillway/plan/question.h"
#include "tools/spillway/plan/without_spillway.h"

namespace spillway::command {

// What a technique changes in the numbers that are computed.
struct Accuracy {
  std::string_view words;  // "none: the same bits", "validation loss +0.024%"
  std::string_view file;   // that has the measurement; empty: not measured here
};
// Of a technique of Spillway's or of a way without it, by its key; "" is the recipe as asked.
Accuracy AccuracyOf(std::string_view key, bool by_spillway);

struct TechniqueRow {
  std::vector<std::string_view> keys;  // of Spillway's techniques, or of one way without it
  std::string title;                   // "state off the GPU, checkpointing"
  bool by_spillway = true;
  std::array<double, kNumTiers> bytes = {};    // needed; of one rank
  std::array<double, kNumTiers> missing = {};  // of these, that the machine does not have
  std::optional<double> step_seconds;          // of Spillway's that fit
  std::string accuracy;                        // of all its techniques

  bool fits() const;
};
// The files that have the measurements of the row's accuracy, each once.
std::vector<std::string> FilesOf(const TechniqueRow& row);

// What one of the machine's GPUs has, and its share of the machine's memory.
double RankDeviceBytes(const Question& question);
double RankPinnedBytes(const Question& question);
bool FitsRank(const WithoutSpillway& way, const Question& question);

// The ways without Spillway, for the question's step. Of a micro-batch that no flag gave, one
// window: the least that can be trained. Of a model that was counted, without activations.
std::vector<WithoutSpillway> WithoutSpillwayFor(const Question& question, WithoutOptions options);

// The rows, from the cheapest way that fits on: by seconds a step, but those whose accuracy was not
// measured after the others; then those without Spillway that fit; then those that do not fit, by
// what is missing on the GPU. Errors of FitOf and QuickStep.
absl::StatusOr<std::vector<TechniqueRow>> ListTechniques(const Question& question,
                                                         const std::vector<WithoutSpillway>& ways);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_TECHNIQUES_H_
