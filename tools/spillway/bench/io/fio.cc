// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/io/fio.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace spillway::bench_io {
namespace {

constexpr int kPollMilliseconds = 50;
// For how long fio may end what it has in flight before it is killed.
constexpr int kEndingPolls = 10'000 / kPollMilliseconds;

std::vector<std::string> Arguments(const FioJob& job) {
  const bool random = job.pattern == Pattern::kRandom;
  const char* const names[3][2] = {{"read", "randread"}, {"write", "randwrite"}, {"rw", "randrw"}};
  std::vector<std::string> arguments = {
      "fio",
      "--output-format=json",
      "--disk_util=0",
      "--direct=1",
      "--scramble_buffers=0",
      "--thread",
      "--invalidate=0",
      "--file_service_type=roundrobin",
      "--name=job",
      absl::StrCat("--overwrite=", job.first_touch ? 0 : 1),
      absl::StrCat("--mem=", job.memory_path.empty() ? "mmap" : "mmaphuge:", job.memory_path),
      absl::StrCat("--rw=", names[static_cast<size_t>(job.op)][random ? 1 : 0]),
      absl::StrCat("--bs=", job.block_bytes),
      absl::StrCat("--iodepth=", job.depth),
      absl::StrCat("--size=", job.size_bytes),
      absl::StrCat("--filename=", absl::StrJoin(job.paths, ":"))};
  if (!job.memory_path.empty()) arguments.push_back("--hugepage-size=2m");
  if (job.uring) {
    arguments.insert(arguments.end(),
                     {"--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1"});
  } else {
    arguments.push_back("--ioengine=libaio");
  }
  if (job.op == Op::kMixed) {
    arguments.push_back(
        absl::StrCat("--rwmixread=", static_cast<int>(std::lround(100 * job.read_share))));
  }
  if (job.move_bytes > 0 && job.move_bytes < job.size_bytes) {
    arguments.push_back(absl::StrCat("--io_size=", job.move_bytes));
  }
  return arguments;
}

// Runs a command and returns what it writes to stdout. NotFound if it cannot be started or fails;
// Cancelled, after ending it, if `interrupted` becomes true.
absl::StatusOr<std::string> Output(std::vector<std::string> arguments,
                                   const std::atomic<bool>* interrupted) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return absl::InternalError("no pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = -1;
  const int error = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  std::string text;
  int ending_polls = 0;  // since it was told to end
  while (error == 0) {
    pollfd readable = {pipe[0], POLLIN, 0};
    const int ready = ::poll(&readable, 1, kPollMilliseconds);
    if (interrupted != nullptr && *interrupted) {
      if (ending_polls == 0) ::kill(child, SIGTERM);
      if (ending_polls == kEndingPolls) ::kill(child, SIGKILL);
      ++ending_polls;
    }
    if (ready <= 0) continue;
    char piece[4096];
    const ssize_t n = ::read(pipe[0], piece, sizeof(piece));
    if (n <= 0) break;
    text.append(piece, static_cast<size_t>(n));
  }
  ::close(pipe[0]);
  int status = 0;
  while (error == 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (ending_polls > 0) return absl::CancelledError("interrupted");
  if (error != 0 || status != 0) return absl::NotFoundError("fio is absent or failed");
  return text;
}

}  // namespace

std::string FioVersion() {
  absl::StatusOr<std::string> text = Output({"fio", "--version"}, nullptr);
  if (!text.ok()) return "";
  return text->substr(0, text->find('\n'));
}

absl::StatusOr<FioResult> RunFio(const FioJob& job, const std::atomic<bool>& interrupted) {
  const absl::StatusOr<std::string> text = Output(Arguments(job), &interrupted);
  if (!text.ok()) return text.status();
  const auto report = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (report.is_discarded() || !report.contains("jobs") || report["jobs"].size() != 1) {
    return absl::NotFoundError("fio gave no report");
  }
  const nlohmann::json& result = report["jobs"][0];
  const double cpu_percent = result.value("usr_cpu", 0.0) + result.value("sys_cpu", 0.0);
  const double job_seconds = result.value("job_runtime", 0.0) / 1000;
  FioResult out = {.cpu_seconds = cpu_percent / 100 * job_seconds};
  for (const char* side : {"read", "write"}) {
    if (!result.contains(side)) continue;
    out.bytes += result[side].value("io_bytes", 0.0);
    out.seconds = std::max(out.seconds, result[side].value("runtime", 0.0) / 1000);
  }
  if (out.bytes == 0 || out.seconds == 0) return absl::NotFoundError("fio moved nothing");
  return out;
}

}  // namespace spillway::bench_io
