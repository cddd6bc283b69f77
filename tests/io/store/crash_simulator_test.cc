// SPDX-License-Identifier: Apache-2.0
//
// Records a run, then cuts the power at any moment of it: the disk keeps an arbitrary part of what
// was not synced. No promised commit or snapshot may be lost or mixed with another. The simulator
// itself is tested too: it must detect a protocol that omits a sync.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "io/store/sqlite_vfs.h"
#include "tests/exhaustive.h"
#include "tests/io/store/crash_disk.h"
#include "tests/io/store/crash_recorder.h"
#include "tests/io/store/simulated_store.h"
#include "tests/seed.h"

namespace spillway::io {
namespace {

// A recorded run: its events, and the number of events before each promise.
struct RecordedRun {
  struct Promise {
    size_t num_events;  // recorded until the call returned
    StoreState state;
  };
  std::vector<DiskEvent> events;
  std::vector<Promise> promises;  // the first is an empty state
  uint64_t next_version = 0;
};

RecordedRun RecordRun() {
  TempFolder folder(FastPlace());
  RecordedRun run;
  SimulatedStore store(folder.path(), {}, 1);
  run.promises.push_back({0, {}});
  CrashRecorder recorder(folder.path());
  for (const auto& call : SimulatedCalls()) {
    const absl::Status status = call(store);
    EXPECT_TRUE(status.ok()) << status;
    run.promises.push_back({recorder.events().size(), store.state()});
  }
  EXPECT_EQ(store.Difference(store.state()), "");
  run.next_version = store.next_version();
  run.events = recorder.events();
  return run;
}

// Cuts the power after `num_events` events; the seed selects the image that is found. Returns what
// is wrong.
std::string CutAndReopen(const RecordedRun& run, size_t num_events, uint64_t seed,
                         const std::string& root) {
  std::mt19937_64 random(seed);
  WriteImage(CutPower(run.events, num_events, random), root);
  size_t promise = 0;
  while (promise + 1 < run.promises.size() && run.promises[promise + 1].num_events <= num_events)
    ++promise;
  std::vector<std::string> differences;
  for (size_t i = promise; i <= promise + 1 && i < run.promises.size(); ++i) {
    SimulatedStore store(root, run.promises[i].state, run.next_version);
    if (const absl::Status status = store.Open(); !status.ok()) return status.ToString();
    const std::string difference = store.Difference(store.state());
    if (difference.empty()) return GoOn(store);
    differences.push_back(difference);
  }
  return absl::StrJoin(differences, "; or ");
}

// Tries `num_disks` images at each of the cuts. Returns what was wrong, at most `enough` times.
std::vector<std::string> Simulate(const RecordedRun& run, const std::vector<size_t>& cuts,
                                  int num_disks, uint64_t seed, size_t enough) {
  TempFolder folder(FastPlace());
  std::vector<std::string> violations;
  for (const size_t cut : cuts) {
    for (int disk = 0; disk < num_disks && violations.size() < enough; ++disk) {
      const uint64_t disk_seed = seed * 1000003 + cut * 101 + static_cast<uint64_t>(disk);
      const std::string wrong = CutAndReopen(run, cut, disk_seed, folder.path());
      if (wrong.empty()) continue;
      violations.push_back(absl::StrCat("after event ", cut, " of ", run.events.size(), ", disk ",
                                        disk_seed, ": ", wrong));
    }
  }
  return violations;
}

std::vector<size_t> AllCuts(const RecordedRun& run) {
  std::vector<size_t> cuts;
  for (size_t cut = 0; cut <= run.events.size(); ++cut) cuts.push_back(cut);
  return cuts;
}

std::vector<size_t> SomeCuts(const RecordedRun& run, size_t count, uint64_t seed) {
  std::vector<size_t> cuts = AllCuts(run);
  std::mt19937_64 random(seed);
  std::shuffle(cuts.begin(), cuts.end(), random);
  cuts.resize(std::min(count, cuts.size()));
  return cuts;
}

TEST(CrashSimulator, APowerCutLeavesAPromisedState) {
  const RecordedRun run = RecordRun();
  std::cout << run.events.size() << " events\n";
  const uint64_t seed = test::Seed();
  const bool all = IsExhaustive();
  const std::vector<size_t> cuts = all ? AllCuts(run) : SomeCuts(run, 120, seed);
  EXPECT_EQ(Simulate(run, cuts, all ? 24 : 2, seed, 3), std::vector<std::string>());
}

// Replaces the selected events from number `from` on with events of no effect, as if the store had
// not made those calls.
RecordedRun Without(RecordedRun run, const std::function<bool(const DiskEvent&)>& is_omitted,
                    size_t from = 0) {
  int omitted = 0;
  for (size_t i = from; i < run.events.size(); ++i) {
    DiskEvent& event = run.events[i];
    if (!is_omitted(event)) continue;
    event = {.kind = DiskEvent::Kind::kSync, .file = 1 << 20};
    ++omitted;
  }
  EXPECT_GT(omitted, 0);
  return run;
}

void ExpectCaught(const RecordedRun& run) {
  const uint64_t seed = test::Seed();
  const auto violations = Simulate(run, SomeCuts(run, run.events.size(), seed), 2, seed, 1);
  ASSERT_FALSE(violations.empty());
  std::cout << violations[0] << "\n";
}

bool Has(const DiskEvent& event, const char* part) {
  return event.path.find(part) != std::string::npos;
}

TEST(CrashSimulator, CatchesDataThatIsNotSynced) {
  ExpectCaught(Without(RecordRun(), [](const DiskEvent& event) {
    return event.kind == DiskEvent::Kind::kSync && Has(event, "segment");
  }));
}

TEST(CrashSimulator, CatchesALogThatIsNotSynced) {
  ExpectCaught(Without(RecordRun(), [](const DiskEvent& event) {
    return event.kind == DiskEvent::Kind::kSync && Has(event, "-wal");
  }));
}

TEST(CrashSimulator, CatchesACatalogThatIsNotSyncedBeforeItsLogIsUsedAgain) {
  ExpectCaught(Without(RecordRun(), [](const DiskEvent& event) {
    return event.kind == DiskEvent::Kind::kSync && event.path.ends_with("catalog.sqlite.new");
  }));
}

TEST(CrashSimulator, CatchesNamesThatAreNotSynced) {
  ExpectCaught(Without(RecordRun(), [](const DiskEvent& event) {
    return event.kind == DiskEvent::Kind::kSyncFolder;
  }));
}

// Overwrites in place a page that the last commit names.
TEST(CrashSimulator, CatchesAWriteOverCommittedBytes) {
  RecordedRun run = RecordRun();
  const size_t first_commit = run.promises[2].num_events;
  std::vector<DiskEvent> writes;
  for (size_t i = 0; i < first_commit; ++i) {
    if (run.events[i].kind == DiskEvent::Kind::kWrite && Has(run.events[i], "segment"))
      writes.push_back(run.events[i]);
  }
  // The second copy of page 4, which the next commits do not replace. The last two writes are of
  // page 5.
  DiskEvent over = writes[writes.size() - 3];
  over.data[100] ^= 1;
  run.events.insert(run.events.begin() + static_cast<std::ptrdiff_t>(first_commit), over);
  for (RecordedRun::Promise& promise : run.promises) {
    if (promise.num_events >= first_commit) ++promise.num_events;
  }
  ExpectCaught(run);
}

// --- A commit that the kernel has and the disk has not ---

using Call = std::function<absl::Status(SimulatedStore&)>;

struct RunAfterAKill {
  RecordedRun run;
  size_t killed_at = 0;  // number of events until the kill
};

// Records a run whose process is killed after a commit wrote the log and before the log was synced.
// The next process opens the store, which has the commit, and makes the call `next`. If the commit
// must survive a power cut after that, `next_is_durable` is set.
RunAfterAKill RecordKill(const std::vector<Call>& before, const Call& commit, const Call& next,
                         bool next_is_durable) {
  TempFolder first(FastPlace());
  TempFolder second(FastPlace());  // what the next process finds
  RunAfterAKill killed;
  RecordedRun& run = killed.run;
  run.promises.push_back({0, {}});
  StoreState state;
  {
    SimulatedStore store(first.path(), {}, 1);
    CrashRecorder recorder(first.path());
    bool is_last = false;
    SetSqliteHook([&](const SqliteCall& call) {
      const bool is_log_sync = call.op == SqliteCall::Op::kSync && call.path.ends_with("-wal");
      constexpr uintmax_t kHeaderBytes = 32;  // the log's header is synced by itself
      if (!is_last || !is_log_sync || std::filesystem::file_size(call.path) <= kHeaderBytes)
        return 0;
      if (run.events.empty()) {
        run.events = recorder.events();
        std::filesystem::copy(first.path(), second.path(),
                              std::filesystem::copy_options::recursive);
      }
      return EIO;
    });
    for (const Call& call : before) {
      const absl::Status status = call(store);
      EXPECT_TRUE(status.ok()) << status;
      run.promises.push_back({recorder.events().size(), store.state()});
    }
    is_last = true;
    EXPECT_FALSE(commit(store).ok());
    state = store.state();
    run.next_version = store.next_version();
    store.Close();
    SetSqliteHook({});
  }
  killed.killed_at = run.events.size();
  SimulatedStore store(second.path(), state, run.next_version);
  CrashRecorder recorder(second.path(), run.events);
  const absl::Status opened = store.Open();
  EXPECT_TRUE(opened.ok()) << opened;
  EXPECT_EQ(store.Difference(state), "");
  const absl::Status status = next(store);
  EXPECT_TRUE(status.ok()) << status;
  run.next_version = store.next_version();
  run.events = recorder.events();
  run.promises.push_back({next_is_durable ? run.events.size() : SIZE_MAX, state});
  return killed;
}

absl::Status CommitPages(SimulatedStore& store, const std::vector<uint64_t>& pages) {
  SPILLWAY_RETURN_IF_ERROR(store.Write("w", pages));
  return store.Commit();
}
absl::Status OpenStore(SimulatedStore& store) { return store.Open(); }
absl::Status CommitAll(SimulatedStore& store) { return CommitPages(store, {0, 1, 2, 3, 4, 5}); }
absl::Status CommitSome(SimulatedStore& store) { return CommitPages(store, {0, 1, 2, 3}); }

RunAfterAKill RecordWritesAfterAKill(const std::vector<Call>& before) {
  const Call write = [](SimulatedStore& store) { return store.Write("w", {0, 1, 2, 3, 4, 5}); };
  return RecordKill(before, CommitSome, write, /*next_is_durable=*/false);
}
RunAfterAKill RecordTrimAfterAKill() {
  const Call trim = [](SimulatedStore& store) { return store.Trim(); };
  return RecordKill({OpenStore, CommitAll}, CommitSome, trim, /*next_is_durable=*/true);
}

std::vector<std::string> SimulateAfterTheKill(const RecordedRun& run, size_t killed_at,
                                              size_t enough) {
  std::vector<size_t> cuts;
  for (size_t cut = killed_at; cut <= run.events.size(); ++cut) cuts.push_back(cut);
  return Simulate(run, cuts, IsExhaustive() ? 24 : 6, test::Seed(), enough);
}

void ExpectCaughtAfterTheKill(const RunAfterAKill& killed) {
  const auto is_log_sync = [](const DiskEvent& event) {
    return event.kind == DiskEvent::Kind::kSync && Has(event, "-wal");
  };
  const RecordedRun run = Without(killed.run, is_log_sync, killed.killed_at);
  const auto violations = SimulateAfterTheKill(run, killed.killed_at, 1);
  ASSERT_FALSE(violations.empty());
  std::cout << violations[0] << "\n";
}

TEST(CrashSimulator, NothingIsWrittenOnTheWordOfALogThatIsNotSynced) {
  // The commit adds to a log that has others, or begins a log.
  for (const std::vector<Call>& before :
       {std::vector<Call>{OpenStore, CommitAll}, {OpenStore, CommitAll, OpenStore}}) {
    const RunAfterAKill killed = RecordWritesAfterAKill(before);
    EXPECT_EQ(SimulateAfterTheKill(killed.run, killed.killed_at, 3), std::vector<std::string>());
  }
}

TEST(CrashSimulator, NothingIsTrimmedOnTheWordOfALogThatIsNotSynced) {
  const RunAfterAKill killed = RecordTrimAfterAKill();
  EXPECT_EQ(SimulateAfterTheKill(killed.run, killed.killed_at, 3), std::vector<std::string>());
}

TEST(CrashSimulator, CatchesAWriteOnTheWordOfALogThatIsNotSynced) {
  ExpectCaughtAfterTheKill(RecordWritesAfterAKill({OpenStore, CommitAll}));
}

TEST(CrashSimulator, CatchesATrimOnTheWordOfALogThatIsNotSynced) {
  ExpectCaughtAfterTheKill(RecordTrimAfterAKill());
}

// Tests the disk model: synced states stay, and the rest has any of its states since the sync.
TEST(CrashDisk, SectorsAndNamesChooseAmongTheirStates) {
  using Kind = DiskEvent::Kind;
  const auto block = [](char c) { return std::string(1024, c); };
  const std::vector<DiskEvent> events = {
      {.kind = Kind::kMake, .file = 0, .path = "f"},
      {.kind = Kind::kWrite, .file = 0, .data = block('a')},
      {.kind = Kind::kSync, .file = 0},
      {.kind = Kind::kSyncFolder},
      {.kind = Kind::kWrite, .file = 0, .data = block('b')},
      {.kind = Kind::kWrite, .file = 0, .offset = 512, .data = block('c')},
      {.kind = Kind::kRename, .path = "f", .to = "g"},
      {.kind = Kind::kMake, .file = 1, .path = "h"},
  };
  std::set<std::string> firsts;
  std::set<std::string> seconds;
  std::set<size_t> sizes;
  std::set<std::string> names;
  std::mt19937_64 random(test::Seed());
  for (int i = 0; i < 400; ++i) {
    std::string all;
    for (const auto& [name, content] : CutPower(events, events.size(), random)) {
      all += name;
      if (name == "h") continue;
      sizes.insert(content->size());
      firsts.insert(content->substr(0, 512));
      seconds.insert(content->substr(512, 512));
    }
    names.insert(all);
  }
  const auto sector = [](char c) { return std::string(512, c); };
  EXPECT_EQ(firsts, (std::set<std::string>{sector('a'), sector('b')}));
  EXPECT_EQ(seconds, (std::set<std::string>{sector('a'), sector('b'), sector('c')}));
  EXPECT_EQ(sizes, (std::set<size_t>{1024, 1536}));
  EXPECT_EQ(names, (std::set<std::string>{"f", "g", "gh"}));
}

}  // namespace
}  // namespace spillway::io
