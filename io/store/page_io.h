// SPDX-License-Identifier: Apache-2.0
//
// The way of pages between memory and the store: a run of a tensor's pages is read or written as
// one operation, with an extent and a checksum for each page. Where the bytes rest is the store's
// to say, how they move the I/O engine's; who wants them, and when, is the caller's.
//
// One idea: pages are what is allocated and verified, requests are what the device likes. Pages
// that lie side by side, in memory and on the device, travel in one request of up to the device's
// size; a page larger than that travels in several. Pages are hashed while requests are under way:
// a page that is written goes to the device at once, one that was read as soon as it is there. The
// caller's thread hashes. Where more bytes wait for that than the devices work on, hashing is what
// limits, and further threads help; otherwise they sleep.
//
// Small pages share. Operations of at most PackedBytes that are written before the same Reap, or
// until a pack is full, are copied together and written as one request. In the pack a page lies so
// that reading it alone needs no more units of kIoAlignment than its memory has. The pack is one
// extent, as long as it was filled, free again when none of its pages is left.

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
// A pack, and what is packed: at least two fit.
inline constexpr uint64_t kPackBytes = 64 * 1024;
constexpr uint64_t PackedBytes(uint64_t page_bytes) { return std::min(kPackBytes, page_bytes) / 2; }

// For benchmarks, which ask what checksums cost; what is written with kNone fails to verify.
enum class Checksums : uint8_t {
  kXxh3,
  kNone,  // 0 is recorded, and nothing compared
};

// Who compares pages that are read with their checksums.
enum class Verifier : uint8_t {
  kPageIo,
  kCaller,  // PageIo compares a packed page all the same: it moves to its place after that
};

struct PageIoOptions {
  Checksums checksums = Checksums::kXxh3;
  int hash_threads = DefaultHashThreads();  // that hash at most, the caller's included
};

// Thread-compatible: it calls the store and the engine, which must outlive it, on its caller's
// thread. Nothing else may Reap from the engine.
//
//   PageIo pages(store, engine);
//   pages.Write(/*tag=*/1, tensor, /*first_page=*/0, bytes, memory);
//   std::vector<PageIo::Result> results;
//   while (results.empty()) pages.Reap(absl::InfiniteDuration(), &results);
class PageIo {
 public:
  // Ok, or the first failure: DataLoss naming page, file and offset for bytes that do not match
  // their checksum when read twice; the engine's or the store's status for the rest.
  struct Result {
    uint64_t tag = 0;
    absl::Status status;
    // Of each page, which the caller is to compare; empty: there is nothing to compare.
    std::vector<uint64_t> checksums;
  };

  PageIo(Store* store, IoEngine* io, const PageIoOptions& options = {});
  PageIo(const PageIo&) = delete;
  PageIo& operator=(const PageIo&) = delete;

  // `bytes` of the tensor from the start of page first_page on. `memory` is aligned to
  // kIoAlignment, has room for `bytes` rounded up to it, and is the operation's until its result.
  // Results come from Reap only, also of what could not start. A page that was never written is
  // an error.
  void Read(uint64_t tag, TensorIndex tensor, uint64_t first_page, uint64_t bytes,
            std::byte* memory, Verifier verifier = Verifier::kPageIo);
  // The copies before are replaced when all pages have arrived, or none is. What the last page's
  // unit has beyond `bytes` is set to zero, in memory too. `checksums`: of the pages, where the
  // caller has computed them; empty: they are computed here.
  void Write(uint64_t tag, TensorIndex tensor, uint64_t first_page, uint64_t bytes,
             std::byte* memory, std::span<const uint64_t> checksums = {});
  // REQUIRES: no operation on these pages is under way.
  void Forget(TensorIndex tensor, uint64_t first_page, uint64_t bytes);

  // Waits as IoEngine::Reap does, unless there are results or pages to hash already; appends what
  // ended. Hashes a portion, so there may be no result although it did not wait.
  void Reap(absl::Duration timeout, std::vector<Result>* results);

  // Since the start: pages written and read, and the CPU seconds that their checksums took here
  // (the clock is read for one page in seven: reading it takes as long as the hashing of 4 KiB);
  // and what requests carried, in seconds from when the first of those in flight was made until the
  // last was reaped.
  base::Busy hashing() const;
  const base::DuplexMeter& moved() const { return moved_; }  // by IoOp

  // Operations whose result was not reaped.
  size_t in_flight() const {
    return operations_.size() - free_operations_.size() + results_.size();
  }

 private:
  using OperationId = uint32_t;
  struct Page {
    PageRecord record;
    uint32_t requests = 0;  // under way that carry a part of it
    bool retried = false;   // read once more after a checksum that did not match
  };
  struct Operation {
    uint64_t tag = 0;
    IoOp op = IoOp::kRead;
    TensorIndex tensor = 0;
    uint64_t first_page = 0;
    uint64_t bytes = 0;
    std::byte* memory = nullptr;
    std::vector<Page> pages;
    Verifier verifier = Verifier::kPageIo;
    uint32_t holds = 1;  // requests under way; one more until all are made
    absl::Status status;
  };
  // What an engine's request carries: bytes of one operation, or a pack.
  struct Load {
    FileUse file;  // until its completion is here
    IoOp op = IoOp::kRead;
    OperationId operation = 0;
    uint64_t begin = 0;  // in the operation's memory
    uint32_t size_bytes = 0;
    uint16_t device = 0;
    std::optional<uint32_t> pack;
  };
  // A piece of staging memory, in use from its first page until it is written.
  struct Pack {
    uint64_t used_bytes = 0;
    std::vector<OperationId> operations;  // of one page each
    Extent extent;                        // once it is full
  };
  struct FreeMemory {
    void operator()(std::byte* memory) const;
  };

  uint64_t NumPages(uint64_t bytes) const { return (bytes + page_bytes_ - 1) / page_bytes_; }

  OperationId Begin(uint64_t tag, IoOp op, TensorIndex tensor, uint64_t first_page, uint64_t bytes,
                    std::byte* memory);
  void End(OperationId id, std::vector<uint64_t> checksums = {});
  absl::Status MakeReads(OperationId id, Operation& operation);
  absl::Status MakeWrites(OperationId id, Operation& operation,
                          std::span<const uint64_t> checksums);
  // Adds what moves for a page to the open request, or opens others.
  absl::Status AddPage(OperationId id, Operation& operation, uint64_t page);
  bool Continues(const IoRequest& piece) const;
  void Extend(const IoRequest& piece);
  void Open(const IoRequest& piece, Load load);
  void CloseRequest();
  void SubmitClosed();
  // The file of an extent; while too many are in use, waits for requests to end.
  absl::StatusOr<FileUse> FileOf(const Extent& extent);
  void Collect(absl::Duration timeout);

  // False: there is no staging memory for it now.
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
  // Gives pages to other threads while hashing is what limits.
  void ShareHashing();
  // Whether there were any.
  bool TakeHashed(bool will_wait);
  void OnHashed(const HashThreads::Job& job);
  absl::Status Verify(Operation& operation, uint64_t page, uint64_t checksum);
  void Drop(OperationId id, Operation& operation);
  void Finish(OperationId id);

  // Constant.
  Store* const store_;
  IoEngine* const io_;
  const Checksums checksums_;
  const uint64_t page_bytes_;
  const uint64_t pack_bytes_;
  std::vector<uint32_t> request_bytes_;  // by device
  const bool has_speeds_;                // several devices, whose speeds decide where bytes go

  std::deque<Operation> operations_;  // by id, which is used again
  std::vector<OperationId> free_operations_;
  std::vector<Load> loads_;  // a request's tag is its load's index
  std::vector<uint32_t> free_loads_;
  IoRequest open_;                                  // the request that may still grow; size 0: none
  std::vector<IoRequest> closed_;                   // not submitted yet
  std::unique_ptr<std::byte, FreeMemory> staging_;  // made on first use
  std::vector<Pack> packs_;
  std::vector<uint32_t> free_packs_;
  std::optional<uint32_t> open_pack_;  // the one that may have room
  std::vector<Result> results_;
  std::vector<IoCompletion> completions_;  // not looked at yet
  uint64_t in_flight_bytes_ = 0;           // that the I/O engine has
  uint64_t collect_at_ = 0;                // of hashed_bytes_, while there are pages to hash
  std::deque<HashThreads::Job> to_hash_;   // pages that no thread hashes yet
  uint64_t to_hash_bytes_ = 0;
  std::vector<HashThreads::Job> hashed_;
  uint64_t hashed_bytes_ = 0, hashed_pages_ = 0;
  uint64_t left_bytes_ = 0;  // whose checksums are the caller's
  base::Busy timed_;
  base::DuplexMeter moved_;
  DeviceSpeeds speeds_;
  HashThreads helpers_;  // last: its threads read the memory of operations
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_PAGE_IO_H_
