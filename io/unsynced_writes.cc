// SPDX-License-Identifier: Apache-2.0

#include "io/unsynced_writes.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "io/io_engine.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr uint64_t kSectorsPerBlock = kIoAlignment / kSectorBytes;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte[], Free>;

Memory Aligned(size_t size_bytes) {
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(kIoAlignment, size_bytes)));
  std::memset(memory.get(), 0, size_bytes);
  return memory;
}

// Reads the bytes at `offset`; those beyond the end of the file are zeros.
absl::Status ReadBlocks(int fd, uint64_t offset, std::span<std::byte> out) {
  const ssize_t got = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
  if (got < 0) return base::ErrnoToStatus(errno, absl::StrCat("read at offset ", offset));
  std::memset(out.data() + got, 0, out.size() - static_cast<size_t>(got));
  return absl::OkStatus();
}

absl::Status WriteBlocks(int fd, uint64_t offset, std::span<const std::byte> bytes) {
  const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
  if (put == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
  return base::ErrnoToStatus(put < 0 ? errno : EIO, absl::StrCat("write at offset ", offset));
}

}  // namespace

absl::Status WriteTorn(int fd, uint64_t offset, std::span<const std::byte> bytes,
                       std::mt19937_64& random) {
  const Memory memory = Aligned(bytes.size());
  const std::span<std::byte> torn(memory.get(), bytes.size());
  SPILLWAY_RETURN_IF_ERROR(ReadBlocks(fd, offset, torn));
  const size_t num_sectors = bytes.size() / kSectorBytes;
  const size_t spared = random() % num_sectors;
  for (size_t sector = 0; sector < num_sectors; ++sector) {
    if (sector == spared || random() % 2 == 0) continue;
    std::memcpy(torn.data() + sector * kSectorBytes, bytes.data() + sector * kSectorBytes,
                kSectorBytes);
  }
  return WriteBlocks(fd, offset, torn);
}

absl::Status UnsyncedWrites::Note(int fd, uint64_t offset, std::span<const std::byte> bytes) {
  const Memory memory = Aligned(bytes.size());
  const std::span<std::byte> old(memory.get(), bytes.size());
  SPILLWAY_RETURN_IF_ERROR(ReadBlocks(fd, offset, old));
  for (size_t at = 0; at < bytes.size(); at += kSectorBytes) {
    auto& contents = sectors_[{fd, (offset + at) / kSectorBytes}];
    const auto keep = [&](std::span<const std::byte> from) {
      const auto sector = from.subspan(at, kSectorBytes);
      contents.emplace_back(sector.begin(), sector.end());
    };
    if (contents.empty()) keep(old);
    keep(bytes);
  }
  return absl::OkStatus();
}

absl::Status UnsyncedWrites::PowerCut(std::mt19937_64& random) {
  const Memory memory = Aligned(kIoAlignment);
  const std::span<std::byte> block(memory.get(), kIoAlignment);
  for (auto it = sectors_.begin(); it != sectors_.end();) {
    const int fd = it->first.first;
    const uint64_t offset = it->first.second / kSectorsPerBlock * kIoAlignment;
    SPILLWAY_RETURN_IF_ERROR(ReadBlocks(fd, offset, block));
    for (; it != sectors_.end() && it->first.first == fd &&
           it->first.second / kSectorsPerBlock * kIoAlignment == offset;
         ++it) {
      const auto& contents = it->second;
      std::memcpy(block.data() + it->first.second % kSectorsPerBlock * kSectorBytes,
                  contents[random() % contents.size()].data(), kSectorBytes);
    }
    SPILLWAY_RETURN_IF_ERROR(WriteBlocks(fd, offset, block));
  }
  sectors_.clear();
  return absl::OkStatus();
}

}  // namespace spillway::io
