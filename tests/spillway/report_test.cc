// SPDX-License-Identifier: Apache-2.0
//
// `spillway train --trace` and `spillway report`. The trace records what happened, to the byte. The
// page renders in a real browser. A bad input file is reported with what is wrong in it.

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/browser.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"
#include "tests/temp_folder.h"
#include "tools/spillway/report/page_data.h"
#include "tools/spillway/report/run_files.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint64_t kDeviceBytes = 16 << 10;
constexpr uint64_t kPinnedBytes = 64 << 10;
constexpr int64_t kSteps = 4;

// Budgets so small that everything moves.
Arguments Tight() {
  return {"--device-bytes", std::to_string(kDeviceBytes),
          "--pinned-bytes", std::to_string(kPinnedBytes),
          "--page-bytes",   "4KiB",
          "--commit-every", "2",
          "--eval-every",   "2",
          "--eval-batches", "1"};
}

std::string TraceOf(const Training& training) { return training / "trace.json"; }

Arguments Traced(const Training& training, int64_t steps = kSteps) {
  return training.TrainInStore(steps) + Tight() + Arguments{"--trace", TraceOf(training)};
}

Json ReadTrace(const Training& training) { return ParseJson(ReadFile(TraceOf(training))); }

// Returns the spans of each track, keyed by process and thread: begin and end in microseconds.
std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> Tracks(const Json& trace) {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
  for (const Json& event : trace.at("traceEvents")) {
    if (event["ph"] != "X") continue;
    tracks[{event["pid"], event["tid"]}].emplace_back(
        event["ts"], event["ts"].get<double>() + event["dur"].get<double>());
  }
  return tracks;
}

// The tests of the trace share one run, which is made once.
class TraceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    training_ = std::make_unique<Training>();
    const Ended ended = RunCommand(Traced(*training_));
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    summary_ = std::make_unique<Json>(ended.json());
    trace_ = std::make_unique<Json>(ReadTrace(*training_));
    ASSERT_TRUE(trace_->is_object()) << "the trace is not JSON";
  }
  static void TearDownTestSuite() {
    trace_.reset();
    summary_.reset();
    training_.reset();
  }
  static Json Events() { return trace_->at("traceEvents"); }

  static std::unique_ptr<Training> training_;
  static std::unique_ptr<Json> summary_, trace_;
};
std::unique_ptr<Training> TraceTest::training_;
std::unique_ptr<Json> TraceTest::summary_, TraceTest::trace_;

TEST_F(TraceTest, BytesOfEachLinkAreThoseOfTheSummary) {
  std::map<std::string, uint64_t> bytes;
  for (const Json& event : Events()) {
    if (event["ph"] == "X" && event["args"].contains("bytes")) {
      bytes[event["cat"]] += event["args"]["bytes"].get<uint64_t>();
    }
  }
  const Json& summary = *summary_;
  EXPECT_GT(bytes["nvme_read"], 0U);
  EXPECT_GT(bytes["device_write"], 0U);
  EXPECT_EQ(bytes["nvme_read"], summary["read_bytes"]["nvme"]);
  EXPECT_EQ(bytes["nvme_write"], summary["written_bytes"]["nvme"]);
  EXPECT_EQ(bytes["device_read"], summary["read_bytes"]["pinned"]);
  EXPECT_EQ(bytes["device_write"], summary["written_bytes"]["pinned"]);
  EXPECT_EQ((*trace_)["otherData"]["read_bytes"], summary["read_bytes"]);
  EXPECT_EQ((*trace_)["otherData"]["written_bytes"], summary["written_bytes"]);
  EXPECT_EQ((*trace_)["otherData"]["dropped_events"], 0);
}

TEST_F(TraceTest, SpansOfATrackFollowOneAnotherOrNest) {
  const auto tracks = Tracks(*trace_);
  EXPECT_GE(tracks.size(), 8U) << "steps, commits, compute, waiting, four links, the mover";
  constexpr double kRounding = 1e-6;  // error of begin + length, in microseconds
  for (auto [track, spans] : tracks) {
    std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first, -a.second) < std::pair(b.first, -b.second);
    });
    std::vector<double> open;  // ends of the enclosing spans, outermost first
    for (const auto& [begin, end] : spans) {
      while (!open.empty() && open.back() <= begin + kRounding) open.pop_back();
      if (!open.empty()) {
        ASSERT_LE(end, open.back() + kRounding) << "track " << track.first << "/" << track.second;
      }
      open.push_back(end);
    }
  }
}

TEST_F(TraceTest, CountersStayWithinTheBudgets) {
  std::map<std::string, uint64_t> most;
  for (const Json& event : Events()) {
    if (event["ph"] != "C" || !event["args"].contains("bytes held")) continue;
    uint64_t& tier = most[event["name"]];
    tier = std::max(tier, event["args"]["bytes held"].get<uint64_t>());
  }
  EXPECT_LE(most["device"], kDeviceBytes);
  EXPECT_LE(most["pinned"], kPinnedBytes);
  EXPECT_GT(most["device"], kDeviceBytes / 2);
  EXPECT_GT(most["pinned"], kPinnedBytes / 2);
  EXPECT_GT(most["nvme"], kPinnedBytes);
  EXPECT_EQ((*trace_)["otherData"]["budget_bytes"]["device"], kDeviceBytes);
  EXPECT_TRUE((*trace_)["otherData"]["budget_bytes"]["nvme"].is_null());
}

TEST_F(TraceTest, StepsCommitsEvaluationsAndStallsAreThere) {
  std::map<std::string, int> spans;
  const std::vector<Json> log = ReadLog(training_->log());
  ASSERT_EQ(log.size(), size_t{kSteps});
  for (const Json& event : Events()) {
    if (event["ph"] != "X") continue;
    ++spans[event["cat"]];
    if (event["cat"] == "step") {
      const int64_t step = event["args"]["step"];
      EXPECT_EQ(event["args"]["loss"], log[step - 1]["loss"]);
      EXPECT_NEAR(event["dur"].get<double>() / 1e6, log[step - 1]["seconds"], 1e-6);
    }
    if (event["cat"] == "stall") {
      EXPECT_THAT(event["args"]["tile"].get<std::string>(), Not(IsEmpty()));
      EXPECT_THAT(event["args"]["cause"].get<std::string>(), Not(IsEmpty()));
    }
  }
  EXPECT_EQ(spans["step"], kSteps);
  EXPECT_EQ(spans["evaluation"], kSteps / 2);
  EXPECT_EQ(spans["commit"], 2 * kSteps / 2) << "each with what it writes inside";
  EXPECT_GT(spans["stall"], 10);
  EXPECT_GT(spans["compute"], 10);
  EXPECT_GT(spans["mover"], 10);
}

TEST_F(TraceTest, ChangesNoNumber) {
  const Training plain;
  const Ended ended = RunCommand(plain.TrainInStore(kSteps) + Tight());
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(plain.NumbersOf(ended.json()), training_->NumbersOf(*summary_));
}

TEST(Trace, IsWrittenAfterCtrlC) {
  const Training training;
  Command command(Traced(training, 100'000'000));
  while (!command.has_ended() && ReadLog(training.log()).size() < 3) usleep(2000);
  command.Signal(SIGINT);
  const Ended ended = command.Wait();
  ASSERT_EQ(ended.exit_code, 130) << ended.err;
  const Json trace = ReadTrace(training);
  ASSERT_TRUE(trace.is_object());
  const Json& events = trace["traceEvents"];
  EXPECT_GE(std::count_if(events.begin(), events.end(),
                          [](const Json& event) { return event.value("cat", "") == "step"; }),
            3);
}

TEST(Trace, IsWrittenAfterAnError) {
  const Training training;
  // The learning rate is so high that the gradient of some step is not finite.
  Arguments arguments = Traced(training, 50);
  *std::next(std::find(arguments.begin(), arguments.end(), "--lr")) = "10";
  const Ended ended = RunCommand(arguments + Arguments{"--clip", "0", "--weight-decay", "100"});
  ASSERT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("not finite"));
  EXPECT_TRUE(ReadTrace(training).is_object());
}

TEST(Trace, APlaceThatCannotBeWrittenIsRefusedFirst) {
  const Training training;
  const Ended ended = RunCommand(training.TrainInStore(1) +
                                 Arguments{"--trace", training / "no/such/folder/trace.json"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("no/such/folder/trace.json"));
  EXPECT_FALSE(std::filesystem::exists(training.store()));
}

// --- The page ---

size_t Count(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  return static_cast<size_t>(std::distance(
      std::sregex_iterator(text.begin(), text.end(), expression), std::sregex_iterator()));
}

class PageTest : public TraceTest {
 protected:
  std::string Page(const Arguments& run) {
    const Ended ended = RunCommand(Arguments{"report"} + run + Arguments{"--out", page_});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_EQ(ended.out, page_ + "\n");
    return ReadFile(page_);
  }

  TempFolder folder_;
  const std::string page_ = folder_ / "report.html";
};

TEST_F(PageTest, NamesNothingToLoad) {
  const std::string html = Page({training_->log(), TraceOf(*training_)});
  EXPECT_EQ(Count(html, "https?://(?!www\\.w3\\.org/2000/svg)"), 0U);
  EXPECT_EQ(Count(html, "<(script|link|img)[^>]* (src|href)=\"(?!data:)"), 0U);
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
}

TEST_F(PageTest, RendersInABrowser) {
  if (!HasBrowser()) GTEST_SKIP() << "no chromium: apt-get install chromium";
  Page({training_->log(), TraceOf(*training_)});
  const Opened opened = OpenInBrowser(folder_, page_);
  EXPECT_THAT(opened.console, IsEmpty());
  EXPECT_THAT(opened.document, HasSubstr("data-rendered=\"yes\""));
  for (const char* title :
       {"Loss", "Tokens per second", "Where a step’s time went", "Bytes over NVMe a step",
        "A step, closely", "Why callers waited", "How full the tiers were", "Links"}) {
    EXPECT_THAT(opened.document, HasSubstr("<h2>" + std::string(title) + "</h2>"));
  }
  EXPECT_EQ(Count(opened.document, "<option "), size_t{kSteps}) << "a step each to look at";
  EXPECT_GE(Count(opened.document, "<svg "), 8U);
  EXPECT_THAT(opened.document, Not(HasSubstr("NaN")));
  std::smatch spans;
  ASSERT_TRUE(std::regex_search(opened.document, spans, std::regex("data-spans=\"(\\d+)\"")));
  EXPECT_GT(std::stoi(spans[1]), 50) << "the step's timeline was drawn";
}

TEST_F(PageTest, RendersFromEitherFileAloneAndWithBounds) {
  if (!HasBrowser()) GTEST_SKIP() << "no chromium: apt-get install chromium";
  const std::string bounded = folder_ / "bounded.jsonl";
  std::string lines;
  for (Json line : ReadLog(training_->log())) {
    line["nvme_bytes_bound"] = 1'000'000;
    line["time_bound_s"] = line["seconds"].get<double>() / 2;
    line["loss"] = nullptr;  // as in a step that overflowed
    lines += line.dump() + "\n";
  }
  WriteFile(bounded, lines);
  const std::string other_cause = folder_ / "other.json";
  WriteFile(other_cause,
            std::regex_replace(ReadFile(TraceOf(*training_)), std::regex("\"cause\":\"[^\"]*\""),
                               "\"cause\":\"another cause\""));
  const std::vector<std::pair<Arguments, std::string>> runs = {
      {{training_->log()}, "A trace (train --trace) says for what"},
      {{TraceOf(*training_)}, "A step, closely"},
      {{bounded, TraceOf(*training_)}, "2.00 ×"},
      {{other_cause}, "waiting: another cause"}};
  for (const auto& [run, words] : runs) {
    SCOPED_TRACE(run.front());
    Page(run);
    const Opened opened = OpenInBrowser(folder_, page_);
    EXPECT_THAT(opened.console, IsEmpty());
    EXPECT_THAT(opened.document, HasSubstr("data-rendered=\"yes\""));
    EXPECT_THAT(opened.document, HasSubstr(words));
  }
}

TEST_F(PageTest, ABusyStepSaysHowManyOfItsEventsAreDrawn) {
  if (!HasBrowser()) GTEST_SKIP() << "no chromium: apt-get install chromium";
  Json trace = *trace_;
  Json& events = trace["traceEvents"];
  const Json mover = *std::find_if(events.begin(), events.end(), [](const Json& event) {
    return event["ph"] == "X" && event["cat"] == "mover";
  });
  events = Json::array();  // without steps, all events are in one window
  for (int i = 0; i < 60'001; ++i) events.push_back(mover);
  WriteFile(folder_ / "busy.json", trace.dump());
  for (const auto& [name, is_cut] :
       {std::pair(folder_ / "busy.json", true), {TraceOf(*training_), false}}) {
    Page({training_->log(), name});
    const Opened opened = OpenInBrowser(folder_, page_);
    EXPECT_THAT(opened.console, IsEmpty());
    const bool is_said = opened.document.find("<p class=\"note\">60,000 of 60,001 events drawn") !=
                         std::string::npos;
    EXPECT_EQ(is_said, is_cut) << name;
  }
}

// A log of 3,999 steps: each tenth one was skipped and each hundredth one evaluated. The last step
// is neither, and differs from the others.
std::string LongLog() {
  std::string lines;
  for (int step = 1; step <= 3999; ++step) {
    Json line = {{"v", 1},
                 {"step", step},
                 {"loss", step == 1      ? 9.25
                          : step == 3999 ? 4.1234
                                         : 5.0},
                 {"skipped", step % 10 == 0},
                 {"tokens_per_s", step % 2 == 0 ? 100.0 : 200.0},
                 {"seconds", 0.5},
                 {"stall_s", step % 2 == 0 ? 0.25 : 0.125},
                 {"read_bytes", {{"nvme", 1000}, {"pinned", 10}}},
                 {"written_bytes", {{"nvme", 24}, {"pinned", 10}}}};
    if (step % 100 == 0) line["eval_loss"] = 3.0 + step / 1e4;
    lines += line.dump() + "\n";
  }
  return lines;
}

TEST(PageData, ALongLogKeepsItsFirstStepItsEvaluationsAndItsSkippedSteps) {
  std::istringstream in(LongLog());
  run_report::RunFiles files;
  ASSERT_TRUE(run_report::ReadRunFile(in, "log.jsonl", &files).ok());
  const Json data = run_report::PageData(files);
  EXPECT_EQ(data["steps_in_all"], 3999);
  EXPECT_LT(data["steps"].size(), 3000U);
  std::map<std::string, int> seen;
  int64_t before = 0;
  for (const Json& step : data["steps"]) {
    EXPECT_GT(step["step"], before) << "in order, each once";
    before = step["step"];
    seen["evaluated"] += step.contains("eval_loss") ? 1 : 0;
    seen["skipped"] += step["skipped"] ? 1 : 0;
  }
  EXPECT_EQ(data["steps"].front()["step"], 1);
  EXPECT_EQ(before, 3999);
  EXPECT_EQ(seen["evaluated"], 39);
  EXPECT_EQ(seen["skipped"], 399);
  const Json& figures = data["figures"];
  EXPECT_EQ(figures["first_loss"], 9.25);
  EXPECT_EQ(figures["last_loss"], 4.1234);
  EXPECT_EQ(figures["last_eval_loss"], 3.39);
  EXPECT_EQ(figures["skipped"], 399);
  EXPECT_EQ(figures["tokens_per_s"], 200.0) << "2,000 of 3,999";
  EXPECT_NEAR(figures["share_waiting"], (1999 * 0.25 + 2000 * 0.125) / (3999 * 0.5), 1e-12);
  EXPECT_EQ(figures["nvme_bytes"], 1024.0);
  EXPECT_TRUE(figures["byte_ratio"].is_null());
}

TEST(PageData, ALogWhoseStepsAreAllEvaluatedIsThinnedToo) {
  run_report::RunFiles files;
  std::istringstream in(LongLog());
  ASSERT_TRUE(run_report::ReadRunFile(in, "log.jsonl", &files).ok());
  for (Json& line : files.log) line["eval_loss"] = 3.0;
  for (int copies = 0; copies < 2; ++copies) {
    const std::vector<Json> again = files.log;
    files.log.insert(files.log.end(), again.begin(), again.end());
  }
  const Json data = run_report::PageData(files);
  EXPECT_EQ(data["steps_in_all"], 4 * 3999);
  EXPECT_LE(data["steps"].size(), 4001U);
}

// A run of 10 s of which the trace has the last second: a link was busy for 0.7 s of it.
std::string TraceOfTheEnd() {
  const auto span = [](const char* category, double ts, double dur, const Json& args) {
    return Json{{"ph", "X"},   {"pid", 1}, {"tid", 1},   {"cat", category},
                {"name", "w"}, {"ts", ts}, {"dur", dur}, {"args", args}};
  };
  const auto level = [](const char* tier, double ts, uint64_t bytes) {
    return Json{{"ph", "C"}, {"name", tier}, {"ts", ts}, {"args", {{"bytes held", bytes}}}};
  };
  const Json read = {{"bytes", 1000}, {"why", "lease"}};
  return Json{{"otherData",
               {{"format", "spillway trace"},
                {"v", 1},
                {"dropped_events", 5},
                {"begin_us", 9e6},
                {"duration_us", 1e7},
                {"budget_bytes", {{"device", 100}, {"pinned", nullptr}, {"nvme", nullptr}}}}},
              {"traceEvents",
               {span("nvme_read", 8.5e6, 0.7e6, read), span("nvme_read", 9.5e6, 0.5e6, read),
                span("compute", 9.2e6, 0.3e6, Json::object()), level("pinned", 9e6, 4096),
                level("pinned", 9.9e6, 8192), level("device", 9.5e6, 50)}}}
      .dump();
}

TEST(PageData, IsAboutThePartOfTheRunOfWhichNoEventWasDropped) {
  std::istringstream in(TraceOfTheEnd());
  run_report::RunFiles files;
  const absl::Status read = run_report::ReadRunFile(in, "trace.json", &files);
  ASSERT_TRUE(read.ok()) << read;
  const Json trace = run_report::PageData(files)["trace"];
  EXPECT_EQ(trace["dropped_events"], 5);
  EXPECT_EQ(trace["all"]["begin_us"], 9e6);
  EXPECT_EQ(trace["all"]["end_us"], 1e7);
  EXPECT_NEAR(trace["all"]["links"]["nvme_read"]["busy_us"].get<double>(), 0.7e6, 1);
  EXPECT_EQ(trace["held"]["pinned"], (Json{{9e6, 4096}, {9.9e6, 8192}}));
  EXPECT_EQ(trace["held"]["device"], (Json::array({{9.5e6, 50}})));
  EXPECT_EQ(trace["in_steps"]["us"], 0.0);
  ASSERT_EQ(trace["windows"].size(), 1U);
  EXPECT_EQ(trace["windows"][0]["begin_us"], 9e6);
}

TEST_F(PageTest, ATraceOfTheEndOfARunIsNotSpreadOverTheWholeRun) {
  if (!HasBrowser()) GTEST_SKIP() << "no chromium: apt-get install chromium";
  WriteFile(folder_ / "end.json", TraceOfTheEnd());
  Page({training_->log(), folder_ / "end.json"});
  const Opened opened = OpenInBrowser(folder_, page_);
  EXPECT_THAT(opened.console, IsEmpty());
  EXPECT_THAT(opened.document, HasSubstr("the last 1.00 s recorded: 5 older events were dropped"));
  EXPECT_THAT(opened.document, HasSubstr("The trace holds no whole step"));
  EXPECT_THAT(opened.document, HasSubstr("<td class=\"n\">70 %</td>")) << "of the last second";
  EXPECT_THAT(opened.document, Not(HasSubstr("NaN")));
}

// Returns the labels of a chart's axis: of the x axis if `anchor` is "middle", of the y axis if it
// is "end". The chart is the first one in `text`.
std::vector<std::string> LabelsOf(const std::string& text, const std::string& anchor) {
  const std::string chart = text.substr(0, text.find("</svg>"));
  const std::regex label("text-anchor=\"" + anchor + "\">([^<]*)<");
  std::vector<std::string> labels;
  for (std::sregex_iterator at(chart.begin(), chart.end(), label); at != std::sregex_iterator();
       ++at) {
    labels.push_back((*at)[1]);
  }
  return labels;
}

TEST_F(PageTest, TheLossOfALongRunIsLegible) {
  if (!HasBrowser()) GTEST_SKIP() << "no chromium: apt-get install chromium";
  std::string lines;
  for (int step = 1; step <= 99'991; step += 90) {
    const Json line = {{"v", 1},
                       {"step", step},
                       {"loss", 4.1234 - step * 1e-8},
                       {"tokens_per_s", 100},
                       {"seconds", 0.5},
                       {"stall_s", 0},
                       {"read_bytes", {{"nvme", 0}, {"pinned", 0}}},
                       {"written_bytes", {{"nvme", 0}, {"pinned", 0}}}};
    lines += line.dump() + "\n";
  }
  WriteFile(folder_ / "flat.jsonl", lines);
  Page({folder_ / "flat.jsonl"});
  const Opened opened = OpenInBrowser(folder_, page_);
  EXPECT_THAT(opened.console, IsEmpty());
  EXPECT_THAT(opened.document, HasSubstr("4.1234 → 4.1224"));
  const std::string learning = opened.document.substr(opened.document.find("<h2>Loss</h2>"));
  std::vector<std::string> losses = LabelsOf(learning, "end");
  EXPECT_GE(losses.size(), 2U);
  std::sort(losses.begin(), losses.end());
  EXPECT_EQ(std::adjacent_find(losses.begin(), losses.end()), losses.end()) << losses.front();
  const std::vector<std::string> at = LabelsOf(learning, "middle");
  ASSERT_GE(at.size(), 1U);
  EXPECT_LE(std::stoi(at.back()), 99'991) << "no label beyond the last step";
}

TEST_F(PageTest, ABrokenPageWouldBeNoticed) {
  if (!HasBrowser()) GTEST_SKIP() << "no chromium: apt-get install chromium";
  std::string html = Page({training_->log()});
  html.replace(html.find("{\"steps\":"), 1, "");
  WriteFile(page_, html);
  const Opened opened = OpenInBrowser(folder_, page_);
  EXPECT_THAT(opened.console, HasSubstr("SyntaxError"));
  EXPECT_THAT(opened.document, Not(HasSubstr("data-rendered")));
}

// --- Bad input ---

TEST_F(PageTest, BadInputIsExplained) {
  const std::string log = ReadFile(training_->log());
  const std::string trace = ReadFile(TraceOf(*training_));
  const auto file = [&](const std::string& name, const std::string& text) {
    WriteFile(folder_ / name, text);
    return folder_ / name;
  };
  const auto replaced = [](std::string text, const std::string& from, const std::string& to) {
    EXPECT_NE(text.find(from), std::string::npos) << from;
    return text.replace(text.find(from), from.size(), to);
  };
  const size_t line = log.find('\n') + 1;
  const struct {
    Arguments run;
    int exit_code;
    std::vector<std::string> words;
  } cases[] = {
      {{}, 2, {"RUN"}},
      {{folder_ / "none.jsonl"}, 1, {"none.jsonl", "No such file"}},
      {{folder_ / ""}, 1, {"directory"}},
      {{file("empty.json", "")}, 1, {"empty.json", "empty"}},
      {{file("cut.json", trace.substr(0, trace.size() / 2))}, 1, {"cut.json", "byte", "ended"}},
      {{file("v7.json", replaced(trace, "\"v\":1", "\"v\":7"))}, 1, {"version 7", "version 1"}},
      {{file("other.json", R"({"traceEvents":[]})")}, 1, {"another program", "--trace"}},
      {{file("data.json", R"({"a":1})")}, 1, {"neither a step log nor a trace"}},
      {{file("words.txt", "step 1/4 loss 3\n")}, 1, {"words.txt", "byte 1"}},
      {{file("span.json", replaced(trace, "\"dur\":", "\"dur\":\"x\",\"was\":"))}, 1, {"event"}},
      {{file("v2.jsonl", replaced(log, "{\"v\":1", "{\"v\":2"))}, 1, {"line 1", "version 2"}},
      {{file("field.jsonl", replaced(log, "\"seconds\"", "\"minutes\""))}, 1, {"\"seconds\""}},
      {{file("bad.jsonl", log.substr(0, line) + "garbage\n" + log.substr(line))},
       1,
       {"line 2", "not JSON"}},
      {{training_->log(), training_->log()}, 1, {"second step log"}},
      {{TraceOf(*training_), TraceOf(*training_)}, 1, {"second trace"}},
      {{training_->log(), "--out", training_->log()}, 2, {"would replace"}},
      {{training_->log(), "--out", folder_ / "no/page.html"}, 1, {"no/page.html"}},
  };
  for (const auto& bad : cases) {
    Arguments arguments = Arguments{"report"} + bad.run;
    if (std::find(arguments.begin(), arguments.end(), "--out") == arguments.end()) {
      arguments = arguments + Arguments{"--out", page_};
    }
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, bad.exit_code) << ended.err;
    for (const std::string& word : bad.words) EXPECT_THAT(ended.err, HasSubstr(word));
    EXPECT_FALSE(std::ifstream(page_).is_open()) << "no page of bad input";
  }
  EXPECT_EQ(ReadFile(training_->log()), log);
}

TEST_F(PageTest, APipeIsReadLikeAFile) {
  const Ended ended =
      RunInShell("cat " + training_->log() + " |", {"report", "/dev/stdin", "--out", page_});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ReadFile(page_), HasSubstr("\"steps_in_all\":" + std::to_string(kSteps)));
}

// The command waits for the end of its input, a pipe, when it is interrupted.
TEST_F(PageTest, InterruptedWhileItReadsItLeavesNoPage) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  Command command({"report", pipe, "--out", page_});
  int writer = -1;  // opens once the command has opened the other end
  while (writer < 0 && !command.has_ended()) {
    writer = open(pipe.c_str(), O_WRONLY | O_NONBLOCK);
    usleep(2000);
  }
  ASSERT_GE(writer, 0);
  command.Signal(SIGINT);
  EXPECT_EQ(command.Wait().exit_code, -SIGINT);
  close(writer);
  EXPECT_FALSE(std::ifstream(page_).is_open());
}

TEST_F(PageTest, APageThatCannotBeWrittenIsNamed) {
  const Ended ended = RunInShell("ulimit -f 8;", {"report", training_->log(), "--out", page_});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("--out: write " + page_ + ": File too large; free some space"));
}

TEST_F(PageTest, ATornLastLineIsLeftOutAndSaid) {
  WriteFile(folder_ / "torn.jsonl", ReadFile(training_->log()) + "{\"v\":1,\"step\":5,\"lo");
  const Ended ended = RunCommand({"report", folder_ / "torn.jsonl", "--out", page_});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("torn.jsonl was torn"));
}

}  // namespace
}  // namespace spillway::test
