// SPDX-License-Identifier: Apache-2.0
//
// Implements Store with its parts: folders and catalog (store_opening.h), space (store_space.h),
// the ledger of pages (page_ledger.h) and the witness (witness.h). store.cc implements opening,
// look-ups and the writing of a page; store_commit.cc implements what changes the durable state.
// Both begin with a list of their steps.

#ifndef SPILLWAY_IO_STORE_STORE_IMPL_H_
#define SPILLWAY_IO_STORE_STORE_IMPL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "io/store/catalog.h"
#include "io/store/catalog_change.h"
#include "io/store/pack_counts.h"
#include "io/store/page_ledger.h"
#include "io/store/store.h"
#include "io/store/store_folder.h"
#include "io/store/store_opening.h"
#include "io/store/store_space.h"
#include "io/store/witness.h"

namespace spillway::io {

class StoreImpl final : public Store {
 public:
  StoreImpl(const StoreOptions& options, OpenedStore opened, IoEngine* io);
  ~StoreImpl() override;

  // Runs steps 2 and 3 of opening (store.cc).
  absl::Status Load();

  uint64_t page_bytes() const override { return catalog_->meta().page_bytes; }
  uint16_t num_devices() const override { return catalog_->meta().num_folders; }
  const std::string& id() const override { return catalog_->meta().store_id; }
  uint64_t commit_number() const override { return last_commit_ ? last_commit_->number : 0; }
  absl::StatusOr<std::optional<TensorIndex>> FindTensor(std::string_view name) override;
  const TensorRecord& Tensor(TensorIndex tensor) const override { return tensors_[tensor].record; }
  absl::StatusOr<TensorIndex> AddTensor(TensorRecord record, bool transient) override;
  void RemoveTensor(TensorIndex tensor) override;
  absl::StatusOr<std::optional<PageRecord>> FindPage(TensorIndex tensor, uint64_t page) override;
  absl::StatusOr<Extent> Allocate(uint32_t size_bytes) override;
  void Release(const Extent& extent) override { space_->Release(extent); }
  void Retire(const Extent& extent, const absl::Status& why) override;
  absl::StatusOr<FileUse> File(const Extent& extent) override {
    return space_->files().File(extent.device, extent.segment);
  }
  std::string Path(const Extent& extent) const override {
    return space_->files().Path(extent.device, extent.segment);
  }
  void Record(TensorIndex tensor, uint64_t page, const PageRecord& record) override;
  void Forget(TensorIndex tensor, uint64_t page) override;
  absl::Status Commit(std::string_view user_state) override;
  std::optional<std::string> UserState() const override;
  absl::Status Snapshot(std::string_view label) override;
  absl::StatusOr<std::vector<SnapshotRecord>> Snapshots() override {
    return catalog_->ReadSnapshots();
  }
  absl::Status Restore(std::string_view label) override;
  absl::Status Drop(std::string_view label) override;
  absl::StatusOr<uint64_t> Trim() override;
  std::optional<DeviceProfile> Profile(uint16_t device) const override {
    return space_->Profile(device);
  }
  absl::Status SetProfile(uint16_t device, const DeviceProfile& profile) override {
    return space_->SetProfile(device, profile);
  }
  void SetSpeed(uint16_t device, double share) override { space_->SetSpeed(device, share); }
  uint64_t used_bytes() const override { return space_->used_bytes(); }
  uint64_t available_bytes() const override { return space_->available_bytes(); }

 private:
  struct TensorEntry {
    TensorRecord record;
    uint64_t id = 0;  // in the catalog; 0 for a transient tensor
    bool is_removed = false;
  };

  std::string Names() const;
  bool IsEmpty();
  absl::Status CheckFoldersAreThere() const;
  absl::Status CheckPageBytes();
  TensorIndex PutTensor(TensorRecord record, uint64_t id, bool transient, bool committed);
  absl::Status LoadRange(PageKey key);
  void GiveUp(const PageRecord& record);

  absl::StatusOr<CatalogCommit> WriteChanges(std::string_view user_state);
  absl::StatusOr<std::vector<std::optional<uint64_t>>> MatchTensors();
  void Changed(CatalogCommit commit, const std::vector<FreedExtent>& freed);
  absl::Status CheckNoPageIsLost();
  absl::Status RequireCommit(std::string_view what) const;

  // Constant after construction. The order matters: files are closed before their folders are
  // unlocked.
  const StoreOptions options_;
  IoEngine* const io_;
  std::vector<StoreFolder> folders_;
  std::unique_ptr<Catalog> catalog_;
  Witness witness_;
  std::unique_ptr<StoreSpace> space_;

  const bool is_new_;
  std::deque<Extent> retired_;  // oldest first
  bool has_retired_ = false;    // an extent, and announced that
  bool remove_files_;           // for a scratch store, or a new one that was not loaded
  PageLedger ledger_;
  PackCounts packs_;
  std::deque<TensorEntry> tensors_;                              // by index; addresses are stable
  absl::flat_hash_map<absl::string_view, TensorIndex> by_name_;  // tensors that are not removed
  // Names of tensors that the last commit has and the next one will not have.
  absl::flat_hash_set<absl::string_view> removed_names_;
  std::optional<uint64_t> next_id_;
  std::optional<CatalogCommit> last_commit_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_IMPL_H_
