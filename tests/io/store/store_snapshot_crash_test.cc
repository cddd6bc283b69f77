// SPDX-License-Identifier: Apache-2.0
//
// Kills a process that commits, takes snapshots, restores, drops and trims at each of its file
// system calls in turn, and makes each call fail. Reopening must give the state after the last
// reported step, or after the step in progress, with every snapshot complete.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/store/store.h"
#include "tests/exhaustive.h"
#include "tests/io/store/catalog_invariants.h"
#include "tests/io/store/store_test_util.h"
#include "tests/io/store/syscall_hook.h"

namespace spillway::io {
namespace {

constexpr uint64_t kPages = 5;

std::filesystem::path FastPlace() {
  return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path();
}

StoreOptions Options(const TempFolder& folder) {
  StoreOptions options;
  options.folders = {folder / "a", folder / "b"};
  options.page_bytes = kTestPageBytes;
  options.segment_bytes = 4 * kTestPageBytes;
  return options;
}

enum class Do { kCommit, kSnapshot, kRestore, kDrop, kTrim };
struct Step {
  Do what;
  std::string argument;  // a state or a label
};
const std::vector<Step>& Steps() {
  static const auto* const steps = new std::vector<Step>{
      {Do::kCommit, "1"},  {Do::kSnapshot, "a"}, {Do::kCommit, "2"}, {Do::kSnapshot, "b"},
      {Do::kCommit, "3"},  {Do::kRestore, "a"},  {Do::kCommit, "4"}, {Do::kDrop, "a"},
      {Do::kRestore, "b"}, {Do::kTrim, ""},      {Do::kDrop, "b"},   {Do::kCommit, "5"}};
  return *steps;
}

// The durable state after a step. The first element of States() is that of a new store.
struct State {
  std::string user_state;
  std::map<uint64_t, uint64_t> versions;  // by page
  std::map<std::string, State> snapshots;
};
std::vector<State> States() {
  std::vector<State> states(1);
  for (const Step& step : Steps()) {
    State next = states.back();
    switch (step.what) {
      case Do::kCommit: {
        const uint64_t version = std::stoull(step.argument);
        next.user_state = step.argument;
        for (uint64_t page = 0; page < kPages; ++page)
          if (version % (page + 1) == 0 || version == 1) next.versions[page] = version;
        if (version == 3) next.versions.erase(4);
        break;
      }
      case Do::kSnapshot:
        next.snapshots[step.argument] = {next.user_state, next.versions, {}};
        break;
      case Do::kRestore:
        next.user_state = states.back().snapshots.at(step.argument).user_state;
        next.versions = states.back().snapshots.at(step.argument).versions;
        break;
      case Do::kDrop: next.snapshots.erase(step.argument); break;
      case Do::kTrim: break;
    }
    states.push_back(next);
  }
  return states;
}

absl::Status Take(Store& store, const NamingIoEngine& io, const Step& step) {
  switch (step.what) {
    case Do::kSnapshot: return store.Snapshot(step.argument);
    case Do::kRestore: return store.Restore(step.argument);
    case Do::kDrop: return store.Drop(step.argument);
    case Do::kTrim: return store.Trim().status();
    case Do::kCommit: break;
  }
  const uint64_t version = std::stoull(step.argument);
  std::optional<TensorIndex> tensor = *store.FindTensor("w");
  if (!tensor) tensor = *store.AddTensor({"w", "{}", kPages}, false);
  for (uint64_t page = 0; page < kPages; ++page) {
    if (version % (page + 1) != 0 && version != 1) continue;
    // The first copy's extent is free again before the commit.
    for (uint64_t copy : {version + 100, version}) {
      const absl::Status status = WritePage(store, io, *tensor, page, copy);
      if (!status.ok()) return status;
    }
  }
  if (version == 3) store.Forget(*tensor, 4);
  return store.Commit(step.argument);
}

bool Is(Store& store, const State& state) {
  if (store.UserState().value_or("") != state.user_state) return false;
  const auto snapshots = store.Snapshots();
  if (!snapshots.ok() || snapshots->size() != state.snapshots.size()) return false;
  for (const SnapshotRecord& snapshot : *snapshots)
    if (!state.snapshots.contains(snapshot.label)) return false;
  return true;
}

void ExpectPages(Store& store, const NamingIoEngine& io, const State& state) {
  const auto tensor = *store.FindTensor("w");
  ASSERT_EQ(tensor.has_value(), !state.versions.empty());
  for (uint64_t page = 0; tensor && page < kPages; ++page) {
    const auto version = state.versions.find(page);
    if (version == state.versions.end()) {
      EXPECT_EQ(*store.FindPage(*tensor, page), std::nullopt);
    } else {
      EXPECT_TRUE(PageIs(store, io, *tensor, page, version->second));
    }
  }
}

// Reopens the store. It must have the complete state after step `reported` or the next, with its
// snapshots, and continue to work.
void ExpectReopens(const TempFolder& folder, size_t reported) {
  NamingIoEngine io;
  auto store = Store::Open(Options(folder), &io);
  ASSERT_TRUE(store.ok()) << store.status();
  const std::vector<State> states = States();
  const size_t next = std::min(reported + 1, states.size() - 1);
  const State& state = Is(**store, states[next]) ? states[next] : states[reported];
  ASSERT_TRUE(Is(**store, state)) << "after step " << reported << ": "
                                  << (*store)->UserState().value_or("none");
  ExpectPages(**store, io, state);
  for (const auto& [label, snapshot] : state.snapshots) {
    const absl::Status status = (*store)->Restore(label);
    ASSERT_TRUE(status.ok()) << status;
    ExpectPages(**store, io, snapshot);
  }
  ASSERT_TRUE(Take(**store, io, {Do::kCommit, "60"}).ok());
  store->reset();
  ExpectInvariantsHold(folder / "a/spillway-catalog.sqlite");
}

// Runs all steps in a child that dies at call number `at`. Returns the last step that it reported.
size_t RunAndKill(const TempFolder& folder, hook::Deed deed, int at, bool* finished) {
  int pipe_fds[2];
  EXPECT_EQ(::pipe(pipe_fds), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    NamingIoEngine io;
    auto store = Store::Open(Options(folder), &io);
    if (!store.ok()) ::_exit(1);
    hook::Arm(deed, at);
    for (size_t i = 0; i < Steps().size(); ++i) {
      if (!Take(**store, io, Steps()[i]).ok()) ::_exit(1);
      const char step = static_cast<char>(i + 1);
      ::syscall(SYS_write, pipe_fds[1], &step, 1);
    }
    ::_exit(0);
  }
  ::close(pipe_fds[1]);
  char reported = 0;
  for (char next; ::read(pipe_fds[0], &next, 1) == 1;) reported = next;
  ::close(pipe_fds[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  *finished = WIFEXITED(status);
  EXPECT_TRUE(*finished ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL) << status;
  return static_cast<size_t>(reported);
}

class SnapshotCrashTest : public ::testing::TestWithParam<hook::Deed> {};

TEST_P(SnapshotCrashTest, KilledAnywhere) {
  bool finished = false;
  int at = 1 + SampleBegin();
  for (; !finished; at += static_cast<int>(SampleShare())) {
    SCOPED_TRACE(at);
    TempFolder folder(FastPlace());
    ExpectReopens(folder, RunAndKill(folder, GetParam(), at, &finished));
    if (HasFailure()) return;
  }
  EXPECT_GT(at, 100);
  std::cout << at - 2 << " points\n";
}

INSTANTIATE_TEST_SUITE_P(All, SnapshotCrashTest,
                         ::testing::Values(hook::Deed::kKill, hook::Deed::kKillHalfway),
                         [](const auto& param_info) {
                           return param_info.param == hook::Deed::kKill ? "Before" : "Halfway";
                         });

class SnapshotFailureTest : public ::testing::TestWithParam<int> {};

// Repeats a step whose call failed; the final state is the same. A failed sync of data ends the
// run.
TEST_P(SnapshotFailureTest, AStepThatFailedCanBeRepeated) {
  bool met = true;
  int at = 1 + SampleBegin();
  for (; met; at += static_cast<int>(SampleShare())) {
    SCOPED_TRACE(at);
    TempFolder folder(FastPlace());
    NamingIoEngine io;
    auto store = Store::Open(Options(folder), &io);
    ASSERT_TRUE(store.ok()) << store.status();
    hook::Arm(hook::Deed::kFail, at, GetParam());
    size_t done = 0;
    bool sync_failed = false;
    for (; done < Steps().size() && !sync_failed; ++done) {
      absl::Status status = Take(**store, io, Steps()[done]);
      if (status.ok()) continue;
      EXPECT_TRUE(hook::plan.failed) << status;
      sync_failed =
          status.message().find("nothing more can be committed") != absl::string_view::npos;
      if (sync_failed) break;
      ASSERT_TRUE(Is(**store, States()[done])) << "a step that failed has changed something";
      status = Take(**store, io, Steps()[done]);
      ASSERT_TRUE(status.ok()) << status;
    }
    hook::Disarm();
    met = hook::plan.failed;
    store->reset();
    ExpectReopens(folder, done);
    if (HasFailure()) return;
  }
  EXPECT_GT(at, 100);
}

INSTANTIATE_TEST_SUITE_P(Errors, SnapshotFailureTest, ::testing::Values(ENOSPC, EIO),
                         [](const auto& param_info) {
                           return param_info.param == ENOSPC ? "ENOSPC" : "EIO";
                         });

}  // namespace
}  // namespace spillway::io
