// SPDX-License-Identifier: Apache-2.0
//
// `spillway plan --html`: the page renders in a real browser without a network, shows the figures
// of the JSON, and stays a page whatever names it is given.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/seed.h"
#include "tests/spillway/browser.h"
#include "tests/spillway/command.h"
#include "tests/temp_folder.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/html_text.h"
#include "tools/spillway/plan/page_parts.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A model of few parameters, so that a plan takes no time.
constexpr char kTiny[] =
    R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
        "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false})";

class PlanPageTest : public ::testing::Test {
 protected:
  // Of the model in the file, on a machine where it fits, or does not.
  Arguments Plan(const std::string& model, const Arguments& more = {},
                 const std::string& gpu_bytes = "1GiB") {
    return Arguments{"plan",    "--model",  model,    "--gpu",       "rtx4090",
                     "--dram",  "32GB",     "--nvme", "2x7GB/s:1TB", "--device-bytes",
                     gpu_bytes, "--tokens", "1024",   "--html",      page_} +
           more;
  }
  std::string Model(const std::string& name = "model.json") {
    WriteFile(folder_ / name, kTiny);
    return folder_ / name;
  }
  std::string Page(const Arguments& plan) {
    const Ended ended = RunCommand(plan);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ReadFile(page_);
  }

  TempFolder folder_;
  const std::string page_ = folder_ / "plan.html";
};

// The page with nothing but its text.
std::string TextOf(const std::string& html) {
  return std::regex_replace(html.substr(html.find("</style>")), std::regex("<[^>]*>"), "\n");
}

TEST_F(PlanPageTest, NamesNothingToLoadAndHasNoScript) {
  const std::string html = Page(Plan(Model()));
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  EXPECT_FALSE(std::regex_search(html, std::regex("https?://")));
  EXPECT_FALSE(
      std::regex_search(html, std::regex("<(script|link|img)[^>]* (src|href)=\"(?!data:)")));
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("javascript:")));
}

TEST_F(PlanPageTest, RendersInABrowserWithEverySection) {
  if (!HasBrowser()) GTEST_SKIP() << "no chromium: apt-get install chromium";
  Page(Plan(Model(), {"--endurance", "600TB"}));
  const Opened opened = OpenInBrowser(folder_, page_);
  EXPECT_THAT(opened.console, IsEmpty());
  for (const char* title :
       {"Where the bytes are", "Where a step&#39;s time goes", "The step in time", "What binds",
        "What one more of each buys", "Ways to make it fit", "Without Spillway", "Computed with",
        "To train it", "This page"}) {
    const std::string as_dom = std::regex_replace(title, std::regex("&#39;"), "'");
    EXPECT_THAT(opened.document, HasSubstr("<h2>" + as_dom + "</h2>"));
  }
  EXPECT_THAT(opened.document, HasSubstr("<svg "));
  for (const char* bad : {"NaN", "nan%", "inf%", "-inf", "width:-"})
    EXPECT_THAT(opened.document, Not(HasSubstr(bad)));
}

TEST_F(PlanPageTest, ShowsItsCommandAndTheFiguresOfTheJson) {
  const Arguments plan = Plan(Model(), {"--json", "--techniques"});
  const Ended ended = RunCommand(plan);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  const std::string text = TextOf(ReadFile(page_));
  EXPECT_THAT(text, HasSubstr(command::SecondsWords(json["step_seconds"])));
  EXPECT_THAT(text, HasSubstr(command::SecondsWords(json["seconds"]["update"])));
  EXPECT_THAT(text, HasSubstr("It fits"));
  for (const Json& row : json["techniques"])
    EXPECT_THAT(text, HasSubstr(command::EscapeHtml(row["title"].get<std::string>())));
  for (const auto& [key, way] : json["without_spillway"].items())
    EXPECT_THAT(text, HasSubstr(command::EscapeHtml(way["title"].get<std::string>())));
  EXPECT_THAT(text,
              HasSubstr("spillway plan --model " + (folder_ / "model.json") + " --gpu rtx4090"));
  EXPECT_THAT(text, HasSubstr("--html plan.html"));
}

TEST_F(PlanPageTest, SaysWhatIsMissing) {
  const std::string text = TextOf(Page(Plan(Model(), {}, "64KiB")));
  EXPECT_THAT(text, HasSubstr("It does not fit"));
  EXPECT_THAT(text, HasSubstr("of GPU memory"));
  EXPECT_THAT(text, HasSubstr("What makes it fit"));
  EXPECT_THAT(text, HasSubstr("lacks"));
  EXPECT_THAT(text, Not(HasSubstr("What binds")));
}

TEST_F(PlanPageTest, ReplacesAPageButNothingElse) {
  const std::string model = Model();
  Page(Plan(model));
  Page(Plan(model, {"--seq", "64"}));
  EXPECT_THAT(ReadFile(page_), HasSubstr("--seq 64"));
  WriteFile(page_, "my letter");
  const Ended ended = RunCommand(Plan(model));
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_THAT(ended.err, HasSubstr("--html"));
  EXPECT_EQ(ReadFile(page_), "my letter");
  EXPECT_THAT(Page(Plan(model, {"--force"})), HasSubstr("<title>spillway plan"));
}

// Names that a file may have: every byte but the slash.
TEST_F(PlanPageTest, NamesStayText) {
  const uint64_t seed = Seed();
  SCOPED_TRACE(SeedLine(seed));
  std::mt19937_64 random(seed);
  std::vector<std::string> names = {"<script>alert(1)<~script>.json",
                                    "\"><img src=x onerror=alert(1)>.json",
                                    "a'b&amp;\"c.json",
                                    "модель-模型-🦙.json",
                                    "--><!--.json",
                                    "</style><style>*{display:none}.json",
                                    "\xff\xfe\x80.json",
                                    "a\nb\tc\x01.json",
                                    "$(touch x)`id`'\\.json"};
  for (int i = 0; i < 20; ++i) {
    std::string name;
    for (int length = 1 + static_cast<int>(random() % 40); length > 0; --length)
      name += "<>&\"'`$();{}= \\!-aZ09\n\xc3\xa9\xff"[random() % 27];
    names.push_back(name + ".json");
  }
  for (std::string name : names) {
    for (char& byte : name)
      if (byte == '/' || byte == '\0') byte = '~';
    SCOPED_TRACE(::testing::PrintToString(name));
    const std::string html = Page(Plan(Model(name)));
    EXPECT_THAT(html, HasSubstr(command::EscapeHtml(folder_ / name)));
    // Every tag is one of the page's own.
    const std::string body = html.substr(html.find("</style>") + 8);
    const std::regex tag("<([^>]*)>?");
    for (std::sregex_iterator at(body.begin(), body.end(), tag), end; at != end; ++at) {
      EXPECT_TRUE(std::regex_match(
          (*at)[1].str(), std::regex("/?(head|html|body|header|section|h[1-4]|p|div|span|i|"
                                     "b|em|dl|dt|dd|ul|li|pre|code|small|table|tr|th|td|svg|"
                                     "line|text|path)( [a-zA-Z0-9-]+=\"[^\"<]*\")*/?")))
          << (*at)[0];
    }
  }
}

TEST_F(PlanPageTest, AHostileNameDoesNothingInABrowser) {
  if (!HasBrowser()) GTEST_SKIP() << "no chromium: apt-get install chromium";
  Page(Plan(Model("<img src=x onerror=console.log(1)><script>console.log(2)<~script>.json")));
  const Opened opened = OpenInBrowser(folder_, page_);
  EXPECT_THAT(opened.console, IsEmpty());
  EXPECT_THAT(opened.document, Not(HasSubstr("<img")));
  EXPECT_THAT(opened.document, HasSubstr("<h1>"));
}

TEST(ShellWord, IsReadAsTheSameWord) {
  for (const std::string& word :
       std::vector<std::string>{"plain", "", "a b", "it's", "$(x)`y`", "8x7/5GB/s:3.8TB", "\"", "*",
                                "~", "a\nb", "'", "''"}) {
    const Ended ended =
        RunInShell("printf %s " + command::ShellWord(word) + " >&2;", {"--version"});
    EXPECT_EQ(ended.err, word) << command::ShellWord(word);
  }
}

}  // namespace
}  // namespace spillway::test
