// SPDX-License-Identifier: Apache-2.0
//
// Question: how many bytes does a step move, and how long does it take, with pinned memory from 5%
// to 100% of the state, under each policy, compared with the bounds that no schedule can beat? And
// with eight micro-batches, in each order? Limit: planned bytes at most 1.05 times the bound.
//
// Nothing is measured: bytes and seconds are those of the step that repeats in virtual time, at the
// default rates (simulation::Machine).
//
//   build/release/bin/plan_budgets [--svg FILE]

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"
#include "src/plan/bounds.h"
#include "src/simulation/virtual_engine.h"
#include "tests/plan/bound_seconds.h"
#include "tests/plan/model_step.h"
#include "tests/plan/policies.h"

namespace spillway::bench {
namespace {

constexpr std::array kPercents = {5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 100};
constexpr int kDevicePercent = 5;

double MiB(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }
double Ratio(uint64_t bytes, uint64_t least) {
  return static_cast<double>(bytes) / static_cast<double>(std::max<uint64_t>(least, 1));
}

// The results for one step at one budget.
struct Point {
  int percent = 0;
  std::vector<simulation::StepResult> steps;  // by policy
  plan::BytesBound bound;                     // the same for every policy
  double bound_seconds = 0;
};

absl::StatusOr<Point> Try(const plan::Trace& trace, int percent, int num_policies) {
  const uint64_t state = plan::StateBytes(trace);
  simulation::SimulationOptions simulated;
  plan::PlanOptions& options = simulated.budgets;
  options.device_bytes = state * kDevicePercent / 100;
  options.pinned_bytes = state * static_cast<uint64_t>(percent) / 100;
  Point point{.percent = percent};
  for (int i = 0; i < num_policies; ++i) {
    options.choose_retained = FunctionOf(static_cast<plan::Policy>(i));
    SPILLWAY_ASSIGN_OR_RETURN(const simulation::RepeatedStep repeated,
                              simulation::SimulateStep(trace, simulated));
    if (!repeated.not_planned.empty()) return absl::ResourceExhaustedError(repeated.not_planned);
    point.steps.push_back(repeated.step);
  }
  point.bound = plan::BoundBytes(trace, options);
  point.bound_seconds = plan::BoundSeconds(trace, options, point.bound, simulated.machine.Rates());
  return point;
}

std::string PolicyName(int i) { return std::string(Name(static_cast<plan::Policy>(i))); }

// --- Tables ---

void PrintPolicies(const std::vector<Point>& points) {
  std::printf("\n| Pinned, %% of state | bound, MiB over NVMe / to and from the device, s |");
  for (int i = 0; i < plan::kNumPolicies; ++i) std::printf(" %s |", PolicyName(i).c_str());
  std::printf(" planned / bound: NVMe, all, s |\n|---|---|");
  for (int i = 0; i <= plan::kNumPolicies; ++i) std::printf("---|");
  std::printf("\n");
  for (const Point& point : points) {
    std::printf("| %d | %.0f / %.0f, %.2f |", point.percent, MiB(point.bound.nvme),
                MiB(point.bound.device), point.bound_seconds);
    for (const simulation::StepResult& step : point.steps) {
      std::printf(" %.0f / %.0f, %.2f |", MiB(step.bytes.nvme()), MiB(step.bytes.device()),
                  step.seconds);
    }
    const simulation::StepResult& planned = point.steps[0];
    std::printf(" %.3f, %.3f, %.2f |\n", Ratio(planned.bytes.nvme(), point.bound.nvme),
                Ratio(planned.bytes.total(), point.bound.total()),
                planned.seconds / point.bound_seconds);
  }
}

absl::Status PrintOrders(plan::StepShape shape) {
  shape.micro_batches = 8;
  const plan::Trace by_batch = StepTrace(shape);
  shape.by_layer = true;
  const plan::Trace by_layer = StepTrace(shape);
  std::printf(
      "\n| Pinned, %% of state | micro-batch, MiB over NVMe / to and from the device, s | all / "
      "bound | layer | all / bound |\n|---|---|---|---|---|\n");
  for (const int percent : kPercents) {
    std::printf("| %d |", percent);
    for (const plan::Trace* trace : {&by_batch, &by_layer}) {
      SPILLWAY_ASSIGN_OR_RETURN(const Point point, Try(*trace, percent, 1));
      const simulation::StepResult& step = point.steps[0];
      std::printf(" %.0f / %.0f, %.2f | %.3f |", MiB(step.bytes.nvme()), MiB(step.bytes.device()),
                  step.seconds, Ratio(step.bytes.total(), point.bound.total()));
    }
    std::printf("\n");
  }
  return absl::OkStatus();
}

// --- Picture ---

constexpr double kWidth = 420, kHeight = 280, kLeft = 60, kTop = 40;
constexpr std::array kColours = {"#0b6", "#06c", "#909", "#c60", "#888"};

// Returns one line of a panel: `value` of each point over the points' budgets.
template <typename Value>
std::string Line(const std::vector<Point>& points, double left, double most, const char* colour,
                 bool dashed, const Value& value) {
  std::string path;
  for (const Point& point : points) {
    absl::StrAppendFormat(&path, "%.1f,%.1f ", left + kWidth * point.percent / 100,
                          kTop + kHeight * (1 - value(point) / most));
  }
  return absl::StrFormat("<polyline points='%s' fill='none' stroke='%s' stroke-width='2'%s/>\n",
                         path, colour, dashed ? " stroke-dasharray='5 4'" : "");
}

template <typename Value, typename BoundValue>
std::string Panel(const std::vector<Point>& points, double left, const char* title,
                  const Value& value, const BoundValue& bound) {
  double most = 0;
  for (const Point& point : points) {
    for (const simulation::StepResult& step : point.steps) most = std::max(most, value(step));
  }
  std::string svg =
      absl::StrFormat("<text x='%.0f' y='24' font-weight='bold'>%s</text>\n", left, title);
  for (int i = 0; i <= 4; ++i) {
    const double y = kTop + kHeight * (1 - i / 4.0), x = left + kWidth * i / 4.0;
    absl::StrAppendFormat(&svg,
                          "<path d='M%.0f %.1fh%.0f' stroke='#ddd'/>"
                          "<text x='%.0f' y='%.1f' text-anchor='end'>%.*f</text>"
                          "<text x='%.1f' y='%.0f' text-anchor='middle'>%d%%</text>\n",
                          left, y, kWidth, left - 6, y + 4, most < 10 ? 2 : 0, most * i / 4, x,
                          kTop + kHeight + 18, 25 * i);
  }
  for (int i = plan::kNumPolicies; i-- > 0;) {
    const auto policy = static_cast<size_t>(i);
    svg += Line(points, left, most, kColours[policy], false,
                [&](const Point& point) { return value(point.steps[policy]); });
  }
  return svg + Line(points, left, most, "#000", true, bound);
}

std::string Picture(const std::vector<Point>& points) {
  const double second = 2 * kLeft + kWidth;
  std::string svg = absl::StrFormat(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' font-family='sans-serif' "
      "font-size='12'>\n<rect width='100%%' height='100%%' fill='#fff'/>\n",
      second + kWidth + 20, kTop + kHeight + 70);
  svg += Panel(
      points, kLeft, "MiB a step over NVMe",
      [](const simulation::StepResult& step) { return MiB(step.bytes.nvme()); },
      [](const Point& point) { return MiB(point.bound.nvme); });
  svg += Panel(
      points, second, "Seconds a step, simulated",
      [](const simulation::StepResult& step) { return step.seconds; },
      [](const Point& point) { return point.bound_seconds; });
  const auto key = [&svg](int i, const std::string& name, const char* colour) {
    absl::StrAppendFormat(&svg,
                          "<path d='M%d %.0fh20' stroke='%s' stroke-width='3'/>"
                          "<text x='%d' y='%.0f'>%s</text>\n",
                          60 + 110 * i, kTop + kHeight + 48, colour, 85 + 110 * i,
                          kTop + kHeight + 52, name);
  };
  for (int i = 0; i < plan::kNumPolicies; ++i)
    key(i, PolicyName(i), kColours[static_cast<size_t>(i)]);
  key(plan::kNumPolicies, "no schedule beats (dashed); pinned memory in % of the state", "#000");
  return svg + "</svg>\n";
}

absl::Status Run(const std::string& svg_path) {
  const plan::Trace trace = StepTrace(plan::ModelShape());
  std::printf("state %.0f MiB, device %d%% of it, %zu tiles, %zu events\n",
              MiB(plan::StateBytes(trace)), kDevicePercent, trace.tiles.size(),
              trace.events.size());
  std::vector<Point> points;
  for (const int percent : kPercents) {
    SPILLWAY_ASSIGN_OR_RETURN(points.emplace_back(), Try(trace, percent, plan::kNumPolicies));
  }
  PrintPolicies(points);
  if (!svg_path.empty()) {
    std::ofstream file(svg_path);
    file << Picture(points) << std::flush;
    if (!file) return absl::UnavailableError(absl::StrCat(svg_path, ": cannot be written"));
  }
  return PrintOrders(plan::ModelShape());
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  const bool wants_svg = argc == 3 && std::string_view(argv[1]) == "--svg";
  if (argc != 1 && !wants_svg) {
    std::cerr << "usage: plan_budgets [--svg FILE]\n";
    return 2;
  }
  const absl::Status status = spillway::bench::Run(wants_svg ? argv[2] : "");
  if (status.ok()) return 0;
  std::cerr << status << "\n";
  return 1;
}
