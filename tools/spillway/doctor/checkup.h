// SPDX-License-Identifier: Apache-2.0
//
// The checks of `spillway doctor`: what this machine or a folder offers and what it lacks, found by
// using it, with what that means and the cure.

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
  std::string found;        // what the check found
  std::string cure;         // what to do; empty if kOk
  std::string folder = {};  // the folder that was checked; "" for a check of the machine
};

// Checks the kernel, the processor, memory, locked memory, huge pages, the driver, the GPU and the
// library of its products.
// Changes nothing.
std::vector<Finding> CheckMachine();

// Checks what a store in these folders would meet, one after the other. If a folder does not exist,
// warns of that and checks its nearest ancestor that does. Makes small files in each and removes
// them again.
std::vector<Finding> CheckFolders(const std::vector<std::string>& folders);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_DOCTOR_CHECKUP_H_
