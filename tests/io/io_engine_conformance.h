// SPDX-License-Identifier: Apache-2.0
//
// The fixture of the IoEngine conformance suite. It makes each implementation and skips those that
// this machine does not support.

#ifndef SPILLWAY_TESTS_IO_IO_ENGINE_CONFORMANCE_H_
#define SPILLWAY_TESTS_IO_IO_ENGINE_CONFORMANCE_H_

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "io/faulty_io_engine.h"
#include "io/io_engine.h"
#include "io/io_engine_options.h"
#include "io/make_io_engine.h"
#include "tests/io/io_test_util.h"
#include "tests/io/io_uring_here.h"

namespace spillway::io {

struct Implementation {
  std::string name;
  IoKind kind;
  bool faulty;  // wrapped in a FaultyIoEngine with an empty script
};

inline absl::StatusOr<std::unique_ptr<IoEngine>> MakeImplementation(
    const Implementation& implementation, IoEngineOptions options) {
  const auto make = [&](ResultHook faulty_hook) -> absl::StatusOr<std::unique_ptr<IoEngine>> {
    IoEngineOptions inner = options;
    if (faulty_hook) {
      inner.result_hook = [theirs = options.result_hook, faulty_hook](const IoRequest& request,
                                                                      int64_t result) {
        return faulty_hook(request, theirs ? theirs(request, result) : result);
      };
    }
    return MakeIoEngine(implementation.kind, inner, testing::TempDir());
  };
  if (implementation.faulty) return FaultyIoEngine::Create(/*seed=*/1, make);
  return make({});
}

class IoEngineConformance : public testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    if (!CanRun(GetParam().kind)) GTEST_SKIP() << kNoIoUring;
    const absl::Status made = MakeImplementation(GetParam(), {}).status();
    ASSERT_TRUE(made.ok()) << made;
  }

  static std::unique_ptr<IoEngine> Make(IoEngineOptions options = {}) {
    absl::StatusOr<std::unique_ptr<IoEngine>> engine =
        MakeImplementation(GetParam(), std::move(options));
    EXPECT_TRUE(engine.ok()) << engine.status();
    return std::move(*engine);
  }

  static FileId Add(IoEngine& engine, const DirectFile& file) {
    const absl::StatusOr<FileId> id = engine.AddFile(file.fd(), file.path(), 0);
    EXPECT_TRUE(id.ok()) << id.status();
    return *id;
  }
};

// Instantiates IoEngineConformance, or a suite derived from it, for every implementation.
#define SPILLWAY_INSTANTIATE_FOR_ALL_IO_ENGINES(suite)                                 \
  INSTANTIATE_TEST_SUITE_P(                                                            \
      All, suite,                                                                      \
      testing::Values(Implementation{"Uring", IoKind::kUring, /*faulty=*/false},       \
                      Implementation{"Posix", IoKind::kPosix, /*faulty=*/false},       \
                      Implementation{"FaultyUring", IoKind::kUring, /*faulty=*/true},  \
                      Implementation{"FaultyPosix", IoKind::kPosix, /*faulty=*/true}), \
      [](const auto& test) { return test.param.name; })

}  // namespace spillway::io

#endif  // SPILLWAY_TESTS_IO_IO_ENGINE_CONFORMANCE_H_
