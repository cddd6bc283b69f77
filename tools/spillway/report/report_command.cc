// SPDX-License-Identifier: Apache-2.0
//
// `spillway report`: shows what a run wrote as one page that a browser opens without a network.

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "spillway/version.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/named_output.h"
#include "tools/spillway/report/page.h"
#include "tools/spillway/report/page_data.h"
#include "tools/spillway/report/run_files.h"
#include "tools/trainer/metrics/output_file.h"

namespace spillway::command {
namespace {

constexpr char kDescription[] =
    "Make a page of a training run: where its time and its bytes went.\n"
    "\n"
    "Examples:\n"
    "  spillway train ... --log-json log.jsonl --trace trace.json\n"
    "  spillway report log.jsonl trace.json --out report.html\n"
    "  spillway report log.jsonl                # figures of each step alone, into report.html\n"
    "\n"
    "RUN is a step log (--log-json), a trace (--trace) or both. The page is one file and loads\n"
    "nothing from elsewhere. The trace itself opens in ui.perfetto.dev.\n";

struct ReportFlags {
  std::vector<std::string> run;
  std::string out = "report.html";
  bool force = false;
};

constexpr trainer::OutputFile::Kind kPage = {"a page of spillway report", "<!doctype html>",
                                             "<title>spillway report</title>"};

absl::Status RunReport(const ReportFlags& flags) {
  for (const std::string& path : flags.run) {
    std::error_code error;
    if (std::filesystem::equivalent(path, flags.out, error)) {
      return UsageError(absl::StrCat("--out ", flags.out, " would replace what is read"));
    }
  }
  SPILLWAY_ASSIGN_OR_RETURN(const run_report::RunFiles files, run_report::ReadRunFiles(flags.run));
  for (const std::string& note : files.notes) absl::FPrintF(stderr, "note: %s\n", note);
  run_report::Json data = run_report::PageData(files);
  data["sources"] = run_report::Json::array();
  for (const std::string& path : flags.run) {
    data["sources"].push_back(std::filesystem::path(path).filename().string());
  }
  data["spillway"] = absl::StrCat(std::string(Version()), " (", std::string(BuildCommit()), ")");
  const std::string html = run_report::ToHtml(data);
  // Opened last, because an interrupt while the inputs are read would leave an empty file.
  SPILLWAY_ASSIGN_OR_RETURN(trainer::OutputFile page,
                            OpenOutput("--out", flags.out, kPage, flags.force));
  if (const absl::Status written = page.Replace(html); !written.ok()) {
    return absl::Status(written.code(), absl::StrCat("--out: ", std::string(written.message()),
                                                     "; free some space, or name another file"));
  }
  absl::PrintF("%s\n", flags.out);
  return absl::OkStatus();
}

}  // namespace

void AddReportCommand(CLI::App* app, Run* run) {
  CLI::App* const report = AddCommand(app, "report", kDescription);
  const auto flags = std::make_shared<ReportFlags>();
  AddWords(report, "RUN", &flags->run, "What train --log-json or --trace wrote")
      .Required()
      .Type("FILE");
  AddText(report, "--out", &flags->out, "The page; replaces an older one");
  AddFlag(report, "--force", &flags->force, "Replace what --out names even if it is no such page");
  WhenChosen(report, [flags, run] { *run = [flags] { return RunReport(*flags); }; });
}

}  // namespace spillway::command
