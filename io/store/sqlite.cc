// SPDX-License-Identifier: Apache-2.0

#include "io/store/sqlite.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/store/sqlite_page.h"
#include "io/store/sqlite_vfs.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"

namespace spillway::io {
namespace {

// How long a commit waits for another program that has locked the catalog, such as an SQLite tool.
constexpr int kBusyTimeoutMs = 10000;

absl::StatusCode CodeOf(int primary_code) {
  switch (primary_code) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT: return absl::StatusCode::kDataLoss;
    case SQLITE_FULL:
    case SQLITE_NOMEM: return absl::StatusCode::kResourceExhausted;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_IOERR:
    case SQLITE_NOLFS: return absl::StatusCode::kUnavailable;
    case SQLITE_TOOBIG: return absl::StatusCode::kInvalidArgument;
    default: return absl::StatusCode::kInternal;
  }
}

std::string_view Advice(int primary_code) {
  switch (primary_code) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return "; close the program that holds it open and try again";
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM: return "; check that the folder and the file can be written";
    default: return "";
  }
}

using base::View;

}  // namespace

absl::Status SqliteDatabase::ToStatus(int code, std::string_view what) const {
  const int primary_code = code & 0xff;
  if (primary_code == SQLITE_OK || primary_code == SQLITE_ROW || primary_code == SQLITE_DONE) {
    return absl::OkStatus();
  }
  // The handle's message may belong to another call than the one that returned `code`.
  const bool is_current = handle_ && sqlite3_extended_errcode(handle_.get()) == code;
  const std::string message =
      absl::StrCat(path_, ": ", View(what), ": ",
                   is_current ? sqlite3_errmsg(handle_.get()) : sqlite3_errstr(code),
                   " (SQLite code ", code, ")", View(Advice(primary_code)));
  if (code == SQLITE_IOERR_DATA) {
    return absl::DataLossError(absl::StrCat(
        LastBrokenSeal(), "; restore the store from a copy, or remove it and start over"));
  }
  if (code == kSqliteLogIsGone) {
    return absl::UnavailableError(
        absl::StrCat(path_, "-wal: ", View(what),
                     ": this log was deleted while it is in use, so nothing more can be committed; "
                     "open the store again to go on from the last commit. (A program such as "
                     "sqlite3 deletes it once this process itself has opened and closed ",
                     path_, ")"));
  }
  int system_errno = handle_ ? sqlite3_system_errno(handle_.get()) : 0;
  if (code == SQLITE_IOERR_WRITE && system_errno == 0) system_errno = LastWriteErrno();
  if (code == SQLITE_IOERR_SHORT_READ) return absl::DataLossError(message);
  const bool too_many_files =
      primary_code == SQLITE_CANTOPEN && (system_errno == EMFILE || system_errno == ENFILE);
  if (too_many_files || (primary_code == SQLITE_IOERR && system_errno != 0))
    return base::ErrnoToStatus(system_errno, message);
  // The index of the log gets all its bytes when it is made, so a failure there means a full disk.
  if (primary_code == SQLITE_FULL || code == SQLITE_IOERR_SHMSIZE) {
    return base::ErrnoToStatus(ENOSPC, absl::StrCat(path_, ": ", View(what)));
  }
  return {CodeOf(primary_code), message};
}

namespace {

int OpenFlags(SqliteDatabase::Mode mode) {
  using Mode = SqliteDatabase::Mode;
  // One thread at a time uses the database, so reading a column needs no mutex.
  constexpr int kFlags = SQLITE_OPEN_NOMUTEX;
  switch (mode) {
    case Mode::kCreate: return kFlags | SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    case Mode::kReadAlone: return kFlags | SQLITE_OPEN_READONLY | SQLITE_OPEN_URI;
    case Mode::kReadShared: return kFlags | SQLITE_OPEN_READONLY;
    // SQLite opens the file read-only by itself if it must.
    case Mode::kReadWithLog:
    case Mode::kAlone:
    case Mode::kExisting: break;
  }
  return kFlags | SQLITE_OPEN_READWRITE;
}

// Returns the path as the URI of a file that nobody changes. "?", "#" and "%" have a meaning in
// SQLite's URIs, so they are escaped. An empty authority keeps a path that begins with "//" from
// being taken for one.
std::string ImmutableUri(const std::string& path) {
  std::string uri = path.starts_with('/') ? "file://" : "file:";
  for (const char c : path) {
    const bool escape = c == '%' || c == '?' || c == '#';
    absl::StrAppend(
        &uri, escape ? absl::StrFormat("%%%02X", static_cast<unsigned>(c)) : std::string(1, c));
  }
  return uri + "?immutable=1";
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteDatabase>> SqliteDatabase::Open(std::string path, Mode mode) {
  std::unique_ptr<SqliteDatabase> database(new SqliteDatabase(std::move(path)));
  const char* const vfs = SqliteVfsName();
  if (!vfs) return absl::ResourceExhaustedError("no memory for SQLite's file layer");
  const std::string name =
      mode == Mode::kReadAlone ? ImmutableUri(database->path_) : database->path_;
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(name.c_str(), &handle, OpenFlags(mode), vfs);
  database->handle_.reset(handle);  // SQLite returns a handle, for its message, even on failure
  if (handle) sqlite3_extended_result_codes(handle, 1);
  SPILLWAY_RETURN_IF_ERROR(database->ToStatus(code, "open"));
  SPILLWAY_RETURN_IF_ERROR(
      database->ToStatus(sqlite3_busy_timeout(handle, kBusyTimeoutMs), "set the time-out"));
  if (mode == Mode::kCreate) SPILLWAY_RETURN_IF_ERROR(database->ReserveSeals());
  if (mode == Mode::kAlone) SPILLWAY_RETURN_IF_ERROR(database->KeepIndexInMemory());
  const bool writes = mode == Mode::kCreate || mode == Mode::kExisting || mode == Mode::kAlone;
  if (!writes) SPILLWAY_RETURN_IF_ERROR(database->KeepToReading(mode));
  return database;
}

absl::Status SqliteDatabase::KeepIndexInMemory() {
  return Execute("PRAGMA locking_mode = EXCLUSIVE");
}

absl::Status SqliteDatabase::KeepToReading(Mode mode) {
  // Otherwise closing copies the log into the file and removes it, if SQLite takes itself for
  // alone.
  SPILLWAY_RETURN_IF_ERROR(SetMovesLogOnClose(false));
  if (mode == Mode::kReadWithLog) SPILLWAY_RETURN_IF_ERROR(KeepIndexInMemory());
  // The transaction shows one state of the database, from the first row that is read on.
  return Execute("PRAGMA query_only = 1; BEGIN");
}

absl::Status SqliteDatabase::SetMovesLogOnClose(bool moves) {
  return ToStatus(
      sqlite3_db_config(handle_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, moves ? 0 : 1, nullptr),
      "set what closing does");
}

absl::Status SqliteDatabase::ReserveSeals() {
  const std::string page_size = absl::StrCat("PRAGMA page_size = ", kSqlitePageBytes);
  SPILLWAY_RETURN_IF_ERROR(Execute(page_size.c_str()));
  int reserved_bytes = kSqliteSealBytes;
  return ToStatus(
      sqlite3_file_control(handle_.get(), "main", SQLITE_FCNTL_RESERVE_BYTES, &reserved_bytes),
      "reserve the end of each page");
}

absl::Status SqliteDatabase::Execute(const char* sql) {
  return ToStatus(sqlite3_exec(handle_.get(), sql, nullptr, nullptr, nullptr), sql);
}

absl::StatusOr<SqliteStatement> SqliteDatabase::Prepare(std::string_view sql) {
  sqlite3_stmt* handle = nullptr;
  const int code = sqlite3_prepare_v3(handle_.get(), sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &handle, nullptr);
  absl::Status status = ToStatus(code, sql);
  // The statements are known to be correct, so one that cannot be prepared means that the file
  // lacks the catalog's tables.
  if (code == SQLITE_ERROR) return absl::DataLossError(status.message());
  SPILLWAY_RETURN_IF_ERROR(status);
  return SqliteStatement(this, handle);
}

void SqliteDatabase::RollBack() {
  if (sqlite3_get_autocommit(handle_.get())) return;
  // If the rollback fails, nothing more can be done here: whoever opens the file next undoes the
  // transaction, by the journal.
  sqlite3_exec(handle_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
}

void SqliteDatabase::CheckpointAfterCommits(int least_pages,
                                            std::function<void(const Checkpoint&)> done) {
  least_checkpoint_pages_ = least_pages;
  checkpoint_done_ = std::move(done);
  const auto committed = [](void* database, sqlite3*, const char*, int log_pages) {
    static_cast<SqliteDatabase*>(database)->Committed(log_pages);
    return SQLITE_OK;  // the transaction is durable, whatever became of the checkpoint
  };
  sqlite3_wal_hook(handle_.get(), committed, this);
}

void SqliteDatabase::Committed(int log_pages) {
  if (log_pages < least_checkpoint_pages_) return;
  Checkpoint checkpoint;
  checkpoint.log_pages = log_pages;
  const int code = sqlite3_wal_checkpoint_v2(handle_.get(), "main", SQLITE_CHECKPOINT_PASSIVE,
                                             nullptr, &checkpoint.moved_pages);
  if (code != SQLITE_BUSY) checkpoint.status = ToStatus(code, "move the log's pages into the file");
  checkpoint_done_(checkpoint);
}

SqliteStatement& SqliteStatement::Bind(int index, uint64_t value) {
  const int code = sqlite3_bind_int64(handle_.get(), index, static_cast<sqlite3_int64>(value));
  if (bind_code_ == SQLITE_OK) bind_code_ = code;
  return *this;
}

SqliteStatement& SqliteStatement::BindReal(int index, double value) {
  const int code = sqlite3_bind_double(handle_.get(), index, value);
  if (bind_code_ == SQLITE_OK) bind_code_ = code;
  return *this;
}

SqliteStatement& SqliteStatement::BindText(int index, std::string_view text) {
  const int code = sqlite3_bind_text64(handle_.get(), index, text.empty() ? "" : text.data(),
                                       text.size(), SQLITE_STATIC, SQLITE_UTF8);
  if (bind_code_ == SQLITE_OK) bind_code_ = code;
  return *this;
}

SqliteStatement& SqliteStatement::BindBlob(int index, std::string_view bytes) {
  const int code = sqlite3_bind_blob64(handle_.get(), index, bytes.empty() ? "" : bytes.data(),
                                       bytes.size(), SQLITE_STATIC);
  if (bind_code_ == SQLITE_OK) bind_code_ = code;
  return *this;
}

absl::Status SqliteStatement::Fail(int code) {
  absl::Status status = database_->ToStatus(code, sqlite3_sql(handle_.get()));
  sqlite3_reset(handle_.get());
  return status;
}

absl::StatusOr<bool> SqliteStatement::Step() {
  if (const int code = std::exchange(bind_code_, SQLITE_OK); code != SQLITE_OK) return Fail(code);
  const int code = sqlite3_step(handle_.get());
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) return Fail(code);
  sqlite3_reset(handle_.get());
  return false;
}

absl::Status SqliteStatement::Run() {
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, Step());
    if (!has_row) return absl::OkStatus();
  }
}

std::string SqliteStatement::Bytes(int column) const {
  // sqlite3_column_blob returns text unchanged, too. The size must be read after the pointer.
  const void* bytes = sqlite3_column_blob(handle_.get(), column);
  const int size_bytes = sqlite3_column_bytes(handle_.get(), column);
  return bytes ? std::string(static_cast<const char*>(bytes), static_cast<size_t>(size_bytes))
               : std::string();
}

}  // namespace spillway::io
