// SPDX-License-Identifier: Apache-2.0
//
// The catalog's file: what it keeps, what a stranger can read in it, and what it says when it is
// damaged.

#include "io/store/catalog.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <vector>

#include "tests/io/store/store_test_util.h"

namespace spillway::io {
namespace {

constexpr PageRecord kPage = {
    .extent = {1, 2, 8192, 65536}, .content_bytes = 65000, .checksum = 0xfedcba9876543210u};

class CatalogTest : public ::testing::Test {
 protected:
  void Make() {
    ASSERT_TRUE(Catalog::Create(path_, {"00112233445566778899aabbccddeeff", 65536, 2}).ok());
  }
  // One tensor, `num_pages` pages, one commit; closed again.
  void MakeWithCommit(uint64_t num_pages = 1) {
    Make();
    auto catalog = Catalog::Open(path_);
    ASSERT_TRUE(catalog.ok()) << catalog.status();
    const absl::Status status =
        (*catalog)->Write(1, 42, std::string("a\0b", 3), [&]() -> absl::Status {
          absl::Status put = (*catalog)->PutTensor(5, {"weight", "{}", 1000});
          for (uint64_t page = 0; page < num_pages && put.ok(); ++page)
            put = (*catalog)->PutPage(5, page, kPage);
          return put;
        });
    ASSERT_TRUE(status.ok()) << status;
  }
  // Everything that reading can find wrong.
  absl::Status ReadAll() {
    auto catalog = Catalog::Open(path_);
    if (!catalog.ok()) return catalog.status();
    if (auto commit = (*catalog)->ReadCommit(); !commit.ok()) return commit.status();
    absl::Status status =
        (*catalog)->ReadTensors([](uint64_t, const TensorRecord&) { return absl::OkStatus(); });
    if (!status.ok()) return status;
    return (*catalog)->ReadPages(
        [](uint64_t, uint64_t, const PageRecord&) { return absl::OkStatus(); });
  }

  TempFolder folder_;
  const std::string path_ = folder_ / "catalog.sqlite";
};

TEST_F(CatalogTest, KeepsWhatWasCommitted) {
  MakeWithCommit();
  auto catalog = Catalog::Open(path_);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_EQ((*catalog)->meta().store_id, "00112233445566778899aabbccddeeff");
  EXPECT_EQ((*catalog)->meta().page_bytes, 65536u);
  EXPECT_EQ((*catalog)->meta().num_folders, 2u);
  const auto commit = (*catalog)->ReadCommit();
  ASSERT_TRUE(commit.ok() && commit->has_value());
  EXPECT_EQ((*commit)->number, 1u);
  EXPECT_EQ((*commit)->digest, 42u);
  EXPECT_EQ((*commit)->user_state, std::string("a\0b", 3));
  std::vector<std::string> names;
  ASSERT_TRUE((*catalog)
                  ->ReadTensors([&](uint64_t id, const TensorRecord& tensor) {
                    EXPECT_EQ(id, 5u);
                    EXPECT_EQ(tensor.description, "{}");
                    EXPECT_EQ(tensor.num_pages, 1000u);
                    names.push_back(tensor.name);
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(names, std::vector<std::string>{"weight"});
  int pages = 0;
  ASSERT_TRUE((*catalog)
                  ->ReadPages([&](uint64_t id, uint64_t page, const PageRecord& record) {
                    EXPECT_EQ(id, 5u);
                    EXPECT_EQ(page, 0u);
                    EXPECT_EQ(record, kPage);
                    ++pages;
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(pages, 1);
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

TEST_F(CatalogTest, IsReadableWithTheSqliteCommand) {
  MakeWithCommit();
  EXPECT_EQ(RunSql(path_, "SELECT value FROM meta WHERE key = 'format_version'", /*vfs=*/nullptr),
            "1");
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
  Make();
  auto catalog = Catalog::Open(path_);
  ASSERT_TRUE(catalog.ok());
  ASSERT_TRUE(
      (*catalog)->Write(1, 0, "x", [&] { return (*catalog)->PutTensor(1, {"w", "{}", 1}); }).ok());
  EXPECT_EQ(RunSql(path_, "SELECT count(*) FROM tensors"), "1");
  EXPECT_TRUE((*catalog)->Write(2, 0, "y", [] { return absl::OkStatus(); }).ok());
}

TEST_F(CatalogTest, AFailedTransactionLeavesTheLastCommit) {
  MakeWithCommit();
  auto catalog = Catalog::Open(path_);
  ASSERT_TRUE(catalog.ok());
  const absl::Status status = (*catalog)->Write(2, 43, "new", [&]() -> absl::Status {
    EXPECT_TRUE((*catalog)->ErasePage(5, 0).ok());
    return absl::AbortedError("stop here");
  });
  EXPECT_TRUE(absl::IsAborted(status));
  EXPECT_EQ((*(*catalog)->ReadCommit())->number, 1u);
  EXPECT_EQ(RunSql(path_, "SELECT count(*) FROM pages"), "1");
  EXPECT_TRUE((*catalog)->Write(2, 43, "new", [] { return absl::OkStatus(); }).ok());
}

TEST_F(CatalogTest, AFailedStatementNamesFileAndCause) {
  MakeWithCommit();
  auto catalog = Catalog::Open(path_);
  ASSERT_TRUE(catalog.ok());
  const absl::Status status =
      (*catalog)->Write(2, 0, "", [&] { return (*catalog)->PutTensor(6, {"weight", "{}", 1}); });
  EXPECT_NE(status.message().find(path_), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("UNIQUE"), absl::string_view::npos) << status;
}

TEST_F(CatalogTest, ANewerFormatIsRefusedWithTheReason) {
  MakeWithCommit();
  RunSql(path_, "UPDATE meta SET value = 2 WHERE key = 'format_version'");
  const absl::Status status = Catalog::Open(path_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find("format 2"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("format 1"), absl::string_view::npos) << status;
}

TEST_F(CatalogTest, ARefusedCatalogIsNotChanged) {
  Make();
  RunSql(path_, "UPDATE meta SET value = 2 WHERE key = 'format_version'");
  EXPECT_FALSE(Catalog::Open(path_).ok());
  EXPECT_EQ(RunSql(path_, "PRAGMA journal_mode"), "delete");
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
      "UPDATE pages SET page = -1",
      "UPDATE tensors SET num_pages = -1",
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
  const uint32_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    std::filesystem::copy_file(good, path_, std::filesystem::copy_options::overwrite_existing);
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    for (uint32_t byte = 0; byte < 1 + random() % 64; ++byte) {
      file.seekp(static_cast<std::streamoff>(random() % size_bytes));
      file.put(static_cast<char>(random()));
    }
    file.close();
    (void)ReadAll();  // a Status of some kind: that nothing aborts or loops is the test
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
  EXPECT_EQ(FilesIn(folder_.path()), std::vector<std::string>{"catalog.sqlite"});
}

}  // namespace
}  // namespace spillway::io
