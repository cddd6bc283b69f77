// SPDX-License-Identifier: Apache-2.0
//
// Tests catalogs whose rows have impossible values. SQLite finds nothing wrong with them, and
// neither do the checksums of its pages. A store that is opened on one and used must return a
// Status, of any kind, and never crash, hang or allocate memory by the numbers that it reads.

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/io/store/store_test_util.h"
#include "tests/seed.h"

namespace spillway::io {
namespace {

class StoreDamageTest : public StoreTest {
 protected:
  std::string Catalog() const { return folder_ / "store/spillway-catalog.sqlite"; }

  StoreOptions Small() {
    StoreOptions options = Options();
    options.segment_bytes = 8 * kTestPageBytes;
    return options;
  }
  static PageRecord Packed(const Extent& extent, uint32_t skip_bytes) {
    return {.extent = extent, .content_bytes = 99, .skip_bytes = skip_bytes, .packed = true};
  }
  // Makes a valid store with rows in every table.
  void MakeGood() {
    auto store = Open(Small());
    const TensorIndex tensor = *store->AddTensor({"w", "{}", 12}, false);
    for (uint64_t version = 1; version <= 4; ++version) {
      for (uint64_t page = 0; page < 8; page += version)
        ASSERT_TRUE(WritePage(*store, io_, tensor, page, version).ok());
      const Extent pack = *store->Allocate(kIoAlignment);
      for (uint32_t i = 0; i < 3; ++i) store->Record(tensor, 8 + i, Packed(pack, i * 100));
      (void)store->AddTensor({absl::StrCat("t", version), "{}", 2}, false);
      ASSERT_TRUE(store->Commit(absl::StrCat(version)).ok());
      if (version < 4) {
        ASSERT_TRUE(store->Snapshot(absl::StrCat("s", version)).ok());
      }
      if (version == 2) {
        ASSERT_TRUE(store->Restore("s1").ok());
      }
    }
    ASSERT_TRUE(store->SetProfile(0, {4096, 1, 1, 1, 1e9, 1e9}).ok());
  }
  // Opens the store and makes its calls, whatever they return.
  void Use() {
    auto opened = Store::Open(Small(), &io_);
    if (!opened.ok()) return;
    Store& store = **opened;
    for (int round = 0; round < 2; ++round) {
      for (const char* name : {"w", "t1", "t4", "new"}) {
        auto tensor = store.FindTensor(name);
        if (!tensor.ok()) continue;
        if (!tensor->has_value()) {
          if (auto added = store.AddTensor({name, "{}", 3}, false); added.ok()) *tensor = *added;
        }
        if (!tensor->has_value()) continue;
        const uint64_t pages = std::min<uint64_t>(store.Tensor(**tensor).num_pages, 12);
        for (uint64_t page = 0; page < pages; ++page) {
          const auto record = store.FindPage(**tensor, page);
          if (record.ok() && record->has_value()) (void)store.File((*record)->extent);
        }
        for (uint64_t page = 0; page < pages; page += 2)
          (void)WritePage(store, io_, **tensor, page, 7);
        if (pages > 1) store.Forget(**tensor, 1);
      }
      (void)store.Commit("again");
      (void)store.Snapshots();
      (void)store.Snapshot(absl::StrCat("round", round));
      (void)store.Restore("s2");
      (void)store.Drop("s1");
      (void)store.Trim();
      (void)store.available_bytes();
    }
  }
};

TEST_F(StoreDamageTest, RowsThatLieNeverCrash) {
  std::mt19937_64 random(test::Seed());
  MakeGood();
  std::filesystem::copy(folder_ / "store", folder_ / "good");
  const std::vector<std::pair<std::string, std::vector<std::string>>> columns = {
      {"tensors", {"id", "num_pages"}},
      {"tensor_spans", {"tensor", "born", "died"}},
      {"pages",
       {"tensor", "page", "born", "device", "segment", "offset", "size_bytes", "skip_bytes",
        "content_bytes", "checksum"}},
      {"kept",
       {"tensor", "page", "born", "device", "segment", "offset", "size_bytes", "skip_bytes",
        "content_bytes", "died"}},
      {"packs", {"device", "segment", "offset", "size_bytes", "num_references"}},
      {"segments", {"device", "segment", "size_bytes", "written_bytes"}},
      {"free_space", {"device", "segment", "chunk", "free_bytes", "runs"}},
      {"devices", {"device", "request_bytes", "read_depth"}},
      {"snapshots", {"number", "digest"}},
      {"last_commit", {"number", "revision", "digest", "used_bytes"}}};
  const std::vector<std::string> values = {"0",
                                           "1",
                                           "2",
                                           "3",
                                           "-1",
                                           "4096",
                                           "65536",
                                           "131072",
                                           "1 << 20",
                                           "1 << 30",
                                           "1 << 44",
                                           "1 << 62",
                                           "9223372036854775807",
                                           "c + 1",
                                           "c - 1",
                                           "c * 2",
                                           "c + 4096",
                                           "c - 4096",
                                           "c + 65536"};
  const std::vector<std::string> runs = {"'0+1'",   "'0+16384'", "'0+128'", "'5+3 100+16'",
                                         "'120+8'", "'64+64'",   "'x'"};
  const auto any = [&](const auto& of) { return of[random() % of.size()]; };
  for (int i = 0; i < 100; ++i) {
    std::filesystem::remove_all(folder_ / "store");
    std::filesystem::copy(folder_ / "good", folder_ / "store");
    std::string sql = "PRAGMA ignore_check_constraints = ON;";
    for (uint64_t damages = 1 + random() % 3; damages > 0; --damages) {
      const auto& [table, names] = any(columns);
      const std::string column = any(names);
      std::string value = any(column == "runs" ? runs : values);
      if (const size_t at = value.find('c'); at != std::string::npos) value.replace(at, 1, column);
      if (column != "runs") value = absl::StrCat("CAST(", value, " AS INTEGER)");
      const std::string rows =
          random() % 2 == 0 ? "" : absl::StrCat(" WHERE ", column, " % 3 = ", random() % 3);
      absl::StrAppend(&sql, "UPDATE OR REPLACE ", table, " SET ", column, " = ", value, rows, ";");
    }
    SCOPED_TRACE(sql);
    RunSql(Catalog(), sql);
    Use();
    if (HasFailure()) return;
  }
}

// Pages and kept pages share bytes: what one of them gives back, the other has, or is free already.
TEST_F(StoreDamageTest, BytesThatAreGivenBackTwiceNeverCrash) {
  MakeGood();
  RunSql(Catalog(),
         "PRAGMA ignore_check_constraints = ON;"
         "UPDATE OR REPLACE kept SET segment = 3 WHERE segment % 3 = 0;"
         "UPDATE OR REPLACE pages SET offset = offset - 4096 WHERE offset % 3 = 0;");
  Use();
}

}  // namespace
}  // namespace spillway::io
