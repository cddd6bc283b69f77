// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/report/page_data.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace spillway::run_report {
namespace {

// Bounds on the page's data: a chart has about 1,000 pixels, and a browser must stay responsive.
constexpr size_t kMostSteps = 2'000;
constexpr size_t kMostAccounts = 500;
constexpr size_t kMostLevels = 2'000;
constexpr size_t kMostWindowSpans = 60'000;  // in all windows together
constexpr size_t kMostWindows = 40;
constexpr size_t kMostTiles = 12;

// Returns every n-th of the indices below `size`, at most `most` of them. The last index is always
// among them.
std::vector<size_t> EveryNth(size_t size, size_t most) {
  const size_t stride = std::max<size_t>(1, (size + most - 1) / most);
  std::vector<size_t> some;
  for (size_t i = 0; i < size; ++i) {
    if ((size - 1 - i) % stride == 0) some.push_back(i);
  }
  return some;
}

// Returns every n-th element, at most `most` of them. The last element is always among them.
Json Thinned(const std::vector<Json>& all, size_t most) {
  Json some = Json::array();
  for (const size_t i : EveryNth(all.size(), most)) some.push_back(all[i]);
  return some;
}

// Returns a number of a step, or none if the step has no such number.
std::optional<double> NumberIn(const Json& step, const char* key) {
  const auto found = step.find(key);
  if (found == step.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

bool IsSkipped(const Json& step) {
  const auto found = step.find("skipped");
  return found != step.end() && found->is_boolean() && found->get<bool>();
}

// Returns at most `most` steps that are spread evenly, and besides these the first step and those
// that were evaluated or skipped, of which again at most `most`.
Json ThinnedSteps(const std::vector<Json>& all, size_t most) {
  std::vector<size_t> notable;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == 0 || NumberIn(all[i], "eval_loss") || IsSkipped(all[i])) notable.push_back(i);
  }
  std::set<size_t> chosen;
  for (const size_t i : EveryNth(all.size(), most)) chosen.insert(i);
  for (const size_t i : EveryNth(notable.size(), most)) chosen.insert(notable[i]);
  if (!all.empty()) chosen.insert(0);
  Json some = Json::array();
  for (const size_t i : chosen) some.push_back(all[i]);
  return some;
}

// Returns the median, or null if there is no value.
Json Median(std::vector<double> values) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// The page's figures about all steps, whichever of them it draws. A figure is null if no step has
// what it is computed from.
Json FiguresOf(const std::vector<Json>& steps) {
  std::vector<double> seconds, tokens_per_s, nvme_bytes, byte_ratios, time_ratios;
  // Ratios from the third step on: the first two load the weights and record the plan.
  std::vector<double> later_time_ratios, later_alone_ratios;
  double all_seconds = 0, stall_s = 0;
  uint64_t skipped = 0;
  Json figures = {{"first_loss", nullptr}, {"last_loss", nullptr}, {"last_eval_loss", nullptr}};
  for (size_t i = 0; i < steps.size(); ++i) {
    const Json& step = steps[i];
    const auto number = [&](const char* key) { return NumberIn(step, key); };
    if (const auto value = number("seconds")) seconds.push_back(*value);
    if (const auto value = number("tokens_per_s")) tokens_per_s.push_back(*value);
    if (const auto value = number("eval_loss")) figures["last_eval_loss"] = *value;
    all_seconds += number("seconds").value_or(0);
    stall_s += number("stall_s").value_or(0);
    nvme_bytes.push_back(NumberIn(step.at("read_bytes"), "nvme").value_or(0) +
                         NumberIn(step.at("written_bytes"), "nvme").value_or(0));
    skipped += IsSkipped(step) ? 1 : 0;
    const double byte_bound = number("nvme_bytes_bound").value_or(0);
    if (byte_bound > 0) byte_ratios.push_back(nvme_bytes.back() / byte_bound);
    const double time_bound = number("time_bound_s").value_or(0);
    if (time_bound <= 0 || !number("seconds")) continue;
    time_ratios.push_back(*number("seconds") / time_bound);
    const auto compute = number("compute_alone_s"), transfers = number("transfers_alone_s");
    if (i < 2 || !compute || !transfers || *compute < 0) continue;
    later_time_ratios.push_back(time_ratios.back());
    const double alone = std::max(*compute, *transfers);
    if (alone > 0) later_alone_ratios.push_back(*number("seconds") / alone);
  }
  if (!steps.empty()) {
    if (const auto loss = NumberIn(steps.front(), "loss")) figures["first_loss"] = *loss;
    if (const auto loss = NumberIn(steps.back(), "loss")) figures["last_loss"] = *loss;
  }
  figures["seconds"] = Median(std::move(seconds));
  figures["tokens_per_s"] = Median(std::move(tokens_per_s));
  figures["nvme_bytes"] = Median(std::move(nvme_bytes));
  figures["share_waiting"] = all_seconds > 0 ? Json(stall_s / all_seconds) : Json();
  figures["byte_ratio"] = Median(std::move(byte_ratios));
  figures["time_ratio"] = Median(std::move(time_ratios));
  figures["later_time_ratio"] = Median(std::move(later_time_ratios));
  figures["later_alone_ratio"] = Median(std::move(later_alone_ratios));
  figures["skipped"] = skipped;
  return figures;
}

// Returns the levels between two times. If they are many, keeps the lowest, the highest and the
// last of each bucket of time, so that no peak is lost.
Json ThinnedLevels(const std::vector<Level>& levels, double begin_us, double end_us) {
  Json thinned = Json::array();
  const auto put = [&](const Level& level) {
    thinned.push_back({std::round(level.at_us * 10) / 10, level.bytes});
  };
  auto from = std::upper_bound(levels.begin(), levels.end(), begin_us,
                               [](double at, const Level& level) { return at < level.at_us; });
  if (from != levels.begin()) put({begin_us, std::prev(from)->bytes});
  const auto to = std::lower_bound(from, levels.end(), end_us,
                                   [](const Level& level, double at) { return level.at_us < at; });
  const size_t buckets = kMostLevels / 2;
  const double width = (end_us - begin_us) / static_cast<double>(buckets);
  if (static_cast<size_t>(to - from) <= kMostLevels) {
    std::for_each(from, to, put);
    return thinned;
  }
  const auto lower = [](const Level& a, const Level& b) { return a.bytes < b.bytes; };
  for (size_t bucket = 0; bucket < buckets; ++bucket) {
    const double edge = begin_us + static_cast<double>(bucket + 1) * width;
    auto end = std::find_if(from, to, [&](const Level& level) { return level.at_us >= edge; });
    if (bucket + 1 == buckets) end = to;
    if (end == from) continue;
    auto [least, most] = std::minmax_element(from, end, lower);
    if (most < least) std::swap(least, most);
    put(*least);
    if (most != least) put(*most);
    if (std::prev(end) > std::max(least, most)) put(*std::prev(end));
    from = end;
  }
  return thinned;
}

bool IsLink(SpanKind kind) { return kind >= SpanKind::kNvmeRead && kind <= SpanKind::kDeviceWrite; }
const char* NameOf(SpanKind kind) { return kSpanKinds[static_cast<size_t>(kind)]; }

// Measures the time that is covered by at least one span. REQUIRES: spans are added in the order of
// their begin.
class Union {
 public:
  void Add(double begin_us, double end_us) {
    total_us_ += std::max(0.0, end_us - std::max(begin_us, covered_us_));
    covered_us_ = std::max(covered_us_, end_us);
  }
  double total_us() const { return total_us_; }

 private:
  double covered_us_ = -1e300;
  double total_us_ = 0;
};

struct Link {
  uint64_t bytes = 0;
  uint64_t moves = 0;
  Union busy;
};

// Totals of what happened between two times.
struct Account {
  double begin_us = 0;
  double end_us = 0;
  double compute_us = 0;
  double mover_us = 0;
  double commit_us = 0;
  std::map<std::string, double> stall_us;  // by cause
  std::map<std::string, uint64_t> stalls;
  std::map<std::string, Link> links;
  std::map<std::string, std::map<std::string, uint64_t>> why;  // bytes by link and reason

  // A transfer's bytes count if it ends in this interval, as in the step log. A span's time counts
  // as far as it lies in the interval.
  void Add(const Span& span, const std::vector<std::string>& names) {
    const double begin = std::max(span.begin_us, begin_us);
    const double end = std::min(span.end_us, end_us);
    const double us = std::max(0.0, end - begin);
    if (span.kind == SpanKind::kCompute) compute_us += us;
    if (span.kind == SpanKind::kMover) mover_us += us;
    if (span.kind == SpanKind::kCommit && names[span.name] == "commit") commit_us += us;
    if (span.kind == SpanKind::kStall && us > 0) {
      stall_us[names[span.why]] += us;
      ++stalls[names[span.why]];
    }
    if (!IsLink(span.kind)) return;
    Link& link = links[NameOf(span.kind)];
    if (us > 0) link.busy.Add(begin, end);
    if (span.end_us <= begin_us || span.end_us > end_us) return;
    link.bytes += span.bytes;
    ++link.moves;
    why[NameOf(span.kind)][names[span.why]] += span.bytes;
  }

  Json ToJson() const {
    Json json = {{"begin_us", begin_us},     {"end_us", end_us},       {"compute_us", compute_us},
                 {"mover_us", mover_us},     {"commit_us", commit_us}, {"stall_us", Json::object()},
                 {"stalls", Json::object()}, {"links", Json::object()}};
    for (const auto& [cause, us] : stall_us) json["stall_us"][cause] = us;
    for (const auto& [cause, count] : stalls) json["stalls"][cause] = count;
    for (const auto& [name, link] : links) {
      json["links"][name] = {
          {"bytes", link.bytes},
          {"moves", link.moves},
          {"busy_us", link.busy.total_us()},
          {"why", Json(why.contains(name) ? why.at(name) : std::map<std::string, uint64_t>())}};
    }
    return json;
  }
};

// Returns an account of each step. Steps are in order and do not overlap.
std::vector<Account> AccountsOfSteps(const RunTrace& trace) {
  std::vector<Account> accounts;
  for (const Span& span : trace.spans) {
    if (span.kind != SpanKind::kStep) continue;
    Account& account = accounts.emplace_back();
    account.begin_us = span.begin_us;
    account.end_us = span.end_us;
  }
  for (const Span& span : trace.spans) {
    auto account = std::partition_point(accounts.begin(), accounts.end(), [&](const Account& step) {
      return step.end_us <= span.begin_us;
    });
    for (; account != accounts.end() && account->begin_us < span.end_us; ++account) {
      account->Add(span, trace.names);
    }
  }
  return accounts;
}

// Returns the totals of all steps: their time, and of it the compute, the stalls by cause and the
// use of each link.
Json TotalsOf(const std::vector<Account>& steps) {
  double us = 0, compute_us = 0;
  std::map<std::string, double> stall_us, busy_us;
  for (const Account& step : steps) {
    us += step.end_us - step.begin_us;
    compute_us += step.compute_us;
    for (const auto& [cause, stalled] : step.stall_us) stall_us[cause] += stalled;
    for (const auto& [name, link] : step.links) busy_us[name] += link.busy.total_us();
  }
  return {{"us", us},
          {"compute_us", compute_us},
          {"stall_us", Json(stall_us)},
          {"busy_us", Json(busy_us)}};
}

// Returns the tiles that callers waited for longest, each with its main cause.
Json SlowestTiles(const RunTrace& trace) {
  struct Waited {
    double us = 0;
    uint64_t count = 0;
    std::map<uint32_t, double> causes;
  };
  std::unordered_map<uint32_t, Waited> by_tile;
  for (const Span& span : trace.spans) {
    if (span.kind != SpanKind::kStall) continue;
    Waited& waited = by_tile[span.name];
    waited.us += span.end_us - span.begin_us;
    waited.causes[span.why] += span.end_us - span.begin_us;
    ++waited.count;
  }
  std::vector<std::pair<uint32_t, const Waited*>> order;
  for (const auto& [tile, waited] : by_tile) order.emplace_back(tile, &waited);
  std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return std::pair(-a.second->us, a.first) < std::pair(-b.second->us, b.first);
  });
  if (order.size() > kMostTiles) order.resize(kMostTiles);
  Json tiles = Json::array();
  for (const auto& [tile, waited] : order) {
    const auto main =
        std::max_element(waited->causes.begin(), waited->causes.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    tiles.push_back({{"tile", trace.names[tile]},
                     {"us", waited->us},
                     {"count", waited->count},
                     {"cause", trace.names[main->first]}});
  }
  return tiles;
}

// An interval that the page shows in detail: from a step's begin to the next one's, so that it
// includes the evaluations and commits between them.
struct Window {
  std::string title;
  int64_t step = 0;
  double begin_us = 0;
  double end_us = 0;
};

std::vector<Window> Windows(const RunTrace& trace) {
  std::vector<Window> windows;
  for (const Span& span : trace.spans) {
    if (span.kind != SpanKind::kStep) continue;
    if (!windows.empty()) windows.back().end_us = span.begin_us;
    windows.push_back({trace.names[span.name], span.step, span.begin_us, span.end_us});
  }
  // A commit usually follows the last step, and belongs to its window.
  if (!windows.empty()) windows.back().end_us = trace.duration_us;
  if (windows.empty())
    windows.push_back({"all that was recorded", 0, trace.begin_us, trace.duration_us});
  return windows;
}

// Collects the names that a page uses, and numbers them in the order of their first use.
class PageNames {
 public:
  explicit PageNames(const std::vector<std::string>& names) : names_(names) {}
  size_t operator()(uint32_t name) {
    const auto [found, is_new] = numbers_.try_emplace(name, numbers_.size());
    if (is_new) json_.push_back(names_[name]);
    return found->second;
  }
  Json Take() { return std::move(json_); }

 private:
  const std::vector<std::string>& names_;
  std::unordered_map<uint32_t, size_t> numbers_;
  Json json_ = Json::array();
};

// Returns spans as [kind, thread, begin, length, name, why, bytes or, for a stall, the tile in the
// way]. Times are in tenths of microseconds, and begins count from the window's begin.
Json SpansOf(const RunTrace& trace, const Window& window, PageNames& names, size_t most) {
  Json spans = Json::array();
  const auto tenths = [](double us) { return static_cast<int64_t>(std::llround(us * 10)); };
  for (const Span& span : trace.spans) {
    if (span.end_us <= window.begin_us || span.begin_us >= window.end_us) continue;
    if (spans.size() == most) break;
    const Json last = span.kind == SpanKind::kStall ? Json(names(span.other)) : Json(span.bytes);
    spans.push_back({static_cast<int>(span.kind), span.thread,
                     tenths(span.begin_us - window.begin_us), tenths(span.end_us - span.begin_us),
                     names(span.name), names(span.why), last});
  }
  return spans;
}

size_t CountSpans(const RunTrace& trace, const Window& window) {
  return static_cast<size_t>(
      std::count_if(trace.spans.begin(), trace.spans.end(), [&](const Span& span) {
        return span.end_us > window.begin_us && span.begin_us < window.end_us;
      }));
}

// Returns the longest window, and the newest of the others that there is room for.
std::vector<const Window*> Chosen(const RunTrace& trace, const std::vector<Window>& windows) {
  const auto longest =
      std::max_element(windows.begin(), windows.end(), [](const Window& a, const Window& b) {
        return a.end_us - a.begin_us < b.end_us - b.begin_us;
      });
  std::vector<const Window*> chosen = {&*longest};
  size_t spans = CountSpans(trace, *longest);
  for (auto window = windows.rbegin(); window != windows.rend(); ++window) {
    if (&*window == &*longest) continue;
    spans += CountSpans(trace, *window);
    const bool is_full = spans > kMostWindowSpans || chosen.size() == kMostWindows;
    if (is_full && chosen.size() > 1) break;  // at least one besides the longest
    chosen.push_back(&*window);
    if (is_full) break;
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

Json TraceData(const RunTrace& trace) {
  Json json = {{"dropped_events", trace.dropped_events}};
  for (size_t tier = 0; tier < kTierNames.size(); ++tier) {
    const auto budget = trace.budget_bytes[tier];
    json["budget_bytes"][kTierNames[tier]] = budget ? Json(*budget) : Json();
    json["held"][kTierNames[tier]] =
        ThinnedLevels(trace.held[tier], trace.begin_us, trace.duration_us + 1);
  }
  Account all;
  all.begin_us = trace.begin_us;
  all.end_us = trace.duration_us;
  for (const Span& span : trace.spans) all.Add(span, trace.names);
  json["all"] = all.ToJson();
  const std::vector<Account> accounts = AccountsOfSteps(trace);
  json["in_steps"] = TotalsOf(accounts);
  std::vector<Json> steps;
  for (const Account& account : accounts) {
    Json& step = steps.emplace_back(account.ToJson());
    step["step"] = trace.steps[steps.size() - 1].value("step", int64_t{0});
  }
  json["steps"] = Thinned(steps, kMostAccounts);
  json["tiles"] = SlowestTiles(trace);

  const std::vector<Window> windows = Windows(trace);
  PageNames names(trace.names);
  json["windows_in_all"] = windows.size();
  json["windows"] = Json::array();
  for (const Window* window : Chosen(trace, windows)) {
    Json held;
    for (size_t tier = 0; tier < kTierNames.size(); ++tier) {
      held[kTierNames[tier]] = ThinnedLevels(trace.held[tier], window->begin_us, window->end_us);
    }
    json["windows"].push_back({{"title", window->title},
                               {"step", window->step},
                               {"begin_us", window->begin_us},
                               {"end_us", window->end_us},
                               {"spans_in_all", CountSpans(trace, *window)},
                               {"spans", SpansOf(trace, *window, names, kMostWindowSpans)},
                               {"held", std::move(held)}});
  }
  json["names"] = names.Take();
  json["kinds"] = kSpanKinds;
  return json;
}

// Returns the steps as lines of the step log, with those fields that the trace gives.
std::vector<Json> StepsOfTrace(const RunTrace& trace) {
  std::vector<Json> steps;
  for (const Account& account : AccountsOfSteps(trace)) {
    const auto bytes = [&](SpanKind kind) {
      const auto found = account.links.find(NameOf(kind));
      return found == account.links.end() ? uint64_t{0} : found->second.bytes;
    };
    double stall_us = 0;
    for (const auto& [cause, us] : account.stall_us) stall_us += us;
    Json step = trace.steps[steps.size()];
    step["seconds"] = (account.end_us - account.begin_us) / 1e6;
    step["stall_s"] = stall_us / 1e6;
    step["read_bytes"] = {{"nvme", bytes(SpanKind::kNvmeRead)},
                          {"pinned", bytes(SpanKind::kDeviceRead)}};
    step["written_bytes"] = {{"nvme", bytes(SpanKind::kNvmeWrite)},
                             {"pinned", bytes(SpanKind::kDeviceWrite)}};
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace

Json PageData(const RunFiles& files) {
  const std::vector<Json> steps =
      !files.log.empty() ? files.log
                         : (files.trace ? StepsOfTrace(*files.trace) : std::vector<Json>());
  return {{"steps", ThinnedSteps(steps, kMostSteps)},
          {"steps_in_all", steps.size()},
          {"figures", FiguresOf(steps)},
          {"has_log", !files.log.empty()},
          {"notes", files.notes},
          {"trace", files.trace ? TraceData(*files.trace) : Json()}};
}

}  // namespace spillway::run_report
