// SPDX-License-Identifier: Apache-2.0
//
// Moves pages between memory and the store. A run of a tensor's pages is read or written as one
// operation, with an extent and a checksum for each page. The store decides where the bytes lie,
// the I/O engine moves them, and the caller decides which pages move and when.
//
// One idea: pages are the unit of allocation and verification, and requests have the size that
// suits the device. Pages that are adjacent in memory and on the device travel in one request, up
// to the device's request size; a larger page travels in several. Pages are hashed while requests
// are in flight: a page that is written goes to the device at once, and a page that is read is
// hashed when it has arrived. The caller's thread hashes. If more bytes wait to be hashed than are
// in flight, hashing is the bottleneck and further threads help; otherwise they sleep.
//
// Small pages share extents. Writes of at most PackedBytes are copied into a pack until the next
// Reap, or until the pack is full, and written as one request. A page is placed in the pack so that
// reading it alone takes no more units of kIoAlignment than its memory has. A pack is one extent,
// whose size is what was filled; it is free again when none of its pages is left.

#ifndef SPILLWAY_IO_STORE_PAGE_IO_H_
#define SPILLWAY_IO_STORE_PAGE_IO_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "io/io_engine.h"
#include "io/store/device_speeds.h"
#include "io/store/hash_threads.h"
#include "io/store/store.h"
#include "src/base/busy_meter.h"

namespace spillway::io {

inline constexpr uint32_t kDefaultRequestBytes = 2 << 20;
// The largest pack, and the largest operation that is packed: at least two fit into a pack.
inline constexpr uint64_t kPackBytes = 64 * 1024;
constexpr uint64_t PackedBytes(uint64_t page_bytes) { return std::min(kPackBytes, page_bytes) / 2; }

// For benchmarks, which measure the cost of checksums. What is written with kNone fails to verify.
enum class Checksums : uint8_t {
  kXxh3,
  kNone,  // records 0, and compares nothing
};

struct PageIoOptions {
  Checksums checksums = Checksums::kXxh3;
  int hash_threads = DefaultHashThreads();  // at most this many threads hash, with the caller's
};

// Thread-compatible: it calls the store and the engine, which must outlive it, on its caller's
// thread. Nothing else may reap from the engine.
//
//   PageIo pages(store, engine);
//   pages.Write(/*tag=*/1, tensor, /*first_page=*/0, bytes, memory);
//   std::vector<PageIo::Result> results;
//   while (results.empty()) pages.Reap(absl::InfiniteDuration(), &results);
class PageIo {
 public:
  // The status is ok or the first failure: DataLoss, naming page, file and offset, if bytes did not
  // match their checksum in two reads; otherwise the error of the engine or the store.
  struct Result {
    uint64_t tag = 0;
    absl::Status status;
  };

  PageIo(Store* store, IoEngine* io, const PageIoOptions& options = {});
  PageIo(const PageIo&) = delete;
  PageIo& operator=(const PageIo&) = delete;

  // Reads `bytes` of the tensor from the start of page first_page on. `memory` is aligned to
  // kIoAlignment, has room for `bytes` rounded up to it, and belongs to the operation until its
  // result. All results come from Reap, also those of operations that could not start. A page that
  // was never written is an error.
  void Read(uint64_t tag, TensorIndex tensor, uint64_t first_page, uint64_t bytes,
            std::byte* memory);
  // Writes `bytes` of the tensor from the start of page first_page on, under the same conditions.
  // The pages' previous copies are replaced when all pages have been written; if one fails, none is
  // replaced. Unless the operation is packed, the rest of the last page's unit beyond `bytes` is
  // set to zero, in memory too.
  void Write(uint64_t tag, TensorIndex tensor, uint64_t first_page, uint64_t bytes,
             std::byte* memory);
  // Forgets the copies of these pages in the store. REQUIRES: no operation on them is in flight.
  void Forget(TensorIndex tensor, uint64_t first_page, uint64_t bytes);

  // Waits as IoEngine::Reap does, unless there are results or pages to hash already. Appends the
  // results of operations that have ended. Hashes a bounded portion of the pages, so it may return
  // without waiting and without a result.
  void Reap(absl::Duration timeout, std::vector<Result>* results);

  // hashing() returns, since the start, the bytes of pages that were written and read, and the CPU
  // seconds that their checksums took. (The clock is read for one page in seven: reading it
  // takes as long as hashing 4 KiB.) moved() returns the bytes that requests carried, and the time
  // during which requests were in flight.
  base::Busy hashing() const;
  // How many threads hash at most, with the caller's.
  int hash_threads() const { return helpers_.num_threads() + 1; }
  // Pages that the other threads took to hash: none while the devices limit.
  uint64_t helper_pages() const { return helper_pages_; }
  const base::DuplexMeter& moved() const { return moved_; }  // by IoOp

  // Operations whose result was not reaped yet.
  size_t in_flight() const {
    return operations_.size() - free_operations_.size() + results_.size();
  }

 private:
  using OperationId = uint32_t;
  struct Page {
    PageRecord record;
    uint32_t requests = 0;  // unfinished ones that carry a part of it
    bool retried = false;   // was read again because its checksum did not match
    bool is_bad = false;    // its extent could not be written, and not for lack of room
  };
  struct Operation {
    uint64_t tag = 0;
    IoOp op = IoOp::kRead;
    TensorIndex tensor = 0;
    uint64_t first_page = 0;
    uint64_t bytes = 0;
    std::byte* memory = nullptr;
    std::vector<Page> pages;
    uint32_t holds = 1;  // unfinished requests and hashes; one more until all are made
    absl::Status status;
  };
  // What a request to the engine carries: bytes of one operation, or a pack.
  struct Load {
    FileUse file;  // held until the completion arrives
    IoOp op = IoOp::kRead;
    OperationId operation = 0;
    uint64_t begin = 0;  // offset in the operation's memory
    uint32_t size_bytes = 0;
    uint16_t device = 0;
    std::optional<uint32_t> pack;
  };
  // A piece of staging memory. It is in use from its first page until it is written.
  struct Pack {
    uint64_t used_bytes = 0;
    std::vector<OperationId> operations;  // each of one page
    Extent extent;                        // allocated when the pack is submitted
  };
  struct FreeMemory {
    void operator()(std::byte* memory) const;
  };

  uint64_t NumPages(uint64_t bytes) const { return (bytes + page_bytes_ - 1) / page_bytes_; }

  OperationId Begin(uint64_t tag, IoOp op, TensorIndex tensor, uint64_t first_page, uint64_t bytes,
                    std::byte* memory);
  void End(OperationId id);
  absl::Status MakeReads(OperationId id, Operation& operation);
  absl::Status MakeWrites(OperationId id, Operation& operation);
  // Adds the page's bytes to the open request, and opens further requests where they do not fit.
  absl::Status AddPage(OperationId id, Operation& operation, uint64_t page);
  bool Continues(const IoRequest& piece) const;
  void Extend(const IoRequest& piece);
  void Open(const IoRequest& piece, Load load);
  void CloseRequest();
  void SubmitClosed();
  // Returns the file of an extent. While too many files are in use, waits for requests to end.
  absl::StatusOr<FileUse> FileOf(const Extent& extent);
  void Collect(absl::Duration timeout);

  // Copies the operation's page into a pack. Returns false if no staging memory is free.
  bool AddToPack(OperationId id, Operation& operation);
  bool OpenPack();
  void SubmitPack();
  absl::Status WritePack(uint32_t index);
  void FinishPack(uint32_t index, const absl::Status& status);

  void OnCompletion(const IoCompletion& completion);
  void OnPageRead(OperationId id, Operation& operation, uint64_t page);

  uint64_t Hash(std::span<const std::byte> content);
  void QueueHash(OperationId id, Operation& operation, uint64_t page);
  void HashPortion();
  // Offers pages to the other threads while hashing is the bottleneck.
  void ShareHashing();
  // Takes the pages that the other threads have hashed. Returns whether there were any.
  bool TakeHashed(bool will_wait);
  void OnHashed(const HashThreads::Job& job);
  absl::Status Verify(Operation& operation, uint64_t page, uint64_t checksum);
  void Drop(OperationId id, Operation& operation);
  void Finish(OperationId id);

  // Constant after construction.
  Store* const store_;
  IoEngine* const io_;
  const Checksums checksums_;
  const uint64_t page_bytes_;
  const uint64_t pack_bytes_;
  std::vector<uint32_t> request_bytes_;  // by device
  const bool has_speeds_;                // several devices, whose speeds decide where extents go

  std::deque<Operation> operations_;  // by id; ids are reused
  std::vector<OperationId> free_operations_;
  std::vector<Load> loads_;  // by the tag of the request
  std::vector<uint32_t> free_loads_;
  IoRequest open_;                 // the request that may still grow; none if size is 0
  std::vector<IoRequest> closed_;  // not submitted yet
  std::unique_ptr<std::byte, FreeMemory> staging_;  // made on first use
  std::vector<Pack> packs_;
  std::vector<uint32_t> free_packs_;
  std::optional<uint32_t> open_pack_;  // the pack that further pages go to
  std::vector<Result> results_;
  std::vector<IoCompletion> completions_;  // not processed yet
  uint64_t in_flight_bytes_ = 0;           // of requests that the I/O engine has
  uint64_t collect_at_ = 0;                // hashed_bytes_ at which to poll again
  std::deque<HashThreads::Job> to_hash_;   // pages that no thread has taken yet
  uint64_t to_hash_bytes_ = 0;
  std::vector<HashThreads::Job> hashed_;
  uint64_t hashed_bytes_ = 0, hashed_pages_ = 0;
  uint64_t helper_pages_ = 0;
  base::Busy timed_;
  base::DuplexMeter moved_;
  DeviceSpeeds speeds_;
  HashThreads helpers_;  // last: its destructor ends reads of operations
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_PAGE_IO_H_
