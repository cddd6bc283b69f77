// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/step_lanes.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace spillway::command {
namespace {

using Spans = std::vector<std::pair<int64_t, int64_t>>;  // begin and end in nanoseconds

// Joins those that overlap.
Spans Joined(Spans spans) {
  std::sort(spans.begin(), spans.end());
  Spans joined;
  for (const auto& [begin, end] : spans) {
    if (joined.empty() || begin > joined.back().second) {
      joined.emplace_back(begin, end);
    } else {
      joined.back().second = std::max(joined.back().second, end);
    }
  }
  return joined;
}

void AddBusy(int64_t begin, int64_t end, double stretch_ns, std::vector<double>* busy) {
  const auto last = busy->size() - 1;
  const auto first = std::min(last, static_cast<size_t>(static_cast<double>(begin) / stretch_ns));
  for (size_t i = first; i <= last; ++i) {
    const double from = std::max(static_cast<double>(begin), stretch_ns * static_cast<double>(i));
    const double to = std::min(static_cast<double>(end), stretch_ns * static_cast<double>(i + 1));
    if (to <= from) break;
    (*busy)[i] += (to - from) / stretch_ns;
  }
}

}  // namespace

std::vector<Lane> LanesOf(const Timeline& timeline, size_t stretches) {
  using Kind = TimelineEvent::Kind;
  if (timeline.events.empty() || timeline.dropped > 0 || timeline.end_ns <= timeline.begin_ns)
    return {};
  std::vector<Lane> lanes = {
      {"computing", Kind::kCompute, {}}, {"waiting", Kind::kStall, {}},
      {"NVMe read", Kind::kRead, {}},    {"NVMe written", Kind::kWrite, {}},
      {"to the GPU", Kind::kCopyIn, {}}, {"from the GPU", Kind::kCopyOut, {}}};
  const double stretch_ns =
      static_cast<double>(timeline.end_ns - timeline.begin_ns) / static_cast<double>(stretches);
  for (Lane& lane : lanes) {
    Spans spans;
    for (const TimelineEvent& event : timeline.events) {
      if (event.kind != lane.kind) continue;
      spans.emplace_back(std::max(event.begin_ns, timeline.begin_ns) - timeline.begin_ns,
                         std::min(event.end_ns, timeline.end_ns) - timeline.begin_ns);
    }
    lane.busy.resize(stretches);
    for (const auto& [begin, end] : Joined(std::move(spans)))
      if (end > begin) AddBusy(begin, end, stretch_ns, &lane.busy);
    for (double& share : lane.busy) share = std::clamp(share, 0.0, 1.0);
  }
  return lanes;
}

}  // namespace spillway::command
