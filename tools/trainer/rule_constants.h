// SPDX-License-Identifier: Apache-2.0
//
// Which constants a rule has. A flag may set these constants, and a resume must repeat them.

#ifndef SPILLWAY_TOOLS_TRAINER_RULE_CONSTANTS_H_
#define SPILLWAY_TOOLS_TRAINER_RULE_CONSTANTS_H_

#include "spillway/optimizer.h"

namespace spillway::trainer {

inline bool HasBetas(RuleKind kind) {
  return kind == RuleKind::kAdamW || kind == RuleKind::kAdam || kind == RuleKind::kLion ||
         kind == RuleKind::kLamb;
}
inline bool HasEpsilon(RuleKind kind) {
  return kind != RuleKind::kSgd && kind != RuleKind::kLion && kind != RuleKind::kLars;
}
inline bool HasMomentum(RuleKind kind) {
  return kind == RuleKind::kSgd || kind == RuleKind::kRmsProp || kind == RuleKind::kLars;
}
inline bool IsSgd(RuleKind kind) { return kind == RuleKind::kSgd; }          // dampening, nesterov
inline bool IsRmsProp(RuleKind kind) { return kind == RuleKind::kRmsProp; }  // centered
inline bool HasAmsgrad(RuleKind kind) {
  return kind == RuleKind::kAdamW || kind == RuleKind::kAdam;
}
inline bool HasTrustCoefficient(RuleKind kind) { return kind == RuleKind::kLars; }
// Whether the rule has β₂'s decay, ε₂ and the clipping threshold.
inline bool IsAdafactor(RuleKind kind) { return kind == RuleKind::kAdafactor; }

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_RULE_CONSTANTS_H_
