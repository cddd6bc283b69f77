// SPDX-License-Identifier: Apache-2.0
//
// The store over its parts: folders and catalog (store_opening.h), space (store_space.h), and the
// ledger of pages (page_ledger.h).
//
// Opening:
//   1. Open and lock the folders; find or make the store (the steps are in store_opening.cc).
//   2. Compare the catalog's rows with the digest of the last commit, before trusting any.
//   3. Open the segment files. All their bytes are free; then claim what the pages name. So what
//      was written after the last commit is free again, and bytes that two pages name, or that do
//      not exist, are found.
//
// A page's write, by the mover:
//   1. Allocate gives an extent that neither a newest copy nor the last commit uses; it may have to
//      grow a file.
//   2. The mover writes it through File.
//   3. Record makes it the newest copy. The copy before it is free at once if no commit names it.
//
// Commit:
//   1. fdatasync each segment file written since the last commit; fsync each folder in which files
//      were made.
//   2. In one transaction: add new tensors, put or erase the pages that changed, replace the row of
//      the commit. It is durable when the transaction returns; before, the last commit stands.
//   3. Free what only the commit before named.
// If step 2 fails, the new commit may yet be found by whoever opens the store next: extents of both
// states stay taken until a commit succeeds.

#include "io/store/store.h"

#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "io/store/catalog_digest.h"
#include "io/store/page_ledger.h"
#include "io/store/store_opening.h"
#include "io/store/store_space.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr size_t kMaxNameBytes = 512;

class StoreImpl final : public Store {
 public:
  StoreImpl(const StoreOptions& options, OpenedStore opened, IoEngine* io);
  ~StoreImpl() override;

  // Steps 2 and 3 of opening.
  absl::Status Load();

  uint64_t page_bytes() const override { return catalog_->meta().page_bytes; }
  uint16_t num_devices() const override { return catalog_->meta().num_folders; }
  absl::StatusOr<std::optional<TensorIndex>> FindTensor(std::string_view name) override;
  const TensorRecord& Tensor(TensorIndex tensor) const override { return tensors_[tensor]; }
  absl::StatusOr<TensorIndex> AddTensor(TensorRecord record, bool transient) override;
  absl::StatusOr<std::optional<PageRecord>> FindPage(TensorIndex tensor, uint64_t page) override;
  absl::StatusOr<Extent> Allocate(uint32_t size_bytes) override {
    return space_->Allocate(size_bytes);
  }
  void Release(const Extent& extent) override { space_->extents().Free(extent); }
  absl::StatusOr<FileId> File(const Extent& extent) override {
    return space_->files().File(extent.device, extent.segment);
  }
  std::string Path(const Extent& extent) const override {
    return space_->files().Path(extent.device, extent.segment);
  }
  void Record(TensorIndex tensor, uint64_t page, const PageRecord& record) override;
  void Forget(TensorIndex tensor, uint64_t page) override;
  absl::Status Commit(std::string_view user_state) override;
  std::optional<std::string> UserState() const override;
  absl::Status Snapshot(std::string_view) override { return Unfinished(); }
  absl::StatusOr<std::vector<SnapshotRecord>> Snapshots() override { return Unfinished(); }
  absl::Status Restore(std::string_view) override { return Unfinished(); }
  absl::Status Drop(std::string_view) override { return Unfinished(); }
  absl::StatusOr<uint64_t> Trim() override { return Unfinished(); }
  std::optional<DeviceProfile> Profile(uint16_t) const override { return std::nullopt; }
  absl::Status SetProfile(uint16_t, const DeviceProfile&) override { return Unfinished(); }
  uint64_t used_bytes() const override { return space_->extents().used_bytes(); }
  uint64_t available_bytes() const override { return space_->available_bytes(); }

 private:
  static absl::Status Unfinished() {
    return absl::UnimplementedError("format 1 has no snapshots, no trimming and no profiles");
  }
  absl::Status CheckPageBytes();
  absl::Status CheckDigest();
  absl::Status LoadTensors();
  absl::Status LoadPages();
  TensorIndex PutTensor(TensorRecord record, std::optional<uint64_t> catalog_id);

  absl::Status WriteChanges();
  uint64_t Digest(uint64_t number, std::string_view user_state) const;
  std::string Names() const;

  // Constant after construction. The order matters: files close before their folders are given up.
  const StoreOptions options_;
  IoEngine* const io_;
  std::vector<StoreFolder> folders_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<StoreSpace> space_;

  bool remove_files_;  // a scratch store, or a new one that did not open
  PageLedger ledger_;
  std::deque<TensorRecord> tensors_;  // by index; addresses are stable
  absl::flat_hash_map<absl::string_view, TensorIndex> by_name_;
  std::vector<std::pair<uint64_t, TensorIndex>> catalog_tensors_;  // catalog id and index, by id
  size_t num_committed_tensors_ = 0;                               // of catalog_tensors_
  uint64_t tensor_digest_ = 0;
  std::optional<CatalogCommit> last_commit_;
};

StoreImpl::StoreImpl(const StoreOptions& options, OpenedStore opened, IoEngine* io)
    : options_(options),
      io_(io),
      folders_(std::move(opened.folders)),
      catalog_(std::move(opened.catalog)),
      remove_files_(opened.is_new) {}

StoreImpl::~StoreImpl() {
  space_.reset();
  catalog_.reset();
  if (!remove_files_) return;
  for (StoreFolder& folder : folders_) {
    folder.Undo();
    // There is nobody to tell; a scratch store's leftovers are removed by the next store that is
    // made here.
    (void)folder.RemoveStoreFiles();
  }
}

std::string StoreImpl::Names() const { return absl::StrJoin(options_.folders, ","); }

absl::Status StoreImpl::Load() {
  SPILLWAY_ASSIGN_OR_RETURN(last_commit_, catalog_->ReadCommit());
  SPILLWAY_RETURN_IF_ERROR(CheckPageBytes());
  SPILLWAY_RETURN_IF_ERROR(CheckDigest());
  SPILLWAY_RETURN_IF_ERROR(LoadTensors());
  SPILLWAY_ASSIGN_OR_RETURN(space_, StoreSpace::Open(options_, page_bytes(), &folders_, io_));
  SPILLWAY_RETURN_IF_ERROR(LoadPages());
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

// Reads every row and keeps none: a damaged page number must not decide how much memory is taken.
absl::Status StoreImpl::CheckDigest() {
  uint64_t digest = 0;
  uint64_t num_rows = 0;
  SPILLWAY_RETURN_IF_ERROR(catalog_->ReadTensors([&](uint64_t id, const TensorRecord& tensor) {
    digest += TensorDigest(id, tensor);
    ++num_rows;
    return absl::OkStatus();
  }));
  SPILLWAY_RETURN_IF_ERROR(
      catalog_->ReadPages([&](uint64_t id, uint64_t page, const PageRecord& record) {
        digest += PageDigest(id, page, record);
        ++num_rows;
        return absl::OkStatus();
      }));
  if (last_commit_)
    digest += CommitDigest(last_commit_->number, page_bytes(), last_commit_->user_state);
  if (last_commit_ ? digest == last_commit_->digest : num_rows == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(catalog_->path(), " is damaged: its ", num_rows,
                   " rows are not those of its last commit; restore the store from a copy, "
                   "or remove it and start over"));
}

absl::Status StoreImpl::LoadTensors() {
  return catalog_->ReadTensors([this](uint64_t id, TensorRecord tensor) {
    catalog_tensors_.push_back({id, PutTensor(std::move(tensor), id)});
    num_committed_tensors_ = catalog_tensors_.size();
    return absl::OkStatus();
  });
}

absl::Status StoreImpl::LoadPages() {
  auto tensor = catalog_tensors_.begin();
  return catalog_->ReadPages(
      [&](uint64_t id, uint64_t page, const PageRecord& record) -> absl::Status {
        while (tensor != catalog_tensors_.end() && tensor->first < id) ++tensor;
        if (tensor == catalog_tensors_.end() || tensor->first != id ||
            page >= tensors_[tensor->second].num_pages) {
          return absl::DataLossError(
              absl::StrCat(catalog_->path(), " is damaged: page ", page, " of tensor ", id,
                           " belongs to no tensor; restore the store from a copy, or remove it "
                           "and start over"));
        }
        if (!space_->extents().Claim(record.extent)) {
          const Extent& extent = record.extent;
          return absl::DataLossError(absl::StrCat(
              "page ", page, " of tensor ", tensors_[tensor->second].name, " rests in ",
              folders_[extent.device].SegmentPath(extent.segment), " at offset ", extent.offset,
              ", ", extent.size_bytes,
              " bytes, but the file is missing or too short there, or another page "
              "rests there too; restore the store from a copy, or remove it and start over"));
        }
        ledger_.Load({tensor->second, page}, record);
        return absl::OkStatus();
      });
}

absl::StatusOr<std::optional<TensorIndex>> StoreImpl::FindTensor(std::string_view name) {
  const auto it = by_name_.find(absl::string_view(name.data(), name.size()));
  return it == by_name_.end() ? std::optional<TensorIndex>() : std::optional(it->second);
}

TensorIndex StoreImpl::PutTensor(TensorRecord record, std::optional<uint64_t> catalog_id) {
  const TensorIndex index = static_cast<TensorIndex>(tensors_.size());
  if (catalog_id) tensor_digest_ += TensorDigest(*catalog_id, record);
  tensors_.push_back(std::move(record));
  by_name_.emplace(tensors_.back().name, index);
  ledger_.AddTensor(catalog_id);
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
  if (transient) return PutTensor(std::move(record), std::nullopt);
  const uint64_t id = catalog_tensors_.empty() ? 1 : catalog_tensors_.back().first + 1;
  const TensorIndex index = PutTensor(std::move(record), id);
  catalog_tensors_.push_back({id, index});
  return index;
}

absl::StatusOr<std::optional<PageRecord>> StoreImpl::FindPage(TensorIndex tensor, uint64_t page) {
  return ledger_.Find({tensor, page});
}

void StoreImpl::Record(TensorIndex tensor, uint64_t page, const PageRecord& record) {
  SPILLWAY_CHECK(page < tensors_[tensor].num_pages);
  space_->files().Touch(record.extent.device, record.extent.segment);
  if (const auto freed = ledger_.Record({tensor, page}, record)) space_->extents().Free(*freed);
}

void StoreImpl::Forget(TensorIndex tensor, uint64_t page) {
  if (const auto freed = ledger_.Forget({tensor, page})) space_->extents().Free(*freed);
}

uint64_t StoreImpl::Digest(uint64_t number, std::string_view user_state) const {
  return tensor_digest_ + ledger_.digest() + CommitDigest(number, page_bytes(), user_state);
}

absl::Status StoreImpl::WriteChanges() {
  for (size_t i = num_committed_tensors_; i < catalog_tensors_.size(); ++i) {
    const auto& [id, tensor] = catalog_tensors_[i];
    SPILLWAY_RETURN_IF_ERROR(catalog_->PutTensor(id, tensors_[tensor]));
  }
  for (const PageKey& key : ledger_.Changed()) {
    const uint64_t id = ledger_.catalog_id(key.tensor);
    const std::optional<PageRecord> record = ledger_.Find(key);
    SPILLWAY_RETURN_IF_ERROR(record ? catalog_->PutPage(id, key.page, *record)
                                    : catalog_->ErasePage(id, key.page));
  }
  return absl::OkStatus();
}

absl::Status StoreImpl::Commit(std::string_view user_state) {
  SPILLWAY_RETURN_IF_ERROR(space_->files().Sync());
  const uint64_t number = last_commit_ ? last_commit_->number + 1 : 1;
  const uint64_t digest = Digest(number, user_state);
  absl::Status status =
      catalog_->Write(number, digest, user_state, [this] { return WriteChanges(); });
  if (!status.ok()) {
    ledger_.CommitInDoubt();
    return status;
  }
  for (const Extent& extent : ledger_.Committed()) space_->extents().Free(extent);
  num_committed_tensors_ = catalog_tensors_.size();
  last_commit_ = CatalogCommit{number, digest, std::string(user_state)};
  return absl::OkStatus();
}

std::optional<std::string> StoreImpl::UserState() const {
  return last_commit_ ? std::optional(last_commit_->user_state) : std::nullopt;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const StoreOptions& options, IoEngine* io) {
  SPILLWAY_ASSIGN_OR_RETURN(OpenedStore opened, OpenOrMakeStore(options));
  auto store = std::make_unique<StoreImpl>(options, std::move(opened), io);
  SPILLWAY_RETURN_IF_ERROR(store->Load());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace spillway::io
