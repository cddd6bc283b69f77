// SPDX-License-Identifier: Apache-2.0
//
// Commits are numbered. A row of pages was born in a commit and belongs to the last one. A row of
// kept was born in one commit and died in a later one; it belongs to every commit from its birth on
// and before its death. A snapshot is a commit's number, so it needs the rows that were born by
// that commit and had not died yet. Therefore taking a snapshot changes no row, and a commit moves
// a row that it replaces to kept only if some snapshot is at least as new as the row.
//
// A restored page is a new row of pages beside the row of kept that it was copied from, and both
// name the same extent. Rows of different pages share an extent only if it is a pack, and the table
// packs counts them. So when a row is removed, its extent is free unless another row of the same
// page names it or the pack's count is above zero.

#include "io/store/catalog_change.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "io/store/catalog_digest.h"
#include "io/store/catalog_schema.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

std::string Now() { return absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()); }

}  // namespace

CatalogChange::CatalogChange(Catalog* catalog, const std::optional<CatalogCommit>& last)
    : catalog_(catalog),
      database_(catalog->database()),
      last_(last),
      number_(last ? last->number + 1 : 1),
      space_(&database_) {
  if (!last) return;
  rows_digest_ =
      last->digest - CommitDigest(last->number, catalog->meta().page_bytes, last->user_state);
  used_bytes_ = last->used_bytes;
}

CatalogChange::~CatalogChange() {
  // Resets the statements first: one that has not ended would keep the transaction open.
  for (auto* statement : {&get_page_, &keep_page_, &put_page_, &erase_page_, &is_named_, &get_pack_,
                          &put_pack_, &erase_pack_})
    statement->reset();
  database_.RollBack();
}

absl::StatusOr<std::unique_ptr<CatalogChange>> CatalogChange::Begin(
    Catalog* catalog, const std::optional<CatalogCommit>& last) {
  std::unique_ptr<CatalogChange> change(new CatalogChange(catalog, last));
  SPILLWAY_RETURN_IF_ERROR(change->database_.Execute("BEGIN IMMEDIATE"));
  SPILLWAY_RETURN_IF_ERROR(change->Prepare());
  return change;
}

absl::Status CatalogChange::Prepare() {
  SPILLWAY_ASSIGN_OR_RETURN(newest_snapshot_,
                            ReadNumber("SELECT coalesce(max(number), 0) FROM snapshots", {}));
  SPILLWAY_ASSIGN_OR_RETURN(get_page_, database_.Prepare("SELECT " SPILLWAY_PAGE_COLUMNS
                                                         ", p.born FROM pages p" SPILLWAY_PACK_JOIN
                                                         "WHERE p.tensor = ? AND p.page = ?"));
  SPILLWAY_ASSIGN_OR_RETURN(keep_page_, database_.Prepare(absl::StrCat(
                                            "INSERT INTO kept (tensor, page, born, ", kRestColumns,
                                            ", died) SELECT tensor, page, born, ", kRestColumns,
                                            ", ?3 FROM pages WHERE tensor = ?1 AND page = ?2")));
  SPILLWAY_ASSIGN_OR_RETURN(
      put_page_,
      database_.Prepare(absl::StrCat("INSERT OR REPLACE INTO pages (tensor, page, born, ",
                                     kRestColumns, ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")));
  SPILLWAY_ASSIGN_OR_RETURN(erase_page_,
                            database_.Prepare("DELETE FROM pages WHERE tensor = ? AND page = ?"));
  constexpr char kSameExtent[] =
      "tensor = ?1 AND page = ?2 AND device = ?3 AND segment = ?4 AND offset = ?5";
  SPILLWAY_ASSIGN_OR_RETURN(
      is_named_,
      database_.Prepare(absl::StrCat("SELECT EXISTS (SELECT 1 FROM pages WHERE ", kSameExtent,
                                     ") OR EXISTS (SELECT 1 FROM kept WHERE ", kSameExtent, ")")));
  SPILLWAY_ASSIGN_OR_RETURN(
      get_pack_, database_.Prepare("SELECT num_references FROM packs WHERE device = ? AND "
                                   "segment = ? AND offset = ?"));
  SPILLWAY_ASSIGN_OR_RETURN(
      put_pack_, database_.Prepare("INSERT OR REPLACE INTO packs (device, segment, offset, "
                                   "size_bytes, num_references) VALUES (?, ?, ?, ?, ?)"));
  SPILLWAY_ASSIGN_OR_RETURN(
      erase_pack_,
      database_.Prepare("DELETE FROM packs WHERE device = ? AND segment = ? AND offset = ?"));
  return absl::OkStatus();
}

absl::Status CatalogChange::Execute(std::string_view sql,
                                    std::initializer_list<uint64_t> parameters) {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement statement, database_.Prepare(sql));
  int index = 0;
  for (uint64_t value : parameters) statement.Bind(++index, value);
  return statement.Run();
}

absl::StatusOr<uint64_t> CatalogChange::ReadNumber(std::string_view sql,
                                                   std::initializer_list<uint64_t> parameters) {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement statement, database_.Prepare(sql));
  int index = 0;
  for (uint64_t value : parameters) statement.Bind(++index, value);
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, statement.Step());
  RowReader reader(statement);
  const uint64_t number = has_row ? reader.Next(kMaxInteger) : 0;
  if (!reader.ok()) return catalog_->Damaged("a commit's number is impossible");
  return number;
}

// --- Space ---

absl::Status CatalogChange::PutSegment(const CatalogSegment& segment) {
  if (segment.size_bytes == 0) {
    return Execute("DELETE FROM segments WHERE device = ? AND segment = ?",
                   {segment.device, segment.segment});
  }
  return Execute(
      "INSERT OR REPLACE INTO segments (device, segment, size_bytes, written_bytes) "
      "VALUES (?, ?, ?, ?)",
      {segment.device, segment.segment, segment.size_bytes, segment.written_bytes});
}

absl::StatusOr<uint64_t> CatalogChange::PackReferences(const Extent& extent) {
  get_pack_->Bind(1, extent.device).Bind(2, extent.segment).Bind(3, extent.offset);
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get_pack_->Step());
  if (!has_row) return uint64_t{0};
  RowReader reader(*get_pack_);
  const uint64_t references = reader.Next(kMaxInteger);
  get_pack_->Reset();
  if (!reader.ok() || references == 0) return catalog_->Damaged("a row of packs is impossible");
  return references;
}

absl::Status CatalogChange::SetPackReferences(const Extent& extent, uint64_t references) {
  SqliteStatement& statement = references > 0 ? *put_pack_ : *erase_pack_;
  statement.Bind(1, extent.device).Bind(2, extent.segment).Bind(3, extent.offset);
  if (references > 0) statement.Bind(4, extent.size_bytes).Bind(5, references);
  return statement.Run();
}

absl::Status CatalogChange::Name(const PageRecord& record) {
  const Extent& extent = record.extent;
  if (record.packed) {
    SPILLWAY_ASSIGN_OR_RETURN(const uint64_t references, PackReferences(extent));
    SPILLWAY_RETURN_IF_ERROR(SetPackReferences(extent, references + 1));
    if (references > 0) return absl::OkStatus();
  }
  space_.Take(extent.device, extent.segment, extent.offset, extent.size_bytes);
  used_bytes_ += extent.size_bytes;
  return absl::OkStatus();
}

absl::Status CatalogChange::Unname(uint64_t id, uint64_t page, const PageRecord& record) {
  const Extent& extent = record.extent;
  if (record.packed) {
    SPILLWAY_ASSIGN_OR_RETURN(const uint64_t references, PackReferences(extent));
    if (references == 0) return catalog_->Damaged("a pack has too few references");
    SPILLWAY_RETURN_IF_ERROR(SetPackReferences(extent, references - 1));
    if (references > 1) return absl::OkStatus();
  } else if (newest_snapshot_ > 0) {  // kept is empty without snapshots
    is_named_->Bind(1, id).Bind(2, page);
    is_named_->Bind(3, extent.device).Bind(4, extent.segment).Bind(5, extent.offset);
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, is_named_->Step());
    const bool is_named = has_row && is_named_->Integer(0) != 0;
    is_named_->Reset();
    if (is_named) return absl::OkStatus();
  }
  if (extent.size_bytes > used_bytes_) return catalog_->Damaged("its used_bytes is too small");
  space_.Give(extent);
  used_bytes_ -= extent.size_bytes;
  AddFreed(extent, record.packed);
  return absl::OkStatus();
}

// Records a freed extent. It is joined with the one before if they are adjacent, up to a chunk in
// size. Pages that were written in order are freed in order, so the list stays short for millions
// of pages.
void CatalogChange::AddFreed(const Extent& extent, bool packed) {
  if (!packed && !freed_.empty() && !freed_.back().packed) {
    Extent& before = freed_.back().extent;
    if (before.device == extent.device && before.segment == extent.segment &&
        before.offset + before.size_bytes == extent.offset &&
        uint64_t{before.size_bytes} + extent.size_bytes <= kChunkBytes) {
      before.size_bytes += extent.size_bytes;
      return;
    }
  }
  freed_.push_back({extent, packed});
}

// --- A commit ---

absl::Status CatalogChange::AddTensor(uint64_t id, const TensorRecord& tensor) {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement put,
                            database_.Prepare("INSERT INTO tensors (id, name, "
                                              "description, num_pages) VALUES (?, ?, ?, ?)"));
  put.Bind(1, id).BindText(2, tensor.name).BindText(3, tensor.description);
  SPILLWAY_RETURN_IF_ERROR(put.Bind(4, tensor.num_pages).Run());
  rows_digest_ += TensorDigest(id, tensor);
  return Execute("INSERT INTO tensor_spans (tensor, born) VALUES (?, ?)", {id, number_});
}

absl::Status CatalogChange::PutPage(uint64_t id, uint64_t page,
                                    const std::optional<PageRecord>& record, bool is_new_tensor) {
  std::optional<PageRecord> before;
  uint64_t born = 0;
  if (!is_new_tensor) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get_page_->Bind(1, id).Bind(2, page).Step());
    if (has_row) {
      RowReader reader(*get_page_);
      before = reader.NextPage(catalog_->meta().num_folders);
      born = reader.Next(number_ - 1);
      get_page_->Reset();
      if (!reader.ok())
        return catalog_->Damaged(
            absl::StrCat("the row of page ", page, " of tensor ", id, " is impossible"));
    }
  }
  if (before == record) return absl::OkStatus();
  if (before && record && before->extent == record->extent) {
    // An extent that a commit names is allocated again only if free_space is wrong.
    return catalog_->Damaged(absl::StrCat("page ", page, " of tensor ", id,
                                          " was written again where the last commit has it, in "
                                          "bytes that free_space had as free"));
  }
  const bool is_kept = before && born <= newest_snapshot_;
  if (is_kept)
    SPILLWAY_RETURN_IF_ERROR(keep_page_->Bind(1, id).Bind(2, page).Bind(3, number_).Run());
  if (record) {
    const Extent& extent = record->extent;
    put_page_->Bind(1, id).Bind(2, page).Bind(3, number_);
    put_page_->Bind(4, extent.device).Bind(5, extent.segment).Bind(6, extent.offset);
    put_page_->Bind(7, extent.size_bytes).Bind(8, record->skip_bytes);
    put_page_->Bind(9, record->content_bytes).Bind(10, record->checksum);
    SPILLWAY_RETURN_IF_ERROR(put_page_->Run());
    SPILLWAY_RETURN_IF_ERROR(Name(*record));
    rows_digest_ += PageDigest(id, page, *record);
  } else {
    SPILLWAY_RETURN_IF_ERROR(erase_page_->Bind(1, id).Bind(2, page).Run());
  }
  if (!before) return absl::OkStatus();
  rows_digest_ -= PageDigest(id, page, *before);
  return is_kept ? absl::OkStatus() : Unname(id, page, *before);
}

absl::Status CatalogChange::RemoveTensors(const std::vector<CatalogTensor>& tensors) {
  for (const CatalogTensor& tensor : tensors) {
    rows_digest_ -= TensorDigest(tensor.id, tensor.record);
    SPILLWAY_RETURN_IF_ERROR(
        Execute("UPDATE tensor_spans SET died = ?2 WHERE tensor = ?1 AND died IS NULL",
                {tensor.id, number_}));
  }
  return tensors.empty() ? absl::OkStatus() : DropUnneededTensors();
}

// --- The end ---

absl::StatusOr<CatalogCommit> CatalogChange::FinishCommit(std::string_view user_state) {
  CatalogCommit commit;
  commit.number = number_;
  commit.digest = rows_digest_ + CommitDigest(number_, catalog_->meta().page_bytes, user_state);
  commit.user_state = std::string(user_state);
  return WriteLastCommit(std::move(commit), true);
}

absl::StatusOr<CatalogCommit> CatalogChange::FinishRestore() {
  return FinishCommit(restored_state_);
}

absl::StatusOr<CatalogCommit> CatalogChange::Finish() { return WriteLastCommit(*last_, false); }

absl::StatusOr<CatalogCommit> CatalogChange::WriteLastCommit(CatalogCommit commit, bool is_new) {
  SPILLWAY_RETURN_IF_ERROR(space_.Apply());
  commit.revision = last_ ? last_->revision + 1 : 1;
  commit.used_bytes = used_bytes_;
  if (is_new) {
    SPILLWAY_ASSIGN_OR_RETURN(
        SqliteStatement put,
        database_.Prepare("INSERT OR REPLACE INTO last_commit (singleton, number, revision, time, "
                          "user_state, digest, used_bytes) VALUES (1, ?, ?, ?, ?, ?, ?)"));
    const std::string time = Now();
    put.Bind(1, commit.number).Bind(2, commit.revision).BindText(3, time);
    put.BindBlob(4, commit.user_state).Bind(5, commit.digest).Bind(6, commit.used_bytes);
    SPILLWAY_RETURN_IF_ERROR(put.Run());
  } else {
    SPILLWAY_RETURN_IF_ERROR(Execute("UPDATE last_commit SET revision = ?, used_bytes = ?",
                                     {commit.revision, commit.used_bytes}));
  }
  may_be_durable_ = true;
  const absl::Status committed = database_.Execute("COMMIT");
  if (absl::IsResourceExhausted(committed)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(committed.message(), "; free some room on the disk of ", database_.path(),
                     ", or give back the free bytes of segment files first ('spillway trim')"));
  }
  SPILLWAY_RETURN_IF_ERROR(committed);
  return commit;
}

}  // namespace spillway::io
