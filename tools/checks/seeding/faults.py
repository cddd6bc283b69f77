# SPDX-License-Identifier: Apache-2.0
"""The seeded faults. Each is a small change of the code, with the step of .ci/run that must find it."""

import dataclasses

# The names of steps of .ci/run.
INCLUDES = "include directions"
SET_UP = "set-up"
HEADERS = "every header compiles alone"
TIDY = "clang-tidy"
ASAN = "address and undefined-behaviour sanitizers"
TSAN = "thread sanitizer"
SUITE = "the suite on the release build"


class Stale(Exception):
    """The code that a fault changes no longer exists, or a file of mutants would be overwritten."""


@dataclasses.dataclass(frozen=True)
class Check:
    """A step of .ci/run, reduced to the part that finds one fault."""

    step: str
    preset: str = ""  # the preset to configure
    targets: tuple = ()  # the targets to build
    tests: str = ""  # a regular expression of ctest names; their programs are built and run
    command: tuple = ()  # run last, in the root of the tree


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    what: str
    file: str
    old: str  # occurs in the file exactly once
    new: str
    check: Check
    says: str  # a regular expression that the step's output must match

    def apply(self, text):
        """Returns the text of the file with the fault in it."""
        count = text.count(self.old)
        if count != 1:
            first = self.old.strip().splitlines()[0]
            raise Stale(f"fault {self.name} is stale: {self.file} has its text {count} times, and must have it once "
                        f"('{first}'); write it anew in tools/checks/seeding/faults.py")
        return text.replace(self.old, self.new)


GTEST_FAILURE = r"\[  FAILED  \]|no end after"

FAULTS = (
    Fault(
        "lock-not-taken", "the mover grants a lease without its lock",
        "src/engine/mover_dispatch.cc",
        "  Action done = grant;\n  MutexLock lock(&mu_);\n",
        "  Action done = grant;\n",
        Check(ASAN, "asan", targets=("spillway_engine",)),
        r"-Wthread-safety"),
    Fault(
        "unordered-read", "elements that another thread has added are read without acquire order",
        "src/base/stable_array.h",
        "size_.load(std::memory_order_acquire)",
        "size_.load(std::memory_order_relaxed)",
        Check(TSAN, "tsan", tests="^stable_array_test$"),
        r"ThreadSanitizer: data race"),
    Fault(
        "freed-memory", "a claim is read after it was erased",
        "src/engine/pager/room.cc",
        "  const ClaimWindow window = claims_.extract(key).mapped().window;\n",
        "  const ClaimWindow& window = claims_.extract(key).mapped().window;\n",
        Check(ASAN, "asan", tests="^pager_random_test$"),
        r"AddressSanitizer: heap-use-after-free"),
    Fault(
        "moved-object", "a commit is returned after it was moved from",
        "io/store/store_commit.cc",
        "  Changed(commit, change->freed());\n  return commit;\n",
        "  Changed(std::move(commit), change->freed());\n  return commit;\n",
        # Two sources, so that they are read as one unit, as in the step.
        Check(TIDY, "clang", command=("tools/checks/tidy", "io/store/store_commit.cc", "io/store/store_walk.cc")),
        r"bugprone-use-after-move"),
    Fault(
        "uninitialised-value", "a sum of bytes has no first value",
        "src/engine/pager/room_search.cc",
        "  Window window;\n  uint64_t bytes = 0;\n",
        "  Window window;\n  uint64_t bytes;\n",
        Check(SET_UP, "release", targets=("spillway_engine",)),
        r"-W(error=)?(maybe-)?uninitialized"),
    Fault(
        "signed-overflow", "a deadline for ever is computed as now and the longest duration",
        "io/deadline.h",
        "    if (timeout >= absl::Hours(24 * 365)) return Never();\n",
        "",
        Check(ASAN, "asan", tests="^posix_io_engine_test$|^io_engine_conformance_test$"),
        r"runtime error: signed integer overflow"),
    Fault(
        "missing-include", "a header uses std::accumulate and does not include what declares it",
        "src/base/busy_meter.h",
        "#include <numeric>\n",
        "",
        Check(HEADERS, "clang", targets=("spillway_headers",)),
        r"no member named 'accumulate'"),
    Fault(
        "include-direction", "the planner includes a header of the engine",
        "src/plan/prices.cc",
        '#include "src/plan/prices.h"\n',
        '#include "src/plan/prices.h"\n\n#include "src/engine/rate_meter.h"\n',
        Check(INCLUDES, command=("tools/checks/includes.py",)),
        r'src/plan/prices\.cc:\d+: "src/engine/rate_meter\.h"'),
    Fault(
        "lost-wake-up", "a wait for completions forgets the wake-up that came before it",
        "io/posix_io_engine.cc",
        "    while (finished_.empty() && !woken_ && !deadline.passed()) {\n",
        "    woken_ = false;\n    while (finished_.empty() && !woken_ && !deadline.passed()) {\n",
        Check(SUITE, "release", tests="^io_engine_conformance_test$"),
        GTEST_FAILURE),
    Fault(
        "leaked-extent", "a pack that could not be written keeps its extent",
        "io/store/page_io.cc",
        "  if (!status.ok() && pack.extent.size_bytes > 0) store_->Release(pack.extent);\n",
        "",
        Check(SUITE, "release", tests="^pack_test$|^page_io_test$"),
        GTEST_FAILURE),
    Fault(
        "page-not-compared", "a page that is read again is not compared with its checksum",
        "io/store/page_io.cc",
        "  if (checksum == record.checksum || checksums_ == Checksums::kNone) {\n",
        "  if (checksum == record.checksum || checksums_ == Checksums::kNone || operation.pages[page].retried) {\n",
        Check(SUITE, "release", tests="^page_io_test$|^damaged_store_test$"),
        GTEST_FAILURE),
    Fault(
        "unchecked-result", "a commit goes on after the sync of a folder that failed",
        "io/store/segment_files.cc",
        "    if (absl::Status synced = (*folders_)[i].Sync(); !synced.ok()) return SyncFailed(synced);\n",
        "    (void)(*folders_)[i].Sync();\n",
        Check(SUITE, "release", tests="^store_crash_test$"),
        GTEST_FAILURE),
    Fault(
        "flipped-in-pager", "a prefetch evicts what is needed before it, and spares what is needed later",
        "src/engine/pager/room_search.cc",
        "  if (position > 0 && next <= position) return Leave::kLater;\n",
        "  if (position > 0 && next >= position) return Leave::kLater;\n",
        Check(SUITE, "release", tests="^pager_.*test$"),
        GTEST_FAILURE),
    Fault(
        "flipped-in-planner", "the planner retains first what saves least",
        "src/plan/ways_to_retain.cc",
        "        if (worth != other.worth) return worth > other.worth;\n",
        "        if (worth != other.worth) return worth < other.worth;\n",
        Check(SUITE, "release", tests="^(plan|plan_random|bounds|policies|placed_plans)_test$"),
        GTEST_FAILURE),
    Fault(
        "flipped-in-kernel", "an update leaves out the elements that do not fill a vector",
        "src/optim/rule_kernels.cc",
        "  if (i < n) UpdateTail<R>(f, run, i, n - i);\n",
        "  if (i > n) UpdateTail<R>(f, run, i, n - i);\n",
        Check(SUITE, "release", tests="^rule_kernels_test$"),
        GTEST_FAILURE),
)
