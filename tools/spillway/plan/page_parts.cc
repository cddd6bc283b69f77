// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/page_parts.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/view.h"
#include "tools/spillway/command/html_text.h"

namespace spillway::command {
namespace {

// A share of `full` in percent, within 0 and 100.
double Percent(double value, double full) {
  if (!(full > 0) || !(value > 0)) return 0;
  return std::min(100.0, 100 * value / full);
}

constexpr double kLeft = 108, kWidth = 960, kLaneHeight = 34, kLaneGap = 10, kLanesTop = 18;

// The outline of a lane: its shares as a line, closed along its bottom.
std::string Outline(const std::vector<double>& busy, double bottom) {
  const double step = (kWidth - kLeft) / static_cast<double>(busy.size());
  std::string path = absl::StrFormat("M%.1f %.1f", kLeft, bottom);
  double before = -1;
  for (size_t i = 0; i < busy.size(); ++i) {
    const double y = bottom - busy[i] * kLaneHeight;
    if (y != before) {
      absl::StrAppendFormat(&path, "H%.1fV%.1f", kLeft + step * static_cast<double>(i), y);
    }
    before = y;
  }
  return absl::StrFormat("%sH%.1fV%.1fZ", path, kWidth, bottom);
}

// The distance of marks on a scale: 1, 2 or 5 times a power of ten, so that there are four to ten.
double ScaleStep(double most) {
  const double power = std::pow(10, std::floor(std::log10(most)));
  for (const double factor : {0.1, 0.2, 0.5, 1.0})
    if (most / (power * factor) <= 10) return power * factor;
  return power;
}

}  // namespace

std::string StackedBar(const std::vector<BarPart>& parts, double full, double limit) {
  std::string html = "<div class=\"bar\">";
  for (const BarPart& part : parts) {
    if (!(part.value > 0)) continue;
    absl::StrAppendFormat(&html, "<i class=\"%s\" style=\"width:%.3f%%\" title=\"%s %s\"></i>",
                          EscapeHtml(part.style), Percent(part.value, full), EscapeHtml(part.name),
                          EscapeHtml(part.text));
  }
  if (limit > 0 && limit < full)
    absl::StrAppendFormat(&html, "<b style=\"left:%.3f%%\"></b>", Percent(limit, full));
  return absl::StrCat(html, "</div>\n");
}

std::string LegendOf(const std::vector<BarPart>& parts) {
  std::string html = "<p class=\"legend\">";
  for (const BarPart& part : parts) {
    if (!(part.value > 0)) continue;
    absl::StrAppendFormat(&html, "<span><i class=\"%s\"></i>%s <em>%s</em></span> ",
                          EscapeHtml(part.style), EscapeHtml(part.name), EscapeHtml(part.text));
  }
  return absl::StrCat(html, "</p>\n");
}

std::string BarRows(const std::vector<BarRow>& rows, double full) {
  for (const BarRow& row : rows) full = std::max(full, row.value);
  std::string html = "<dl class=\"rows\">\n";
  for (const BarRow& row : rows) {
    absl::StrAppendFormat(
        &html,
        "<dt>%s</dt><dd><span><i class=\"%s\" style=\"width:%.3f%%\"></i></span><em>%s</em></dd>\n",
        EscapeHtml(row.name), EscapeHtml(row.style), Percent(row.value, full),
        EscapeHtml(row.text));
  }
  return absl::StrCat(html, "</dl>\n");
}

std::string LanesPicture(const std::vector<Lane>& lanes, double seconds, double mark_seconds,
                         std::string_view mark) {
  const double bottom = kLanesTop + static_cast<double>(lanes.size()) * (kLaneHeight + kLaneGap);
  std::string svg = absl::StrFormat(
      "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"How busy computing and links "
      "are during a step\">\n",
      kWidth, bottom + 22);
  const auto x = [&](double at) { return kLeft + at / seconds * (kWidth - kLeft); };
  const double step = ScaleStep(seconds);
  for (double at = 0; at <= seconds * 1.0001; at += step) {
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.1f\"/>"
                          "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">%s</text>\n",
                          x(at), x(at), kLanesTop, bottom, x(at), bottom + 16,
                          at > 0.97 * seconds ? "end" : "middle", SecondsWords(at));
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    const double foot = kLanesTop + kLaneHeight + static_cast<double>(i) * (kLaneHeight + kLaneGap);
    absl::StrAppendFormat(
        &svg,
        "<text x=\"%.0f\" y=\"%.1f\" class=\"end\">%s</text><path class=\"lane%d\" d=\"%s\"/>\n",
        kLeft - 10, foot - kLaneHeight / 2 + 4, EscapeHtml(lanes[i].title), i,
        Outline(lanes[i].busy, foot));
  }
  if (mark_seconds > 0) {
    const bool is_late = mark_seconds > 0.8 * seconds;
    absl::StrAppendFormat(&svg,
                          "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"0\" y2=\"%.1f\"/>"
                          "<text x=\"%.1f\" y=\"10\" class=\"%s\">%s</text>\n",
                          x(mark_seconds), x(mark_seconds), bottom,
                          x(mark_seconds) + (is_late ? -5 : 5), is_late ? "end" : "begin",
                          EscapeHtml(mark));
  }
  return absl::StrCat(svg, "</svg>\n");
}

std::string SecondsWords(double seconds) {
  if (seconds == 0) return "0";
  if (seconds < 1e-3) return absl::StrFormat("%.3g µs", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.3g ms", seconds * 1e3);
  if (seconds < 600) return absl::StrFormat("%.3g s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.3g min", seconds / 60);
  return absl::StrFormat("%.3g h", seconds / 3600);
}

}  // namespace spillway::command
