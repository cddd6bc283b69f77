// SPDX-License-Identifier: Apache-2.0
//
// The part of CatalogChange that makes, drops and restores snapshots. A snapshot is a commit's
// number. It needs the rows that were born by that commit and had not died yet, so taking one
// changes no row.

#include <string>

#include "absl/strings/str_cat.h"
#include "io/store/catalog_change.h"
#include "io/store/catalog_digest.h"
#include "io/store/catalog_schema.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"

namespace spillway::io {
namespace {

using base::View;

// Selects the rows of kept that a snapshot needs, or the spans of tensors that have died and that
// it needs. ?1 is the snapshot's number.
constexpr char kNeededBy[] = "born <= ?1 AND died > ?1";
// Selects the rows of kept that no other snapshot needs. ?2 and ?3 are the numbers of the snapshots
// before (0: none) and after (kMaxInteger: none).
constexpr char kNeededOnlyBy[] = "born <= ?1 AND died > ?1 AND born > ?2 AND died <= ?3";

// The most rows that are held in memory at once.
constexpr int kRowsAtATime = 4096;

}  // namespace

absl::StatusOr<CatalogChange::SnapshotRow> CatalogChange::FindSnapshot(std::string_view label) {
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement get,
      database_.Prepare("SELECT number, digest, user_state FROM snapshots WHERE label = ?"));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.BindText(1, label).Step());
  if (!has_row) {
    return absl::NotFoundError(
        absl::StrCat(catalog_->path(), " has no snapshot '", View(label),
                     "'; spillway snapshot list, or Engine::Snapshots, names those that it has"));
  }
  RowReader reader(get);
  SnapshotRow snapshot;
  snapshot.number = reader.Next(number_ - 1);
  snapshot.digest = reader.NextHash();
  if (!reader.ok() || snapshot.number == 0)
    return catalog_->Damaged("a row of snapshots is impossible");
  snapshot.user_state = get.Bytes(2);
  return snapshot;
}

absl::Status CatalogChange::AddSnapshot(std::string_view label) {
  if (const absl::Status status = FindSnapshot(label).status(); !absl::IsNotFound(status)) {
    if (!status.ok()) return status;
    return absl::AlreadyExistsError(absl::StrCat(catalog_->path(), " has a snapshot '", View(label),
                                                 "' already; drop it, or take another label"));
  }
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement put,
      database_.Prepare("INSERT INTO snapshots (label, number, time, user_state, digest) "
                        "SELECT ?, number, time, user_state, digest FROM last_commit"));
  return put.BindText(1, label).Run();
}

absl::Status CatalogChange::Drop(std::string_view label) {
  SPILLWAY_ASSIGN_OR_RETURN(const SnapshotRow snapshot, FindSnapshot(label));
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement erase,
                            database_.Prepare("DELETE FROM snapshots WHERE label = ?"));
  SPILLWAY_RETURN_IF_ERROR(erase.BindText(1, label).Run());
  const uint64_t number = snapshot.number;
  SPILLWAY_ASSIGN_OR_RETURN(
      const uint64_t others,
      ReadNumber("SELECT count(*) FROM snapshots WHERE number = ?", {number}));
  if (others > 0) return absl::OkStatus();  // another label names the same commit
  SPILLWAY_ASSIGN_OR_RETURN(
      const uint64_t previous,
      ReadNumber("SELECT coalesce(max(number), 0) FROM snapshots WHERE number < ?", {number}));
  SPILLWAY_ASSIGN_OR_RETURN(
      uint64_t next,
      ReadNumber("SELECT coalesce(min(number), 0) FROM snapshots WHERE number > ?", {number}));
  if (next == 0) next = kMaxInteger;
  SPILLWAY_RETURN_IF_ERROR(RemoveRows("kept", kNeededOnlyBy, {number, previous, next}));
  return DropUnneededTensors();
}

absl::Status CatalogChange::Restore(std::string_view label) {
  SPILLWAY_ASSIGN_OR_RETURN(const SnapshotRow snapshot, FindSnapshot(label));
  const uint64_t number = snapshot.number;
  // 1. Count one more reference to a pack for each of the snapshot's rows of kept, which step 3
  // copies.
  SPILLWAY_RETURN_IF_ERROR(
      Execute(absl::StrCat("UPDATE packs SET num_references = num_references + n FROM "
                           "(SELECT device AS d, segment AS s, offset AS o, count(*) AS n "
                           "FROM kept WHERE ",
                           kNeededBy,
                           " GROUP BY device, segment, offset) "
                           "WHERE device = d AND segment = s AND offset = o"),
              {number}));
  // 2. Remove rows newer than the snapshot from pages. A row moves to kept if some snapshot is at
  // least as new as the row, and is deleted otherwise.
  SPILLWAY_RETURN_IF_ERROR(RemoveRows("pages", "born > ?1", {newest_snapshot_}));
  SPILLWAY_RETURN_IF_ERROR(Execute(absl::StrCat("INSERT INTO kept (tensor, page, born, ",
                                                kRestColumns, ", died) SELECT tensor, page, born, ",
                                                kRestColumns, ", ?2 FROM pages WHERE born > ?1"),
                                   {number, number_}));
  SPILLWAY_RETURN_IF_ERROR(Execute("DELETE FROM pages WHERE born > ?", {number}));
  // 3. Copy the snapshot's rows of kept into pages, born in the new commit.
  SPILLWAY_RETURN_IF_ERROR(Execute(
      absl::StrCat("INSERT INTO pages (tensor, page, born, ", kRestColumns,
                   ") SELECT tensor, page, ?2, ", kRestColumns, " FROM kept WHERE ", kNeededBy),
      {number, number_}));
  // 4. End the spans of tensors that are newer, and begin spans for the snapshot's tensors that had
  // died.
  SPILLWAY_RETURN_IF_ERROR(Execute(
      "UPDATE tensor_spans SET died = ?2 WHERE died IS NULL AND born > ?1", {number, number_}));
  SPILLWAY_RETURN_IF_ERROR(
      Execute(absl::StrCat("INSERT INTO tensor_spans (tensor, born) SELECT tensor, ?2 "
                           "FROM tensor_spans WHERE ",
                           kNeededBy),
              {number, number_}));
  SPILLWAY_RETURN_IF_ERROR(DropUnneededTensors());
  rows_digest_ =
      snapshot.digest - CommitDigest(number, catalog_->meta().page_bytes, snapshot.user_state);
  restored_state_ = snapshot.user_state;
  return absl::OkStatus();
}

absl::Status CatalogChange::DropUnneededTensors() {
  SPILLWAY_RETURN_IF_ERROR(
      Execute("DELETE FROM tensor_spans WHERE died IS NOT NULL AND NOT EXISTS "
              "(SELECT 1 FROM snapshots s WHERE s.number >= born AND s.number < died)",
              {}));
  return Execute(
      "DELETE FROM tensors WHERE NOT EXISTS (SELECT 1 FROM tensor_spans s WHERE s.tensor = id)",
      {});
}

// Removes the rows of a table that meet the condition, and frees the extents that nothing names
// then. Works in batches, so that memory does not grow with the number of rows. No two of the rows
// belong to the same page.
absl::Status CatalogChange::RemoveRows(std::string_view table, std::string_view condition,
                                       std::initializer_list<uint64_t> parameters) {
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement get,
      database_.Prepare(absl::StrCat(
          "SELECT " SPILLWAY_PAGE_COLUMNS ", p.tensor, p.page FROM ", View(table),
          " p" SPILLWAY_PACK_JOIN "WHERE ", View(condition),
          " AND (p.tensor, p.page) > (?4, ?5) ORDER BY p.tensor, p.page LIMIT ", kRowsAtATime)));
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement erase,
      database_.Prepare(absl::StrCat("DELETE FROM ", View(table), " AS p WHERE ", View(condition),
                                     " AND p.tensor = ?4 AND p.page = ?5")));
  int index = 0;
  for (uint64_t value : parameters) {
    get.Bind(++index, value);
    erase.Bind(index, value);
  }
  std::vector<Row> rows(1);  // the last row is where the previous batch ended
  while (!rows.empty()) {
    get.Bind(4, rows.back().id).Bind(5, rows.back().page);
    if (rows.front().id == 0) get.Bind(5, UINT64_MAX);  // stored as -1: before every page
    rows.clear();
    while (true) {
      SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
      if (!has_row) break;
      RowReader reader(get);
      Row row;
      row.record = reader.NextPage(catalog_->meta().num_folders);
      row.id = reader.Next(kMaxInteger);
      row.page = reader.Next(kMaxInteger);
      if (!reader.ok() || row.id == 0) {
        return catalog_->Damaged(
            absl::StrCat("a row of page ", row.page, " of tensor ", row.id, " is impossible"));
      }
      rows.push_back(row);
    }
    for (const Row& row : rows) {
      SPILLWAY_RETURN_IF_ERROR(erase.Bind(4, row.id).Bind(5, row.page).Run());
      SPILLWAY_RETURN_IF_ERROR(Unname(row.id, row.page, row.record));
    }
  }
  return absl::OkStatus();
}

}  // namespace spillway::io
