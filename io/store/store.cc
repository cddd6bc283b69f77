// SPDX-License-Identifier: Apache-2.0
//
// Opening:
//   1. Open and lock the folders; find or make the store (the steps are in store_opening.cc). The
//      log that a killed process left is made durable, because what it says is free is written.
//   2. Read the last commit, and compare it with the witnesses: the catalog must not be older. A
//      store that is refused keeps its log as it is, because its damaged end may be readable later.
//   3. Check the segment files: those that the catalog lists must exist, and be as long as it says.
//      Whatever else they hold is free, and is used before a file grows.
// Tensors, pages and free space are loaded on first use.
//
// Writing a page:
//   1. Allocate returns an extent that no newest copy, no commit and no snapshot uses. It may have
//      to load free space, or to grow a file.
//   2. The caller writes the page through the file that File returns.
//   3. Record makes it the newest copy. The previous copy is freed at once if no commit names it.

#include "io/store/store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "io/store/store_impl.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr size_t kMaxNameBytes = 512;
constexpr size_t kMostRetired = 256;

}  // namespace

StoreImpl::StoreImpl(const StoreOptions& options, OpenedStore opened, IoEngine* io)
    : options_(options),
      io_(io),
      folders_(std::move(opened.folders)),
      catalog_(std::move(opened.catalog)),
      witness_(folders_, catalog_->meta().store_id),
      is_new_(opened.is_new),
      remove_files_(opened.is_new) {}

// Whether this object made the store and the store holds nothing. A first commit that failed may
// still have reached the disk, so this reads what the next opening of the catalog would find.
bool StoreImpl::IsEmpty() {
  if (!is_new_ || last_commit_ || !folders_[0].CheckIsThere().ok()) return false;
  using Mode = SqliteDatabase::Mode;
  const auto catalog = Catalog::OpenToRead(folders_[0].CatalogPath(), Mode::kReadWithLog);
  if (!catalog.ok()) return false;
  const auto commit = (*catalog)->ReadCommit();
  return commit.ok() && !commit->has_value();
}

StoreImpl::~StoreImpl() {
  space_.reset();
  catalog_.reset();
  if (!remove_files_ && options_.remove_if_empty) remove_files_ = IsEmpty();
  if (!remove_files_) return;
  for (StoreFolder& folder : folders_) folder.Undo();
  // An error cannot be reported here. The next store that is made in these folders removes what is
  // left. If another store has taken their place, nothing is removed.
  (void)RemoveEmptyStore(folders_, options_.scratch || options_.sparse);
}

std::string StoreImpl::Names() const { return absl::StrJoin(options_.folders, ","); }

absl::Status StoreImpl::Load() {
  SPILLWAY_ASSIGN_OR_RETURN(last_commit_, catalog_->ReadCommit());
  SPILLWAY_RETURN_IF_ERROR(witness_.Check(last_commit_));
  SPILLWAY_RETURN_IF_ERROR(CheckPageBytes());
  SPILLWAY_ASSIGN_OR_RETURN(
      space_, StoreSpace::Open(options_, last_commit_ ? last_commit_->used_bytes : 0, &folders_,
                               catalog_.get(), io_));
  SPILLWAY_RETURN_IF_ERROR(catalog_->Accept());
  for (StoreFolder& folder : folders_) folder.Keep();
  remove_files_ = options_.scratch;
  return absl::OkStatus();
}

absl::Status StoreImpl::CheckPageBytes() {
  const uint64_t wanted = options_.page_bytes;
  if (wanted == 0 || wanted == page_bytes()) return absl::OkStatus();
  if (!last_commit_) return catalog_->ChangePageBytes(wanted);  // it holds no page yet
  return absl::InvalidArgumentError(absl::StrCat("the store in ", Names(), " has pages of ",
                                                 page_bytes(), " bytes and ", wanted,
                                                 " were asked for; a store's page size "
                                                 "cannot change: ask for ",
                                                 page_bytes(), ", or for none"));
}

std::optional<std::string> StoreImpl::UserState() const {
  return last_commit_ ? std::optional(last_commit_->user_state) : std::nullopt;
}

// --- Tensors ---

absl::StatusOr<std::optional<TensorIndex>> StoreImpl::FindTensor(std::string_view name) {
  const auto it = by_name_.find(absl::string_view(name.data(), name.size()));
  if (it != by_name_.end()) return std::optional(it->second);
  if (removed_names_.contains(absl::string_view(name.data(), name.size())))
    return std::optional<TensorIndex>();
  SPILLWAY_ASSIGN_OR_RETURN(std::optional<CatalogTensor> tensor, catalog_->FindTensor(name));
  if (!tensor) return std::optional<TensorIndex>();
  return std::optional(PutTensor(std::move(tensor->record), tensor->id, /*transient=*/false,
                                 /*committed=*/true));
}

TensorIndex StoreImpl::PutTensor(TensorRecord record, uint64_t id, bool transient, bool committed) {
  const TensorIndex index = static_cast<TensorIndex>(tensors_.size());
  ledger_.AddTensor(record.num_pages, transient, committed);
  tensors_.push_back({std::move(record), id});
  by_name_.emplace(tensors_.back().record.name, index);
  return index;
}

absl::StatusOr<TensorIndex> StoreImpl::AddTensor(TensorRecord record, bool transient) {
  if (record.name.empty() || record.name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor's name has ", record.name.size(),
                                                   " bytes; it must have 1 to ", kMaxNameBytes));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const auto existing, FindTensor(record.name));
  if (existing) {
    return absl::AlreadyExistsError(
        absl::StrCat("tensor ", record.name, " is in the store in ", Names(), " already"));
  }
  if (transient) return PutTensor(std::move(record), 0, true, false);
  if (!next_id_) {
    SPILLWAY_ASSIGN_OR_RETURN(next_id_, catalog_->NextTensorId());
  }
  return PutTensor(std::move(record), (*next_id_)++, false, false);
}

// The ledger records that no page has a copy any more, so a commit frees the extents as it frees
// those of pages that were written again.
void StoreImpl::RemoveTensor(TensorIndex tensor) {
  TensorEntry& entry = tensors_[tensor];
  SPILLWAY_CHECK(!entry.is_removed);
  entry.is_removed = true;
  by_name_.erase(entry.record.name);
  for (uint64_t page = 0; page < entry.record.num_pages; ++page) Forget(tensor, page);
  if (ledger_.is_committed(tensor)) removed_names_.insert(entry.record.name);
}

// --- Pages ---

absl::Status StoreImpl::LoadRange(PageKey key) {
  const TensorEntry& tensor = tensors_[key.tensor];
  const uint64_t first = key.page / PageLedger::kRangePages * PageLedger::kRangePages;
  std::optional<PageRecord> outside;
  SPILLWAY_RETURN_IF_ERROR(catalog_->ReadPages(
      tensor.id, first, PageLedger::kRangePages, [&](uint64_t page, const PageRecord& record) {
        if (page >= tensor.record.num_pages || !space_->files().Holds(record.extent)) {
          outside = record;
        } else {
          ledger_.Load({key.tensor, page}, record);
        }
      }));
  if (outside) {
    const Extent& extent = outside->extent;
    return catalog_->Damaged(absl::StrCat(
        "a page from ", first, " on of tensor ", tensor.record.name, " rests in ",
        space_->files().Path(extent.device, extent.segment), " at offset ", extent.offset, ", ",
        extent.size_bytes, " bytes, but the tensor has no such page or the file no such bytes"));
  }
  ledger_.SetLoaded(key);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<PageRecord>> StoreImpl::FindPage(TensorIndex tensor, uint64_t page) {
  const PageKey key = {tensor, page};
  if (page >= tensors_[tensor].record.num_pages) return std::optional<PageRecord>();
  if (ledger_.NeedsLoad(key)) SPILLWAY_RETURN_IF_ERROR(LoadRange(key));
  return ledger_.Find(key);
}

// Drops a copy that no commit names: frees its extent, unless other pages of a shared extent need
// it.
void StoreImpl::GiveUp(const PageRecord& record) {
  if (!record.packed || packs_.Remove(record.extent)) space_->Release(record.extent);
}

absl::StatusOr<Extent> StoreImpl::Allocate(uint32_t size_bytes) {
  absl::StatusOr<Extent> extent = space_->Allocate(size_bytes);
  if (!absl::IsResourceExhausted(extent.status()) || retired_.empty()) return extent;
  for (const Extent& retired : retired_) space_->Release(retired);
  retired_.clear();
  return space_->Allocate(size_bytes);
}

// The extent stays in use for the allocator. The catalog still has it as free: the next opening
// uses it again, as the device may have replaced the bad place by then.
void StoreImpl::Retire(const Extent& bad, const absl::Status& why) {
  retired_.push_back(bad);
  if (retired_.size() > kMostRetired) {
    space_->Release(retired_.front());
    retired_.pop_front();
  }
  if (std::exchange(has_retired_, true) || !options_.announce) return;
  options_.announce(absl::StrCat(why.message(),
                                 "; such a place of the store is not used again until the store is "
                                 "opened anew, or has no other room: check the device"));
}

void StoreImpl::Record(TensorIndex tensor, uint64_t page, const PageRecord& record) {
  SPILLWAY_CHECK(page < tensors_[tensor].record.num_pages);
  space_->files().Touch(record.extent.device, record.extent.segment);
  if (record.packed) packs_.Add(record.extent);
  if (const auto given_up = ledger_.Record({tensor, page}, record)) GiveUp(*given_up);
}

void StoreImpl::Forget(TensorIndex tensor, uint64_t page) {
  if (page >= tensors_[tensor].record.num_pages) return;
  if (const auto given_up = ledger_.Forget({tensor, page})) GiveUp(*given_up);
}

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const StoreOptions& options, IoEngine* io) {
  SPILLWAY_ASSIGN_OR_RETURN(OpenedStore opened, OpenOrMakeStore(options));
  auto store = std::make_unique<StoreImpl>(options, std::move(opened), io);
  SPILLWAY_RETURN_IF_ERROR(store->Load());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace spillway::io
