// SPDX-License-Identifier: Apache-2.0
//
// The two lines of a step and the file that keeps one of them.

#include "tools/trainer/metrics/step_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace spillway::trainer {
namespace {

absl::Status FileError(int error, std::string_view operation, const std::string& path) {
  return absl::UnavailableError(
      absl::StrFormat("%s %s: %s", std::string(operation), path, std::strerror(error)));
}

// "1.23 GB/s" or "4.5 MB/s" over a step; decimal units, as drives are sold.
std::string Rate(uint64_t bytes, double seconds) {
  const double rate = seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  return rate < 1e9 ? absl::StrFormat("%.1f MB/s", rate / 1e6)
                    : absl::StrFormat("%.2f GB/s", rate / 1e9);
}

}  // namespace

std::string ToJsonLine(const StepRecord& record) {
  nlohmann::ordered_json json = {
      {"v", 1},
      {"step", record.step},
      {"loss", record.loss},
      {"grad_norm", record.grad_norm},
      {"lr", record.learning_rate},
      {"loss_scale", record.loss_scale},
      {"skipped", record.skipped},
      {"tokens_per_s", record.tokens_per_second},
      {"seconds", record.seconds},
      {"read_bytes", {{"nvme", record.nvme.read_bytes}, {"pinned", record.pinned.read_bytes}}},
      {"written_bytes",
       {{"nvme", record.nvme.written_bytes}, {"pinned", record.pinned.written_bytes}}},
      {"stall_s", record.stall_seconds},
  };
  if (record.evaluation) {
    json["eval_loss"] = record.evaluation->loss;
    json["eval_windows"] = record.evaluation->windows;
    json["eval_seconds"] = record.evaluation->seconds;
  }
  return json.dump();
}

std::string ToPeopleLine(const StepRecord& record, int64_t total_steps) {
  std::string line =
      absl::StrFormat("step %d/%d  loss %.4f  norm %.4f  lr %.3g", record.step, total_steps,
                      record.loss, record.grad_norm, record.learning_rate);
  if (record.loss_scale != 1) absl::StrAppendFormat(&line, "  scale %g", record.loss_scale);
  if (record.skipped) absl::StrAppend(&line, "  skipped (overflow)");
  absl::StrAppendFormat(&line, "  %.0f tokens/s  nvme %s read, %s written",
                        record.tokens_per_second, Rate(record.nvme.read_bytes, record.seconds),
                        Rate(record.nvme.written_bytes, record.seconds));
  absl::StrAppendFormat(&line, "  stall %.2f of %.2f s", record.stall_seconds, record.seconds);
  if (record.evaluation) {
    absl::StrAppendFormat(&line, "  | validation loss %.4f over %d windows",
                          record.evaluation->loss, record.evaluation->windows);
  }
  return line;
}

absl::StatusOr<std::unique_ptr<StepLog>> StepLog::Open(const std::string& path, bool append) {
  const int fd =
      open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND | (append ? 0 : O_TRUNC), 0644);
  if (fd < 0) return FileError(errno, "open", path);
  std::unique_ptr<StepLog> log(new StepLog(path, fd));
  const off_t size = lseek(fd, 0, SEEK_END);
  char last = '\n';
  if (size > 0 && pread(fd, &last, 1, size - 1) == 1 && last != '\n') {
    if (absl::Status status = log->WriteAll("\n"); !status.ok()) return status;
  }
  return log;
}

StepLog::~StepLog() { close(fd_); }

absl::Status StepLog::Write(const StepRecord& record) {
  return WriteAll(absl::StrCat(ToJsonLine(record), "\n"));
}

absl::Status StepLog::WriteAll(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd_, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(errno, "write", path_);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace spillway::trainer
