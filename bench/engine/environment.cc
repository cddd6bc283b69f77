// SPDX-License-Identifier: Apache-2.0

#include "bench/engine/environment.h"

#include <benchmark/benchmark.h>
#include <sys/utsname.h>

#include <cstdio>
#include <fstream>

namespace spillway::bench {
namespace {

std::string CpuModel() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string KernelRelease() {
  utsname name = {};
  return uname(&name) == 0 ? name.release : "unknown";
}

// Returns the first line that a command prints, or "unknown" if there is none.
std::string FirstLine(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return "unknown";
  char line[256] = {};
  std::string text = std::fgets(line, sizeof(line), pipe) != nullptr ? line : "unknown";
  ::pclose(pipe);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

void DescribeMachine(const std::string& folder) {
  benchmark::AddCustomContext("cpu_model", CpuModel());
  benchmark::AddCustomContext("kernel", KernelRelease());
  benchmark::AddCustomContext("commit", FirstLine("git describe --always --dirty"));
  if (folder.empty()) return;
  benchmark::AddCustomContext(
      "file_system", FirstLine("findmnt --noheadings --output FSTYPE --target '" + folder + "'"));
}

}  // namespace spillway::bench
