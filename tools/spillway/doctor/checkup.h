// SPDX-License-Identifier: Apache-2.0
//
// What `spillway doctor` looks at: each thing that this machine or a folder gives or does not,
// found by using it, with what it means and the cure.

#ifndef SPILLWAY_TOOLS_SPILLWAY_DOCTOR_CHECKUP_H_
#define SPILLWAY_TOOLS_SPILLWAY_DOCTOR_CHECKUP_H_

#include <cstdint>
#include <string>
#include <vector>

namespace spillway::command {

// kWarn: it works, but slower or with less than it could. kFail: Spillway cannot work here.
enum class Verdict : uint8_t { kOk, kWarn, kFail };

struct Finding {
  std::string name;  // "io_uring": lower-case, stable
  Verdict verdict = Verdict::kOk;
  std::string found;  // what there is
  std::string cure;   // what to do; empty if kOk
};

// The kernel, the processor, locked memory, huge pages and the GPU. Changes nothing.
std::vector<Finding> CheckMachine();

// What a store in this folder would meet. A folder that is not there yet is judged by the nearest
// above it that is. Small files are made in it and removed again.
std::vector<Finding> CheckFolder(const std::string& folder);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_DOCTOR_CHECKUP_H_
