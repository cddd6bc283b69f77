// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/plan_page.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/bytes.h"
#include "tools/spillway/command/html_text.h"
#include "tools/spillway/plan/answer_words.h"
#include "tools/spillway/plan/page_parts.h"
#include "tools/spillway/plan/page_style.h"

namespace spillway::command {
namespace {

using base::FormatBytes;

constexpr size_t kStretches = 240;

std::string Heading(std::string_view title, std::string_view note = "") {
  return absl::StrCat(
      "<h2>", EscapeHtml(title), "</h2>\n",
      note.empty() ? "" : absl::StrCat("<p class=\"note\">", EscapeHtml(note), "</p>\n"));
}

std::string Paragraph(std::string_view text) {
  return absl::StrCat("<p>", EscapeHtml(text), "</p>\n");
}

std::string Code(std::string_view text) {
  return absl::StrCat("<pre>", EscapeHtml(text), "</pre>\n");
}

std::string Card(std::string_view figure, std::string_view words) {
  return absl::StrCat("<div><b>", EscapeHtml(figure), "</b>", EscapeHtml(words), "</div>\n");
}

// --- The sections, from the top ---

std::string VerdictSection(const PlanPage& page) {
  const Question& question = page.question;
  std::string html = absl::StrCat(
      "<header><p class=\"kind\">spillway plan</p><h1>", EscapeHtml(question.model.title),
      "</h1>\n",
      Paragraph(absl::StrCat(Short(static_cast<double>(question.num_parameters)), " parameters on ",
                             MachineWords(question.hardware))),
      Paragraph(absl::StrCat(
          RecipeWords(question),
          question.model.config ? absl::StrCat(". A step: ", StepWords(question)) : "")),
      "</header>\n");
  return absl::StrCat(html, "<p class=\"verdict ", page.answer.fit.fits() ? "yes" : "no", "\">",
                      EscapeHtml(VerdictWords(question, page.answer)), "</p>\n");
}

std::string CardsSection(const PlanPage& page) {
  const Question& question = page.question;
  std::string html = "<section class=\"cards\">\n";
  if (page.answer.cost) {
    const StepCost& cost = *page.answer.cost;
    const double tokens = static_cast<double>(question.tokens) / cost.seconds;
    absl::StrAppend(&html, Card(SecondsWords(cost.seconds), "a step"),
                    Card(Short(tokens), "tokens a second"),
                    Card(absl::StrFormat("%.1f%%", 100 * ModelFlopUtilisation(question, cost)),
                         "of the GPU's peak (MFU)"),
                    Card(DaysWords(DaysFor(page.wishes.train_tokens, question, cost)),
                         absl::StrCat("for ", Short(page.wishes.train_tokens), " tokens")));
    const DriveWear wear = WearOf(page.wishes.endurance_bytes, question, cost);
    if (wear.days > 0) {
      absl::StrAppend(&html, Card(DaysWords(wear.days), "until the drives are worn out"));
    } else if (wear.written_a_day > 0) {
      absl::StrAppend(&html, Card(BytesWords(wear.written_a_day), "written to each drive a day"));
    }
  }
  const LargestModel& largest = page.answer.largest;
  absl::StrAppend(&html,
                  Card(largest.parameters == 0 ? std::string("none")
                                               : Short(static_cast<double>(largest.parameters)),
                       "parameters of the largest model of this width"));
  return absl::StrCat(html, "</section>\n");
}

std::string ChangesTable(const std::vector<FitChange>& changes) {
  std::string html = "<table>\n";
  for (const FitChange& change : changes)
    absl::StrAppend(&html, "<tr><td><code>", EscapeHtml(change.flags), "</code></td><td>",
                    EscapeHtml(change.costs), "</td></tr>\n");
  return absl::StrCat(html, "</table>\n");
}

std::string AdviceSection(const PlanPage& page) {
  if (page.answer.fit.fits()) return "";
  const FitAdvice& advice = page.answer.advice;
  std::string html = Heading("What makes it fit");
  if (!advice.alone.empty())
    absl::StrAppend(&html, Paragraph("Each of these alone:"), ChangesTable(advice.alone));
  if (!advice.together.empty())
    absl::StrAppend(&html, Paragraph("These together:"), ChangesTable(advice.together));
  if (advice.alone.empty() && advice.together.empty())
    absl::StrAppend(&html, Paragraph("Nothing that could be changed here."));
  return html;
}

// What rests in a tier, as one bar. Where tiles come and go, a bar for each role at its own
// fullest.
std::string TierBars(const Answer& answer, size_t tier) {
  const auto room = static_cast<double>(answer.fit.tiers[tier].room);
  std::vector<BarPart> parts;
  double sum = 0;
  for (const HeldPart& held : PartsOf(answer, tier)) {
    const auto bytes = static_cast<double>(held.bytes);
    parts.push_back({held.title, held.key, bytes, FormatBytes(held.bytes)});
    sum += bytes;
  }
  const auto needed = static_cast<double>(answer.fit.tiers[tier].needed);
  if (!Moves(answer, tier)) {
    if (sum < needed)
      parts.push_back({"leased together", "leased", needed - sum, BytesWords(needed - sum)});
    return StackedBar(parts, std::max({sum, room, needed}), room) + LegendOf(parts);
  }
  std::vector<BarRow> rows;
  for (const BarPart& part : parts)
    rows.push_back({std::string(part.name), part.value, part.text, part.style});
  return BarRows(rows, room);
}

std::string TierPart(const Answer& answer, size_t tier) {
  const TierNeed& need = answer.fit.tiers[tier];
  return absl::StrCat("<h3>", EscapeHtml(TierTitle(tier)), "<span",
                      need.fits() ? ">" : " class=\"lacks\">", "needs ", FormatBytes(need.needed),
                      " of ", need.room == 0 ? "any" : FormatBytes(need.room),
                      need.fits() ? "" : absl::StrCat(", lacks ", FormatBytes(need.missing())),
                      "</span></h3>\n", TierBars(answer, tier));
}

std::string TiersSection(const PlanPage& page) {
  std::string html = Heading(
      "Where the bytes are",
      Moves(page.answer, 0)
          ? "Of the GPU and memory, each part at its own fullest moment of a step: room that "
            "nothing else needs keeps tiles that would move otherwise. Of NVMe, all that "
            "rests there."
          : "What rests in each tier between its uses.");
  for (size_t tier = 0; tier < kNumTiers; ++tier)
    absl::StrAppend(&html, TierPart(page.answer, tier));
  return html;
}

std::string SecondsSection(const PlanPage& page) {
  if (!page.answer.cost) return "";
  const StepCost& cost = *page.answer.cost;
  std::vector<BarPart> phases = {{"forward", "forward", cost.forward_seconds, ""},
                                 {"backward", "backward", cost.backward_seconds, ""},
                                 {"update", "update", cost.update_seconds, ""},
                                 {"waiting", "waiting", cost.waiting_seconds, ""}};
  for (BarPart& phase : phases) phase.text = SecondsWords(phase.value);
  std::string html = absl::StrCat(Heading("Where a step's time goes"),
                                  StackedBar(phases, cost.seconds), LegendOf(phases));
  if (page.drawn == nullptr) return html;
  const std::vector<Lane> lanes = LanesOf(page.drawn->timeline, kStretches);
  if (!lanes.empty()) {
    absl::StrAppend(
        &html,
        Heading("The step in time",
                "How busy each is: the higher, the busier. Steps repeat, and a "
                "plan reads ahead across their borders."),
        "<div class=\"wide\">",
        LanesPicture(lanes, page.drawn->seconds, page.drawn->update_at_seconds, "update"),
        "</div>\n");
  }
  return html;
}

std::string BindsSection(const PlanPage& page) {
  if (!page.answer.cost) return "";
  const StepCost& cost = *page.answer.cost;
  std::vector<BarRow> rows;
  for (const PartAlone& alone : SecondsAlone(cost))
    rows.push_back({std::string(alone.name), alone.seconds, SecondsWords(alone.seconds),
                    alone.name == WhatBinds(cost) ? "waiting" : "weights"});
  std::stable_sort(rows.begin(), rows.end(),
                   [](const BarRow& a, const BarRow& b) { return a.value > b.value; });
  rows.push_back({"the step", cost.seconds, SecondsWords(cost.seconds), "commit"});
  return absl::StrCat(
      Heading("What binds",
              absl::StrCat(
                  "What each would take alone. No schedule within this memory takes less than ",
                  SecondsWords(cost.bound_seconds), ".")),
      BarRows(rows));
}

std::string MoreSection(const PlanPage& page) {
  if (page.answer.more.empty()) return "";
  const StepCost& cost = *page.answer.cost;
  std::vector<BarRow> rows = {{"as asked", cost.seconds, SecondsWords(cost.seconds), "commit"}};
  for (const MoreOfOne& more : page.answer.more) {
    const double factor = cost.seconds / more.seconds;
    rows.push_back({more.words, more.seconds,
                    absl::StrCat(SecondsWords(more.seconds),
                                 factor < 1.005 ? ", no faster"
                                                : absl::StrFormat(", %.2f× as fast", factor))});
  }
  const int64_t hidden = TokensThatHideIo(page.question, cost);
  return absl::StrCat(
      Heading("What one more of each buys", "Seconds of a step with it."), BarRows(rows),
      hidden > page.question.tokens
          ? Paragraph(absl::StrCat(Commas(hidden),
                                   " tokens a step hide the transfers: waiting is then less than a "
                                   "tenth."))
          : "");
}

std::string Cell(double bytes, double missing) {
  return absl::StrCat("<td class=\"n", missing > 0 ? " lacks" : "", "\">",
                      bytes > 0 ? EscapeHtml(BytesWords(bytes)) : "–", "</td>");
}

std::string TechniquesSection(const PlanPage& page) {
  if (page.techniques.empty()) return "";
  std::string html = absl::StrCat(
      Heading("Ways to make it fit", "The cheapest first; red is what the machine does not have."),
      "<div class=\"wide\"><table><tr><th>technique</th><th class=\"n\">a step</th><th "
      "class=\"n\">GPU</th>"
      "<th class=\"n\">memory</th><th class=\"n\">NVMe</th><th>accuracy</th></tr>\n");
  for (const TechniqueRow& row : page.techniques) {
    absl::StrAppend(
        &html, row.fits() ? "<tr>" : "<tr class=\"not\">", "<td>", EscapeHtml(row.title),
        row.by_spillway ? "" : " <small>without Spillway</small>", "</td><td class=\"n\">",
        row.step_seconds ? SecondsWords(*row.step_seconds) : "–", "</td>");
    for (size_t tier = 0; tier < kNumTiers; ++tier)
      absl::StrAppend(&html, Cell(row.bytes[tier], row.missing[tier]));
    absl::StrAppend(&html, "<td>", EscapeHtml(row.accuracy), "</td></tr>\n");
  }
  return absl::StrCat(html, "</table></div>\n");
}

std::string WithoutSection(const PlanPage& page) {
  const double room = RankDeviceBytes(page.question);
  double full = room;
  for (const WithoutSpillway& way : page.without) full = std::max(full, way.gpu());
  full = std::min(full, 8 * room);  // longer bars end at the border
  std::string html = absl::StrCat(Heading(
      "Without Spillway", absl::StrCat("One GPU of each, which has ", BytesWords(room),
                                       ". Not counted: the CUDA context, fragments and buckets.")));
  std::vector<BarPart> legend;
  for (const WithoutSpillway& way : page.without) {
    const std::vector<BarPart> parts = {{"weights", "weights", way.weights, ""},
                                        {"gradients", "gradients", way.gradients, ""},
                                        {"state", "moments", way.state, ""},
                                        {"activations", "activations", way.activations, ""},
                                        {"temporary", "leased", way.temporary, ""}};
    absl::StrAppend(&html, "<h4>", EscapeHtml(way.title), "<span",
                    FitsRank(way, page.question) ? ">" : " class=\"lacks\">",
                    EscapeHtml(BytesWords(way.gpu())),
                    way.host > 0 ? absl::StrCat(" and ", BytesWords(way.host), " of memory") : "",
                    "</span></h4>\n", StackedBar(parts, full, room));
    if (legend.empty()) legend = parts;
  }
  for (BarPart& part : legend) part.value = 1;
  return absl::StrCat(html, LegendOf(legend));
}

std::string AssumptionsSection(const PlanPage& page) {
  std::string html = Heading("Computed with");
  absl::StrAppend(&html, "<ul>\n");
  for (const std::string& line : AssumptionsOf(page.question, page.answer))
    absl::StrAppend(&html, "<li>", EscapeHtml(line), "</li>\n");
  for (const std::string& note : WhatTrainsToday(page.question))
    absl::StrAppend(&html, "<li>", EscapeHtml(note), "</li>\n");
  absl::StrAppend(&html, "</ul>\n");
  if (page.answer.fit.fits() && page.question.model.config)
    absl::StrAppend(&html, Heading("To train it"),
                    Code(TrainCommandOf(page.question, page.answer.fit)));
  return absl::StrCat(html, Heading("This page"), Code(page.command), "<p class=\"note\">",
                      EscapeHtml(page.version), ". It loads nothing and has no script.</p>\n");
}

}  // namespace

std::string ToHtml(const PlanPage& page) {
  return absl::StrCat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>spillway plan: ",
      EscapeHtml(page.question.model.title),
      "</title>\n<meta name=\"viewport\" content=\"width=device-width\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; img-src data:\">\n<link rel=\"icon\" href=\"data:,\">\n<style>\n",
      kPageStyle, "</style></head>\n<body>\n", VerdictSection(page), CardsSection(page),
      AdviceSection(page), TiersSection(page), SecondsSection(page), BindsSection(page),
      MoreSection(page), TechniquesSection(page), WithoutSection(page), AssumptionsSection(page),
      "</body></html>\n");
}

}  // namespace spillway::command
