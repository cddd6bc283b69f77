// SPDX-License-Identifier: Apache-2.0
//
// The faults of a disk that tests inject into one request of a run each, and how the run may end.

#ifndef SPILLWAY_TESTS_IO_FAULT_CASES_H_
#define SPILLWAY_TESTS_IO_FAULT_CASES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "io/faulty_io_engine.h"
#include "spillway/engine.h"

namespace spillway::io {

enum class FaultOutcome : uint8_t {
  kCompletes,
  kCompletesOrFails,
  kDamages,   // damages bytes that were reported as written; may also end with data loss
  kPowerCut,  // the run fails, and then writes that were not synced are lost, too
};

struct FaultCase {
  const char* name;
  Fault::Kind kind;
  IoOp op;
  FaultOutcome outcome;
};

inline constexpr FaultCase kFaultCases[] = {
    {"ReadEio", Fault::Kind::kEio, IoOp::kRead, FaultOutcome::kCompletesOrFails},
    {"WriteEio", Fault::Kind::kEio, IoOp::kWrite, FaultOutcome::kCompletesOrFails},
    {"ReadEnospc", Fault::Kind::kEnospc, IoOp::kRead, FaultOutcome::kCompletesOrFails},
    {"WriteEnospc", Fault::Kind::kEnospc, IoOp::kWrite, FaultOutcome::kCompletesOrFails},
    {"ReadFlip", Fault::Kind::kBitFlip, IoOp::kRead, FaultOutcome::kCompletes},
    {"WriteFlip", Fault::Kind::kBitFlip, IoOp::kWrite, FaultOutcome::kDamages},
    {"ReadDelay", Fault::Kind::kDelay, IoOp::kRead, FaultOutcome::kCompletes},
    {"WriteDelay", Fault::Kind::kDelay, IoOp::kWrite, FaultOutcome::kCompletes},
    {"ReadShort", Fault::Kind::kShort, IoOp::kRead, FaultOutcome::kCompletes},
    {"WriteShort", Fault::Kind::kShort, IoOp::kWrite, FaultOutcome::kCompletes},
    {"ReadAgain", Fault::Kind::kAgain, IoOp::kRead, FaultOutcome::kCompletes},
    {"WriteAgain", Fault::Kind::kAgain, IoOp::kWrite, FaultOutcome::kCompletes},
    {"WriteTorn", Fault::Kind::kTorn, IoOp::kWrite, FaultOutcome::kCompletesOrFails},
    {"WriteLost", Fault::Kind::kLost, IoOp::kWrite, FaultOutcome::kDamages},
    {"ReadDeadRing", Fault::Kind::kDeadRing, IoOp::kRead, FaultOutcome::kCompletesOrFails},
    {"WriteDeadRing", Fault::Kind::kDeadRing, IoOp::kWrite, FaultOutcome::kCompletesOrFails},
    // Last, because not every test cuts the power.
    {"PowerCut", Fault::Kind::kDeadRing, IoOp::kWrite, FaultOutcome::kPowerCut},
};

// A parameter of a test: the engine, and the index of the case.
using FaultOfEngine = std::tuple<IoKind, int>;
inline std::string FaultName(const testing::TestParamInfo<FaultOfEngine>& variant) {
  return absl::StrCat(std::get<0>(variant.param) == IoKind::kUring ? "Uring" : "Posix",
                      kFaultCases[std::get<1>(variant.param)].name);
}

}  // namespace spillway::io

#endif  // SPILLWAY_TESTS_IO_FAULT_CASES_H_
