// SPDX-License-Identifier: Apache-2.0
//
// Implements PageIo in this order: making requests, packing, completions, hashing.

#include "io/store/page_io.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/checksum.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

// At most 1 MiB of staging memory. Only as many packs are touched as were in use at once.
constexpr uint32_t kNumPacks = 16;

// Bytes that Reap hashes before it returns the results that it has. A caller that requests more
// only after these results must not wait until everything that arrived with them is hashed: the
// device would idle meanwhile.
constexpr uint64_t kHashedAtOnce = 1 << 20;

// Bytes hashed between two polls of the I/O engine while pages wait to be hashed. Each poll costs a
// system call, but the device gets its next requests only then.
constexpr uint64_t kHashedBetweenLooks = 4 << 20;

// Smaller pages are hashed in less time than another thread needs to take them over.
constexpr uint64_t kLeastShared = 64 * 1024;

constexpr uint64_t kTimedPages = 7;

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + kIoAlignment - 1) / kIoAlignment * kIoAlignment;
}
uint64_t RoundDown(uint64_t bytes) { return bytes / kIoAlignment * kIoAlignment; }

std::vector<std::optional<DeviceProfile>> ProfilesOf(const Store& store) {
  std::vector<std::optional<DeviceProfile>> profiles;
  for (uint16_t device = 0; device < store.num_devices(); ++device) {
    profiles.push_back(store.Profile(device));
  }
  return profiles;
}

// Whether a write failed because of the place that it went to: a later write there would probably
// fail, too. Lack of room and of permission, or an I/O engine that serves no more requests, are no
// faults of the place.
bool IsBad(const absl::Status& write) {
  return !write.ok() && !absl::IsResourceExhausted(write) && !absl::IsFailedPrecondition(write);
}

// Whether a row of the catalog can be of a page of `bytes`. The page's memory has no room for more
// units than these bytes fill.
bool IsPlausible(const PageRecord& record, uint64_t bytes) {
  return record.content_bytes == bytes &&
         RoundUp(record.skip_bytes % kIoAlignment + bytes) == RoundUp(bytes);
}

}  // namespace

void PageIo::FreeMemory::operator()(std::byte* memory) const { std::free(memory); }

PageIo::PageIo(Store* store, IoEngine* io, const PageIoOptions& options)
    : store_(store),
      io_(io),
      checksums_(options.checksums),
      page_bytes_(store->page_bytes()),
      pack_bytes_(2 * PackedBytes(page_bytes_)),
      has_speeds_(store->num_devices() > 1),
      speeds_(ProfilesOf(*store)),
      helpers_(std::max(0, options.hash_threads - 1), [io] { io->Wake(); }) {
  for (uint16_t device = 0; device < store->num_devices(); ++device) {
    const std::optional<DeviceProfile> profile = store->Profile(device);
    const uint64_t bytes = profile ? RoundDown(profile->request_bytes) : kDefaultRequestBytes;
    request_bytes_.push_back(static_cast<uint32_t>(std::max(bytes, kIoAlignment)));
  }
}

// --- Making requests ---

PageIo::OperationId PageIo::Begin(uint64_t tag, IoOp op, TensorIndex tensor, uint64_t first_page,
                                  uint64_t bytes, std::byte* memory) {
  if (free_operations_.empty()) {
    free_operations_.push_back(static_cast<OperationId>(operations_.size()));
    operations_.emplace_back();
  }
  const OperationId id = free_operations_.back();
  free_operations_.pop_back();
  Operation& operation = operations_[id];
  operation.tag = tag;
  operation.op = op;
  operation.tensor = tensor;
  operation.first_page = first_page;
  operation.bytes = bytes;
  operation.memory = memory;
  operation.pages.clear();
  operation.holds = 1;
  return id;
}

void PageIo::End(OperationId id) {
  results_.push_back({operations_[id].tag, std::exchange(operations_[id].status, {})});
  free_operations_.push_back(id);
}

void PageIo::Read(uint64_t tag, TensorIndex tensor, uint64_t first_page, uint64_t bytes,
                  std::byte* memory) {
  const OperationId id = Begin(tag, IoOp::kRead, tensor, first_page, bytes, memory);
  Operation& operation = operations_[id];
  const absl::Status status = MakeReads(id, operation);
  if (operation.status.ok()) operation.status = status;
  CloseRequest();
  SubmitClosed();
  Drop(id, operation);
}

absl::Status PageIo::MakeReads(OperationId id, Operation& operation) {
  const uint64_t num_pages = NumPages(operation.bytes);
  for (uint64_t page = 0; page < num_pages; ++page) {
    SPILLWAY_ASSIGN_OR_RETURN(const std::optional<PageRecord> record,
                              store_->FindPage(operation.tensor, operation.first_page + page));
    if (!record) {
      return absl::InternalError(
          absl::StrCat("page ", operation.first_page + page, " is not in the store"));
    }
    const uint64_t bytes = std::min(page_bytes_, operation.bytes - page * page_bytes_);
    if (!IsPlausible(*record, bytes)) {
      return absl::DataLossError(absl::StrCat(
          "the store's catalog is damaged: page ", operation.first_page + page, " has ", bytes,
          " bytes, and the catalog names ", record->content_bytes, " from byte ",
          record->skip_bytes, " of the extent at offset ", record->extent.offset, " of ",
          store_->Path(record->extent), " on; restore the store from a copy"));
    }
    operation.pages.push_back({.record = *record});
    SPILLWAY_RETURN_IF_ERROR(AddPage(id, operation, page));
  }
  return absl::OkStatus();
}

void PageIo::Write(uint64_t tag, TensorIndex tensor, uint64_t first_page, uint64_t bytes,
                   std::byte* memory) {
  const OperationId id = Begin(tag, IoOp::kWrite, tensor, first_page, bytes, memory);
  Operation& operation = operations_[id];
  if (bytes > 0 && bytes <= PackedBytes(page_bytes_) && AddToPack(id, operation)) return;
  const absl::Status status = MakeWrites(id, operation);
  if (operation.status.ok()) operation.status = status;
  CloseRequest();
  SubmitClosed();
  Drop(id, operation);
}

absl::Status PageIo::MakeWrites(OperationId id, Operation& operation) {
  for (uint64_t offset = 0; offset < operation.bytes; offset += page_bytes_) {
    PageRecord record;
    record.content_bytes = static_cast<uint32_t>(std::min(page_bytes_, operation.bytes - offset));
    const uint64_t extent_bytes = RoundUp(record.content_bytes);
    SPILLWAY_ASSIGN_OR_RETURN(record.extent, store_->Allocate(static_cast<uint32_t>(extent_bytes)));
    std::byte* const content = operation.memory + offset;
    std::memset(content + record.content_bytes, 0, extent_bytes - record.content_bytes);
    operation.pages.push_back({.record = record});
    SPILLWAY_RETURN_IF_ERROR(AddPage(id, operation, operation.pages.size() - 1));
    QueueHash(id, operation, operation.pages.size() - 1);
  }
  return absl::OkStatus();
}

// A packed page is read with all units that it touches, to the start of the page's memory.
absl::Status PageIo::AddPage(OperationId id, Operation& operation, uint64_t page) {
  const PageRecord& record = operation.pages[page].record;
  SPILLWAY_ASSIGN_OR_RETURN(const FileUse file, FileOf(record.extent));
  const uint64_t skipped = RoundDown(record.skip_bytes);
  const uint64_t size_bytes = RoundUp(record.skip_bytes - skipped + record.content_bytes);
  const uint32_t limit = request_bytes_[record.extent.device];
  for (uint64_t done = 0; done < size_bytes;) {
    const uint64_t begin = page * page_bytes_ + done;
    IoRequest piece = {operation.op, *file, record.extent.offset + skipped + done,
                       operation.memory + begin};
    const bool joins = Continues(piece);
    piece.size_bytes = static_cast<uint32_t>(
        std::min<uint64_t>(size_bytes - done, joins ? limit - open_.size_bytes : limit));
    if (joins) {
      Extend(piece);
    } else {
      Open(piece, {.file = file, .operation = id, .begin = begin, .device = record.extent.device});
      ++operation.holds;
    }
    ++operation.pages[page].requests;
    done += piece.size_bytes;
    if (open_.size_bytes == limit) CloseRequest();
  }
  return absl::OkStatus();
}

// Whether the piece continues the open request, in the file and in memory.
bool PageIo::Continues(const IoRequest& piece) const {
  return open_.size_bytes > 0 && open_.file == piece.file &&
         open_.offset + open_.size_bytes == piece.offset &&
         open_.buffer + open_.size_bytes == piece.buffer;
}

void PageIo::Extend(const IoRequest& piece) {
  open_.size_bytes += piece.size_bytes;
  loads_[open_.tag].size_bytes = open_.size_bytes;
}

void PageIo::Open(const IoRequest& piece, Load load) {
  CloseRequest();
  if (free_loads_.empty()) {
    free_loads_.push_back(static_cast<uint32_t>(loads_.size()));
    loads_.emplace_back();
  }
  open_ = piece;
  open_.tag = free_loads_.back();
  free_loads_.pop_back();
  load.op = piece.op;
  load.size_bytes = piece.size_bytes;
  loads_[open_.tag] = load;
}

void PageIo::CloseRequest() {
  if (open_.size_bytes > 0) closed_.push_back(open_);
  open_.size_bytes = 0;
}

void PageIo::SubmitClosed() {
  if (closed_.empty()) return;
  const double now = base::Now();
  for (const IoRequest& request : closed_) {
    moved_.Begin(static_cast<size_t>(request.op), now);
    in_flight_bytes_ += request.size_bytes;
    if (has_speeds_) speeds_.Begin(loads_[request.tag].device, now);
  }
  io_->Submit(closed_);
  closed_.clear();
}

absl::StatusOr<FileUse> PageIo::FileOf(const Extent& extent) {
  absl::StatusOr<FileUse> file = store_->File(extent);
  bool waited = false;
  while (absl::IsResourceExhausted(file.status())) {
    CloseRequest();
    SubmitClosed();
    if (io_->in_flight() == 0) break;
    Collect(absl::InfiniteDuration());
    waited = true;
    file = store_->File(extent);
  }
  if (waited) io_->Wake();  // a Wake that was meant for the caller may have ended a wait
  return file;
}

void PageIo::Collect(absl::Duration timeout) {
  const size_t before = completions_.size();
  io_->Reap(timeout, &completions_);
  const double now = base::Now();
  for (size_t i = before; i < completions_.size(); ++i) {
    Load& load = loads_[completions_[i].tag];
    load.file.reset();
    const uint64_t bytes = completions_[i].status.ok() ? load.size_bytes : 0;
    moved_.End(static_cast<size_t>(load.op), now, bytes);
    in_flight_bytes_ -= load.size_bytes;
    if (has_speeds_) speeds_.End(load.device, load.op, now, bytes);
  }
  if (!has_speeds_ || !speeds_.TakeChanged()) return;
  for (uint16_t device = 0; device < store_->num_devices(); ++device) {
    store_->SetSpeed(device, speeds_.speed(device));
  }
}

void PageIo::Forget(TensorIndex tensor, uint64_t first_page, uint64_t bytes) {
  for (uint64_t page = 0; page < NumPages(bytes); ++page) store_->Forget(tensor, first_page + page);
}

// --- Packing ---

bool PageIo::AddToPack(OperationId id, Operation& operation) {
  const uint64_t bytes = operation.bytes;
  // A page must not cross more units in the pack than it would alone: its memory has no room to
  // read them.
  const auto place_in = [bytes](const Pack& pack) {
    const bool fits = pack.used_bytes % kIoAlignment + bytes <= RoundUp(bytes);
    return fits ? pack.used_bytes : RoundUp(pack.used_bytes);
  };
  if (open_pack_ && place_in(packs_[*open_pack_]) + bytes > pack_bytes_) SubmitPack();
  if (!open_pack_ && !OpenPack()) return false;
  Pack& pack = packs_[*open_pack_];
  std::byte* const memory = staging_.get() + *open_pack_ * pack_bytes_;
  const uint64_t place = place_in(pack);
  std::memset(memory + pack.used_bytes, 0, place - pack.used_bytes);
  std::memcpy(memory + place, operation.memory, bytes);
  operation.pages.push_back({.record = {.content_bytes = static_cast<uint32_t>(bytes),
                                        .checksum = Hash({memory + place, bytes}),
                                        .skip_bytes = static_cast<uint32_t>(place),
                                        .packed = true}});
  pack.operations.push_back(id);
  pack.used_bytes = place + bytes;
  return true;
}

bool PageIo::OpenPack() {
  if (!staging_) {
    staging_.reset(
        static_cast<std::byte*>(std::aligned_alloc(kIoAlignment, kNumPacks * pack_bytes_)));
    if (!staging_) return false;
    packs_.resize(kNumPacks);
    for (uint32_t pack = kNumPacks; pack-- > 0;) free_packs_.push_back(pack);
  }
  if (free_packs_.empty()) return false;
  open_pack_ = free_packs_.back();
  free_packs_.pop_back();
  packs_[*open_pack_] = {};
  return true;
}

void PageIo::SubmitPack() {
  const uint32_t index = *std::exchange(open_pack_, std::nullopt);
  if (const absl::Status status = WritePack(index); !status.ok()) FinishPack(index, status);
}

absl::Status PageIo::WritePack(uint32_t index) {
  Pack& pack = packs_[index];
  const auto size_bytes = static_cast<uint32_t>(RoundUp(pack.used_bytes));
  SPILLWAY_ASSIGN_OR_RETURN(pack.extent, store_->Allocate(size_bytes));
  SPILLWAY_ASSIGN_OR_RETURN(const FileUse file, FileOf(pack.extent));
  std::byte* const memory = staging_.get() + index * pack_bytes_;
  std::memset(memory + pack.used_bytes, 0, size_bytes - pack.used_bytes);
  Open({IoOp::kWrite, *file, pack.extent.offset, memory, size_bytes},
       {.file = file, .device = pack.extent.device, .pack = index});
  CloseRequest();
  SubmitClosed();
  return absl::OkStatus();
}

// Records all pages of the pack at once. Otherwise those recorded first could be superseded, and
// the pack freed, before the last one is recorded.
void PageIo::FinishPack(uint32_t index, const absl::Status& status) {
  Pack& pack = packs_[index];
  for (const OperationId id : pack.operations) {
    Operation& operation = operations_[id];
    operation.status = status;
    if (status.ok()) {
      PageRecord& record = operation.pages[0].record;
      record.extent = pack.extent;
      store_->Record(operation.tensor, operation.first_page, record);
    }
    End(id);
  }
  if (!status.ok() && pack.extent.size_bytes > 0) store_->Release(pack.extent);
  free_packs_.push_back(index);
}

// --- Completions ---

void PageIo::Reap(absl::Duration timeout, std::vector<Result>* results) {
  if (open_pack_) SubmitPack();
  bool has_work = !results_.empty() || !to_hash_.empty() || !completions_.empty();
  has_work |= TakeHashed(/*will_wait=*/!has_work && timeout > absl::ZeroDuration());
  if (!has_work) {
    Collect(timeout);
  } else if (to_hash_.empty() || hashed_bytes_ >= collect_at_) {
    Collect(absl::ZeroDuration());
    collect_at_ = hashed_bytes_ + kHashedBetweenLooks;
  }
  for (size_t i = 0; i < completions_.size(); ++i) {
    // Moved out first, because handling it may add to the list.
    const IoCompletion completion = std::move(completions_[i]);
    OnCompletion(completion);
  }
  completions_.clear();
  HashPortion();
  TakeHashed(/*will_wait=*/false);
  for (Result& result : results_) results->push_back(std::move(result));
  results_.clear();
}

void PageIo::OnCompletion(const IoCompletion& completion) {
  const Load load = loads_[completion.tag];
  free_loads_.push_back(static_cast<uint32_t>(completion.tag));
  const bool is_bad = load.op == IoOp::kWrite && IsBad(completion.status);
  if (load.pack) {
    Pack& pack = packs_[*load.pack];
    if (is_bad) store_->Retire(std::exchange(pack.extent, {}), completion.status);
    return FinishPack(*load.pack, completion.status);
  }
  Operation& operation = operations_[load.operation];
  if (operation.status.ok()) operation.status = completion.status;
  const uint64_t last = (load.begin + load.size_bytes - 1) / page_bytes_;
  for (uint64_t page = load.begin / page_bytes_; page <= last; ++page) {
    SPILLWAY_CHECK(operation.pages[page].requests > 0);
    operation.pages[page].is_bad |= is_bad;
    if (--operation.pages[page].requests > 0) continue;
    if (operation.op == IoOp::kRead) OnPageRead(load.operation, operation, page);
  }
  Drop(load.operation, operation);
}

void PageIo::OnPageRead(OperationId id, Operation& operation, uint64_t page) {
  // After a failure the bytes are not needed any more.
  if (operation.status.ok()) QueueHash(id, operation, page);
}

// Releases one hold. The operation ends with the last one.
void PageIo::Drop(OperationId id, Operation& operation) {
  if (--operation.holds == 0) Finish(id);
}

void PageIo::Finish(OperationId id) {
  const Operation& operation = operations_[id];
  if (operation.op == IoOp::kWrite) {
    for (size_t page = 0; page < operation.pages.size(); ++page) {
      const PageRecord& record = operation.pages[page].record;
      if (operation.status.ok()) {
        store_->Record(operation.tensor, operation.first_page + page, record);
      } else if (operation.pages[page].is_bad) {
        store_->Retire(record.extent, operation.status);
      } else {
        store_->Release(record.extent);
      }
    }
  }
  End(id);
}

// --- Hashing ---

uint64_t PageIo::Hash(std::span<const std::byte> content) {
  hashed_bytes_ += content.size();  // also without checksums, so that portions stay the same
  if (checksums_ == Checksums::kNone) return 0;
  if (hashed_pages_++ % kTimedPages != 0) return Checksum(content);
  const int64_t start = base::ThreadCpuNs();
  const uint64_t checksum = Checksum(content);
  timed_.seconds += static_cast<double>(base::ThreadCpuNs() - start) / 1e9;
  timed_.bytes += content.size();
  return checksum;
}

base::Busy PageIo::hashing() const {
  if (timed_.bytes == 0) return {};
  const double share = static_cast<double>(hashed_bytes_) / static_cast<double>(timed_.bytes);
  return {hashed_bytes_, timed_.seconds * share};
}

void PageIo::QueueHash(OperationId id, Operation& operation, uint64_t page) {
  const PageRecord& record = operation.pages[page].record;
  const std::byte* const memory = operation.memory + page * page_bytes_;
  const uint64_t skipped = operation.op == IoOp::kRead ? record.skip_bytes % kIoAlignment : 0;
  to_hash_.push_back({id, page, {memory + skipped, record.content_bytes}});
  to_hash_bytes_ += record.content_bytes;
  ++operation.holds;
}

void PageIo::HashPortion() {
  const uint64_t enough = hashed_bytes_ + kHashedAtOnce;
  while (!to_hash_.empty() && hashed_bytes_ < enough) {
    ShareHashing();
    if (to_hash_.empty()) return;
    HashThreads::Job job = to_hash_.front();
    to_hash_.pop_front();
    to_hash_bytes_ -= job.content.size();
    if (operations_[job.operation].status.ok()) job.checksum = Hash(job.content);
    OnHashed(job);
  }
}

void PageIo::ShareHashing() {
  if (checksums_ == Checksums::kNone) return;
  while (to_hash_.size() > 1 && to_hash_bytes_ > in_flight_bytes_ &&
         to_hash_.front().content.size() >= kLeastShared && helpers_.Offer(to_hash_.front())) {
    to_hash_bytes_ -= to_hash_.front().content.size();
    to_hash_.pop_front();
    ++helper_pages_;
  }
}

bool PageIo::TakeHashed(bool will_wait) {
  helpers_.TakeDone(will_wait, &hashed_);
  for (const HashThreads::Job& job : hashed_) {
    hashed_bytes_ += job.content.size();
    timed_ += {job.content.size(), job.cpu_seconds};
    OnHashed(job);
  }
  const bool any = !hashed_.empty();
  hashed_.clear();
  return any;
}

// A page that does not match its checksum is read once more before the mismatch is reported.
void PageIo::OnHashed(const HashThreads::Job& job) {
  Operation& operation = operations_[job.operation];
  Page& page = operation.pages[job.page];
  if (operation.op == IoOp::kWrite) {
    page.record.checksum = job.checksum;
  } else if (operation.status.ok()) {
    absl::Status status = Verify(operation, job.page, job.checksum);
    if (!status.ok() && !page.retried) {
      page.retried = true;
      status = AddPage(job.operation, operation, job.page);
      CloseRequest();
      SubmitClosed();
    }
    operation.status.Update(status);
  }
  Drop(job.operation, operation);
}

// Compares a page with its checksum. If it matches, moves a packed page to the start of its memory.
absl::Status PageIo::Verify(Operation& operation, uint64_t page, uint64_t checksum) {
  const PageRecord& record = operation.pages[page].record;
  if (checksum == record.checksum || checksums_ == Checksums::kNone) {
    std::byte* const memory = operation.memory + page * page_bytes_;
    std::byte* const content = memory + record.skip_bytes % kIoAlignment;
    if (content != memory) std::memmove(memory, content, record.content_bytes);
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      "page ", operation.first_page + page, " in ", store_->Path(record.extent), " at offset ",
      record.extent.offset + record.skip_bytes, " (", record.content_bytes, " bytes) has checksum ",
      absl::Hex(checksum, absl::kZeroPad16), ", the catalog says ",
      absl::Hex(record.checksum, absl::kZeroPad16),
      ": the bytes on the device are not those that were written; restore the store from a copy"));
}

}  // namespace spillway::io
