// SPDX-License-Identifier: Apache-2.0

#include "io/store/catalog_schema.h"

#include <algorithm>

namespace spillway::io {

const char kCatalogSchema[] = R"sql(
BEGIN IMMEDIATE;
PRAGMA application_id = 0x5350574c;
CREATE TABLE meta (
  key TEXT NOT NULL PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE tensors (
  id INTEGER NOT NULL PRIMARY KEY,
  name TEXT NOT NULL,
  description TEXT NOT NULL,
  num_pages INTEGER NOT NULL CHECK (num_pages >= 0)
) STRICT;
CREATE INDEX tensors_by_name ON tensors (name);
CREATE TABLE tensor_spans (
  tensor INTEGER NOT NULL REFERENCES tensors (id),
  born INTEGER NOT NULL CHECK (born > 0),
  died INTEGER CHECK (died > born),
  PRIMARY KEY (tensor, born)
) STRICT, WITHOUT ROWID;
CREATE TABLE pages (
  tensor INTEGER NOT NULL REFERENCES tensors (id),
  page INTEGER NOT NULL CHECK (page >= 0),
  born INTEGER NOT NULL CHECK (born > 0),
  device INTEGER NOT NULL,
  segment INTEGER NOT NULL,
  offset INTEGER NOT NULL CHECK (offset % 4096 = 0),
  size_bytes INTEGER NOT NULL CHECK (size_bytes > 0 AND size_bytes % 4096 = 0),
  skip_bytes INTEGER NOT NULL CHECK (skip_bytes >= 0),
  content_bytes INTEGER NOT NULL CHECK (content_bytes BETWEEN 0 AND size_bytes - skip_bytes),
  checksum INTEGER NOT NULL,
  PRIMARY KEY (tensor, page)
) STRICT, WITHOUT ROWID;
CREATE TABLE kept (
  tensor INTEGER NOT NULL REFERENCES tensors (id),
  page INTEGER NOT NULL CHECK (page >= 0),
  born INTEGER NOT NULL CHECK (born > 0),
  device INTEGER NOT NULL,
  segment INTEGER NOT NULL,
  offset INTEGER NOT NULL CHECK (offset % 4096 = 0),
  size_bytes INTEGER NOT NULL CHECK (size_bytes > 0 AND size_bytes % 4096 = 0),
  skip_bytes INTEGER NOT NULL CHECK (skip_bytes >= 0),
  content_bytes INTEGER NOT NULL CHECK (content_bytes BETWEEN 0 AND size_bytes - skip_bytes),
  checksum INTEGER NOT NULL,
  died INTEGER NOT NULL CHECK (died > born),
  PRIMARY KEY (tensor, page, born)
) STRICT, WITHOUT ROWID;
CREATE TABLE packs (
  device INTEGER NOT NULL,
  segment INTEGER NOT NULL,
  offset INTEGER NOT NULL CHECK (offset % 4096 = 0),
  size_bytes INTEGER NOT NULL CHECK (size_bytes > 0 AND size_bytes % 4096 = 0),
  num_references INTEGER NOT NULL CHECK (num_references > 0),
  PRIMARY KEY (device, segment, offset)
) STRICT, WITHOUT ROWID;
CREATE TABLE segments (
  device INTEGER NOT NULL,
  segment INTEGER NOT NULL,
  size_bytes INTEGER NOT NULL CHECK (size_bytes > 0 AND size_bytes % 4096 = 0),
  written_bytes INTEGER NOT NULL CHECK (written_bytes BETWEEN 0 AND size_bytes),
  PRIMARY KEY (device, segment)
) STRICT, WITHOUT ROWID;
CREATE TABLE free_space (
  device INTEGER NOT NULL,
  segment INTEGER NOT NULL,
  chunk INTEGER NOT NULL CHECK (chunk >= 0),
  free_bytes INTEGER NOT NULL CHECK (free_bytes BETWEEN 4096 AND 67108864),
  runs TEXT NOT NULL,
  PRIMARY KEY (device, segment, chunk)
) STRICT, WITHOUT ROWID;
CREATE TABLE devices (
  device INTEGER NOT NULL PRIMARY KEY,
  request_bytes INTEGER NOT NULL,
  read_depth INTEGER NOT NULL,
  write_depth INTEGER NOT NULL,
  mixed_write_depth INTEGER NOT NULL,
  read_bytes_per_second REAL NOT NULL,
  write_bytes_per_second REAL NOT NULL,
  time TEXT NOT NULL
) STRICT;
CREATE TABLE snapshots (
  label TEXT NOT NULL PRIMARY KEY,
  number INTEGER NOT NULL CHECK (number > 0),
  time TEXT NOT NULL,
  user_state BLOB NOT NULL,
  digest INTEGER NOT NULL
) STRICT;
CREATE TABLE last_commit (
  singleton INTEGER NOT NULL PRIMARY KEY CHECK (singleton = 1),
  number INTEGER NOT NULL CHECK (number > 0),
  revision INTEGER NOT NULL CHECK (revision >= number),
  time TEXT NOT NULL,
  user_state BLOB NOT NULL,
  digest INTEGER NOT NULL,
  used_bytes INTEGER NOT NULL CHECK (used_bytes >= 0)
) STRICT;
)sql";

Extent RowReader::NextExtent(uint64_t num_folders) {
  Extent extent;
  extent.device = static_cast<uint16_t>(Next(num_folders - 1));
  extent.segment = static_cast<uint32_t>(Next(kMaxSegmentNumber));
  extent.offset = Next(kMaxSegmentFileBytes - kIoAlignment);
  extent.size_bytes = static_cast<uint32_t>(Next((uint64_t{1} << 32) - kIoAlignment));
  ok_ = ok_ && extent.size_bytes > 0 && extent.size_bytes % kIoAlignment == 0 &&
        extent.offset % kIoAlignment == 0;
  return extent;
}

PageRecord RowReader::NextPage(uint64_t num_folders) {
  PageRecord record;
  record.extent = NextExtent(num_folders);
  record.content_bytes = static_cast<uint32_t>(Next(record.extent.size_bytes));
  record.checksum = NextHash();
  record.skip_bytes = static_cast<uint32_t>(
      Next(record.extent.size_bytes - std::min(record.content_bytes, record.extent.size_bytes)));
  record.packed = Next(1) == 1;
  ok_ = ok_ && (record.packed || record.skip_bytes == 0);
  return record;
}

}  // namespace spillway::io
