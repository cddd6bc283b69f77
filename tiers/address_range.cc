// SPDX-License-Identifier: Apache-2.0
//
// Makes aligned address ranges: maps more than is needed and unmaps the ends.

#include "tiers/address_range.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/check.h"

namespace spillway::tiers {
namespace {

// Describes the limits of this process that apply to an address range, and how to raise them.
std::string Limits() {
  std::string text;
  const auto add = [&](auto resource, const char* what, const char* option) {
    rlimit limit;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    absl::StrAppend(&text, text.empty() ? "" : " and ", base::FormatBytes(limit.rlim_cur), " of ",
                    what, " ('ulimit ", option, "')");
  };
  add(RLIMIT_AS, "addresses", "-v");
  add(RLIMIT_DATA, "data", "-d");
  if (text.empty()) return "this machine has too little memory: ask for less";
  return absl::StrCat("this process may have ", text, ": raise that, or ask for less");
}

absl::Status Refused(uint64_t size_bytes, std::string_view purpose, int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot reserve ", base::FormatBytes(size_bytes), " of addresses for ",
                   absl::string_view(purpose.data(), purpose.size()), ": ", std::strerror(error),
                   "; ", Limits()));
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
  // A kernel without transparent huge pages refuses this. The range then works, but is slower.
  (void)madvise(range, wanted, MADV_HUGEPAGE);
  // A fork would make two copies of a page to which a device may be writing.
  (void)madvise(range, wanted, MADV_DONTFORK);
  return range;
}

void UnmapAddressRange(std::byte* range, uint64_t size_bytes) {
  if (range == nullptr) return;
  Return(range, base::RoundUp(size_bytes, kSmallPageBytes));
}

}  // namespace spillway::tiers
