// SPDX-License-Identifier: Apache-2.0
//
// Parts of a page that loads nothing and needs no script: bars and the lanes of a step. Widths are
// shares, so a page is as wide as its window. All texts are plain; they are escaped here.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_PAGE_PARTS_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_PAGE_PARTS_H_

#include <string>
#include <string_view>
#include <vector>

#include "tools/spillway/plan/step_lanes.h"

namespace spillway::command {

// A part of a bar. `style`: the name of its colour in the page's style sheet, as "weights".
struct BarPart {
  std::string_view name;
  std::string_view style;
  double value = 0;
  std::string text;  // the value, as a person reads it
};

// A bar of parts, one after the other; `full` is its whole length. If `limit` is above 0, a mark
// shows where it is.
std::string StackedBar(const std::vector<BarPart>& parts, double full, double limit = 0);
// The parts' colours, names and values. Without those that are 0.
std::string LegendOf(const std::vector<BarPart>& parts);

struct BarRow {
  std::string name;
  double value = 0;
  std::string text;
  std::string_view style = "weights";
};
// A row for each with its name, a bar and its value. The longest bar, or `full`, is the whole
// width.
std::string BarRows(const std::vector<BarRow>& rows, double full = 0);

// The lanes above a scale of `seconds`. If `mark_seconds` is above 0, a line with this name.
std::string LanesPicture(const std::vector<Lane>& lanes, double seconds, double mark_seconds,
                         std::string_view mark);

// "3.42 s", "1.5 ms": a time as the page's scales show it.
std::string SecondsWords(double seconds);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_PAGE_PARTS_H_
