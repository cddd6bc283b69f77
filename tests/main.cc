// SPDX-License-Identifier: Apache-2.0
//
// The main function of every test program. A program holds the tests of a folder; ctest runs it
// once for each source file:
//
//   engine_tests --file mover_lease_test               the tests of mover_lease_test.cc
//   engine_tests --file mover_lease_test --one-thread  the same; fails if a thread or ring is made
//
// GoogleTest's own flags select among the file's tests. ctest passes --one-thread for a test
// without the label `threads`. The thread sanitizer's build has only tests with that label, and the
// flag makes sure that it misses none. The exit code is 77 if every test that was to run was
// skipped.

#include <dlfcn.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/exhaustive.h"

namespace {

std::atomic<const char*> g_concurrency = nullptr;  // what was started; null if nothing was

// Returns the next definition of a function that this file also defines.
template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// Sanitizers define these functions themselves.
#if !SPILLWAY_IS_SANITIZED
extern "C" {

struct io_uring;
struct io_uring_params;

__attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                          const pthread_attr_t* attributes,
                                                          void* (*run)(void*),
                                                          void* argument) noexcept {
  g_concurrency = "a thread";
  return Next<decltype(pthread_create)>("pthread_create")(thread, attributes, run, argument);
}

__attribute__((visibility("default"))) int io_uring_queue_init_params(unsigned entries,
                                                                      io_uring* ring,
                                                                      io_uring_params* params) {
  g_concurrency = "a ring of io_uring";
  return Next<decltype(io_uring_queue_init_params)>("io_uring_queue_init_params")(entries, ring,
                                                                                  params);
}
}
#endif

namespace {

// A filter in GoogleTest's syntax, "a:b-c:d".
struct Filter {
  explicit Filter(const std::string& text) {
    const size_t dash = text.find('-');
    positive = Split(text.substr(0, dash));
    if (positive.empty()) positive = {"*"};
    if (dash != std::string::npos) negative = Split(text.substr(dash + 1));
  }
  bool Takes(const std::string& name) const {
    return Matches(positive, name) && !Matches(negative, name);
  }

 private:
  static std::vector<std::string> Split(const std::string& text) {
    std::vector<std::string> patterns;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ':');) patterns.push_back(word);
    return patterns;
  }
  static bool Matches(const std::vector<std::string>& patterns, const std::string& name) {
    return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
      return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
    });
  }

  std::vector<std::string> positive, negative;
};

// Chooses the tests to run, by the seed, if fewer than all are to run.
//
// If SPILLWAY_TEST_ONE_POINT is set, a third is run of a suite's tests with parameters, and of a
// file's tests that run the command, which take longest.
//
// A sanitizer's build runs all its tests, except that it draws a third of train_test's: code of the
// library runs in the library's own tests.
class Draw {
 public:
  explicit Draw(const std::string& file) : file_(file) {}

  bool Takes(const testing::TestSuite& suite, int test) {
    if (!spillway::TriesOnePoint()) return true;
    const testing::TestInfo& info = *suite.GetTestInfo(test);
    const bool runs_command = std::string_view(info.file()).ends_with("/spillway/" + file_ + ".cc");
    if (SPILLWAY_IS_SANITIZED) return file_ != "train_test" || IsDrawn(commands_++, 0, kShare);
    if (info.value_param() != nullptr) {
      if (suite.total_test_count() < kShare) return true;
      return IsDrawn(test, static_cast<uint32_t>(suite.GetTestInfo(0)->line()), kShare);
    }
    return !runs_command || IsDrawn(commands_++, 0, kShare);
  }

 private:
  static constexpr int kShare = 3;

  // Whether the seed draws this test: it draws one of every `share` tests.
  static bool IsDrawn(int test, uint32_t line, int share) {
    return static_cast<size_t>(test % share) ==
           spillway::PointOf(spillway::GridSeed(), line, static_cast<size_t>(share));
  }

  const std::string& file_;
  int commands_ = 0;  // tests so far that run the command
};

// Restricts the filter to the file's tests, and draws among them if the filter names none. Returns
// false if the file has no test, or if an earlier file has a test of the same name.
bool KeepTestsOf(const std::string& file) {
  const std::string asked_for = testing::GTEST_FLAG(filter);
  const Filter filter(asked_for);
  const std::string named = asked_for.substr(0, asked_for.find('-'));
  const bool draws = named.empty() || named == "*";
  const std::string suffix = "/" + file + ".cc";
  std::string kept;
  std::set<std::string> of_others;
  bool found = false;
  Draw draw(file);
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      const std::string name = std::string(suite.name()) + "." + test.name();
      if (!("/" + std::string(test.file())).ends_with(suffix)) {
        of_others.insert(name);
        continue;
      }
      found = true;
      if (filter.Takes(name) && (!draws || draw.Takes(suite, t))) kept += name + ":";
      if (of_others.count(name) == 0) continue;
      std::fprintf(stderr, "two files have a test %s: rename one\n", name.c_str());
      return false;
    }
  }
  testing::GTEST_FLAG(filter) = kept.empty() ? "-*" : kept;
  if (!found) std::fprintf(stderr, "no test of this program is in a file %s.cc\n", file.c_str());
  return found;
}

constexpr int kSkipped = 77;

bool AllWereSkipped() {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  return all.skipped_test_count() > 0 && all.successful_test_count() == 0;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  bool one_thread = false;
  std::string file;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--one-thread") {
      one_thread = true;
    } else if (argument == "--file" && i + 1 < argc) {
      file = argv[++i];
    } else {
      std::fprintf(
          stderr,
          "unknown argument %s: it takes --file NAME, --one-thread and GoogleTest's flags\n",
          argv[i]);
      return 2;
    }
  }
  // Sets one seed for the whole run, so that the seed that a test prints also repeats the draw.
  if (spillway::TriesOnePoint())
    setenv("SPILLWAY_TEST_SEED", std::to_string(spillway::GridSeed()).c_str(), /*overwrite=*/0);
  if (!file.empty() && !KeepTestsOf(file)) return 2;
  g_concurrency = nullptr;  // libraries may have started threads when they were loaded
  const int failed = RUN_ALL_TESTS();
  const char* const concurrency = g_concurrency;
  if (failed != 0) return failed;
  if (!one_thread || concurrency == nullptr) return AllWereSkipped() ? kSkipped : 0;
  std::fprintf(stderr,
               "%s started %s: give it the label `threads` in its CMakeLists.txt, so that the "
               "thread sanitizer sees it\n",
               file.c_str(), concurrency);
  return 1;
}
