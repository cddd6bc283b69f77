// SPDX-License-Identifier: Apache-2.0
//
// SQLite's file layer (VFS). It seals and checks every page of a database (sqlite_page.h), and has
// a hook by which tests make it fail. Locks, shared memory and file names are left to the operating
// system's VFS.
//
// One idea: a page is sealed when it is written, into the log or into the database, and checked
// when it is read from either. So a flipped bit, or a page in the wrong place, is detected when the
// page is read, and a stock SQLite that moves pages from the log to the database moves the seals
// with them.

#ifndef SPILLWAY_IO_STORE_SQLITE_VFS_H_
#define SPILLWAY_IO_STORE_SQLITE_VFS_H_

#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace spillway::io {

// Returns the name of the VFS to open databases with, and registers it on first use. Pages of these
// databases must have kSqlitePageBytes bytes, of which kSqliteSealBytes are reserved; others cannot
// be written through it. Null if SQLite cannot register it (no memory).
//
// Reading a page whose seal is broken fails with SQLITE_IOERR_DATA. A read of only the first bytes
// of the file is not checked: SQLite makes it before it has found out whether the log has a newer
// page 1, and reads the whole page afterwards.
//
// Syncing a log to which something was written fails with kSqliteLogIsGone if the log is no longer
// at its path: another program has deleted it, as one does that closes the database and sees no
// lock of this process.
const char* SqliteVfsName();

// SQLite reserves this code for file layers other than its own.
inline constexpr int kSqliteLogIsGone = SQLITE_IOERR_VNODE;

// Describes the last broken seal that this thread read, with page, offset and file.
std::string LastBrokenSeal();
// The errno of this thread's last write that failed. SQLite loses it while it rolls back.
int LastWriteErrno();

// For tests. One SQLite operation on a file other than shared memory.
struct SqliteCall {
  enum class Op : uint8_t { kRead, kWrite, kSync, kTruncate, kDelete };
  Op op = Op::kRead;
  std::string_view path;
  int64_t offset = 0;               // for kTruncate: the new size
  std::span<std::byte> bytes = {};  // to be written, or read; the hook may change them
};
// A hook returns 0 to continue, kSqliteCallIsDropped to skip the operation and report success (not
// for reads), or an errno with which the operation fails.
inline constexpr int kSqliteCallIsDropped = -1;
using SqliteHook = std::function<int(const SqliteCall&)>;
// Installs a hook; an empty one removes it. REQUIRES: no database is in use.
void SetSqliteHook(SqliteHook hook);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_SQLITE_VFS_H_
