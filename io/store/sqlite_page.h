// SPDX-License-Identifier: Apache-2.0
//
// What protects one page of a catalog: a seal in its last 16 bytes, and the checksums by which
// SQLite chains the frames of its write-ahead log. Pure functions of bytes; the VFS applies them.
//
// One idea: SQLite leaves the last bytes of a page alone when asked to
// (SQLITE_FCNTL_RESERVE_BYTES), so the seal travels with the page wherever it is copied, by
// whichever SQLite.

#ifndef SPILLWAY_IO_STORE_SQLITE_PAGE_H_
#define SPILLWAY_IO_STORE_SQLITE_PAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway::io {

inline constexpr size_t kSqlitePageBytes = 4096;
inline constexpr size_t kSqliteSealBytes = 16;

// The seal, little-endian: the page's number (from 1), then XXH3-64 of all bytes before it.
// REQUIRES: kSqlitePageBytes bytes.
void SealPage(std::span<std::byte> page, uint64_t number);
bool IsSealed(std::span<const std::byte> page, uint64_t number);
// Whether page 1 says that the database leaves room for seals in its pages.
bool HasRoomForSeals(std::span<const std::byte> first_page);

// The log: a header of 32 bytes, then frames of a header of 24 bytes and a page. Of the file
// format's fields (https://www.sqlite.org/fileformat2.html#walformat) these are the ones that a new
// seal in a page changes.
inline constexpr size_t kWalHeaderBytes = 32;
inline constexpr size_t kFrameHeaderBytes = 24;
inline constexpr size_t kFrameBytes = kFrameHeaderBytes + kSqlitePageBytes;

struct WalSum {
  uint32_t a = 0;
  uint32_t b = 0;
  friend bool operator==(const WalSum&, const WalSum&) = default;
};

uint32_t FramePageNumber(std::span<const std::byte> frame_header);
WalSum ReadFrameSum(std::span<const std::byte> frame_header);
// The sum that the first frame starts from.
WalSum ReadWalHeaderSum(std::span<const std::byte> wal_header);
bool WalSumsAreBigEndian(std::span<const std::byte> wal_header);

// Puts into the frame's header the sum of its page, continuing the one of the frame before; gives
// the sum that the next frame continues. REQUIRES: kFrameBytes bytes.
WalSum SumFrame(std::span<std::byte> frame, WalSum before, bool big_endian);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_SQLITE_PAGE_H_
