// SPDX-License-Identifier: Apache-2.0
//
// Wraps SQLite: a database and its prepared statements are owning objects, and every return code is
// checked and mapped to a Status in one place, with the file's name and SQLite's own message. All
// files are accessed through sqlite_vfs.h, which checks every page that is read. What is stored is
// left to the catalog.

#ifndef SPILLWAY_IO_STORE_SQLITE_H_
#define SPILLWAY_IO_STORE_SQLITE_H_

#include <sqlite3.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spillway::io {

class SqliteStatement;

// An open database. Its statements must not outlive it. One thread at a time.
//
// Errors: DataLoss for a damaged file, one that is no database, or one without the tables that a
// statement names; ResourceExhausted for a full file system or no memory; Unavailable for a file
// that cannot be opened, locked or written; InvalidArgument for a value over SQLite's limits; the
// errno's status for other I/O errors; Internal for the rest.
class SqliteDatabase {
 public:
  // kCreate also accepts an existing file, which must be empty. kAlone keeps the index of the log
  // in memory: the index needs no room on disk, and no other process can read the database
  // meanwhile. The last three modes change nothing, and do not even tidy up; they see one state of
  // the database for as long as it is open. kReadAlone reads the file as it is; the file must have
  // no log. kReadWithLog reads the log that a crash left, without merging it. Both require that no
  // other process has the file open. kReadShared reads beside the processes that have the file
  // open.
  enum class Mode { kCreate, kExisting, kAlone, kReadAlone, kReadWithLog, kReadShared };
  static absl::StatusOr<std::unique_ptr<SqliteDatabase>> Open(std::string path, Mode mode);
  SqliteDatabase(const SqliteDatabase&) = delete;
  SqliteDatabase& operator=(const SqliteDatabase&) = delete;

  // Runs statements, and ignores the rows that they return.
  absl::Status Execute(const char* sql);
  absl::StatusOr<SqliteStatement> Prepare(std::string_view sql);
  // Number of rows that the last INSERT, UPDATE or DELETE changed.
  int64_t num_changes() const { return sqlite3_changes64(handle_.get()); }
  // Rolls back the open transaction, if there is one.
  void RollBack();

  // What a checkpoint did, which moves pages of the log into the database file.
  struct Checkpoint {
    absl::Status status;  // ok, too, if another process kept it from moving pages
    int log_pages = 0;    // in the log, moved or not
    int moved_pages = 0;  // if all were moved, the next transaction starts the log again
  };
  // From now on, each transaction that leaves `least_pages` or more in the log is followed by a
  // checkpoint, and `done` gets its result. It moves no page that a reader's state still needs, and
  // waits for nobody. SQLite makes the same checkpoints by default, and drops their results.
  void CheckpointAfterCommits(int least_pages, std::function<void(const Checkpoint&)> done);

  // Whether closing moves the log into the file and removes it, if no other process has the
  // database open. If not, it leaves both as they are. By default it does in the modes that may
  // change the database.
  absl::Status SetMovesLogOnClose(bool moves);

  const std::string& path() const { return path_; }
  // Maps an SQLite code to a Status; ok for SQLITE_OK, SQLITE_ROW and SQLITE_DONE.
  absl::Status ToStatus(int code, std::string_view what) const;

 private:
  struct Closer {
    void operator()(sqlite3* handle) const { sqlite3_close_v2(handle); }
  };
  explicit SqliteDatabase(std::string path) : path_(std::move(path)) {}
  absl::Status KeepToReading(Mode mode);
  absl::Status KeepIndexInMemory();
  // Reserves room for a seal in each page. Call it before the first table is made: pages that exist
  // already have no room.
  absl::Status ReserveSeals();
  void Committed(int log_pages);

  std::string path_;
  int least_checkpoint_pages_ = 0;
  std::function<void(const Checkpoint&)> checkpoint_done_;
  std::unique_ptr<sqlite3, Closer> handle_;
};

// A prepared statement. Parameters count from 1, columns from 0, as in SQLite. Bound text must live
// until the statement has run. Move-only.
//
//   SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement put, database->Prepare("INSERT INTO t VALUES (?,
//   ?)")); SPILLWAY_RETURN_IF_ERROR(put.Bind(1, 7).BindText(2, "seven").Run());
class SqliteStatement {
 public:
  SqliteStatement(SqliteDatabase* database, sqlite3_stmt* handle)
      : database_(database), handle_(handle) {}

  // A failed bind is reported by the next Step or Run.
  SqliteStatement& Bind(int index, uint64_t value);  // stored as a signed integer of the same bits
  SqliteStatement& BindReal(int index, double value);
  SqliteStatement& BindText(int index, std::string_view text);
  SqliteStatement& BindBlob(int index, std::string_view bytes);

  // Returns true if there is a row. Returns false after the last row; the statement is reset then.
  absl::StatusOr<bool> Step();
  // Runs the statement to the end and resets it, so that it can be bound and run again.
  absl::Status Run();
  // Drops the remaining rows. Needed before others may commit, unless the statement is destroyed.
  void Reset() { sqlite3_reset(handle_.get()); }

  int num_columns() const { return sqlite3_column_count(handle_.get()); }
  bool IsInteger(int column) const {
    return sqlite3_column_type(handle_.get(), column) == SQLITE_INTEGER;
  }
  int64_t Integer(int column) const { return sqlite3_column_int64(handle_.get(), column); }
  double Real(int column) const { return sqlite3_column_double(handle_.get(), column); }
  std::string Bytes(int column) const;  // of text or a blob

 private:
  struct Finalizer {
    void operator()(sqlite3_stmt* handle) const { sqlite3_finalize(handle); }
  };
  absl::Status Fail(int code);

  SqliteDatabase* database_;
  std::unique_ptr<sqlite3_stmt, Finalizer> handle_;
  int bind_code_ = SQLITE_OK;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_SQLITE_H_
