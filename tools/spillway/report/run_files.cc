// SPDX-License-Identifier: Apache-2.0
//
// Reads both files once, from front to back. Only those parts of a trace that are kept are ever in
// memory, unless it comes through a pipe: then all of it is.

#include "tools/spillway/report/run_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"

namespace spillway::run_report {
namespace {

constexpr char kKnown[] = "spillway report reads what spillway train --log-json and --trace write";

absl::Status Bad(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
}

std::string VersionOf(const Json& json) {
  return json.is_object() && json.contains("v") ? json["v"].dump() : "none";
}

// Both files nest at most 4 deep. A deeper file is not ours, and reading it would take a stack that
// grows with the depth.
constexpr int kMostDepth = 16;

// Parses one value. Returns a discarded value if the text is not JSON or nests too deep.
Json ParseShallow(const std::string& text) {
  bool is_deep = false;
  const auto look = [&](int depth, Json::parse_event_t, Json&) {
    is_deep = is_deep || depth > kMostDepth;
    return !is_deep;
  };
  Json parsed = Json::parse(text, look, /*allow_exceptions=*/false);
  return is_deep ? Json(Json::value_t::discarded) : parsed;
}

// --- The step log ---

bool IsNumberOrNull(const Json& json) { return json.is_number() || json.is_null(); }

// Returns "" if the line is one of ours, else what is wrong with it.
std::string FaultOf(const Json& line) {
  if (VersionOf(line) != "1") {
    return absl::StrCat("is of version ", VersionOf(line),
                        ", and this spillway reads version 1: use the one that wrote it");
  }
  for (const char* field : {"step", "loss", "tokens_per_s", "seconds", "stall_s"}) {
    if (!line.contains(field) || !IsNumberOrNull(line[field])) {
      return absl::StrCat("has no number \"", field, "\"; ", kKnown);
    }
  }
  for (const char* field : {"read_bytes", "written_bytes"}) {
    for (const char* tier : {"nvme", "pinned"}) {
      const bool known = line.contains(field) && line[field].is_object() &&
                         line[field].contains(tier) && line[field][tier].is_number();
      if (!known) return absl::StrCat("has no number \"", field, "\".\"", tier, "\"; ", kKnown);
    }
  }
  return "";
}

absl::Status ReadLog(std::istream& in, const std::string& path, RunFiles* files) {
  std::string text;
  for (int64_t number = 1; std::getline(in, text); ++number) {
    const bool torn = in.eof();  // no line break: the run was killed while it wrote
    if (text.empty()) continue;
    Json line = ParseShallow(text);
    if (line.is_discarded() && torn) {
      files->notes.push_back(absl::StrCat("the last line of ", path, " was torn and is left out"));
      break;
    }
    if (line.is_discarded()) return Bad(path, absl::StrCat("line ", number, " is not JSON"));
    const std::string fault = FaultOf(line);
    if (!fault.empty()) return Bad(path, absl::StrCat("line ", number, " ", fault));
    files->log.push_back(std::move(line));
  }
  if (!files->log.empty()) return absl::OkStatus();
  return Bad(path, "there is no step in it yet");
}

// --- The trace ---

class TraceReader {
 public:
  TraceReader() { Name(""); }

  // Takes the members of the file's object other than the events.
  void About(const Json& other) {
    version_ = other.is_object() && other.value("format", Json()) == "spillway trace"
                   ? VersionOf(other)
                   : "";
    if (version_ != "1") return;
    trace_.begin_us = other.value("begin_us", 0.0);
    trace_.duration_us = other.value("duration_us", 0.0);
    trace_.dropped_events = other.value("dropped_events", uint64_t{0});
    for (size_t tier = 0; tier < kTierNames.size(); ++tier) {
      const Json& budget = other.at("budget_bytes").at(kTierNames[tier]);
      if (budget.is_number()) trace_.budget_bytes[tier] = budget.get<uint64_t>();
    }
  }

  void Event(const Json& event) {
    const std::string phase = event.value("ph", "");
    if (phase == "X") Add(event);
    if (phase == "C") AddLevel(event);
  }

  const std::string& version() const { return version_; }
  RunTrace Take() {
    trace_.names.resize(names_.size());
    for (const auto& [name, index] : names_) trace_.names[index] = name;
    return std::move(trace_);
  }

 private:
  uint32_t Name(const std::string& name) {
    return names_.try_emplace(name, static_cast<uint32_t>(names_.size())).first->second;
  }

  void Add(const Json& event) {
    const std::string category = event.value("cat", "");
    const auto* const kind = std::find(kSpanKinds.begin(), kSpanKinds.end(), category);
    if (kind == kSpanKinds.end()) return;
    const Json& args = event.at("args");
    Span span;
    span.kind = static_cast<SpanKind>(kind - kSpanKinds.begin());
    span.thread = event.value("tid", 0);
    span.begin_us = event.at("ts").get<double>();
    span.end_us = span.begin_us + event.at("dur").get<double>();
    span.name =
        Name(args.contains("tile") ? args["tile"].get<std::string>() : event.value("name", ""));
    span.why = Name(args.value("why", args.value("cause", "")));
    span.other = Name(args.value("in_the_way", ""));
    span.step = args.value("step", int64_t{0});
    if (!args.contains("failed")) span.bytes = args.value("bytes", uint64_t{0});
    trace_.spans.push_back(span);
    if (span.kind == SpanKind::kStep) trace_.steps.push_back(args);
  }

  void AddLevel(const Json& event) {
    const std::string name = event.value("name", "");
    const auto* const tier = std::find(kTierNames.begin(), kTierNames.end(), name);
    const Json& args = event.at("args");
    if (tier == kTierNames.end() || !args.contains("bytes held")) return;
    trace_.held[static_cast<size_t>(tier - kTierNames.begin())].push_back(
        {event.at("ts").get<double>(), args["bytes held"].get<uint64_t>()});
  }

  RunTrace trace_;
  std::unordered_map<std::string, uint32_t> names_;
  std::string version_;
};

absl::StatusOr<RunTrace> ReadTrace(std::istream& in, const std::string& path) {
  TraceReader reader;
  bool in_events = false;
  // The reader takes each event as soon as it is parsed. Events are kept nowhere else.
  bool is_deep = false;
  const Json::parser_callback_t take = [&](int depth, Json::parse_event_t what, Json& parsed) {
    is_deep = is_deep || depth > kMostDepth;
    if (is_deep) return false;
    if (depth == 1 && what == Json::parse_event_t::key) in_events = parsed == "traceEvents";
    if (depth != 2 || what != Json::parse_event_t::object_end || !in_events) return true;
    reader.Event(parsed);
    return false;
  };
  try {
    const Json root = Json::parse(in, take);
    if (is_deep) return Bad(path, absl::StrCat("nests more than ", kMostDepth, " deep; ", kKnown));
    if (!root.is_object() || !root.contains("traceEvents")) {
      return Bad(path, absl::StrCat("is neither a step log nor a trace; ", kKnown));
    }
    if (root.contains("otherData")) reader.About(root["otherData"]);
  } catch (const Json::parse_error& error) {
    return Bad(path, absl::StrCat("the JSON breaks off or is damaged at byte ", error.byte,
                                  "; a trace is whole only once its run has ended. ", kKnown));
  } catch (const Json::exception& error) {
    return Bad(path, absl::StrCat("an event is not as spillway train writes it: ", error.what()));
  }
  if (reader.version().empty()) {
    return Bad(path, absl::StrCat("is a trace of another program; ", kKnown));
  }
  if (reader.version() != "1") {
    return Bad(path,
               absl::StrCat("is a trace of version ", reader.version(),
                            ", and this spillway reads version 1: use the one that wrote it"));
  }
  return reader.Take();
}

// Whether the file begins like a step log. The first line of a log is the whole JSON object of a
// step, that of a trace only the begin of its object.
bool LooksLikeLog(std::istream& in) {
  std::string first;
  std::getline(in, first);
  in.clear();
  in.seekg(0);
  constexpr std::string_view kBegin = "{\"v\":";
  if (first.starts_with(kBegin)) return true;
  // A trace that another program wrote again may be one line, which takes hours to parse this way.
  constexpr size_t kMostOfAStep = 65536;
  if (first.size() > kMostOfAStep) return false;
  const Json line = ParseShallow(first);
  return line.is_object() && line.contains("step");
}

}  // namespace

absl::StatusOr<RunFiles> ReadRunFiles(const std::vector<std::string>& paths) {
  RunFiles files;
  for (const std::string& path : paths) {
    errno = 0;
    std::ifstream in(path, std::ios::binary);
    if (!in || in.peek() == std::char_traits<char>::eof()) {
      const bool is_empty = in.is_open() && errno == 0;
      return is_empty ? Bad(path, absl::StrCat("is empty; ", kKnown))
                      : absl::NotFoundError(
                            absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
    }
    std::error_code error;
    if (!std::filesystem::is_fifo(path, error)) {
      SPILLWAY_RETURN_IF_ERROR(ReadRunFile(in, path, &files));
      continue;
    }
    // A pipe cannot seek, as ReadRunFile does.
    std::stringstream all;
    all << in.rdbuf();
    SPILLWAY_RETURN_IF_ERROR(ReadRunFile(all, path, &files));
  }
  return files;
}

absl::Status ReadRunFile(std::istream& in, const std::string& path, RunFiles* files) {
  if (LooksLikeLog(in)) {
    if (!files->log.empty()) return Bad(path, "is a second step log; give one of each");
    return ReadLog(in, path, files);
  }
  if (files->trace) return Bad(path, "is a second trace; give one of each");
  SPILLWAY_ASSIGN_OR_RETURN(files->trace, ReadTrace(in, path));
  return absl::OkStatus();
}

}  // namespace spillway::run_report
