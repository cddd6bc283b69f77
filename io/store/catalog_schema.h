// SPDX-License-Identifier: Apache-2.0
//
// The catalog's tables as SQL, and a reader of their rows. The limits of each value are checked
// here, once for all callers. io/FORMAT.md says what the tables mean.

#ifndef SPILLWAY_IO_STORE_CATALOG_SCHEMA_H_
#define SPILLWAY_IO_STORE_CATALOG_SCHEMA_H_

#include <cstdint>
#include <limits>

#include "io/store/sqlite.h"
#include "io/store/store.h"

namespace spillway::io {

// Stands in the SQLite header, where `file` and other tools look for it: "SPWL".
inline constexpr uint64_t kCatalogApplicationId = 0x5350574c;
// SQL that makes an empty catalog without the rows of meta. It begins a transaction and leaves it
// open.
extern const char kCatalogSchema[];

inline constexpr uint64_t kMaxInteger = std::numeric_limits<int64_t>::max();
inline constexpr uint64_t kMaxSegmentNumber = (uint64_t{1} << 24) - 1;
// Offsets in a segment file, in units, fit in 32 bits.
inline constexpr uint64_t kMaxSegmentFileBytes = uint64_t{1} << 44;

// The columns of pages and kept that make a PageRecord, in NextPage's order. In the query, `p` is
// the table pages or kept and `k` is packs, joined by SPILLWAY_PACK_JOIN.
#define SPILLWAY_PAGE_COLUMNS                                                                \
  "p.device, p.segment, p.offset, p.size_bytes, p.content_bytes, p.checksum, p.skip_bytes, " \
  "k.num_references IS NOT NULL"
#define SPILLWAY_PACK_JOIN \
  " LEFT JOIN packs k ON k.device = p.device AND k.segment = p.segment AND k.offset = p.offset "

// The columns of pages and kept without tensor, page, born and died, to copy rows from one table to
// the other.
inline constexpr char kRestColumns[] =
    "device, segment, offset, size_bytes, skip_bytes, content_bytes, checksum";

// Reads the integer columns of a row one after another, and records whether each was an integer
// within its limit.
class RowReader {
 public:
  explicit RowReader(const SqliteStatement& row) : row_(row) {}
  uint64_t Next(uint64_t limit) {
    const int64_t value = row_.Integer(column_);
    ok_ = ok_ && row_.IsInteger(column_) && value >= 0 && static_cast<uint64_t>(value) <= limit;
    ++column_;
    return static_cast<uint64_t>(value);
  }
  // Reads a hash: an integer of any 64 bits.
  uint64_t NextHash() {
    ok_ = ok_ && row_.IsInteger(column_);
    return static_cast<uint64_t>(row_.Integer(column_++));
  }
  // Reads the columns of SPILLWAY_PAGE_COLUMNS. ok() is false afterwards if they cannot be a
  // page's.
  PageRecord NextPage(uint64_t num_folders);
  Extent NextExtent(uint64_t num_folders);
  bool ok() const { return ok_; }

 private:
  const SqliteStatement& row_;
  int column_ = 0;
  bool ok_ = true;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_CATALOG_SCHEMA_H_
