// SPDX-License-Identifier: Apache-2.0

#include "io/store/sqlite_page.h"

#include <cstring>

#include "io/checksum.h"

namespace spillway::io {
namespace {

constexpr size_t kNumberAt = kSqlitePageBytes - kSqliteSealBytes;
constexpr size_t kHashAt = kSqlitePageBytes - 8;
constexpr size_t kReservedBytesAt = 20;  // in the database's header
constexpr size_t kFrameSumAt = 16;
constexpr size_t kWalHeaderSumAt = 24;

template <typename Word>
Word LoadLittle(std::span<const std::byte> bytes, size_t at) {
  Word word = 0;
  for (size_t i = sizeof(Word); i-- > 0;) {
    word = static_cast<Word>(word << 8) | static_cast<Word>(bytes[at + i]);
  }
  return word;
}

uint32_t LoadBig(std::span<const std::byte> bytes, size_t at) {
  return __builtin_bswap32(LoadLittle<uint32_t>(bytes, at));
}

void StoreLittle(std::span<std::byte> bytes, size_t at, uint64_t word) {
  for (size_t i = 0; i < 8; ++i) bytes[at + i] = static_cast<std::byte>(word >> (8 * i));
}

void StoreBig(std::span<std::byte> bytes, size_t at, uint32_t word) {
  for (size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<std::byte>(word >> (24 - 8 * i));
}

void AddWords(std::span<const std::byte> bytes, bool big_endian, WalSum* sum) {
  for (size_t at = 0; at < bytes.size(); at += 8) {
    const uint32_t first = LoadLittle<uint32_t>(bytes, at);
    const uint32_t second = LoadLittle<uint32_t>(bytes, at + 4);
    sum->a += (big_endian ? __builtin_bswap32(first) : first) + sum->b;
    sum->b += (big_endian ? __builtin_bswap32(second) : second) + sum->a;
  }
}

}  // namespace

void SealPage(std::span<std::byte> page, uint64_t number) {
  StoreLittle(page, kNumberAt, number);
  StoreLittle(page, kHashAt, Checksum(page.first(kHashAt)));
}

bool IsSealed(std::span<const std::byte> page, uint64_t number) {
  return LoadLittle<uint64_t>(page, kNumberAt) == number &&
         LoadLittle<uint64_t>(page, kHashAt) == Checksum(page.first(kHashAt));
}

bool HasRoomForSeals(std::span<const std::byte> first_page) {
  return first_page[kReservedBytesAt] == std::byte{kSqliteSealBytes};
}

uint32_t FramePageNumber(std::span<const std::byte> frame_header) {
  return LoadBig(frame_header, 0);
}
WalSum ReadFrameSum(std::span<const std::byte> frame_header) {
  return {LoadBig(frame_header, kFrameSumAt), LoadBig(frame_header, kFrameSumAt + 4)};
}
WalSum ReadWalHeaderSum(std::span<const std::byte> wal_header) {
  return {LoadBig(wal_header, kWalHeaderSumAt), LoadBig(wal_header, kWalHeaderSumAt + 4)};
}
bool WalSumsAreBigEndian(std::span<const std::byte> wal_header) {
  return (LoadBig(wal_header, 0) & 1) != 0;
}

WalSum SumFrame(std::span<std::byte> frame, WalSum before, bool big_endian) {
  WalSum sum = before;
  AddWords(frame.first(8), big_endian, &sum);
  AddWords(frame.subspan(kFrameHeaderBytes), big_endian, &sum);
  StoreBig(frame, kFrameSumAt, sum.a);
  StoreBig(frame, kFrameSumAt + 4, sum.b);
  return sum;
}

}  // namespace spillway::io
