// SPDX-License-Identifier: Apache-2.0
//
// Makes the HTML page: one SVG with a pair of bars for each row, then the table. The page loads
// nothing from elsewhere.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/spillway/bench/io/report.h"
#include "tools/spillway/command/html_text.h"

namespace spillway::bench_io {
namespace {

constexpr int kLabelWidth = 400;
constexpr int kBarWidth = 420;
constexpr int kNumberWidth = 130;
constexpr int kRowHeight = 30;
constexpr int kTop = 34;

// Returns the distance between ticks: 1, 2 or 5 times a power of ten, so that at most six steps
// reach `most`.
double Step(double most) {
  double step = std::pow(10, std::floor(std::log10(std::max(most, 1e-3))) - 1);
  for (const double factor : {2.0, 2.5, 2.0}) {
    if (most / step <= 6) break;
    step *= factor;
  }
  while (most / step > 6) step *= 2;
  return step;
}

std::string Bar(int y, int height, double share, const char* style) {
  return absl::StrFormat("<rect x='%d' y='%d' width='%.1f' height='%d' class='%s'/>\n", kLabelWidth,
                         y, share * kBarWidth, height, style);
}

std::string Text(double x, double y, const char* style, const std::string& text) {
  return absl::StrFormat("<text x='%.1f' y='%.1f' class='%s'>%s</text>\n", x, y, style,
                         command::EscapeHtml(text));
}

std::string Picture(const BenchReport& report) {
  double most = 0;
  for (const Row& row : report.rows) {
    most = std::max({most, Rate(row.ours).high / kGb, Rate(row.fio).high / kGb});
  }
  most = std::max(most, 1e-3);
  const int height = kTop + kRowHeight * static_cast<int>(report.rows.size()) + 30;
  std::string svg = absl::StrFormat(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' role='img' "
      "aria-label='GB/s of each row beside fio'>\n",
      kLabelWidth + kBarWidth + kNumberWidth, height);
  const double step = Step(most);
  for (double tick = 0; tick <= most * 1.0001; tick += step) {
    const double x = kLabelWidth + tick / most * kBarWidth;
    absl::StrAppend(&svg, absl::StrFormat("<line x1='%.1f' x2='%.1f' y1='%d' y2='%d'/>\n", x, x,
                                          kTop - 6, height - 26));
    absl::StrAppend(&svg, Text(x, kTop - 12, "tick", absl::StrFormat("%g", tick)));
  }
  absl::StrAppend(&svg, Text(kLabelWidth + kBarWidth + 10, kTop - 12, "label", "GB/s (of limit)"));
  int y = kTop;
  for (const Row& row : report.rows) {
    const Summary rate = Rate(row.ours);
    absl::StrAppend(&svg, Text(kLabelWidth - 8, y + 16, "name", Describe(row.spec)));
    absl::StrAppend(&svg, Bar(y + 3, 11, rate.median / kGb / most, "ours"));
    std::string figure = absl::StrFormat("%.2f", rate.median / kGb);
    if (!row.fio.empty()) {
      absl::StrAppend(&svg, Bar(y + 15, 8, Rate(row.fio).median / kGb / most, "fio"));
      absl::StrAppend(&figure, absl::StrFormat(" (%.2f)", CompareWithLimit(row).share.median));
    }
    if (row.ours.size() > 1) {  // the range over the rounds
      absl::StrAppend(
          &svg, absl::StrFormat("<line class='range' x1='%.1f' x2='%.1f' y1='%d' y2='%d'/>\n",
                                kLabelWidth + rate.low / kGb / most * kBarWidth,
                                kLabelWidth + rate.high / kGb / most * kBarWidth, y + 8, y + 8));
    }
    absl::StrAppend(&svg, Text(kLabelWidth + kBarWidth + 10, y + 16, "label", figure));
    y += kRowHeight;
  }
  return absl::StrCat(svg, "</svg>\n");
}

constexpr char kHead[] =
    "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>\n"
    "<meta name='viewport' content='width=device-width'>\n"
    "<title>spillway bench io</title>\n<style>\n"
    "body{font:15px/1.45 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;"
    "color:#1c2330;background:#fff}\n"
    "svg{width:100%;height:auto} svg text{font:13px system-ui,sans-serif;fill:#1c2330}\n"
    ".name{text-anchor:end} .tick{text-anchor:middle;fill:#667} .ours{fill:#1f6fb2} "
    ".fio{fill:#b9c0cb}\n"
    "line{stroke:#e3e6ec} .range{stroke:#0b2e4d;stroke-width:2}\n"
    "pre{overflow-x:auto;background:#f5f6f8;padding:1em;font-size:12px}\n"
    ".key{display:inline-block;width:.9em;height:.9em;margin:0 .3em 0 1em}\n"
    "</style></head><body>\n<h1>spillway bench io</h1>\n";

}  // namespace

std::string ToHtml(const BenchReport& report, std::string_view commit) {
  return absl::StrCat(
      kHead,
      "<p><span class='key' style='background:#1f6fb2;margin-left:0'></span>Spillway, median; the "
      "line is the range of rounds",
      report.fio_version.empty()
          ? ""
          : "<span class='key' style='background:#b9c0cb'></span>fio on the same disk, in turn",
      "</p>\n", Picture(report), "<h2>All figures</h2>\n<pre>",
      command::EscapeHtml(ToTable(report, commit)), "</pre>\n</body></html>\n");
}

}  // namespace spillway::bench_io
