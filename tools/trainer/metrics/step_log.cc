// SPDX-License-Identifier: Apache-2.0
//
// Formats the two lines of a step, and writes the JSON line to a file.

#include "tools/trainer/metrics/step_log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace spillway::trainer {
namespace {

absl::Status LogError(int error, std::string_view operation, const std::string& path) {
  return absl::UnavailableError(
      absl::StrFormat("%s %s: %s", std::string(operation), path, std::strerror(error)));
}

// "1.23 GB/s" or "4.5 MB/s" over a step, in the decimal units in which drives are sold.
std::string Rate(uint64_t bytes, double seconds) {
  const double rate = seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  return rate < 1e9 ? absl::StrFormat("%.1f MB/s", rate / 1e6)
                    : absl::StrFormat("%.2f GB/s", rate / 1e9);
}

// Lines of a log are far shorter. A longer line was not written by this program.
constexpr off_t kMaxLineBytes = off_t{1} << 16;

// Reads the last line of the file's first `end` bytes, with its line break if it has one. Returns
// only the last kMaxLineBytes of a longer line.
absl::StatusOr<std::string> LastLine(int fd, off_t end, const std::string& path) {
  const off_t begin = std::max<off_t>(0, end - kMaxLineBytes);
  std::string text(static_cast<size_t>(end - begin), '\0');
  ssize_t got = 0;
  do {
    got = pread(fd, text.data(), text.size(), begin);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return LogError(errno, "read", path);
  text.resize(static_cast<size_t>(got));
  const size_t before = text.size() < 2 ? std::string::npos : text.rfind('\n', text.size() - 2);
  return before == std::string::npos ? text : text.substr(before + 1);
}

constexpr std::string_view kLineBegin = R"({"v":1,"step":)";

// Returns the step that a line is the record of. None if the line is no record.
std::optional<int64_t> StepOf(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !line.starts_with(kLineBegin)) return std::nullopt;
  const auto found = json.find("step");
  return found->is_number_integer() ? std::optional(found->get<int64_t>()) : std::nullopt;
}

// Whether a line at the file's end is the record of a step after `step`, or was torn while it was
// written.
bool TellsOfLaterStep(const std::string& line, int64_t step) {
  if (!line.ends_with('\n')) {
    return line.starts_with(kLineBegin) || kLineBegin.starts_with(line);
  }
  return StepOf(line).value_or(step) > step;
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
      {"state_read_bytes", record.state.read_bytes},
      {"state_written_bytes", record.state.written_bytes},
      {"stall_s", record.stall_seconds},
  };
  if (record.flop_utilisation > 0) json["mfu"] = record.flop_utilisation;
  if (record.plan.plans > 0) {
    const PlanStats& plan = record.plan;
    json["plan_steps"] = plan.steps;
    if (plan.moved_bytes() > 0 || plan.planned_bytes == 0)
      json["plan_moved_bytes"] = plan.moved_bytes();
    json["planned_bytes"] = plan.planned_bytes;
    json["bytes_bound"] = plan.bytes_bound;
    json["nvme_bytes_bound"] = plan.nvme_bytes_bound;
  }
  if (record.plan.time_bound_seconds > 0) {
    const double alone = std::max(record.plan.compute_seconds, record.plan.transfer_seconds);
    json["time_bound_s"] = record.plan.time_bound_seconds;
    json["time_ratio"] = record.seconds / record.plan.time_bound_seconds;
    json["compute_alone_s"] = record.plan.compute_seconds;
    json["transfers_alone_s"] = record.plan.transfer_seconds;
    json["alone_ratio"] = record.seconds / alone;
  }
  if (record.device_waits > 0) json["device_waits"] = record.device_waits;
  if (const auto& by = record.computed_by) {
    json["computed_by"] = {
        {"gpu", by->gpu}, {"library", by->library}, {"algorithms", by->algorithms}};
  }
  if (record.commit_seconds > 0) json["commit_s"] = record.commit_seconds;
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
  if (record.flop_utilisation > 0) {
    absl::StrAppendFormat(&line, "  mfu %.0f%%", 100 * record.flop_utilisation);
  }
  if (record.evaluation_failed) absl::StrAppend(&line, "  | the validation failed");
  if (record.evaluation) {
    absl::StrAppendFormat(&line, "  | validation loss %.4f over %d windows",
                          record.evaluation->loss, record.evaluation->windows);
  }
  return line;
}

absl::StatusOr<StepLog> StepLog::Begin(OutputFile file) {
  if (absl::Status status = file.Cut(0); !status.ok()) return status;
  return StepLog(std::move(file));
}

absl::StatusOr<StepLog> StepLog::Continue(OutputFile file, int64_t step) {
  StepLog log(std::move(file));
  if (absl::Status status = log.CutAfter(step); !status.ok()) return status;
  return log;
}

absl::StatusOr<bool> StepLog::EndsWithAStep(const OutputFile& file) {
  struct stat info{};
  if (fstat(file.fd(), &info) != 0) return LogError(errno, "stat", file.path());
  if (!file.is_regular() || info.st_size == 0) return false;
  const absl::StatusOr<std::string> line = LastLine(file.fd(), info.st_size, file.path());
  if (!line.ok()) return line.status();
  return TellsOfLaterStep(*line, 0);
}

// Reads lines backwards from the last one, so that a long log costs no more than what is cut from
// it.
absl::Status StepLog::CutAfter(int64_t step) {
  const std::string& path = file_.path();
  struct stat info{};
  if (fstat(file_.fd(), &info) != 0) return LogError(errno, "stat", path);
  if (!file_.is_regular()) return absl::OkStatus();  // a pipe or a terminal cannot be cut
  off_t end = info.st_size;
  while (end > 0) {
    const absl::StatusOr<std::string> line = LastLine(file_.fd(), end, path);
    if (!line.ok()) return line.status();
    if (!TellsOfLaterStep(*line, step)) {
      if (end < info.st_size) {
        if (absl::Status status = file_.Cut(end); !status.ok()) return status;
      }
      continued_after_ = StepOf(*line);
      return line->ends_with('\n') ? absl::OkStatus() : file_.Append("\n");
    }
    end -= static_cast<off_t>(line->size());
  }
  return file_.Cut(0);
}

absl::Status StepLog::Write(const StepRecord& record) {
  return file_.Append(absl::StrCat(ToJsonLine(record), "\n"));
}

}  // namespace spillway::trainer
