// SPDX-License-Identifier: Apache-2.0
//
// Tests the check of a store. It finds no damage after any valid calls. It finds and names each
// kind of damage. It tells what a crash leaves from damage, and ReclaimOrphans gives that space
// back.

#include "io/store/store_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "io/faulty_io_engine.h"
#include "io/posix_io_engine.h"
#include "tests/io/store/store_test_util.h"
#include "tests/read_only_mount.h"
#include "tests/seed.h"

namespace spillway::io {
namespace {

using ::testing::HasSubstr;

class StoreCheckTest : public StoreTest {
 protected:
  // Makes a store in two folders. The tensor "w" has eight pages in three versions: the snapshot
  // "a" keeps the first, and the last commit is partly restored from it. Only the snapshot "b" has
  // the tensor "v".
  void SetUp() override {
    options_ = TwoFolders();
    auto store = Open(options_);
    ASSERT_TRUE(store);
    const TensorIndex w = *store->AddTensor({"w", "{}", 8}, false);
    WriteAll(*store, w, 8, 1);
    ASSERT_TRUE(store->Commit("one").ok());
    ASSERT_TRUE(store->Snapshot("a").ok());
    WriteAll(*store, w, 4, 2);
    const TensorIndex v = *store->AddTensor({"v", "{}", 2}, false);
    WriteAll(*store, v, 2, 1);
    ASSERT_TRUE(store->Commit("two").ok());
    ASSERT_TRUE(store->Snapshot("b").ok());
    ASSERT_TRUE(store->Restore("a").ok());
    WriteAll(*store, w, 2, 3);
    ASSERT_TRUE(store->Commit("three").ok());
  }

  void WriteAll(Store& store, TensorIndex tensor, uint64_t pages, uint64_t version) {
    for (uint64_t page = 0; page < pages; ++page) {
      ASSERT_TRUE(WritePage(store, io_, tensor, page, version).ok());
    }
  }

  std::unique_ptr<StoreView> View() {
    auto view = StoreView::Open(options_.folders, StoreView::Wanted::kAlone);
    EXPECT_TRUE(view.ok()) << view.status();
    return view.ok() ? *std::move(view) : nullptr;
  }
  StoreCheckReport Check(const StoreCheckOptions& options = {}) {
    return Check(PosixIoEngine::Create({})->get(), options);
  }
  StoreCheckReport Check(IoEngine* engine, const StoreCheckOptions& options = {}) {
    const auto view = View();
    if (view == nullptr) return {};
    auto report = CheckStore(*view, engine, options);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *std::move(report) : StoreCheckReport();
  }
  std::string Catalog() const { return options_.folders[0] + "/spillway-catalog.sqlite"; }
  // Expects damage with a message that contains the text.
  void ExpectDamage(const std::string& text) {
    const StoreCheckReport report = Check();
    EXPECT_GT(report.damage, 0u) << text;
    std::string all;
    for (const StoreFinding& finding : report.findings) all += finding.message + "\n";
    EXPECT_THAT(all, HasSubstr(text));
  }
  void ExpectWhole() {
    const StoreCheckReport report = Check();
    for (const StoreFinding& finding : report.findings) ADD_FAILURE() << finding.message;
    EXPECT_TRUE(report.orphans.empty()) << report.orphans[0].path << report.orphans[0].offset;
  }

  // Makes the commit "four", and goes on with a copy of the store as a kill leaves it.
  void KeepACopyWithLog() {
    const std::string copy = folder_ / "copy";
    {
      auto store = Open(options_);
      ASSERT_TRUE(store);
      ASSERT_TRUE(store->Commit("four").ok());
      for (const char* name : {"a", "b"}) {
        std::filesystem::create_directories(copy + "/" + name);
        std::filesystem::copy(folder_ / name, copy + "/" + name,
                              std::filesystem::copy_options::recursive);
      }
    }
    options_.folders = {copy + "/a", copy + "/b"};
  }

  StoreOptions options_;
};

TEST_F(StoreCheckTest, AWholeStoreIsCounted) {
  const StoreCheckReport report = Check();
  EXPECT_EQ(report.damage, 0u);
  EXPECT_TRUE(report.findings.empty());
  EXPECT_TRUE(report.orphans.empty());
  EXPECT_EQ(report.tensors, 2u) << "v was there, without a page, when three was committed";
  EXPECT_EQ(report.snapshots, 2u);
  // The tensor w has 8 in the last commit; 2 are kept for "a" and 4 for "b". The tensor v has 2
  // kept.
  EXPECT_EQ(report.extents, 8 + 2 + 4 + 2);
  EXPECT_EQ(report.used_bytes, report.extents * kTestPageBytes);
  EXPECT_EQ(report.read_bytes, report.used_bytes);
  EXPECT_GT(report.free_bytes, 0u);
}

TEST_F(StoreCheckTest, TheCatalogAloneReadsNoPage) {
  const StoreCheckReport report = Check({.read_pages = false});
  EXPECT_EQ(report.damage, 0u);
  EXPECT_EQ(report.read_bytes, 0u);
}

TEST_F(StoreCheckTest, LooksWithoutChangingAByte) {
  const auto before = FilesIn(options_.folders[0]);
  const auto time = std::filesystem::last_write_time(Catalog());
  Check();
  EXPECT_EQ(FilesIn(options_.folders[0]), before);
  EXPECT_EQ(std::filesystem::last_write_time(Catalog()), time);
}

TEST_F(StoreCheckTest, ANeverCommittedStoreIsWhole) {
  options_.folders = {folder_ / "new"};
  {
    ASSERT_TRUE(Open(options_));
  }
  const StoreCheckReport report = Check();
  EXPECT_EQ(report.damage, 0u);
  EXPECT_EQ(report.pages, 0u);
}

TEST_F(StoreCheckTest, AFlippedByteIsFoundWhereItIs) {
  const std::string sql = "SELECT segment FROM pages WHERE page = 5";
  const uint64_t offset = std::stoull(RunSql(Catalog(), "SELECT offset FROM pages WHERE page = 5"));
  const auto device =
      static_cast<size_t>(std::stoi(RunSql(Catalog(), "SELECT device FROM pages WHERE page = 5")));
  const std::string path = options_.folders[device] + "/spillway-segment-000000";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset + 1000));
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(static_cast<std::streamoff>(offset + 1000));
  file.put(byte);
  file.close();
  const StoreCheckReport report = Check();
  ASSERT_EQ(report.damage, 1u);
  const StoreFinding& finding = report.findings[0];
  EXPECT_EQ(finding.tensor, "w");
  EXPECT_EQ(finding.page, 5u);
  EXPECT_EQ(finding.path, std::filesystem::absolute(path));
  EXPECT_EQ(finding.offset, offset);
  EXPECT_THAT(finding.message, HasSubstr("checksum"));
  // Page 5 never changed: all three commits need it.
  EXPECT_EQ(finding.commits.size(), 3u);
}

TEST_F(StoreCheckTest, ABitThatFlipsOnTheWayIsNoDamageUnlessItDoesSoAgain) {
  auto engine = FaultyIoEngine::Create(
      1, [](ResultHook hook) { return PosixIoEngine::Create({.result_hook = std::move(hook)}); });
  ASSERT_TRUE(engine.ok()) << engine.status();
  (*engine)->Inject({.kind = Fault::Kind::kBitFlip});
  EXPECT_EQ(Check(engine->get()).damage, 0u);
  EXPECT_EQ((*engine)->faults_met(), 1u);
  (*engine)->Inject({.kind = Fault::Kind::kBitFlip, .count = 1000});
  EXPECT_GT(Check(engine->get()).damage, 0u);
}

TEST_F(StoreCheckTest, OnlyAnErrorOfTheDeviceIsDamage) {
  auto engine = FaultyIoEngine::Create(
      1, [](ResultHook hook) { return PosixIoEngine::Create({.result_hook = std::move(hook)}); });
  ASSERT_TRUE(engine.ok()) << engine.status();
  (*engine)->Inject({.kind = Fault::Kind::kEio, .op = IoOp::kRead, .count = 1000});
  EXPECT_GT(Check(engine->get()).damage, 0u);
  (*engine)->Clear();
  (*engine)->Inject({.kind = Fault::Kind::kEnospc, .op = IoOp::kRead, .count = 1000});
  const auto view = View();
  ASSERT_TRUE(view);
  const auto report = CheckStore(*view, engine->get(), {});
  EXPECT_TRUE(absl::IsResourceExhausted(report.status())) << report.status();
}

TEST_F(StoreCheckTest, AMissingOrShortFileIsFound) {
  const std::string path = options_.folders[1] + "/spillway-segment-000000";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4096);
  ExpectDamage("and should have");
  std::filesystem::remove(path);
  ExpectDamage("is missing");
}

TEST_F(StoreCheckTest, ALostFolderIsFoundAndTheOtherIsRead) {
  const uint64_t whole_bytes = Check().read_bytes;
  std::filesystem::rename(options_.folders[1], folder_ / "unmounted");
  const StoreCheckReport report = Check();
  ASSERT_FALSE(report.findings.empty());
  EXPECT_THAT(report.findings[0].message, HasSubstr(options_.folders[1] + " is lost"));
  EXPECT_GT(report.read_bytes, 0u);
  EXPECT_LT(report.read_bytes, whole_bytes);
  EXPECT_GT(report.damage, (whole_bytes - report.read_bytes) / kTestPageBytes)
      << "the folder, and each page in it";
  EXPECT_TRUE(absl::IsNotFound(OpenError({.folders = options_.folders, .create = false})));
  std::filesystem::rename(folder_ / "unmounted", options_.folders[1]);
  std::filesystem::rename(options_.folders[0], folder_ / "unmounted");
  EXPECT_TRUE(
      absl::IsNotFound(StoreView::Open(options_.folders, StoreView::Wanted::kAnyState).status()));
}

TEST_F(StoreCheckTest, ACatalogPageThatCannotBeReadIsFoundAndTheCheckGoesOn) {
  const int64_t root =
      std::stoll(RunSql(Catalog(), "SELECT rootpage FROM sqlite_master WHERE name = 'devices'"));
  SetSqliteHook([&](const SqliteCall& call) {
    const bool fails = call.op == SqliteCall::Op::kRead && call.path == Catalog() &&
                       call.offset == (root - 1) * 4096;
    return fails ? EIO : 0;
  });
  const StoreCheckReport report = Check();
  SetSqliteHook({});
  ASSERT_EQ(report.damage, 3u) << "SQLite names the page, and ends its check";
  EXPECT_THAT(report.findings[1].message, HasSubstr("(EIO)"));
  EXPECT_THAT(report.findings[2].message, HasSubstr("(EIO)")) << "the calibrations";
  EXPECT_EQ(report.read_bytes, report.used_bytes);
  EXPECT_EQ(report.extents, 16u);
}

TEST_F(StoreCheckTest, ADamagedCatalogIsFound) {
  std::fstream file(Catalog(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096 + 100);
  file.put('\x55');
  file.close();
  const auto view = StoreView::Open(options_.folders, StoreView::Wanted::kAlone);
  if (!view.ok()) {
    EXPECT_EQ(view.status().code(), absl::StatusCode::kDataLoss);
    return;
  }
  auto engine = *PosixIoEngine::Create({});
  auto report = CheckStore(**view, engine.get(), {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->damage, 0u);
}

// A change of the catalog's rows that leaves the pages' seals valid.
struct Change {
  std::string name;
  std::string sql;
  std::string finding;  // a part of the message
};
class ChangedRow : public StoreCheckTest, public testing::WithParamInterface<Change> {};

TEST_P(ChangedRow, IsFound) {
  RunSql(Catalog(), "PRAGMA ignore_check_constraints = 1; " + GetParam().sql);
  ExpectDamage(GetParam().finding);
}

INSTANTIATE_TEST_SUITE_P(
    Damage, ChangedRow,
    testing::Values(
        Change{"ALostPage", "DELETE FROM pages WHERE page = 7", "add up to the digest"},
        Change{"ALostKeptPage", "DELETE FROM kept WHERE page = 3 AND born = 1", "snapshot 'a'"},
        Change{"AChecksum", "UPDATE pages SET checksum = checksum + 1 WHERE page = 6",
               "page 6 at offset"},
        Change{"AnotherTensor", "UPDATE pages SET tensor = 99 WHERE page = 6", "no such tensor"},
        Change{"APageBeyondItsTensor", "UPDATE pages SET page = 8 WHERE page = 7",
               "the tensor has 8 pages"},
        Change{"AnExtentTwice",
               "UPDATE pages SET offset = (SELECT offset FROM pages WHERE page = 5), device = "
               "(SELECT device FROM pages WHERE page = 5) WHERE page = 7",
               "its extent is also"},
        Change{"AnExtentWithinAnother",
               "UPDATE pages SET offset = (SELECT offset FROM pages WHERE page = 5) + 4096, device "
               "= (SELECT device FROM pages WHERE page = 5) WHERE page = 7",
               "begins within another"},
        Change{"AnExtentBeyondItsFile", "UPDATE pages SET offset = 1099511627776 WHERE page = 7",
               "was written to"},
        Change{"AnExtentOfTwoSizes",
               "UPDATE pages SET offset = (SELECT offset FROM pages WHERE page = 5), device = "
               "(SELECT device FROM pages WHERE page = 5), size_bytes = 67108864, content_bytes = "
               "67108864 WHERE page = 7",
               "its extent has another size"},
        Change{"APageInMoreUnitsThanItFills",
               "INSERT INTO packs SELECT device, segment, offset, size_bytes, 1 FROM pages WHERE "
               "page = 7; UPDATE pages SET content_bytes = 3000, skip_bytes = 2000 WHERE page = 7",
               "cross more units"},
        Change{"AnUnknownFile", "UPDATE pages SET segment = 5 WHERE page = 7",
               "does not know its file"},
        Change{"AnImpossibleRow", "UPDATE pages SET device = 7 WHERE page = 7",
               "its row in the catalog is impossible"},
        Change{"ATensorsName", "UPDATE tensors SET name = 'x' WHERE name = 'w'",
               "add up to the digest"},
        Change{"ALostSpan", "DELETE FROM tensor_spans WHERE died IS NULL",
               "no part of the last commit"},
        Change{"TheUserState", "UPDATE last_commit SET user_state = x'00'", "the last commit"},
        Change{"ASnapshotsState", "UPDATE snapshots SET user_state = x'00' WHERE label = 'b'",
               "snapshot 'b'"},
        Change{"ASnapshotOfTheFuture", "UPDATE snapshots SET number = 100 WHERE label = 'b'",
               "impossible commit"},
        Change{"FreeAndNamed",
               "UPDATE free_space SET runs = '0+' || (free_bytes / 4096 + 4), free_bytes = "
               "free_bytes + 16384 WHERE device = 0",
               "free and a page's at once"},
        Change{"FreeBytes", "UPDATE free_space SET free_bytes = free_bytes - 4096",
               "free_space counts"},
        Change{"UsedBytes", "UPDATE last_commit SET used_bytes = used_bytes + 4096", "counts"},
        Change{"ACalibration", "INSERT INTO devices VALUES (0, 4096, 1, 1, 1, 0.0, 1.0, 'now')",
               "a calibration is damaged"},
        Change{"APackThatNobodyNames", "INSERT INTO packs VALUES (0, 0, 1048576, 4096, 1)",
               "packs has"}),
    [](const auto& each) { return each.param.name; });

TEST_F(StoreCheckTest, AFileThatCannotBeOpenedHereIsNoDamage) {
  const auto view = View();
  ASSERT_TRUE(view);
  io_.FailNextAdd();
  const auto report = CheckStore(*view, &io_, {});
  EXPECT_TRUE(absl::IsResourceExhausted(report.status())) << report.status();
}

// --- Orphans ---

TEST_F(StoreCheckTest, WhatACrashLeavesIsNoDamageAndIsGivenBack) {
  const std::string& first = options_.folders[0];
  std::ofstream(first + "/spillway-catalog.sqlite.new") << "half";
  std::ofstream(first + "/spillway-segment-000007") << std::string(8192, 'x');
  const std::string known = first + "/spillway-segment-000000";
  const auto size = std::filesystem::file_size(known);
  std::filesystem::resize_file(known, size + 12288);
  std::ofstream(first + "/notes.txt") << "mine";
  RunSql(Catalog(),
         "UPDATE free_space SET runs = (SELECT substr(runs, 1, instr(runs, '+')) || "
         "(free_bytes / 4096 - 2)), free_bytes = free_bytes - 8192 WHERE device = 1");
  {
    const auto view = View();
    ASSERT_TRUE(view);
    auto engine = *PosixIoEngine::Create({});
    const auto report = CheckStore(*view, engine.get(), {});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->damage, 0u) << report->findings[0].message;
    EXPECT_EQ(report->orphans.size(), 4u);
    EXPECT_EQ(report->orphan_bytes, 4 + 8192 + 12288 + 8192u);
    const absl::Status reclaimed = ReclaimOrphans(view.get(), report->orphans);
    ASSERT_TRUE(reclaimed.ok()) << reclaimed;
  }
  EXPECT_FALSE(std::filesystem::exists(first + "/spillway-catalog.sqlite.new"));
  EXPECT_FALSE(std::filesystem::exists(first + "/spillway-segment-000007"));
  EXPECT_EQ(std::filesystem::file_size(known), size);
  EXPECT_TRUE(std::filesystem::exists(first + "/notes.txt"));
  ExpectWhole();
  auto store = Open(options_);
  ASSERT_TRUE(store);
  EXPECT_EQ(store->UserState(), "three");
  ASSERT_TRUE(store->Restore("b").ok());
  EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), 1, 2));
}

TEST_F(StoreCheckTest, TheLogOfACrashIsReadAndLeft) {
  KeepACopyWithLog();
  const std::string log = Catalog() + "-wal";
  ASSERT_GT(std::filesystem::file_size(log), 0u);
  const auto size = std::filesystem::file_size(log);
  {
    const auto view = View();
    ASSERT_TRUE(view);
    EXPECT_EQ((*view->catalog().ReadCommit())->user_state, "four");
  }
  EXPECT_EQ(Check().damage, 0u);
  EXPECT_EQ(std::filesystem::file_size(log), size) << "the log was merged";
}

// The log names the newest commit, and must be read where nothing can be written.
class ReadOnlyStoreTest : public StoreCheckTest {
 protected:
  void SetUp() override {
    StoreCheckTest::SetUp();
    KeepACopyWithLog();
    ASSERT_GT(std::filesystem::file_size(Catalog() + "-wal"), 0u);
  }
  // Expects that the newest commit is read and whole, and that nothing was written.
  void ExpectReadable() {
    const auto before = FilesIn(options_.folders[0]);
    for (const auto wanted : {StoreView::Wanted::kAlone, StoreView::Wanted::kAnyState}) {
      const auto view = StoreView::Open(options_.folders, wanted);
      ASSERT_TRUE(view.ok()) << view.status();
      EXPECT_EQ((*view)->holder(), "");
      EXPECT_EQ((*(*view)->catalog().ReadCommit())->user_state, "four");
    }
    ExpectWhole();
    EXPECT_EQ(FilesIn(options_.folders[0]), before);
  }
};

TEST_F(ReadOnlyStoreTest, AReadOnlyFileSystemIsEnough) {
  const test::ReadOnlyMount seen(folder_ / "copy", folder_ / "seen");
  if (!seen.is_mounted()) GTEST_SKIP() << seen.why();
  const std::vector<std::string> writable =
      std::exchange(options_.folders, {seen / "a", seen / "b"});
  ExpectReadable();
  {
    const auto view = View();
    ASSERT_TRUE(view);
    EXPECT_EQ(Store::Open({.folders = writable}, &io_).status().code(),
              absl::StatusCode::kFailedPrecondition)
        << "the view holds the lock";
    const auto another = StoreView::Open(options_.folders, StoreView::Wanted::kAlone);
    EXPECT_TRUE(another.ok()) << another.status();
    const absl::Status repaired = ReclaimOrphans(view.get(), {{.kind = Orphan::Kind::kUnnamed}});
    EXPECT_TRUE(absl::IsUnavailable(repaired)) << repaired;
    EXPECT_THAT(std::string(repaired.message()), HasSubstr("EROFS"));
  }
  std::filesystem::remove(writable[0] + "/spillway-lock");
  ExpectReadable();
  // Without a log, the file alone is read.
  options_.folders = writable;
  Open(options_).reset();
  options_.folders = {seen / "a", seen / "b"};
  ExpectReadable();
}

TEST_F(ReadOnlyStoreTest, TheRightToReadIsEnough) {
  using std::filesystem::perms;
  constexpr perms kRead = perms::owner_read | perms::group_read | perms::others_read;
  constexpr perms kPass = perms::owner_exec | perms::group_exec | perms::others_exec;
  const auto permit = [&](perms extra) {
    for (const std::string& folder : options_.folders) {
      std::filesystem::permissions(folder, kRead | kPass | extra);
      for (const std::string& name : FilesIn(folder))
        std::filesystem::permissions(folder + "/" + name, kRead | extra);
    }
  };
  permit(perms::none);
  for (const std::string& path : {folder_.path(), folder_ / "copy"})
    std::filesystem::permissions(path, kPass, std::filesystem::perm_options::add);
  const bool is_root = ::geteuid() == 0;
  ASSERT_TRUE(!is_root || ::seteuid(65534) == 0);
  ExpectReadable();
  const auto view = View();
  ASSERT_TRUE(!is_root || ::seteuid(0) == 0);
  permit(perms::owner_write);
  ASSERT_TRUE(view);
  const absl::Status refused = OpenError(options_);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << "the view holds the lock";
  EXPECT_THAT(std::string(refused.message()), HasSubstr("another user that only reads it"));
}

TEST_F(StoreCheckTest, AStoreInUseIsSomebodyElses) {
  const auto store = Open(options_);
  ASSERT_TRUE(store);
  const auto alone = StoreView::Open(options_.folders, StoreView::Wanted::kAlone);
  EXPECT_EQ(alone.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(alone.status().message()), HasSubstr("this process"));
  const auto view = StoreView::Open(options_.folders, StoreView::Wanted::kAnyState);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_THAT((*view)->holder(), HasSubstr("this process"));
  EXPECT_EQ((*(*view)->catalog().ReadCommit())->user_state, "three");
  ASSERT_TRUE(store->Commit("five").ok()) << "a reader is in nobody's way";
  EXPECT_EQ((*(*view)->catalog().ReadCommit())->user_state, "three") << "one state throughout";
}

// When the log has 96 frames, a commit copies them all into the catalog's file. SQLite removes such
// a log when it is closed by a process that takes itself for alone.
TEST_F(StoreCheckTest, AReaderLeavesTheLogOfAStoreInUse) {
  const auto store = Open(options_);
  ASSERT_TRUE(store);
  const std::string log = Catalog() + "-wal";
  const std::string state(96 * 4096, 'x');
  ASSERT_TRUE(store->Commit(state).ok());
  ASSERT_TRUE(std::filesystem::exists(log));
  {
    const auto view = StoreView::Open(options_.folders, StoreView::Wanted::kAnyState);
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ((*(*view)->catalog().ReadCommit())->user_state, state);
  }
  EXPECT_TRUE(std::filesystem::exists(log));
  EXPECT_TRUE(std::filesystem::exists(Catalog() + "-shm"));
  // A copy is what a kill would leave.
  ASSERT_TRUE(store->Commit("after").ok());
  StoreOptions copies = options_;
  for (std::string& folder : copies.folders) {
    std::filesystem::copy(folder, folder + "-copy", std::filesystem::copy_options::recursive);
    folder += "-copy";
  }
  const auto copy = Open(copies);
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->UserState(), "after");
}

TEST_F(StoreCheckTest, StopsWhenAsked) {
  const auto view = View();
  auto engine = *PosixIoEngine::Create({});
  const std::atomic<bool> stop{true};
  EXPECT_EQ(CheckStore(*view, engine.get(), {.stop = &stop}).status().code(),
            absl::StatusCode::kCancelled);
}

// The check finds nothing after random commits, snapshots, restores and drops.
TEST_F(StoreCheckTest, WhateverIsDoneByTheRulesIsWhole) {
  std::mt19937_64 random(test::Seed());
  std::vector<std::string> labels = {"a", "b"};
  for (int round = 0; round < 12; ++round) {
    {
      auto store = Open(options_);
      ASSERT_TRUE(store);
      const auto w = store->FindTensor("w");
      ASSERT_TRUE(w.ok() && w->has_value());
      for (int step = 0; step < 6; ++step) {
        for (uint64_t page = 0; page < 8; ++page) {
          if (random() % 3 != 0) continue;
          ASSERT_TRUE(WritePage(*store, io_, **w, page, random()).ok());
        }
        switch (random() % 5) {
          case 0:
            labels.push_back("s" + std::to_string(round) + "-" + std::to_string(step));
            ASSERT_TRUE(store->Snapshot(labels.back()).ok());
            break;
          case 1: ASSERT_TRUE(store->Restore(labels[random() % labels.size()]).ok()); break;
          case 2:
            if (labels.size() > 1) {
              const size_t i = random() % labels.size();
              ASSERT_TRUE(store->Drop(labels[i]).ok());
              labels.erase(labels.begin() + static_cast<long>(i));
            }
            break;
          default: ASSERT_TRUE(store->Commit(std::to_string(step)).ok());
        }
      }
    }
    const StoreCheckReport report = Check();
    for (const StoreFinding& finding : report.findings) ADD_FAILURE() << finding.message;
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace spillway::io
