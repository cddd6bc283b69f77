// SPDX-License-Identifier: Apache-2.0
//
// src/plan/MODEL.md has every number of `spillway plan`: each key of its JSON is named there.

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"

namespace spillway::test {
namespace {

// The keys of objects, at any depth. A list's elements have the keys of the first.
void AddKeys(const Json& json, std::set<std::string>* keys) {
  if (json.is_array() && !json.empty()) AddKeys(json.front(), keys);
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    keys->insert(key);
    AddKeys(value, keys);
  }
}

std::string PageText() {
  std::ifstream file(SPILLWAY_MODEL_PAGE);
  std::stringstream text;
  text << file.rdbuf();
  const std::string page = text.str();
  return page.substr(page.find("## The numbers of `spillway plan`"));
}

TEST(ModelPage, NamesEveryKeyOfThePlan) {
  const Arguments machine = {"--gpu",  "rtx4090",     "--dram",       "32GB",
                             "--nvme", "2x7GB/s:1TB", "--techniques", "--json"};
  std::set<std::string> keys;
  for (const Arguments& plan :
       {Arguments{"plan", "--model", "1.1B", "--tokens", "8192", "--endurance", "600TB"} + machine,
        Arguments{"plan", "--model", "GPT-3", "--tokens", "2048"} + machine,
        Arguments{"simulate", "--model", "1.1B", "--tokens", "2048", "--gpu", "rtx4090", "--dram",
                  "32GB", "--nvme", "2x7GB/s:1TB", "--json"}}) {
    const Ended ended = RunCommand(plan);
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    AddKeys(ended.json(), &keys);
  }
  for (const char* key : {"step_seconds", "missing_bytes", "costs", "zero_3", "change", "room"})
    EXPECT_TRUE(keys.contains(key)) << key << " of a plan that was read here";
  const std::string page = PageText();
  for (const std::string& key : keys)
    EXPECT_NE(page.find("`" + key + "`"), std::string::npos) << key << " is not in MODEL.md";
}

}  // namespace
}  // namespace spillway::test
