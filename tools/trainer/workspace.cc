// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/workspace.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace spillway::trainer {

absl::StatusOr<std::unique_ptr<Workspace>> Workspace::Create(uint64_t size_bytes) {
  constexpr uint64_t kHugePage = uint64_t{2} << 20;
  const uint64_t rounded = (size_bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* data = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no room for ", rounded, " bytes of scratch (", std::strerror(errno),
        "): shorten the sequence or the micro-batch, or give the process more memory"));
  }
  // This is only advice: without huge pages everything works, but slower.
  (void)madvise(data, rounded, MADV_HUGEPAGE);
  return std::unique_ptr<Workspace>(new Workspace(static_cast<std::byte*>(data), rounded));
}

Workspace::~Workspace() { munmap(data_, size_bytes_); }

}  // namespace spillway::trainer
