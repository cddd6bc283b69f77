// SPDX-License-Identifier: Apache-2.0
//
// Checks the rules of io/FORMAT.md on the rows of a catalog, with SQLite alone: a second
// implementation of the specification that shares only the hashes with the store.

#ifndef SPILLWAY_TESTS_IO_STORE_CATALOG_INVARIANTS_H_
#define SPILLWAY_TESTS_IO_STORE_CATALOG_INVARIANTS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "io/store/catalog.h"
#include "io/store/catalog_digest.h"

namespace spillway::io {

class CatalogInvariants {
 public:
  // REQUIRES: `catalog` is open, and no change is in progress.
  explicit CatalogInvariants(Catalog* catalog) : database_(catalog->database()) {
    page_bytes_ = catalog->meta().page_bytes;
  }

  void Check() {
    last_ = Number("SELECT coalesce(max(number), 0) FROM last_commit");
    for (const auto& row : Rows("SELECT DISTINCT number FROM snapshots")) snapshots_.insert(row[0]);
    CheckTensors();
    CheckPages();
    CheckPacksAndSpace();
    if (last_ > 0) CheckDigests();
  }

 private:
  using Row = std::vector<uint64_t>;
  using Place = std::tuple<uint64_t, uint64_t, uint64_t>;  // device, segment, offset
  struct Named {
    uint64_t size_bytes = 0;
    uint64_t rows = 0;
    Row first;  // the row that named it first
  };

  std::vector<Row> Rows(const std::string& sql) {
    std::vector<Row> rows;
    auto statement = database_.Prepare(sql);
    EXPECT_TRUE(statement.ok()) << statement.status();
    while (statement.ok()) {
      const auto has_row = statement->Step();
      EXPECT_TRUE(has_row.ok()) << has_row.status();
      if (!has_row.ok() || !*has_row) break;
      Row row;
      for (int column = 0; column < statement->num_columns(); ++column)
        row.push_back(static_cast<uint64_t>(statement->Integer(column)));
      rows.push_back(row);
    }
    return rows;
  }
  uint64_t Number(const std::string& sql) { return Rows(sql).at(0).at(0); }
  bool HasSnapshotIn(uint64_t born, uint64_t died) const {
    const auto first = snapshots_.lower_bound(born);
    return first != snapshots_.end() && *first < died;
  }

  void CheckTensors() {
    EXPECT_EQ(Number("SELECT count(*) FROM tensors WHERE id NOT IN (SELECT tensor FROM "
                     "tensor_spans)"),
              0u);
    EXPECT_EQ(Number("SELECT count(*) FROM tensor_spans WHERE tensor NOT IN (SELECT id FROM "
                     "tensors)"),
              0u);
    for (const auto& row : Rows("SELECT born, died FROM tensor_spans WHERE died IS NOT NULL"))
      EXPECT_TRUE(HasSnapshotIn(row[0], row[1])) << row[0] << " to " << row[1];
    EXPECT_EQ(Number("SELECT count(*) FROM (SELECT name FROM tensors JOIN tensor_spans ON id = "
                     "tensor WHERE died IS NULL GROUP BY name HAVING count(*) > 1)"),
              0u);
    EXPECT_EQ(Number("SELECT count(*) FROM pages WHERE NOT EXISTS (SELECT 1 FROM tensor_spans s "
                     "WHERE s.tensor = pages.tensor AND s.died IS NULL)"),
              0u);
  }
  void CheckPages() {
    const std::string columns =
        "tensor, page, born, device, segment, offset, size_bytes, "
        "skip_bytes, content_bytes, checksum";
    uint64_t died_before = 0;
    std::pair<uint64_t, uint64_t> page_before = {0, 0};
    for (const Row& row : Rows("SELECT " + columns + ", died FROM kept UNION ALL SELECT " +
                               columns + ", 1 << 62 FROM pages ORDER BY tensor, page, born")) {
      const std::pair page = {row[0], row[1]};
      if (page == page_before) {
        EXPECT_LE(died_before, row[2]) << "lifetimes overlap";
      }
      page_before = page;
      died_before = row[10];
      EXPECT_TRUE(row[2] > 0 && row[2] <= last_);
      if (row[10] < uint64_t{1} << 62) {
        EXPECT_TRUE(HasSnapshotIn(row[2], row[10]));
      }
      Named& named = named_[{row[3], row[4], row[5]}];
      if (named.rows == 0) {
        named.size_bytes = row[6];
        named.first = row;
      }
      EXPECT_EQ(named.size_bytes, row[6]);
      ++named.rows;
      if (named.rows > 1 && !packs_.contains({row[3], row[4], row[5]}))
        same_.push_back({named.first, row});
    }
  }
  void CheckPacksAndSpace() {
    for (const Row& row :
         Rows("SELECT device, segment, offset, size_bytes, num_references FROM packs")) {
      const Place place = {row[0], row[1], row[2]};
      packs_.insert(place);
      ASSERT_TRUE(named_.contains(place));
      EXPECT_EQ(named_[place].size_bytes, row[3]);
      EXPECT_EQ(named_[place].rows, row[4]) << "references of a pack";
    }
    for (const auto& [one, other] : same_) {
      if (packs_.contains({one[3], one[4], one[5]})) continue;
      EXPECT_TRUE(one[0] == other[0] && one[1] == other[1]) << "two pages in one place";
      EXPECT_EQ(Row(one.begin() + 6, one.begin() + 10), Row(other.begin() + 6, other.begin() + 10));
    }
    std::map<std::pair<uint64_t, uint64_t>, std::vector<bool>> used;  // the units of each file
    for (const Row& row : Rows("SELECT device, segment, size_bytes FROM segments"))
      used[{row[0], row[1]}].resize(row[2] / kIoAlignment);
    const auto take = [&](uint64_t device, uint64_t segment, uint64_t offset, uint64_t size_bytes) {
      auto& units = used[{device, segment}];
      for (uint64_t unit = offset / kIoAlignment; unit < (offset + size_bytes) / kIoAlignment;
           ++unit) {
        ASSERT_LT(unit, units.size()) << "beyond the file";
        ASSERT_FALSE(units[unit]) << "unit " << unit << " of segment " << segment << " twice";
        units[unit] = true;
      }
    };
    uint64_t used_bytes = 0;
    for (const auto& [place, named] : named_) {
      take(std::get<0>(place), std::get<1>(place), std::get<2>(place), named.size_bytes);
      used_bytes += named.size_bytes;
    }
    auto chunks =
        database_.Prepare("SELECT device, segment, chunk, free_bytes, runs FROM free_space");
    ASSERT_TRUE(chunks.ok());
    while (*chunks->Step()) {
      const auto runs = ParseRuns(chunks->Bytes(4));
      ASSERT_TRUE(runs) << chunks->Bytes(4);
      uint64_t free_bytes = 0;
      for (const UnitRun& run : *runs) {
        free_bytes += run.count * kIoAlignment;
        take(static_cast<uint64_t>(chunks->Integer(0)), static_cast<uint64_t>(chunks->Integer(1)),
             static_cast<uint64_t>(chunks->Integer(2)) * kChunkBytes + run.first * kIoAlignment,
             run.count * kIoAlignment);
      }
      EXPECT_EQ(free_bytes, static_cast<uint64_t>(chunks->Integer(3)));
    }
    for (const auto& [file, units] : used)
      for (size_t unit = 0; unit < units.size(); ++unit)
        ASSERT_TRUE(units[unit]) << "unit " << unit << " of segment " << file.second << " is lost";
    if (last_ > 0) {
      EXPECT_EQ(Number("SELECT used_bytes FROM last_commit"), used_bytes);
    }
  }
  // Checks the digest of each commit in the catalog against the commit's rows.
  void CheckDigests() {
    auto commits = database_.Prepare(
        "SELECT number, digest, user_state FROM snapshots UNION SELECT number, digest, user_state "
        "FROM last_commit");
    ASSERT_TRUE(commits.ok());
    while (*commits->Step()) {
      const std::string number = std::to_string(commits->Integer(0));
      uint64_t digest =
          CommitDigest(static_cast<uint64_t>(commits->Integer(0)), page_bytes_, commits->Bytes(2));
      auto tensors = database_.Prepare(
          "SELECT id, num_pages, name, description FROM tensors JOIN tensor_spans ON id = tensor "
          "WHERE born <= " +
          number + " AND (died IS NULL OR died > " + number + ")");
      while (*tensors->Step()) {
        digest += TensorDigest(
            static_cast<uint64_t>(tensors->Integer(0)),
            {tensors->Bytes(2), tensors->Bytes(3), static_cast<uint64_t>(tensors->Integer(1))});
      }
      const std::string columns =
          "tensor, page, device, segment, offset, size_bytes, skip_bytes, "
          "content_bytes, checksum";
      for (const Row& row :
           Rows("SELECT " + columns + " FROM pages WHERE born <= " + number + " UNION ALL SELECT " +
                columns + " FROM kept WHERE born <= " + number + " AND died > " + number)) {
        digest +=
            PageDigest(row[0], row[1],
                       {.extent = {static_cast<uint16_t>(row[2]), static_cast<uint32_t>(row[3]),
                                   row[4], static_cast<uint32_t>(row[5])},
                        .content_bytes = static_cast<uint32_t>(row[7]),
                        .checksum = row[8],
                        .skip_bytes = static_cast<uint32_t>(row[6])});
      }
      EXPECT_EQ(digest, static_cast<uint64_t>(commits->Integer(1))) << "commit " << number;
    }
  }

  SqliteDatabase& database_;
  uint64_t page_bytes_ = 0;
  uint64_t last_ = 0;
  std::set<uint64_t> snapshots_;
  std::map<Place, Named> named_;
  std::set<Place> packs_;
  std::vector<std::pair<Row, Row>> same_;  // rows that name one extent
};

// Checks the catalog of a closed store.
inline void ExpectInvariantsHold(const std::string& catalog_path) {
  auto catalog = Catalog::Open(catalog_path);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  CatalogInvariants(catalog->get()).Check();
}

}  // namespace spillway::io

#endif  // SPILLWAY_TESTS_IO_STORE_CATALOG_INVARIANTS_H_
