// SPDX-License-Identifier: Apache-2.0
//
// The trainer's scratch: one arena, whose size is known before training starts. Each part of the
// model declares its buffers once, in a function that takes a ScratchLayout. A layout without
// memory measures the buffers; a layout over the arena assigns them. Parts that are never active
// together rewind to the same mark and share bytes.

#ifndef SPILLWAY_TOOLS_TRAINER_WORKSPACE_H_
#define SPILLWAY_TOOLS_TRAINER_WORKSPACE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spillway::trainer {

class ScratchLayout {
 public:
  // If `base` is null, Take returns null and only sizes are counted.
  explicit ScratchLayout(std::byte* base = nullptr) : base_(base) {}

  // Reserves room for n values of T, aligned for any vector load.
  template <typename T>
  T* Take(int64_t n) {
    const uint64_t offset = used_;
    used_ += (static_cast<uint64_t>(n) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    peak_ = std::max(peak_, used_);
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }

  uint64_t mark() const { return used_; }
  void Rewind(uint64_t mark) { used_ = mark; }
  uint64_t peak_bytes() const { return peak_; }

 private:
  static constexpr uint64_t kAlignment = 128;
  std::byte* base_;
  uint64_t used_ = 0;
  uint64_t peak_ = 0;
};

// Owns the arena: anonymous memory that is advised to use huge pages and not touched before use.
class Workspace {
 public:
  // ResourceExhausted if the system refuses the address space.
  static absl::StatusOr<std::unique_ptr<Workspace>> Create(uint64_t size_bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  Workspace(std::byte* data, uint64_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
  std::byte* data_;
  uint64_t size_bytes_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_WORKSPACE_H_
