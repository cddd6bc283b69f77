// SPDX-License-Identifier: Apache-2.0
//
// Writes one JSON object per line, as it is made.

#include "tools/trainer/metrics/trace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "src/base/status_macros.h"

namespace spillway::trainer {
namespace {

using Json = nlohmann::ordered_json;
using Kind = TimelineEvent::Kind;

// In the trace format a process is a group of tracks, and a thread is one track of the group.
enum Process : int { kTraining = 1, kNvmeRead, kNvmeWrite, kDeviceRead, kDeviceWrite, kMoverWork };
constexpr std::array<const char*, 7> kProcessNames = {
    "",     "training", "NVMe to pinned", "pinned to NVMe", "pinned to device", "device to pinned",
    "mover"};
constexpr std::array<const char*, 7> kLinkNames = {
    "", "", "nvme_read", "nvme_write", "device_read", "device_write", ""};
constexpr int kSteps = 1;
constexpr int kCommits = 2;
constexpr int kFirstCaller = 10;  // two tracks per caller

Json TierJson(std::array<uint64_t, kNumTiers> bytes) {
  Json json;
  for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kNvme}) {
    const uint64_t value = bytes[static_cast<size_t>(tier)];
    json[std::string(Name(tier))] = value == kUnlimited ? Json() : Json(value);
  }
  return json;
}

// The number, or null if it is not finite, which JSON cannot express.
Json NumberOrNull(double value) { return std::isfinite(value) ? Json(value) : Json(); }

class TraceWriter {
 public:
  TraceWriter(std::FILE* file, const Timeline& timeline) : file_(file), timeline_(timeline) {}

  // `known_ns`: when the part of the timeline begins of which no event was dropped.
  void Begin(int64_t known_ns) {
    const auto micros = [&](int64_t ns) {
      return static_cast<double>(ns - timeline_.begin_ns) / 1e3;
    };
    const Json about = {
        {"format", "spillway trace"},
        {"v", 1},
        {"dropped_events", timeline_.dropped},
        {"begin_us", micros(known_ns)},
        {"duration_us", micros(timeline_.end_ns)},
        {"budget_bytes", TierJson(timeline_.budget_bytes)},
        {"read_bytes",
         {{"nvme", timeline_.nvme.read_bytes}, {"pinned", timeline_.pinned.read_bytes}}},
        {"written_bytes",
         {{"nvme", timeline_.nvme.written_bytes}, {"pinned", timeline_.pinned.written_bytes}}}};
    absl::FPrintF(file_, "{\"displayTimeUnit\":\"ms\",\"otherData\":%s,\n\"traceEvents\":[",
                  about.dump());
    for (int process = kTraining; process <= kMoverWork; ++process) {
      Meta(process, 0, "process_name", {{"name", kProcessNames[process]}});
      Meta(process, 0, "process_sort_index", {{"sort_index", process}});
    }
    WriteBudgets(timeline_.begin_ns);
  }

  void End() {
    WriteBudgets(timeline_.end_ns);
    absl::FPrintF(file_, "\n]}\n");
  }

  void Write(const StepRecord& step) {
    Track(kTraining, kSteps, "steps");
    Span(kTraining, kSteps, "step", absl::StrCat("step ", step.step), step.begin_ns, step.end_ns,
         {{"step", step.step},
          {"loss", NumberOrNull(step.loss)},
          {"tokens_per_s", NumberOrNull(step.tokens_per_second)}});
    if (!step.evaluation) return;
    const auto seconds = static_cast<int64_t>(step.evaluation->seconds * 1e9);
    Span(kTraining, kSteps, "evaluation", "evaluation", step.end_ns, step.end_ns + seconds,
         {{"step", step.step}, {"loss", NumberOrNull(step.evaluation->loss)}});
  }

  void Write(const TimelineEvent& event) {
    switch (event.kind) {
      case Kind::kRead: return Transfer(kNvmeRead, event);
      case Kind::kWrite: return Transfer(kNvmeWrite, event);
      case Kind::kCopyIn: return Transfer(kDeviceRead, event);
      case Kind::kCopyOut: return Transfer(kDeviceWrite, event);
      case Kind::kCompute: return Compute(event);
      case Kind::kStall: return Stall(event);
      case Kind::kMover:
        Track(kMoverWork, 1, "mover");
        return Span(kMoverWork, 1, "mover", "work", event.begin_ns, event.end_ns, Json::object());
      case Kind::kFlush: return Commit("write what is not on NVMe", event);
      case Kind::kCommit: return Commit("commit", event);
      case Kind::kOccupancy:
        return Counter(event.tier, "bytes held", event.size_bytes, event.begin_ns);
    }
  }

 private:
  std::string Time(int64_t ns) const {
    ns -= timeline_.begin_ns;
    return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000);
  }

  void Line(const std::string& line) {
    absl::FPrintF(file_, "%s\n%s", first_ ? "" : ",", line);
    first_ = false;
  }

  void Meta(int process, int thread, const char* what, const Json& args) {
    Line(absl::StrFormat(R"({"ph":"M","pid":%d,"tid":%d,"name":"%s","args":%s})", process, thread,
                         what, args.dump()));
  }

  // Names a track when it is first used.
  void Track(int process, int thread, const std::string& name) {
    if (!tracks_.emplace(process, thread).second) return;
    Meta(process, thread, "thread_name", {{"name", name}});
    Meta(process, thread, "thread_sort_index", {{"sort_index", thread}});
  }

  void Span(int process, int thread, const char* category, const std::string& name,
            int64_t begin_ns, int64_t end_ns, const Json& args) {
    Line(absl::StrFormat(
        R"({"ph":"X","pid":%d,"tid":%d,"cat":"%s","name":%s,"ts":%s,"dur":%d.%03d,"args":%s})",
        process, thread, category, Json(name).dump(), Time(begin_ns), (end_ns - begin_ns) / 1000,
        (end_ns - begin_ns) % 1000, args.dump()));
  }

  void Counter(Tier tier, const char* what, uint64_t bytes, int64_t at_ns) {
    Line(absl::StrFormat(R"({"ph":"C","pid":%d,"tid":0,"name":"%s","ts":%s,"args":{"%s":%d}})",
                         kTraining, std::string(Name(tier)), Time(at_ns), what, bytes));
  }

  void WriteBudgets(int64_t at_ns) {
    for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kNvme}) {
      const uint64_t bytes = timeline_.budget_bytes[static_cast<size_t>(tier)];
      if (bytes != kUnlimited) Counter(tier, "bytes budget", bytes, at_ns);
    }
  }

  // Puts the transfer on the first lane of the link that is free when the transfer begins.
  void Transfer(Process link, const TimelineEvent& event) {
    std::vector<int64_t>& lanes = lanes_[link];
    auto lane = std::find_if(lanes.begin(), lanes.end(),
                             [&](int64_t end_ns) { return end_ns <= event.begin_ns; });
    if (lane == lanes.end()) lane = lanes.insert(lane, 0);
    *lane = event.end_ns;
    const int thread = static_cast<int>(lane - lanes.begin()) + 1;
    Track(link, thread, absl::StrCat(kProcessNames[link], ", lane ", thread));
    Json args = {{"bytes", event.size_bytes}, {"why", std::string(Name(event.reason))}};
    if (event.failed) args["failed"] = true;
    Span(link, thread, kLinkNames[link], timeline_.TileName(event.tile), event.begin_ns,
         event.end_ns, args);
  }

  void Compute(const TimelineEvent& event) {
    const int thread = kFirstCaller + 2 * event.thread;
    Track(kTraining, thread, absl::StrCat("compute, caller ", event.thread));
    Span(kTraining, thread, "compute", timeline_.TileName(event.tile), event.begin_ns, event.end_ns,
         Json::object());
  }

  void Stall(const TimelineEvent& event) {
    const int thread = kFirstCaller + 2 * event.thread + 1;
    Track(kTraining, thread, absl::StrCat("waiting, caller ", event.thread));
    const std::string tile = timeline_.TileName(event.tile);
    const std::string cause(Name(event.cause));
    Json args = {{"cause", cause}, {"tile", tile}, {"tier", std::string(Name(event.tier))}};
    if (event.other != event.tile) args["in_the_way"] = timeline_.TileName(event.other);
    Span(kTraining, thread, "stall", absl::StrCat(cause, ": ", tile), event.begin_ns, event.end_ns,
         args);
  }

  void Commit(const char* name, const TimelineEvent& event) {
    Track(kTraining, kCommits, "commits");
    Span(kTraining, kCommits, "commit", name, event.begin_ns, event.end_ns, Json::object());
  }

  std::FILE* const file_;
  const Timeline& timeline_;
  bool first_ = true;
  std::set<std::pair<int, int>> tracks_;
  std::array<std::vector<int64_t>, kMoverWork> lanes_;  // by link: when each lane is free
};

}  // namespace

absl::Status WriteTrace(OutputFile output, const Timeline& timeline,
                        const std::deque<StepRecord>& steps) {
  SPILLWAY_ASSIGN_OR_RETURN(OutputFile beside, output.Beside());
  const auto failure = [&](const char* operation) {
    return absl::UnavailableError(
        absl::StrFormat("%s %s: %s", operation, output.path(), std::strerror(errno)));
  };
  const int fd = fcntl(beside.fd(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return failure("open");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(fdopen(fd, "a"), std::fclose);
  if (file == nullptr) {
    close(fd);
    return failure("open");
  }

  // Events sorted by their begin, the order in which lanes are assigned.
  std::vector<const TimelineEvent*> events;
  for (const TimelineEvent& event : timeline.events) events.push_back(&event);
  std::stable_sort(events.begin(), events.end(),
                   [](const TimelineEvent* a, const TimelineEvent* b) {
                     return std::pair(a->begin_ns, -a->end_ns) < std::pair(b->begin_ns, -b->end_ns);
                   });
  // The timeline dropped all events that ended before the oldest one left.
  const int64_t known_ns = timeline.dropped == 0 || timeline.events.empty()
                               ? timeline.begin_ns
                               : timeline.events.front().end_ns;
  TraceWriter writer(file.get(), timeline);
  writer.Begin(known_ns);
  for (const StepRecord& step : steps) {
    if (step.begin_ns >= known_ns) writer.Write(step);
  }
  for (const TimelineEvent* event : events) writer.Write(*event);
  writer.End();
  if (std::fflush(file.get()) != 0 || std::ferror(file.get()) != 0) return failure("write");
  // The new file replaces the old one in one step, so its bytes must be on disk before that.
  if (fdatasync(beside.fd()) != 0 && errno != EINVAL) return failure("sync");  // EINVAL: a pipe
  return output.ReplaceWith(std::move(beside));
}

}  // namespace spillway::trainer
