// SPDX-License-Identifier: Apache-2.0
//
// Tests the catalog's file: what it stores, what other programs can read in it, and what is
// reported when it is damaged.

#include "io/store/catalog.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/store/catalog_change.h"
#include "io/store/catalog_digest.h"
#include "tests/io/store/store_test_util.h"
#include "tests/seed.h"

namespace spillway::io {
namespace {

constexpr uint64_t kSegmentBytes = uint64_t{8} << 30;

// The record of a page of 64 KiB. Every page has its own extent.
PageRecord Page(uint64_t page) {
  return {.extent = {1, 2, page * 65536, 65536},
          .content_bytes = 65000,
          .checksum = 0xfedcba9876543210u};
}

class CatalogTest : public ::testing::Test {
 protected:
  void Make() {
    ASSERT_TRUE(Catalog::Create(path_, {"00112233445566778899aabbccddeeff", 65536, 2}).ok());
  }
  // Makes a catalog with one tensor, `num_pages` pages and one commit, and closes it.
  void MakeWithCommit(uint64_t num_pages = 1) {
    Make();
    auto catalog = Catalog::Open(path_);
    ASSERT_TRUE(catalog.ok()) << catalog.status();
    auto change = CatalogChange::Begin(catalog->get(), std::nullopt);
    ASSERT_TRUE(change.ok()) << change.status();
    (*change)->AddSpace(1, 2, 0, kSegmentBytes);
    ASSERT_TRUE((*change)->PutSegment({1, 2, kSegmentBytes, kSegmentBytes / 2}).ok());
    ASSERT_TRUE((*change)->AddTensor(5, {"weight", "{}", num_pages}).ok());
    for (uint64_t page = 0; page < num_pages; ++page)
      ASSERT_TRUE((*change)->PutPage(5, page, Page(page), true).ok());
    const auto commit = (*change)->FinishCommit(std::string("a\0b", 3));
    ASSERT_TRUE(commit.ok()) << commit.status();
    EXPECT_EQ(commit->used_bytes, num_pages * 65536);
    ASSERT_TRUE((*catalog)->Accept().ok());
  }
  // Reads everything in the catalog. Returns the first error.
  absl::Status ReadAll() {
    auto catalog = Catalog::Open(path_);
    if (!catalog.ok()) return catalog.status();
    if (auto commit = (*catalog)->ReadCommit(); !commit.ok()) return commit.status();
    if (auto segments = (*catalog)->ReadSegments(); !segments.ok()) return segments.status();
    if (auto snapshots = (*catalog)->ReadSnapshots(); !snapshots.ok()) return snapshots.status();
    if (auto profiles = (*catalog)->ReadProfiles(); !profiles.ok()) return profiles.status();
    if (auto id = (*catalog)->NextTensorId(); !id.ok()) return id.status();
    auto tensor = (*catalog)->FindTensor("weight");
    if (!tensor.ok()) return tensor.status();
    auto chunks = (*catalog)->ReadFreeChunks(1, {}, 1000);
    if (!chunks.ok()) return chunks.status();
    return (*catalog)->ReadPages(5, 0, 1 << 20, [](uint64_t, const PageRecord&) {});
  }

  TempFolder folder_;
  const std::string path_ = folder_ / "catalog.sqlite";
};

TEST_F(CatalogTest, KeepsWhatWasCommitted) {
  MakeWithCommit(3);
  auto catalog = Catalog::Open(path_);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_EQ((*catalog)->meta().store_id, "00112233445566778899aabbccddeeff");
  EXPECT_EQ((*catalog)->meta().page_bytes, 65536u);
  EXPECT_EQ((*catalog)->meta().num_folders, 2u);
  const auto commit = (*catalog)->ReadCommit();
  ASSERT_TRUE(commit.ok() && commit->has_value());
  EXPECT_EQ((*commit)->number, 1u);
  EXPECT_EQ((*commit)->revision, 1u);
  EXPECT_EQ((*commit)->used_bytes, 3 * 65536u);
  EXPECT_EQ((*commit)->user_state, std::string("a\0b", 3));
  uint64_t digest =
      TensorDigest(5, {"weight", "{}", 3}) + CommitDigest(1, 65536, (*commit)->user_state);
  const auto tensor = (*catalog)->FindTensor("weight");
  ASSERT_TRUE(tensor.ok() && tensor->has_value());
  EXPECT_EQ((*tensor)->id, 5u);
  EXPECT_EQ((*tensor)->record.description, "{}");
  EXPECT_EQ((*tensor)->record.num_pages, 3u);
  EXPECT_FALSE((*catalog)->FindTensor("bias")->has_value());
  EXPECT_EQ(*(*catalog)->NextTensorId(), 6u);
  uint64_t next = 0;
  const absl::Status status =
      (*catalog)->ReadPages(5, 0, 1024, [&](uint64_t page, const PageRecord& record) {
        EXPECT_EQ(page, next++);
        EXPECT_EQ(record, Page(page));
        digest += PageDigest(5, page, record);
      });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(next, 3u);
  EXPECT_EQ((*commit)->digest, digest);
  const auto chunks = (*catalog)->ReadFreeChunks(1, {}, 1000);
  ASSERT_TRUE(chunks.ok()) << chunks.status();
  ASSERT_EQ(chunks->size(), kSegmentBytes / kChunkBytes);
  EXPECT_EQ((*chunks)[0].runs, (std::vector<UnitRun>{{48, kChunkUnits - 48}}));
  EXPECT_EQ((*chunks)[1].runs, (std::vector<UnitRun>{{0, kChunkUnits}}));
  EXPECT_TRUE((*catalog)->ReadFreeChunks(0, {}, 1000)->empty());
  const auto segments = (*catalog)->ReadSegments();
  ASSERT_EQ(segments->size(), 1u);
  EXPECT_EQ((*segments)[0].written_bytes, kSegmentBytes / 2);
}

TEST_F(CatalogTest, ANewOneHasNoCommit) {
  Make();
  auto catalog = Catalog::Open(path_);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  const auto commit = (*catalog)->ReadCommit();
  ASSERT_TRUE(commit.ok());
  EXPECT_FALSE(commit->has_value());
}

TEST_F(CatalogTest, IsOneFileWhenClosed) {
  MakeWithCommit();
  EXPECT_EQ(FilesIn(folder_.path()), std::vector<std::string>{"catalog.sqlite"});
}

TEST_F(CatalogTest, KeepsItsLogWhenClosedUntilItIsAccepted) {
  MakeWithCommit();
  {
    auto catalog = Catalog::Open(path_);
    ASSERT_TRUE(catalog.ok()) << catalog.status();
    ASSERT_TRUE((*catalog)->WriteProfile(0, {4096, 1, 1, 1, 1e9, 1e9}).ok());
  }
  EXPECT_TRUE(std::filesystem::exists(path_ + "-wal"));
  {
    auto catalog = Catalog::Open(path_);
    ASSERT_TRUE(catalog.ok()) << catalog.status();
    ASSERT_TRUE((*catalog)->Accept().ok());
  }
  EXPECT_EQ(FilesIn(folder_.path()), std::vector<std::string>{"catalog.sqlite"});
}

TEST_F(CatalogTest, IsReadWhateverItsPathIs) {
  for (const char* name : {"plain", "a?b#c%41"}) {
    const std::string folder = absl::StrCat(folder_.path(), "/", name);
    std::filesystem::create_directory(folder);
    const std::string path = folder + "/catalog.sqlite";
    ASSERT_TRUE(Catalog::Create(path, {"id", 65536, 2}).ok());
    for (const std::string& spelling : {path, "/" + path, "//" + path}) {
      const auto catalog = Catalog::OpenToRead(spelling, SqliteDatabase::Mode::kReadAlone);
      EXPECT_TRUE(catalog.ok()) << spelling << ": " << catalog.status();
    }
  }
}

TEST_F(CatalogTest, IsReadableWithTheSqliteCommand) {
  MakeWithCommit();
  EXPECT_EQ(RunSql(path_, "SELECT value FROM meta WHERE key = 'format_version'", /*vfs=*/nullptr),
            "2");
  EXPECT_EQ(RunSql(path_, "SELECT name FROM tensors JOIN pages ON tensors.id = pages.tensor",
                   /*vfs=*/nullptr),
            "weight");
  EXPECT_EQ(RunSql(path_, "SELECT printf('%016x', checksum) FROM pages", /*vfs=*/nullptr),
            "fedcba9876543210");
  EXPECT_EQ(
      RunSql(path_, "SELECT number || ' ' || hex(user_state) FROM last_commit", /*vfs=*/nullptr),
      "1 610062");
  EXPECT_EQ(RunSql(path_, "PRAGMA integrity_check", /*vfs=*/nullptr), "ok");
  EXPECT_EQ(RunSql(path_, "PRAGMA journal_mode", /*vfs=*/nullptr), "wal");
}

TEST_F(CatalogTest, CanBeReadWhileItIsOpen) {
  MakeWithCommit();
  auto catalog = Catalog::Open(path_);
  ASSERT_TRUE(catalog.ok());
  EXPECT_EQ(RunSql(path_, "SELECT count(*) FROM tensors"), "1");
  auto change = CatalogChange::Begin(catalog->get(), *(*catalog)->ReadCommit());
  ASSERT_TRUE(change.ok()) << change.status();
  ASSERT_TRUE((*change)->AddTensor(6, {"w", "{}", 1}).ok());
  EXPECT_EQ(RunSql(path_, "SELECT count(*) FROM tensors"), "1");
  EXPECT_TRUE((*change)->FinishCommit("y").ok());
  EXPECT_EQ(RunSql(path_, "SELECT count(*) FROM tensors"), "2");
}

TEST_F(CatalogTest, AChangeThatIsNotFinishedLeavesTheLastCommit) {
  MakeWithCommit();
  auto catalog = Catalog::Open(path_);
  ASSERT_TRUE(catalog.ok());
  const auto last = *(*catalog)->ReadCommit();
  {
    auto change = CatalogChange::Begin(catalog->get(), last);
    ASSERT_TRUE((*change)->PutPage(5, 0, std::nullopt, false).ok());
  }
  EXPECT_EQ((*(*catalog)->ReadCommit())->number, 1u);
  EXPECT_EQ(RunSql(path_, "SELECT count(*) FROM pages"), "1");
  auto change = CatalogChange::Begin(catalog->get(), last);
  ASSERT_TRUE((*change)->PutPage(5, 0, std::nullopt, false).ok());
  const auto commit = (*change)->FinishCommit("new");
  ASSERT_TRUE(commit.ok()) << commit.status();
  EXPECT_EQ(commit->used_bytes, 0u);
  ASSERT_EQ((*change)->freed().size(), 1u);
  EXPECT_EQ((*change)->freed()[0].extent, Page(0).extent);
}

TEST_F(CatalogTest, AFailedStatementNamesFileAndCause) {
  MakeWithCommit();
  auto catalog = Catalog::Open(path_);
  ASSERT_TRUE(catalog.ok());
  auto change = CatalogChange::Begin(catalog->get(), *(*catalog)->ReadCommit());
  const absl::Status status = (*change)->AddTensor(5, {"bias", "{}", 1});
  EXPECT_NE(status.message().find(path_), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("UNIQUE"), absl::string_view::npos) << status;
}

TEST_F(CatalogTest, BytesThatAreNotFreeAreNeverTaken) {
  MakeWithCommit();
  auto catalog = Catalog::Open(path_);
  ASSERT_TRUE(catalog.ok());
  auto change = CatalogChange::Begin(catalog->get(), *(*catalog)->ReadCommit());
  ASSERT_TRUE((*change)->AddTensor(6, {"bias", "{}", 1}).ok());
  ASSERT_TRUE((*change)->PutPage(6, 0, Page(0), true).ok());
  const absl::Status status = (*change)->FinishCommit("").status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  change->reset();
  EXPECT_EQ(RunSql(path_, "SELECT count(*) FROM pages"), "1");
}

TEST_F(CatalogTest, APageIsNeverCommittedInPlace) {
  MakeWithCommit();
  auto catalog = Catalog::Open(path_);
  ASSERT_TRUE(catalog.ok());
  auto change = CatalogChange::Begin(catalog->get(), *(*catalog)->ReadCommit());
  PageRecord record = Page(0);
  EXPECT_TRUE((*change)->PutPage(5, 0, record, false).ok()) << "nothing changes";
  ++record.checksum;
  const absl::Status status = (*change)->PutPage(5, 0, record, false);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST_F(CatalogTest, AnotherFormatIsRefusedWithTheReason) {
  MakeWithCommit();
  for (const char* format : {"1", "4"}) {
    RunSql(path_,
           absl::StrCat("UPDATE meta SET value = ", format, " WHERE key = 'format_version'"));
    const absl::Status status = Catalog::Open(path_).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_NE(status.message().find(absl::StrCat("format ", format)), absl::string_view::npos)
        << status;
    EXPECT_NE(status.message().find("format 2"), absl::string_view::npos) << status;
  }
}

TEST_F(CatalogTest, ARefusedCatalogIsNotChanged) {
  Make();
  RunSql(path_, "UPDATE meta SET value = 4 WHERE key = 'format_version'");
  EXPECT_FALSE(Catalog::Open(path_).ok());
  EXPECT_EQ(RunSql(path_, "PRAGMA journal_mode"), "delete");
}

TEST_F(CatalogTest, KeepsProfilesAndRefusesImpossibleOnes) {
  Make();
  const DeviceProfile profile = {1 << 20, 8, 4, 2, 7.5e9, 5e9};
  {
    auto catalog = Catalog::Open(path_);
    ASSERT_TRUE((*catalog)->WriteProfile(1, profile).ok());
    EXPECT_TRUE(absl::IsInvalidArgument((*catalog)->WriteProfile(2, profile)));
    DeviceProfile impossible = profile;
    impossible.write_bytes_per_second = 0;
    EXPECT_TRUE(absl::IsInvalidArgument((*catalog)->WriteProfile(1, impossible)));
  }
  auto catalog = Catalog::Open(path_);
  const auto profiles = (*catalog)->ReadProfiles();
  ASSERT_TRUE(profiles.ok()) << profiles.status();
  EXPECT_EQ((*profiles)[0], std::nullopt);
  EXPECT_EQ((*profiles)[1], profile);
}

TEST_F(CatalogTest, WhatIsNoCatalogIsDataLoss) {
  std::ofstream(path_) << "";
  EXPECT_TRUE(absl::IsDataLoss(ReadAll())) << ReadAll();
  std::ofstream(path_) << std::string(8192, 'x');
  EXPECT_TRUE(absl::IsDataLoss(ReadAll())) << ReadAll();
  std::filesystem::remove(path_);
  std::ofstream(path_) << "";
  RunSql(path_, "CREATE TABLE meta (key, value); INSERT INTO meta VALUES ('format_version', 1)",
         /*vfs=*/nullptr);
  EXPECT_TRUE(absl::IsDataLoss(ReadAll())) << ReadAll();
}

TEST_F(CatalogTest, RowsThatBreakAnInvariantAreDataLoss) {
  MakeWithCommit();
  const std::vector<std::string> damages = {
      "UPDATE pages SET device = 2",
      "UPDATE pages SET device = -1",
      "UPDATE pages SET segment = 1 << 24",
      "UPDATE pages SET offset = offset + 1",
      "UPDATE pages SET offset = -4096",
      "UPDATE pages SET offset = 1 << 44",
      "UPDATE pages SET size_bytes = 0",
      "UPDATE pages SET size_bytes = 1 << 32",
      "UPDATE pages SET content_bytes = 65537",
      "UPDATE pages SET skip_bytes = 1",
      "UPDATE tensors SET num_pages = -1",
      "UPDATE tensors SET id = -5; UPDATE tensor_spans SET tensor = -5",
      "UPDATE segments SET device = 2",
      "UPDATE segments SET size_bytes = 5000",
      "UPDATE segments SET written_bytes = size_bytes + 4096",
      "UPDATE free_space SET runs = ''",
      "UPDATE free_space SET runs = '0+16385'",
      "UPDATE free_space SET runs = '0+3 3+1'",
      "UPDATE free_space SET runs = '5+1 0+1'",
      "UPDATE free_space SET runs = '-1+3'",
      "UPDATE free_space SET runs = '0+0'",
      "UPDATE free_space SET runs = '1+2 '",
      "UPDATE free_space SET chunk = -1 WHERE chunk = 0",
      "INSERT INTO snapshots VALUES ('a', 0, '', x'', 0)",
      "INSERT INTO devices VALUES (0, 4096, 0, 1, 1, 1.0, 1.0, '')",
      "INSERT INTO devices VALUES (0, 4096, 1, 1, 1, -1.0, 1.0, '')",
      "UPDATE last_commit SET used_bytes = -1",
      "UPDATE last_commit SET number = 0",
      "UPDATE meta SET value = 'many' WHERE key = 'num_folders'",
      "UPDATE meta SET value = 257 WHERE key = 'num_folders'",
      "UPDATE meta SET value = 1000 WHERE key = 'page_bytes'",
      "DELETE FROM meta WHERE key = 'page_bytes'",
      "DELETE FROM meta WHERE key = 'store_id'",
      "PRAGMA application_id = 7",
      "DROP TABLE pages",
      "DROP TABLE tensors",
      "DROP TABLE last_commit",
      "DROP TABLE segments",
      "DROP TABLE packs",
      "DROP TABLE snapshots",
      "DROP TABLE meta",
  };
  const std::string good = folder_ / "good";
  std::filesystem::copy_file(path_, good);
  for (const std::string& damage : damages) {
    SCOPED_TRACE(damage);
    std::filesystem::copy_file(good, path_, std::filesystem::copy_options::overwrite_existing);
    ASSERT_TRUE(ReadAll().ok()) << ReadAll();
    RunSql(path_, "PRAGMA ignore_check_constraints = ON; " + damage);
    const absl::Status status = ReadAll();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(status.message().find(path_), absl::string_view::npos) << status;
  }
}

TEST_F(CatalogTest, EveryTruncationIsAnErrorAndNotACrash) {
  MakeWithCommit(3000);
  const std::string good = folder_ / "good";
  std::filesystem::copy_file(path_, good);
  const uint64_t size_bytes = std::filesystem::file_size(good);
  for (uint64_t keep = 0; keep < size_bytes; keep += 4096 - 7 * (keep / 4096 % 3)) {
    SCOPED_TRACE(keep);
    std::filesystem::copy_file(good, path_, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(path_, keep);
    const absl::Status status = ReadAll();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  }
}

TEST_F(CatalogTest, RandomDamageNeverCrashes) {
  MakeWithCommit(3000);
  const std::string good = folder_ / "good";
  std::filesystem::copy_file(path_, good);
  const uint64_t size_bytes = std::filesystem::file_size(good);
  std::mt19937_64 random(test::Seed());
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    std::filesystem::copy_file(good, path_, std::filesystem::copy_options::overwrite_existing);
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    for (uint32_t byte = 0; byte < 1 + random() % 64; ++byte) {
      file.seekp(static_cast<std::streamoff>(random() % size_bytes));
      file.put(static_cast<char>(random()));
    }
    file.close();
    (void)ReadAll();  // any Status will do: the test is that nothing aborts or loops
  }
}

TEST_F(CatalogTest, AMissingFileOrFolderIsUnavailable) {
  EXPECT_TRUE(absl::IsUnavailable(Catalog::Open(path_).status())) << Catalog::Open(path_).status();
  EXPECT_FALSE(Catalog::Create(folder_ / "absent/catalog", {"id", 4096, 1}).ok());
}

TEST_F(CatalogTest, AnUnfinishedOneIsMadeAgain) {
  std::ofstream(path_ + ".new") << "half";
  std::ofstream(path_ + ".new-journal") << "half";
  Make();
  EXPECT_TRUE(ReadAll().ok()) << ReadAll();
  ASSERT_TRUE((*Catalog::Open(path_))->Accept().ok());
  EXPECT_EQ(FilesIn(folder_.path()), std::vector<std::string>{"catalog.sqlite"});
}

}  // namespace
}  // namespace spillway::io
