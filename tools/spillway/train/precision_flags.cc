// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/train/precision_flags.h"

#include <string>
#include <utility>
#include <vector>

#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/exit_code.h"

namespace spillway::command {

using trainer::Precision;

void AddPrecisionFlags(CLI::App* app, Precision* precision, std::vector<std::string>* fp32,
                       const std::string& help) {
  std::vector<std::pair<std::string, Precision>> choices;
  for (int i = 0; i < trainer::kNumPrecisions; ++i) {
    const auto each = static_cast<Precision>(i);
    choices.emplace_back(Name(each), each);
  }
  AddChoice<Precision>(app, "--precision", precision, choices, help);
  AddList(app, "--fp32", fp32,
          "Parameters that stay in fp32 under a 16-bit precision: shell patterns over their names, "
          "as '*norm*'")
      .Type("PATTERN,...");
}

absl::Status CheckPrecisionFlags(Precision precision, const std::vector<std::string>& fp32) {
  if (fp32.empty() || precision != Precision::kFp32) return absl::OkStatus();
  return UsageError(
      "--fp32 does nothing under --precision fp32, which has every parameter in fp32; leave it "
      "out, or give --precision bf16 or fp16-amp");
}

}  // namespace spillway::command
