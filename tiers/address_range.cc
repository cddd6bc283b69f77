// SPDX-License-Identifier: Apache-2.0
//
// Aligned address ranges by mapping too much and returning the ends.

#include "tiers/address_range.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/check.h"

namespace spillway::tiers {
namespace {

absl::Status Refused(uint64_t size_bytes, std::string_view purpose, int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot reserve ", base::FormatBytes(size_bytes), " of addresses for ",
                   absl::string_view(purpose.data(), purpose.size()), ": ", std::strerror(error),
                   "; ask for less, or raise the address space limit (ulimit -v)"));
}

void Return(std::byte* start, uint64_t size_bytes) {
  if (size_bytes == 0) return;
  const int result = munmap(start, size_bytes);
  SPILLWAY_CHECK(result == 0);
}

}  // namespace

absl::StatusOr<std::byte*> MapAddressRange(uint64_t size_bytes, std::string_view purpose) {
  if (size_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("an arena of 0 bytes was asked for (",
                     absl::string_view(purpose.data(), purpose.size()), ")"));
  }
  if (size_bytes > std::numeric_limits<uint64_t>::max() / 2)
    return Refused(size_bytes, purpose, ENOMEM);
  const uint64_t wanted = base::RoundUp(size_bytes, kSmallPageBytes);
  const uint64_t mapped = wanted + kArenaAlignmentBytes;
  void* const start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return Refused(size_bytes, purpose, errno);

  const auto address = reinterpret_cast<uintptr_t>(start);
  const uint64_t head = base::RoundUp(address, kArenaAlignmentBytes) - address;
  std::byte* const range = static_cast<std::byte*>(start) + head;
  Return(static_cast<std::byte*>(start), head);
  Return(range + wanted, mapped - head - wanted);
  // A kernel without transparent huge pages refuses; the range works all the same, only slower.
  (void)madvise(range, wanted, MADV_HUGEPAGE);
  return range;
}

void UnmapAddressRange(std::byte* range, uint64_t size_bytes) {
  if (range == nullptr) return;
  Return(range, base::RoundUp(size_bytes, kSmallPageBytes));
}

}  // namespace spillway::tiers
