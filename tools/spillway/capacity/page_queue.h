// SPDX-License-Identifier: Apache-2.0
//
// Writes pages of a layout with their pattern, and reads pages back and compares them, many at
// once, through PageIo as the engine does.

#ifndef SPILLWAY_TOOLS_SPILLWAY_CAPACITY_PAGE_QUEUE_H_
#define SPILLWAY_TOOLS_SPILLWAY_CAPACITY_PAGE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/io_engine.h"
#include "io/store/page_io.h"
#include "io/store/store.h"
#include "tools/spillway/capacity/layout.h"

namespace spillway::capacity {

// A page of the layout as the open store knows it, and the version whose bytes it has: 0 is a hole.
struct PageVersion {
  LaidPage page;
  io::TensorIndex tensor = 0;
  uint64_t version = 0;
};

// Externally synchronised. The store and the engine must outlive it. After an error, the calls
// return that error; the destructor waits for what is under way.
class PageQueue {
 public:
  static absl::StatusOr<std::unique_ptr<PageQueue>> Create(io::Store* store, io::IoEngine* io,
                                                           uint64_t seed);
  PageQueue(const PageQueue&) = delete;
  PageQueue& operator=(const PageQueue&) = delete;
  ~PageQueue() {
    (void)Drain();
    io_->RemoveBuffers();
  }

  // Each waits only for free memory. The error may be an earlier page's. DataLoss: a page does not
  // have the bytes of its version, or not their checksum.
  absl::Status Write(const PageVersion& page);
  absl::Status Read(const PageVersion& page);
  // Waits for all pages.
  absl::Status Drain();

  // Writes a page into an extent that was allocated, and records it. Waits for all others first.
  absl::Status WriteTo(const PageVersion& page, const io::Extent& extent);
  // Reads an extent that the page has or had, whatever the store says of it now.
  absl::Status ReadRecord(const PageVersion& page, const io::PageRecord& record);

 private:
  struct FreeMemory {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  struct Slot {
    std::byte* memory = nullptr;
    PageVersion page;
    bool is_read = false;
  };

  PageQueue(io::Store* store, io::IoEngine* io, uint64_t seed);
  absl::StatusOr<uint64_t> FreeSlot();
  absl::Status Transfer(io::IoOp op, const io::Extent& extent, uint64_t skip_bytes,
                        uint64_t size_bytes);
  void Reap();
  absl::Status Compare(const PageVersion& page, const std::byte* memory,
                       const io::PageRecord& record) const;

  io::Store* const store_;
  io::IoEngine* const io_;
  const uint64_t seed_;
  std::unique_ptr<std::byte, FreeMemory> memory_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> free_;
  absl::Status error_;
  io::PageIo pages_;
};

}  // namespace spillway::capacity

#endif  // SPILLWAY_TOOLS_SPILLWAY_CAPACITY_PAGE_QUEUE_H_
