// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/io/memory.h"

#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/huge_pages.h"

namespace spillway::bench_io {
namespace {

using base::kHugePageBytes;

constexpr uint64_t kMostRegistered = uint64_t{1} << 30;  // per call of AddBuffer

std::byte* Map(uint64_t size_bytes, int flags) {
  void* const mapped = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

// Fills memory by xorshift64*, one 64-bit word at a time.
void FillRandom(std::span<std::byte> out) {
  uint64_t state = 0x9e3779b97f4a7c15;
  for (size_t i = 0; i + 8 <= out.size(); i += 8) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    const uint64_t word = state * 0x2545f4914f6cdd1d;
    std::memcpy(out.data() + i, &word, 8);
  }
}

}  // namespace

std::string_view NameOf(PageKind kind) {
  constexpr std::string_view kNames[] = {"huge", "transparent", "plain"};
  return kNames[static_cast<size_t>(kind)];
}

absl::StatusOr<Memory> Memory::Make(uint64_t size_bytes, bool huge) {
  Memory memory;
  memory.size_bytes_ = base::RoundUp(std::max<uint64_t>(size_bytes, 1), kHugePageBytes);
  if (huge) memory.MapHugePages();
  if (memory.data_ == nullptr) {
    memory.mapped_bytes_ = memory.size_bytes_ + kHugePageBytes;
    memory.mapped_ = Map(memory.mapped_bytes_, 0);
    if (memory.mapped_ == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no ", base::FormatBytes(size_bytes),
                       " of memory to move bytes through: ", "ask for less with --memory"));
    }
    const auto address = reinterpret_cast<uintptr_t>(memory.mapped_);
    memory.data_ = memory.mapped_ + (base::RoundUp(address, kHugePageBytes) - address);
    const bool advised =
        ::madvise(memory.data_, memory.size_bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) == 0;
    memory.kind_ = huge && advised ? PageKind::kTransparent : PageKind::kPlain;
  }
  FillRandom(memory.span());
  return memory;
}

void Memory::MapHugePages() {
  const uint64_t bytes = size_bytes_ + kRestBytes;
  const int fd = ::memfd_create("spillway-bench", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);
  if (fd < 0) return;
  std::byte* const mapped =
      ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? base::MapHugePages(bytes, fd) : nullptr;
  if (mapped == nullptr) {
    ::close(fd);
    return;
  }
  fd_ = fd;
  data_ = mapped_ = mapped;
  mapped_bytes_ = bytes;
  kind_ = PageKind::kHuge;
}

std::string Memory::path() const {
  return fd_ < 0 ? "" : absl::StrCat("/proc/", ::getpid(), "/fd/", fd_);
}

Memory::Memory(Memory&& other) noexcept { *this = std::move(other); }

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(kind_, other.kind_);
  return *this;
}

Memory::~Memory() {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

void Memory::AddTo(io::IoEngine& engine) const {
  for (uint64_t offset = 0; offset < size_bytes_; offset += kMostRegistered) {
    engine.AddBuffer(span().subspan(offset, std::min(kMostRegistered, size_bytes_ - offset)));
  }
}

}  // namespace spillway::bench_io
