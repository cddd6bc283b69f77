// SPDX-License-Identifier: Apache-2.0

#include "tests/spillway/fuzz/command_fuzz_targets.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tools/spillway/command/command_line.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/config_file.h"
#include "tools/spillway/report/page.h"
#include "tools/spillway/report/page_data.h"
#include "tools/spillway/report/run_files.h"

namespace spillway::test {

bool FuzzReport(std::string_view bytes) {
  std::istringstream in{std::string(bytes)};
  run_report::RunFiles files;
  if (!run_report::ReadRunFile(in, "fuzz", &files).ok()) return false;
  return !run_report::ToHtml(run_report::PageData(files)).empty();
}

bool FuzzFlags(std::string_view bytes) {
  const std::vector<std::string> words =
      absl::StrSplit(absl::string_view(bytes.data(), bytes.size()), '\n');
  command::Run run;
  return command::ParseCommandLine(words, &run).ok();
}

bool FuzzConfig(std::string_view bytes) {
  const auto entries = command::ParseConfig(bytes);
  if (!entries.ok()) return false;
  for (const command::ConfigEntry& entry : *entries) {
    for (const std::string& value : entry.values) {
      const auto quoted = command::QuoteForConfig(value);
      if (!quoted.ok()) std::abort();
      const auto again = command::ParseConfig("k = " + *quoted);
      if (!again.ok() || again->front().values.front() != value) std::abort();
    }
  }
  return true;
}

}  // namespace spillway::test
