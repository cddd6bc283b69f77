// SPDX-License-Identifier: Apache-2.0
//
// Protects one page of a catalog by a seal in its last 16 bytes, and computes the checksums by
// which SQLite chains the frames of its write-ahead log. Pure functions of bytes; the VFS applies
// them.
//
// One idea: SQLite does not use the last bytes of a page if it was told to reserve them
// (SQLITE_FCNTL_RESERVE_BYTES), so the seal moves with the page wherever any SQLite copies it.

#ifndef SPILLWAY_IO_STORE_SQLITE_PAGE_H_
#define SPILLWAY_IO_STORE_SQLITE_PAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway::io {

inline constexpr size_t kSqlitePageBytes = 4096;
inline constexpr size_t kSqliteSealBytes = 16;

// SealPage writes the seal, and IsSealed checks it. The seal is, little-endian, the page's number
// (from 1), then XXH3-64 of all bytes before it. REQUIRES: `page` has kSqlitePageBytes bytes.
void SealPage(std::span<std::byte> page, uint64_t number);
bool IsSealed(std::span<const std::byte> page, uint64_t number);
// Whether page 1 says that the database reserves room for seals in its pages.
bool HasRoomForSeals(std::span<const std::byte> first_page);

// The log is a header of 32 bytes, then frames, each of which is a header of 24 bytes and a page.
// Of the file format's fields (https://www.sqlite.org/fileformat2.html#walformat) only those are
// handled that sealing a page needs or changes.
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
// Returns the sum that the first frame continues.
WalSum ReadWalHeaderSum(std::span<const std::byte> wal_header);
bool WalSumsAreBigEndian(std::span<const std::byte> wal_header);

// Computes the frame's sum, which continues that of the frame before, and writes it into the
// frame's header. Returns the sum, which the next frame continues. REQUIRES: `frame` has
// kFrameBytes bytes.
WalSum SumFrame(std::span<std::byte> frame, WalSum before, bool big_endian);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_SQLITE_PAGE_H_
