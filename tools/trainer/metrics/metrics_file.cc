// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/metrics/metrics_file.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace spillway::trainer {
namespace {

// Formats a number for Prometheus, which has notations for NaN and infinity.
std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return absl::StrFormat("%.17g", value);
}

class Text {
 public:
  void Gauge(const char* name, const char* help, double value) {
    Begin(name, help, "gauge");
    absl::StrAppend(&text_, "spillway_", name, " ", Number(value), "\n");
  }
  void Bytes(const Traffic& nvme, const Traffic& pinned) {
    Begin("bytes_total", "Bytes moved since the run began, by tier below and direction.",
          "counter");
    const auto add = [&](const char* tier, const char* direction, uint64_t bytes) {
      absl::StrAppendFormat(&text_, "spillway_bytes_total{tier=\"%s\",direction=\"%s\"} %d\n", tier,
                            direction, bytes);
    };
    add("nvme", "read", nvme.read_bytes);
    add("nvme", "write", nvme.written_bytes);
    add("pinned", "read", pinned.read_bytes);
    add("pinned", "write", pinned.written_bytes);
  }
  const std::string& text() const { return text_; }

 private:
  void Begin(const char* name, const char* help, const char* type) {
    absl::StrAppendFormat(&text_, "# HELP spillway_%s %s\n# TYPE spillway_%s %s\n", name, help,
                          name, type);
  }
  std::string text_;
};

}  // namespace

absl::Status MetricsFile::WriteTotals(const Traffic& nvme, const Traffic& pinned) {
  if (!last_) return absl::OkStatus();
  StepRecord record = *last_;
  record.all_nvme = nvme;
  record.all_pinned = pinned;
  return Write(record, total_steps_);
}

absl::Status MetricsFile::Write(const StepRecord& record, int64_t total_steps) {
  last_ = record;
  total_steps_ = total_steps;
  if (record.evaluation || record.evaluation_failed) evaluation_ = record.evaluation;
  Text text;
  text.Gauge("step", "Steps done, those before a resume included.",
             static_cast<double>(record.step));
  text.Gauge("steps", "Steps that the run is to do in total.", static_cast<double>(total_steps));
  text.Gauge("loss", "Mean loss of the step.", record.loss);
  text.Gauge("grad_norm", "Norm of the whole gradient before clipping.", record.grad_norm);
  text.Gauge("learning_rate", "Learning rate of the step.", record.learning_rate);
  text.Gauge("loss_scale", "Loss scale of the step.", record.loss_scale);
  text.Gauge("skipped", "1 if the gradient overflowed and nothing was updated.", record.skipped);
  text.Gauge("tokens_per_second", "Tokens of the step over its time.", record.tokens_per_second);
  text.Gauge("step_seconds", "Wall time of the step.", record.seconds);
  text.Gauge("stall_seconds", "Time in the step that waited for bytes.", record.stall_seconds);
  if (record.flop_utilisation > 0) {
    text.Gauge("flop_utilisation", "Model FLOP utilisation of the step, 0 to 1.",
               record.flop_utilisation);
  }
  if (evaluation_) {
    text.Gauge("eval_loss", "Mean loss of the run's last validation.", evaluation_->loss);
  }
  text.Bytes(record.all_nvme, record.all_pinned);
  return file_.Replace(text.text());
}

}  // namespace spillway::trainer
