// SPDX-License-Identifier: Apache-2.0
//
// `spillway doctor`: prints what this machine and a folder offer, what they lack, and the cure.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "src/base/status_macros.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/json_text.h"
#include "tools/spillway/command/progress.h"
#include "tools/spillway/command/real_path.h"
#include "tools/spillway/doctor/checkup.h"

namespace spillway::command {
namespace {

constexpr char kDescription[] =
    "Look whether this machine and a folder can do what Spillway needs, by doing it.\n"
    "\n"
    "Each thing is OK, WARN (it works, but slower or with less) or FAIL, with the cure. The exit\n"
    "code is 0 if Spillway works here, 3 if it does not.\n"
    "\n"
    "Examples:\n"
    "  spillway doctor\n"
    "  spillway doctor /mnt/nvme0\n"
    "  spillway doctor /mnt/nvme0,/mnt/nvme1\n"
    "  spillway doctor --json | jq '.checks[] | select(.verdict != \"ok\")'\n";

struct DoctorFlags {
  std::vector<std::string> folders = {"."};
  bool json = false;
};

// Returns the word of the verdict, such as "OK", in colour if stdout is a terminal and NO_COLOR is
// not set or empty (no-color.org).
std::string Word(Verdict verdict) {
  const char* const no_color = std::getenv("NO_COLOR");
  const bool colour =
      IsTerminal(STDOUT_FILENO) && (no_color == nullptr || std::string_view(no_color).empty());
  const auto paint = [colour](const char* word, int code) {
    return colour ? absl::StrFormat("\033[%dm%-4s\033[0m", code, word)
                  : absl::StrFormat("%-4s", word);
  };
  switch (verdict) {
    case Verdict::kOk: return paint("OK", 32);
    case Verdict::kWarn: return paint("WARN", 33);
    case Verdict::kFail: return paint("FAIL", 31);
  }
  return "";
}

std::string_view JsonWord(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk: return "ok";
    case Verdict::kWarn: return "warn";
    case Verdict::kFail: return "fail";
  }
  return "";
}

void PrintJson(const std::string& folder, const std::vector<Finding>& findings, bool usable) {
  using Json = nlohmann::ordered_json;
  Json checks = Json::array();
  for (const Finding& finding : findings) {
    Json check = {{"name", finding.name},
                  {"verdict", JsonWord(finding.verdict)},
                  {"found", finding.found},
                  {"cure", finding.cure}};
    if (!finding.folder.empty()) check["folder"] = finding.folder;
    checks.push_back(std::move(check));
  }
  const Json json = {{"v", 1}, {"folder", folder}, {"usable", usable}, {"checks", checks}};
  absl::PrintF("%s\n", JsonText(json));
}

void PrintText(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    absl::PrintF("%s  %-12s %s\n", Word(finding.verdict), finding.name, finding.found);
    if (!finding.cure.empty()) absl::PrintF("      %-12s   %s\n", "", finding.cure);
  }
}

absl::Status RunDoctor(const DoctorFlags& flags) {
  SPILLWAY_RETURN_IF_ERROR(CheckNamedOnce(flags.folders));
  std::vector<Finding> findings = CheckMachine();
  for (Finding& finding : CheckFolders(flags.folders)) findings.push_back(std::move(finding));
  const std::string given = absl::StrJoin(flags.folders, ",");
  std::vector<std::string> failed;
  for (const Finding& finding : findings) {
    if (finding.verdict == Verdict::kFail) failed.push_back(finding.name);
  }
  if (flags.json) {
    PrintJson(given, findings, failed.empty());
  } else {
    PrintText(findings);
  }
  if (failed.empty()) return absl::OkStatus();
  return WithExitCode(absl::FailedPreconditionError(absl::StrFormat(
                          "a store cannot be kept in %s: %s", given, absl::StrJoin(failed, ", "))),
                      ExitCode::kCannot);
}

}  // namespace

void AddDoctorCommand(CLI::App* app, Run* run) {
  CLI::App* const doctor = AddCommand(app, "doctor", kDescription);
  const auto flags = std::make_shared<DoctorFlags>();
  AddList(doctor, "DIR", &flags->folders, "Where a store would be: DIR or DIR,DIR")
      .Type("")
      .Default(flags->folders.front());
  AddFlag(doctor, "--json", &flags->json, "One JSON object on stdout, nothing else there");
  WhenChosen(doctor, [flags, run] { *run = [flags] { return RunDoctor(*flags); }; });
}

}  // namespace spillway::command
