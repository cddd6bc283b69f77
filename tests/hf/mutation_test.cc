// SPDX-License-Identifier: Apache-2.0
//
// Passes thousands of damaged files to every reader. The reader must return a Status for each, and
// an accepted file must meet the reader's promises.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"
#include "tests/hf/fuzz/fuzz_targets.h"
#include "tests/hf/test_files.h"
#include "tests/seed.h"
#include "tools/hf/model_types.h"

namespace spillway::hf {
namespace {

using nlohmann::json;

constexpr uint64_t kMutations = 5000;

constexpr std::array<std::string_view, 16> kNumbers = {"0",
                                                       "1",
                                                       "-1",
                                                       "2",
                                                       "4",
                                                       "255",
                                                       "65536",
                                                       "2147483647",
                                                       "2147483648",
                                                       "4294967296",
                                                       "9223372036854775807",
                                                       "9223372036854775808",
                                                       "18446744073709551615",
                                                       "18446744073709551616",
                                                       "1e308",
                                                       "0.5"};
constexpr std::array<std::string_view, 14> kTokens = {
    "{", "}", "[", "]", ",", ":", "\"", "null", "true", "'", "\\u0000", "\xff", "(", ")"};

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  // Makes one to four changes.
  std::string Mutate(std::string bytes) {
    for (uint32_t changes = 1 + Below(4); changes > 0; --changes) Change(&bytes);
    return bytes;
  }

 private:
  uint32_t Below(size_t limit) { return limit == 0 ? 0 : static_cast<uint32_t>(random_() % limit); }

  void Change(std::string* bytes) {
    const size_t at = Below(bytes->size() + 1);
    const size_t length = 1 + Below(std::min<size_t>(64, bytes->size()));
    switch (Below(9)) {
      case 0:
        if (at < bytes->size()) (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << Below(8)));
        return;
      case 1:
        if (at < bytes->size()) (*bytes)[at] = static_cast<char>(Below(256));
        return;
      case 2: bytes->resize(at); return;
      case 3: bytes->append(length, static_cast<char>(Below(256))); return;
      case 4: bytes->erase(at, length); return;
      case 5: bytes->insert(at, bytes->substr(Below(bytes->size() + 1), length)); return;
      case 6: bytes->insert(at, kTokens[Below(kTokens.size())]); return;
      case 7: return ReplaceNumber(bytes, at);
      case 8: return ReplaceLength(bytes);
    }
  }

  // Replaces the first run of digits at or after `at` with another number.
  void ReplaceNumber(std::string* bytes, size_t at) {
    const size_t begin = bytes->find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const size_t end = std::min(bytes->find_first_not_of("0123456789", begin), bytes->size());
    bytes->replace(begin, end - begin, kNumbers[Below(kNumbers.size())]);
  }

  // Changes one of the first 10 bytes, which include the binary length before a header.
  void ReplaceLength(std::string* bytes) {
    const size_t at = Below(10);
    if (at < bytes->size()) (*bytes)[at] = static_cast<char>(Below(256));
  }

  std::mt19937_64 random_;
};

void RunMutations(const std::string& valid, const std::function<bool(std::string_view)>& target,
                  uint64_t first) {
  ASSERT_TRUE(target(valid));
  uint64_t accepted = 0;
  for (uint64_t seed = first; seed != first + kMutations; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    if (target(Mutator(seed).Mutate(valid))) ++accepted;
  }
  // At least one mutation must be rejected. The mutations are useful only if some reach the rules
  // behind the parser, so the number accepted is recorded.
  EXPECT_LT(accepted, kMutations);
  testing::Test::RecordProperty("accepted", std::to_string(accepted));
}

TEST(Mutation, SafetensorsNeverBreakTheReader) {
  RunMutations(ValidSafetensors(), FuzzSafetensors, test::Seed());
}

TEST(Mutation, ShardIndexesNeverBreakTheReader) {
  RunMutations(
      R"({"metadata":{"total_size":8},"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})",
      FuzzShardIndex, test::Seed());
}

TEST(Mutation, NpyFilesNeverBreakTheReader) { RunMutations(ValidNpy(), FuzzNpy, test::Seed()); }

// A published configuration of each model type, and one of GPT-2 with an odd head_dim.
TEST(Mutation, ConfigsNeverBreakTheReader) {
  const json cases = json::parse(ReadFile(SPILLWAY_CONFIG_CASES));
  std::map<std::string, json> configs = {{"llama", cases["good"]}};
  for (const auto& [type, config] : cases["others"].items()) configs[type] = config;
  EXPECT_EQ(configs.size(), ModelTypes().size());
  configs["odd heads"] = cases["others"]["gpt2"];
  configs["odd heads"]["n_embd"] = 12 * 63;
  const uint64_t first = test::Seed();
  for (const auto& [name, config] : configs) {
    SCOPED_TRACE(name);
    RunMutations(config.dump(), FuzzConfig, first);
  }
}

}  // namespace
}  // namespace spillway::hf
