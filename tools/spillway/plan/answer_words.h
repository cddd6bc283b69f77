// SPDX-License-Identifier: Apache-2.0
//
// The words in which an answer is told, in a terminal and on a page alike.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_ANSWER_WORDS_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_ANSWER_WORDS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/spillway/plan/answer.h"

namespace spillway::command {

std::string Commas(int64_t number);  // "65,536"
std::string Short(double count);     // "1.008 T", "6.74 B"
std::string BytesWords(double bytes);
std::string DaysWords(double days);  // "3.1 years", "4.0 hours"

std::string_view TierTitle(size_t tier);
std::string MachineWords(const Hardware& hardware);
std::string RecipeWords(const Question& question);
// "65,536 tokens: 2 micro-batches of 16 windows of 2,048 tokens". REQUIRES: a configuration.
std::string StepWords(const Question& question);
// Whether it fits, in a sentence.
std::string VerdictWords(const Question& question, const PlanAnswer& answer);

// A part of what a tier holds.
struct HeldPart {
  uint64_t bytes = 0;
  std::string_view title;  // "master weights"
  std::string_view key;    // as the JSON has it: "master_weights"
};
// Whether the step was executed and tiles come and go in the tier, so that its parts are each at
// their own fullest moment.
bool Moves(const Answer& answer, size_t tier);
// What a tier holds at its fullest, or what rests there; the largest part first.
std::vector<HeldPart> PartsOf(const Answer& answer, size_t tier);

// What the figures were computed with that is not in the other words: rates, their sources, and
// what is left to others.
std::vector<std::string> AssumptionsOf(const Question& question, const Answer& answer);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_ANSWER_WORDS_H_
