// SPDX-License-Identifier: Apache-2.0
//
// Runs the fuzzers' own targets on their corpus and on mutations of it. The targets are the reader
// of reports, the parser of flags and the reader of --config files. Nothing crashes, and only the
// well-formed inputs of the corpus are accepted.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/exhaustive.h"
#include "tests/seed.h"
#include "tests/spillway/fuzz/command_fuzz_targets.h"
#include "tests/temp_folder.h"

namespace spillway::test {
namespace {

struct Input {
  std::string name;
  std::string bytes;
};

std::vector<Input> ReadCorpus(const std::string& kind) {
  std::vector<Input> inputs;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(SPILLWAY_COMMAND_CORPUS "/") + kind)) {
    inputs.push_back({entry.path().filename().string(), ReadFile(entry.path().string())});
  }
  EXPECT_FALSE(inputs.empty());
  return inputs;
}

// Returns an input with one to four changes: a byte is changed, or bytes are duplicated, removed or
// replaced with those of another input.
std::string Mutate(const std::vector<Input>& inputs, std::mt19937_64& random) {
  std::string bytes = inputs[random() % inputs.size()].bytes;
  for (uint64_t changes = 1 + random() % 4; changes > 0 && !bytes.empty(); --changes) {
    const size_t at = random() % bytes.size();
    const size_t size = 1 + random() % 16;
    switch (random() % 4) {
      case 0: bytes[at] = static_cast<char>(random()); break;
      case 1: bytes.insert(at, bytes.substr(at, size)); break;
      case 2: bytes.erase(at, size); break;
      default: {
        const std::string& other = inputs[random() % inputs.size()].bytes;
        if (!other.empty()) bytes.replace(at, size, other.substr(random() % other.size(), size));
      }
    }
  }
  return bytes;
}

void TryAll(const std::string& kind, bool (*target)(std::string_view), uint64_t seed = Seed()) {
  const std::vector<Input> inputs = ReadCorpus(kind);
  for (const Input& input : inputs) {
    EXPECT_EQ(target(input.bytes), input.name.starts_with("good")) << input.name;
  }
  std::mt19937_64 random(seed);
  for (unsigned i = 0; i < 600 / SampleShare(); ++i) (void)target(Mutate(inputs, random));
}

TEST(CommandFuzz, TheReportsReader) { TryAll("report", FuzzReport); }

TEST(CommandFuzz, TheFlagsParser) {
  const uint64_t seed = Seed();        // printed before the output is captured
  testing::internal::CaptureStdout();  // the parser prints help
  testing::internal::CaptureStderr();
  TryAll("flags", FuzzFlags, seed);
  testing::internal::GetCapturedStderr();
  testing::internal::GetCapturedStdout();
}

TEST(CommandFuzz, TheConfigFilesReader) { TryAll("config_file", FuzzConfig); }

}  // namespace
}  // namespace spillway::test
