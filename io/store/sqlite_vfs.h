// SPDX-License-Identifier: Apache-2.0
//
// SQLite's way to the disk, with every page of a database sealed and checked (sqlite_page.h), and a
// place where tests let it fail. Locks, shared memory and names are the operating system's VFS's.
//
// One idea: a page is sealed on its way out, into the log or into the database, and checked on its
// way in from either. So a flipped bit, or a page in the wrong place, is found by whoever reads it,
// and a stock SQLite that moves pages from the log to the database moves the seals with them.

#ifndef SPILLWAY_IO_STORE_SQLITE_VFS_H_
#define SPILLWAY_IO_STORE_SQLITE_VFS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace spillway::io {

// The name to open databases with, registered on first use. Their pages must have kSqlitePageBytes
// bytes, of which kSqliteSealBytes are reserved; others cannot be written through it. Null if
// SQLite cannot take it (no memory).
//
// Reading a page whose seal is broken gives SQLITE_IOERR_DATA. The first bytes of the file alone,
// which SQLite reads before it knows whether the log has a newer page 1, are given as they are;
// that page is then read whole.
const char* SqliteVfsName();

// File and offset of the last broken seal that this thread met.
std::string LastBrokenSeal();
// The errno of this thread's last write that failed; SQLite forgets it while it rolls back.
int LastWriteErrno();

// For tests. One operation of SQLite's on a file other than shared memory.
struct SqliteCall {
  enum class Op : uint8_t { kRead, kWrite, kSync, kTruncate, kDelete };
  Op op = Op::kRead;
  std::string_view path;
  int64_t offset = 0;               // of kTruncate: the new size
  std::span<std::byte> bytes = {};  // what is about to be written, or was read; may be changed
};
// 0: go on. kSqliteCallIsDropped: pretend that it was done (not for reads). Else an errno with
// which the call fails.
inline constexpr int kSqliteCallIsDropped = -1;
using SqliteHook = std::function<int(const SqliteCall&)>;
// Empty: none. REQUIRES: no database is in use.
void SetSqliteHook(SqliteHook hook);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_SQLITE_VFS_H_
