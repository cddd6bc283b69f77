// SPDX-License-Identifier: Apache-2.0
//
// A catalog is made under a temporary name, with a rollback journal, and renamed when complete; it
// switches to write-ahead logging when it is first opened under its own name, because that mode's
// side files carry the name.

#include "io/store/catalog.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

// In the SQLite header, where `file` and other tools look: "SPWL".
constexpr uint64_t kApplicationId = 0x5350574c;

constexpr char kSchema[] = R"sql(
BEGIN IMMEDIATE;
PRAGMA application_id = 0x5350574c;
CREATE TABLE meta (
  key TEXT NOT NULL PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE tensors (
  id INTEGER NOT NULL PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  description TEXT NOT NULL,
  num_pages INTEGER NOT NULL CHECK (num_pages >= 0)
) STRICT;
CREATE TABLE pages (
  tensor INTEGER NOT NULL REFERENCES tensors (id),
  page INTEGER NOT NULL CHECK (page >= 0),
  device INTEGER NOT NULL,
  segment INTEGER NOT NULL,
  offset INTEGER NOT NULL CHECK (offset % 4096 = 0),
  size_bytes INTEGER NOT NULL CHECK (size_bytes > 0 AND size_bytes % 4096 = 0),
  content_bytes INTEGER NOT NULL CHECK (content_bytes BETWEEN 0 AND size_bytes),
  checksum INTEGER NOT NULL,
  PRIMARY KEY (tensor, page)
) STRICT, WITHOUT ROWID;
CREATE TABLE last_commit (
  singleton INTEGER NOT NULL PRIMARY KEY CHECK (singleton = 1),
  number INTEGER NOT NULL CHECK (number > 0),
  time TEXT NOT NULL,
  user_state BLOB NOT NULL,
  digest INTEGER NOT NULL
) STRICT;
)sql";

// A catalog that lacks a table or a column answers with SQLite's general error: while opening, that
// is damage.
absl::Status InternalIsDamage(const absl::Status& status) {
  return absl::IsInternal(status) ? absl::DataLossError(status.message()) : status;
}

// Reads integer columns of a row one after another and remembers whether each was one within its
// limit.
class RowReader {
 public:
  explicit RowReader(const SqliteStatement& row) : row_(row) {}
  uint64_t Next(uint64_t limit) {
    const int64_t value = row_.Integer(column_);
    ok_ = ok_ && row_.IsInteger(column_) && value >= 0 && static_cast<uint64_t>(value) <= limit;
    ++column_;
    return static_cast<uint64_t>(value);
  }
  uint64_t NextHash() {
    ok_ = ok_ && row_.IsInteger(column_);
    return static_cast<uint64_t>(row_.Integer(column_++));
  }
  bool ok() const { return ok_; }

 private:
  const SqliteStatement& row_;
  int column_ = 0;
  bool ok_ = true;
};

constexpr uint64_t kMaxInteger = std::numeric_limits<int64_t>::max();

// Limits of the ledger's packed slot as much as of the types; io/FORMAT.md states them.
bool ReadPageRow(const SqliteStatement& row, uint64_t num_folders, uint64_t* id, uint64_t* page,
                 PageRecord* record) {
  RowReader reader(row);
  *id = reader.Next(kMaxInteger);
  *page = reader.Next(kMaxInteger);
  record->extent.device = static_cast<uint16_t>(reader.Next(num_folders - 1));
  record->extent.segment = static_cast<uint32_t>(reader.Next((1u << 24) - 1));
  record->extent.offset = reader.Next((uint64_t{1} << 44) - kIoAlignment);
  record->extent.size_bytes =
      static_cast<uint32_t>(reader.Next((uint64_t{1} << 32) - kIoAlignment));
  record->content_bytes = static_cast<uint32_t>(reader.Next(record->extent.size_bytes));
  record->checksum = reader.NextHash();
  return reader.ok() && record->extent.size_bytes > 0 &&
         record->extent.size_bytes % kIoAlignment == 0 && record->extent.offset % kIoAlignment == 0;
}

}  // namespace

absl::Status Catalog::Create(const std::string& path, const CatalogMeta& meta) {
  const std::string temporary = path + ".new";
  for (const char* suffix : {"", "-journal"}) {
    if (::unlink((temporary + suffix).c_str()) != 0 && errno != ENOENT) {
      return base::ErrnoToStatus(errno, absl::StrCat("remove ", temporary, suffix));
    }
  }
  {
    SPILLWAY_ASSIGN_OR_RETURN(auto database,
                              SqliteDatabase::Open(temporary, SqliteDatabase::Mode::kCreate));
    SPILLWAY_RETURN_IF_ERROR(
        database->Execute("PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL"));
    SPILLWAY_RETURN_IF_ERROR(database->Execute(kSchema));
    {
      SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement put,
                                database->Prepare("INSERT INTO meta VALUES (?, ?)"));
      SPILLWAY_RETURN_IF_ERROR(put.BindText(1, "format_version").Bind(2, kFormatVersion).Run());
      SPILLWAY_RETURN_IF_ERROR(put.BindText(1, "store_id").BindText(2, meta.store_id).Run());
      SPILLWAY_RETURN_IF_ERROR(put.BindText(1, "page_bytes").Bind(2, meta.page_bytes).Run());
      SPILLWAY_RETURN_IF_ERROR(put.BindText(1, "num_folders").Bind(2, meta.num_folders).Run());
    }
    SPILLWAY_RETURN_IF_ERROR(database->Execute("COMMIT"));
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    return base::ErrnoToStatus(errno, absl::StrCat("rename ", temporary, " to ", path));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Catalog>> Catalog::Open(const std::string& path) {
  SPILLWAY_ASSIGN_OR_RETURN(auto database,
                            SqliteDatabase::Open(path, SqliteDatabase::Mode::kExisting));
  std::unique_ptr<Catalog> catalog(new Catalog(std::move(database)));
  SPILLWAY_RETURN_IF_ERROR(InternalIsDamage(catalog->CheckIsCatalog()));
  SPILLWAY_RETURN_IF_ERROR(InternalIsDamage(catalog->ReadMeta()));
  SPILLWAY_RETURN_IF_ERROR(catalog->SwitchToWal());
  SPILLWAY_RETURN_IF_ERROR(InternalIsDamage(catalog->PrepareStatements()));
  return catalog;
}

absl::Status Catalog::Damaged(std::string_view what) const {
  return absl::DataLossError(
      absl::StrCat(path(), " is damaged: ", absl::string_view(what.data(), what.size()),
                   "; restore the store from a copy, or remove it and start over"));
}

absl::Status Catalog::CheckIsCatalog() {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement get, database_->Prepare("PRAGMA application_id"));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
  if (!has_row || get.Integer(0) != kApplicationId) {
    return Damaged("it is an SQLite file, but not one that a Spillway store made");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Catalog::ReadMetaText(std::string_view key) {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement get,
                            database_->Prepare("SELECT value FROM meta WHERE key = ?"));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.BindText(1, key).Step());
  if (!has_row)
    return Damaged(absl::StrCat("meta has no ", absl::string_view(key.data(), key.size())));
  return get.Bytes(0);
}

absl::StatusOr<uint64_t> Catalog::ReadMetaInteger(std::string_view key) {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement get,
                            database_->Prepare("SELECT value FROM meta WHERE key = ?"));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.BindText(1, key).Step());
  if (!has_row || !get.IsInteger(0) || get.Integer(0) < 0) {
    return Damaged(absl::StrCat("meta has no number ", absl::string_view(key.data(), key.size())));
  }
  return static_cast<uint64_t>(get.Integer(0));
}

absl::Status Catalog::ReadMeta() {
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t version, ReadMetaInteger("format_version"));
  if (version != kFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        path(), " has store format ", version, "; this Spillway reads and writes format ",
        kFormatVersion, ". Use the version that made the store, or another folder"));
  }
  SPILLWAY_ASSIGN_OR_RETURN(meta_.store_id, ReadMetaText("store_id"));
  SPILLWAY_ASSIGN_OR_RETURN(meta_.page_bytes, ReadMetaInteger("page_bytes"));
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t num_folders, ReadMetaInteger("num_folders"));
  if (meta_.page_bytes == 0 || meta_.page_bytes % kIoAlignment != 0)
    return Damaged("its page size is impossible");
  if (num_folders == 0 || num_folders > kMaxFolders)
    return Damaged("its folder count is impossible");
  meta_.num_folders = static_cast<uint16_t>(num_folders);
  return absl::OkStatus();
}

absl::Status Catalog::SwitchToWal() {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement get, database_->Prepare("PRAGMA journal_mode = WAL"));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
  const std::string mode = has_row ? get.Bytes(0) : "";
  if (mode != "wal") {
    return absl::UnavailableError(absl::StrCat(
        path(), ": its file system cannot hold a write-ahead log (SQLite stays in mode \"", mode,
        "\"); put the first store folder on a local file system"));
  }
  SPILLWAY_RETURN_IF_ERROR(get.Run());
  return database_->Execute("PRAGMA synchronous = FULL");
}

absl::Status Catalog::PrepareStatements() {
  SPILLWAY_ASSIGN_OR_RETURN(
      put_tensor_,
      database_->Prepare(
          "INSERT INTO tensors (id, name, description, num_pages) VALUES (?, ?, ?, ?)"));
  SPILLWAY_ASSIGN_OR_RETURN(
      put_page_,
      database_->Prepare("INSERT OR REPLACE INTO pages (tensor, page, device, segment, offset, "
                         "size_bytes, content_bytes, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"));
  SPILLWAY_ASSIGN_OR_RETURN(erase_page_,
                            database_->Prepare("DELETE FROM pages WHERE tensor = ? AND page = ?"));
  SPILLWAY_ASSIGN_OR_RETURN(
      put_commit_,
      database_->Prepare("INSERT OR REPLACE INTO last_commit (singleton, number, time, user_state, "
                         "digest) VALUES (1, ?, ?, ?, ?)"));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<CatalogCommit>> Catalog::ReadCommit() {
  auto get = database_->Prepare("SELECT number, digest, user_state FROM last_commit");
  if (!get.ok()) return InternalIsDamage(get.status());
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get->Step());
  if (!has_row) return std::optional<CatalogCommit>();
  RowReader reader(*get);
  CatalogCommit commit;
  commit.number = reader.Next(kMaxInteger);
  commit.digest = reader.NextHash();
  if (!reader.ok() || commit.number == 0) return Damaged("the row of last_commit is impossible");
  commit.user_state = get->Bytes(2);
  return std::optional(std::move(commit));
}

absl::Status Catalog::ReadTensors(absl::FunctionRef<absl::Status(uint64_t, TensorRecord)> take) {
  auto get = database_->Prepare("SELECT id, num_pages, name, description FROM tensors ORDER BY id");
  if (!get.ok()) return InternalIsDamage(get.status());
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get->Step());
    if (!has_row) return absl::OkStatus();
    RowReader reader(*get);
    const uint64_t id = reader.Next(kMaxInteger);
    const uint64_t num_pages = reader.Next(kMaxInteger);
    if (!reader.ok()) return Damaged("a row of tensors is impossible");
    SPILLWAY_RETURN_IF_ERROR(take(id, {get->Bytes(2), get->Bytes(3), num_pages}));
  }
}

absl::Status Catalog::ReadPages(
    absl::FunctionRef<absl::Status(uint64_t, uint64_t, const PageRecord&)> take) {
  auto get = database_->Prepare(
      "SELECT tensor, page, device, segment, offset, size_bytes, content_bytes, checksum "
      "FROM pages ORDER BY tensor, page");
  if (!get.ok()) return InternalIsDamage(get.status());
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get->Step());
    if (!has_row) return absl::OkStatus();
    uint64_t id = 0;
    uint64_t page = 0;
    PageRecord record;
    if (!ReadPageRow(*get, meta_.num_folders, &id, &page, &record)) {
      return Damaged(absl::StrCat("the row of page ", page, " of tensor ", id, " is impossible"));
    }
    SPILLWAY_RETURN_IF_ERROR(take(id, page, record));
  }
}

absl::Status Catalog::Write(uint64_t number, uint64_t digest, std::string_view user_state,
                            absl::FunctionRef<absl::Status()> put) {
  const std::string time = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
  absl::Status status = database_->Execute("BEGIN IMMEDIATE");
  if (status.ok()) status = put();
  if (status.ok()) {
    status = put_commit_->Bind(1, number)
                 .BindText(2, time)
                 .BindBlob(3, user_state)
                 .Bind(4, digest)
                 .Run();
  }
  if (status.ok()) status = database_->Execute("COMMIT");
  if (!status.ok()) database_->RollBack();
  return status;
}

absl::Status Catalog::PutTensor(uint64_t id, const TensorRecord& tensor) {
  return put_tensor_->Bind(1, id)
      .BindText(2, tensor.name)
      .BindText(3, tensor.description)
      .Bind(4, tensor.num_pages)
      .Run();
}

absl::Status Catalog::PutPage(uint64_t id, uint64_t page, const PageRecord& record) {
  return put_page_->Bind(1, id)
      .Bind(2, page)
      .Bind(3, record.extent.device)
      .Bind(4, record.extent.segment)
      .Bind(5, record.extent.offset)
      .Bind(6, record.extent.size_bytes)
      .Bind(7, record.content_bytes)
      .Bind(8, record.checksum)
      .Run();
}

absl::Status Catalog::ErasePage(uint64_t id, uint64_t page) {
  return erase_page_->Bind(1, id).Bind(2, page).Run();
}

absl::Status Catalog::ChangePageBytes(uint64_t page_bytes) {
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement put,
      database_->Prepare("UPDATE meta SET value = ? WHERE key = 'page_bytes'"));
  SPILLWAY_RETURN_IF_ERROR(put.Bind(1, page_bytes).Run());
  meta_.page_bytes = page_bytes;
  return absl::OkStatus();
}

}  // namespace spillway::io
