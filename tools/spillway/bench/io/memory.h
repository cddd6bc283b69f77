// SPDX-License-Identifier: Apache-2.0
//
// The memory that a benchmark moves bytes through: gigabytes of it, touched before anything is
// measured, in the largest pages that the machine provides.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_MEMORY_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "io/io_engine.h"

namespace spillway::bench_io {

enum class PageKind : uint8_t {
  kHuge,         // 2 MiB pages that the administrator set aside (vm.nr_hugepages)
  kTransparent,  // 2 MiB pages where the kernel finds some free
  kPlain,        // 4 KiB
};
std::string_view NameOf(PageKind kind);  // "huge", "transparent", "plain"

// Owns the memory. Move-only. Memory in huge pages is a file without a name, so that fio can use
// the same pages: how fast a device's bytes reach memory depends on where that lies.
class Memory {
 public:
  // Huge pages beside its own: fio maps a little more than its depth takes.
  static constexpr uint64_t kRestBytes = uint64_t{4} << 20;

  // Rounds the size up to a multiple of 2 MiB, and fills the memory with bytes that do not
  // compress. With `huge` it has the largest pages available, otherwise plain ones.
  // ResourceExhausted if the system has too little memory.
  static absl::StatusOr<Memory> Make(uint64_t size_bytes, bool huge);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();

  std::span<std::byte> span() const { return {data_, size_bytes_}; }
  PageKind kind() const { return kind_; }
  // Path of the file while this process runs; empty if the memory is not in huge pages.
  std::string path() const;

  // Registers all of it with an engine.
  void AddTo(io::IoEngine& engine) const;

 private:
  Memory() = default;

  void MapHugePages();

  int fd_ = -1;  // the file
  std::byte* mapped_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  PageKind kind_ = PageKind::kPlain;
};

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_MEMORY_H_
