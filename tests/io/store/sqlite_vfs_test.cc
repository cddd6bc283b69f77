// SPDX-License-Identifier: Apache-2.0
//
// Tests that no changed byte of a catalog is accepted, whichever program wrote the page and
// wherever the page is, and that SQLite's errors become the right Status.

#include "io/store/sqlite_vfs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "io/store/sqlite.h"
#include "io/store/sqlite_page.h"
#include "tests/io/store/store_test_util.h"
#include "tests/seed.h"

namespace spillway::io {
namespace {

using Op = SqliteCall::Op;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}
std::span<const std::byte> PageOf(const std::string& file, size_t number) {
  return std::as_bytes(std::span(file)).subspan((number - 1) * kSqlitePageBytes, kSqlitePageBytes);
}

class SqliteVfsTest : public ::testing::Test {
 protected:
  ~SqliteVfsTest() override { SetSqliteHook({}); }

  // Makes a database with rows of some hundred bytes, so that it has pages of every kind, including
  // free and overflow pages.
  void Make(int rows = 60) {
    auto database = SqliteDatabase::Open(path_, SqliteDatabase::Mode::kCreate);
    ASSERT_TRUE(database.ok()) << database.status();
    ASSERT_TRUE((*database)->Execute("PRAGMA journal_mode = WAL").ok());
    ASSERT_TRUE((*database)->Execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB)").ok());
    ASSERT_TRUE(Fill(**database, 1, rows).ok());
    ASSERT_TRUE((*database)->Execute("INSERT INTO t VALUES (1000, randomblob(9000))").ok());
    ASSERT_TRUE((*database)->Execute("DELETE FROM t WHERE k BETWEEN 20 AND 35").ok());
  }
  static absl::Status Fill(SqliteDatabase& database, int from, int to) {
    const std::string sql = absl::StrCat(
        "WITH RECURSIVE n(i) AS (SELECT ", from, " UNION ALL SELECT i + 1 FROM n WHERE i < ", to,
        ") INSERT OR REPLACE INTO t SELECT i, zeroblob(400) FROM n");
    return database.Execute(sql.c_str());
  }
  // Returns the content of every row, or the error of reading it.
  absl::StatusOr<std::string> Content(const std::string& path) {
    auto database = SqliteDatabase::Open(path, SqliteDatabase::Mode::kExisting);
    if (!database.ok()) return database.status();
    auto get = (*database)->Prepare("SELECT k, v FROM t ORDER BY k");
    if (!get.ok()) return get.status();
    std::string all;
    for (;;) {
      const auto has_row = get->Step();
      if (!has_row.ok()) return has_row.status();
      if (!*has_row) return all;
      absl::StrAppend(&all, get->Integer(0), ":", get->Bytes(1), ";");
    }
  }
  absl::StatusOr<std::string> Content() { return Content(path_); }

  TempFolder folder_;
  const std::string path_ = folder_ / "c.sqlite";
};

TEST_F(SqliteVfsTest, EveryPageIsSealed) {
  Make();
  const std::string file = ReadFile(path_);
  ASSERT_EQ(file.size() % kSqlitePageBytes, 0u);
  ASSERT_GT(file.size(), 8 * kSqlitePageBytes);
  for (size_t number = 1; number <= file.size() / kSqlitePageBytes; ++number) {
    EXPECT_TRUE(IsSealed(PageOf(file, number), number)) << number;
  }
}

TEST_F(SqliteVfsTest, TheStockLibraryReadsIt) {
  Make();
  EXPECT_EQ(RunSql(path_, "PRAGMA integrity_check", nullptr), "ok");
  EXPECT_EQ(RunSql(path_, "SELECT count(*) FROM t", nullptr), "45");
}

// Stock SQLite recovers the log that a crash left and moves its pages to the database. The store's
// own VFS accepts those pages.
TEST_F(SqliteVfsTest, TheStockLibraryMayRecoverTheLog) {
  Make();
  const std::string copy = folder_ / "copy.sqlite";
  std::string wanted;
  {
    auto database = SqliteDatabase::Open(path_, SqliteDatabase::Mode::kExisting);
    ASSERT_TRUE(Fill(**database, 10, 300).ok());
    ASSERT_TRUE((*database)->Execute("UPDATE t SET v = randomblob(50) WHERE k % 3 = 0").ok());
    wanted = *Content();
    std::filesystem::copy(path_, copy);
    std::filesystem::copy(path_ + "-wal", copy + "-wal");
  }
  ASSERT_GT(std::filesystem::file_size(copy + "-wal"), 10 * kFrameBytes);
  EXPECT_EQ(RunSql(copy, "SELECT count(*) FROM t", nullptr), "301");
  EXPECT_FALSE(std::filesystem::exists(copy + "-wal"));  // moved to the database
  const auto found = Content(copy);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, wanted);
}

// The store's VFS and the stock one recover the log. The transactions are so large that pages leave
// the cache before the commit and come back: SQLite then replaces frames and corrects the checksums
// of the frames behind them.
TEST_F(SqliteVfsTest, TheLogIsRecoveredWhole) {
  Make();
  const std::string copy = folder_ / "copy.sqlite";
  auto database = SqliteDatabase::Open(path_, SqliteDatabase::Mode::kExisting);
  ASSERT_TRUE((*database)->Execute("PRAGMA cache_size = 10; PRAGMA wal_autocheckpoint = 0").ok());
  int corrected_sums = 0;
  SetSqliteHook([&](const SqliteCall& call) {
    if (call.op == Op::kWrite && call.bytes.size() == kFrameHeaderBytes) ++corrected_sums;
    return 0;
  });
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE((*database)->Execute("BEGIN").ok());
    ASSERT_TRUE(Fill(**database, 10, 900).ok());
    ASSERT_TRUE((*database)->Execute("UPDATE t SET v = randomblob(60) WHERE k % 3 = 0").ok());
    ASSERT_TRUE((*database)->Execute("SAVEPOINT s; UPDATE t SET v = x'00'; ROLLBACK TO s").ok());
    ASSERT_TRUE((*database)->Execute("UPDATE t SET v = randomblob(60) WHERE k % 5 = 0").ok());
    ASSERT_TRUE((*database)->Execute("COMMIT").ok());
    const std::string wanted = *Content();
    for (const char* vfs : {SqliteVfsName(), static_cast<const char*>(nullptr)}) {
      std::filesystem::copy(path_, copy, std::filesystem::copy_options::overwrite_existing);
      std::filesystem::copy(path_ + "-wal", copy + "-wal",
                            std::filesystem::copy_options::overwrite_existing);
      EXPECT_EQ(RunSql(copy, "PRAGMA integrity_check", vfs), "ok");
      const auto found = Content(copy);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(*found, wanted) << "round " << round;
    }
  }
  EXPECT_GT(corrected_sums, 10);
}

TEST_F(SqliteVfsTest, APageInThePlaceOfAnotherIsDataLoss) {
  Make();
  std::string file = ReadFile(path_);
  const size_t pages = file.size() / kSqlitePageBytes;
  file.replace((pages - 1) * kSqlitePageBytes, kSqlitePageBytes,
               file.substr((pages - 2) * kSqlitePageBytes, kSqlitePageBytes));
  WriteFile(path_, file);
  bool found = false;
  for (const char* sql : {"SELECT sum(length(v)) FROM t", "VACUUM"}) {
    auto database = SqliteDatabase::Open(path_, SqliteDatabase::Mode::kExisting);
    found = found || absl::IsDataLoss((*database)->Execute(sql));
  }
  EXPECT_TRUE(found);
}

TEST_F(SqliteVfsTest, DamageIsReportedWithFileAndOffset) {
  Make();
  std::string file = ReadFile(path_);
  file[kSqlitePageBytes + 300] ^= 1;
  WriteFile(path_, file);
  const absl::Status status = Content().status();
  ASSERT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(status.message().find("page 2 at offset 4096 of " + path_), absl::string_view::npos)
      << status;
}

// Flips one bit of a random byte at a time: the rows are the same, or damage is reported.
TEST_F(SqliteVfsTest, AChangedByteIsReportedOrHarmless) {
  Make();
  const std::string wanted = *Content();
  std::string file = ReadFile(path_);
  std::mt19937_64 random(test::Seed());
  int reported = 0;
  for (int i = 0; i < 400; ++i) {
    // A third of the bytes are in the header.
    const size_t at = random() % (i % 3 == 0 ? 100 : file.size());
    const char old = std::exchange(file[at], static_cast<char>(file[at] ^ (1 << random() % 8)));
    WriteFile(path_, file);
    const auto found = Content();
    file[at] = old;
    if (found.ok()) {
      EXPECT_EQ(*found, wanted) << "byte " << at;
    } else {
      EXPECT_TRUE(absl::IsDataLoss(found.status())) << "byte " << at << ": " << found.status();
      ++reported;
    }
  }
  EXPECT_GT(reported, 200);
}

// The power failed while page 1 was being moved from the log. The log still has the whole page.
TEST_F(SqliteVfsTest, ATornPageThatTheLogHasIsRepaired) {
  Make();
  std::string wanted;
  const std::string copy = folder_ / "copy.sqlite";
  {
    auto database = SqliteDatabase::Open(path_, SqliteDatabase::Mode::kExisting);
    ASSERT_TRUE((*database)->Execute("PRAGMA user_version = 7").ok());  // changes page 1
    wanted = *Content();
    std::string file = ReadFile(path_);
    for (size_t i = 512; i < kSqlitePageBytes; ++i) file[i] ^= 0x55;
    WriteFile(copy, file);
    std::filesystem::copy(path_ + "-wal", copy + "-wal");
  }
  const auto found = Content(copy);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, wanted);
}

TEST_F(SqliteVfsTest, AShortenedFileIsDataLoss) {
  Make();
  for (const size_t cut : {size_t{1}, size_t{100}, kSqlitePageBytes, 3 * kSqlitePageBytes}) {
    const std::string file = ReadFile(path_);
    std::filesystem::resize_file(path_, file.size() - cut);
    EXPECT_TRUE(absl::IsDataLoss(Content().status())) << cut << ": " << Content().status();
    WriteFile(path_, file);
  }
}

TEST_F(SqliteVfsTest, APageThatRotsInTheLogIsDataLoss) {
  Make();
  auto database = SqliteDatabase::Open(path_, SqliteDatabase::Mode::kExisting);
  ASSERT_TRUE((*database)->Execute("PRAGMA cache_size = 0").ok());
  ASSERT_TRUE(Fill(**database, 10, 300).ok());
  const std::string log = path_ + "-wal";
  const int fd = ::open(log.c_str(), O_RDWR | O_CLOEXEC);
  for (size_t at = kWalHeaderBytes + kFrameHeaderBytes + 2000; at < std::filesystem::file_size(log);
       at += kFrameBytes) {
    ASSERT_EQ(::pwrite(fd, "\xff", 1, static_cast<off_t>(at)), 1);
  }
  ::close(fd);
  const absl::Status status = (*database)->Execute("SELECT sum(length(v)) FROM t");
  ASSERT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(status.message().find(log), absl::string_view::npos) << status;
  const absl::Status moved = (*database)->Execute("PRAGMA wal_checkpoint");
  EXPECT_TRUE(absl::IsDataLoss(moved)) << "a rotten page went into the database: " << moved;
}

TEST_F(SqliteVfsTest, ADatabaseWithoutRoomForSealsIsNotWritten) {
  WriteFile(path_, "");
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open_v2(path_.c_str(), &database, SQLITE_OPEN_READWRITE, SqliteVfsName()),
            SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(database, "CREATE TABLE t (k)", nullptr, nullptr, nullptr), SQLITE_IOERR);
  sqlite3_close(database);
}

// Each read in turn fails, as on a device that fails. The file is not to blame.
TEST_F(SqliteVfsTest, AReadThatFailsIsNoDamage) {
  Make();
  int failures = 0;
  bool was_met = true;
  for (int at = 0; was_met; ++at) {
    int reads = 0;
    SetSqliteHook(
        [&](const SqliteCall& call) { return call.op == Op::kRead && reads++ == at ? EIO : 0; });
    const absl::Status status = Content().status();
    was_met = reads > at;
    if (status.ok()) continue;
    ++failures;
    EXPECT_TRUE(absl::IsUnavailable(status)) << at << ": " << status;
    EXPECT_NE(status.message().find("(EIO)"), absl::string_view::npos) << at << ": " << status;
  }
  EXPECT_GT(failures, 5);
}

TEST_F(SqliteVfsTest, TheHookFailsCallsAndChangesBytes) {
  Make();
  const std::string wanted = *Content();
  struct Case {
    Op op;
    int error;
    absl::StatusCode code;
  };
  const Case cases[] = {{Op::kWrite, ENOSPC, absl::StatusCode::kResourceExhausted},
                        {Op::kWrite, EIO, absl::StatusCode::kUnavailable},
                        {Op::kSync, EIO, absl::StatusCode::kUnavailable}};
  for (const Case& c : cases) {
    auto database = SqliteDatabase::Open(path_, SqliteDatabase::Mode::kExisting);
    SetSqliteHook([&](const SqliteCall& call) { return call.op == c.op ? c.error : 0; });
    EXPECT_EQ(Fill(**database, 5, 15).code(), c.code) << Fill(**database, 5, 15);
    SetSqliteHook({});
  }
  EXPECT_EQ(*Content(), wanted);
  SetSqliteHook([&](const SqliteCall& call) {
    if (call.op == Op::kRead && call.offset == 2 * kSqlitePageBytes) call.bytes[77] ^= std::byte{4};
    return 0;
  });
  EXPECT_TRUE(absl::IsDataLoss(Content().status())) << Content().status();
}

}  // namespace
}  // namespace spillway::io
