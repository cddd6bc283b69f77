// SPDX-License-Identifier: Apache-2.0
//
// Commit:
//   1. Every page that was recorded has been written. fdatasync each segment file that was written
//      or grown since the last commit; fsync each folder in which files were made.
//   2. In one transaction, write the rows of new tensors; for each page that changed, its row, and
//      into kept the row that it replaces if a snapshot needs that; the end of tensors that were
//      removed; the bytes that become free; the segment files; the row of the commit. The commit is
//      durable when the transaction returns; until then the last commit stands.
//   3. Write the witness of each folder.
//   4. Free the extents that neither the new commit nor a snapshot names.
// If the transaction fails once SQLite was told to commit it, whoever opens the store next may
// still find the new commit: extents of both states stay in use until a later commit or restore
// succeeds.
//
// Snapshot: step 2 writes one row, a copy of last_commit; then step 3.
//
// Drop: step 2 removes the snapshot's row and the rows of kept that only it needed; then steps 3
// and 4.
//
// Restore: the snapshot's extents were never written again, so there is no step 1. Step 2 makes the
// next commit from the snapshot's rows. Then what was recorded since the last commit is dropped,
// and the ledger forgets what it had loaded; then steps 3 and 4.
//
// Trim: punch holes into free space, which changes no row: on a full disk this gives the catalog
// the room for the rest. Take free ends of files out of use; then steps 1 to 3, so that the catalog
// has the smaller sizes; then shorten the files. A crash in between leaves longer files, whose ends
// are free.

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "io/store/store_impl.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr size_t kMaxLabelBytes = 128;
constexpr uint64_t kPagesPerLook = 4096;  // between two looks at StoreOptions::stop

absl::Status CheckLabel(std::string_view label) {
  const bool is_good = !label.empty() && label.size() <= kMaxLabelBytes &&
                       std::all_of(label.begin(), label.end(), [](char c) {
                         return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' ||
                                c == '_' || c == '-';
                       });
  if (is_good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a snapshot's label is '", absl::CHexEscape(std::string(label.substr(0, kMaxLabelBytes))),
      "', of ", label.size(), " bytes; it must have 1 to ", kMaxLabelBytes,
      " letters, digits, dots, underscores and hyphens"));
}

}  // namespace

absl::StatusOr<CatalogCommit> StoreImpl::WriteChanges(std::string_view user_state) {
  SPILLWAY_ASSIGN_OR_RETURN(auto change, CatalogChange::Begin(catalog_.get(), last_commit_));
  SPILLWAY_RETURN_IF_ERROR(space_->files().AddTo(change.get()));
  for (TensorIndex tensor = 0; tensor < tensors_.size(); ++tensor) {
    const TensorEntry& entry = tensors_[tensor];
    if (ledger_.is_transient(tensor) || ledger_.is_committed(tensor) || entry.is_removed) continue;
    SPILLWAY_RETURN_IF_ERROR(change->AddTensor(entry.id, entry.record));
  }
  uint64_t num_put = 0;
  for (const PageKey& key : ledger_.Changed()) {
    if (options_.stop && num_put++ % kPagesPerLook == 0 && options_.stop->load())
      return absl::CancelledError("interrupted");
    SPILLWAY_RETURN_IF_ERROR(change->PutPage(tensors_[key.tensor].id, key.page, ledger_.Find(key),
                                             !ledger_.is_committed(key.tensor)));
  }
  std::vector<CatalogTensor> removed;
  for (TensorIndex tensor = 0; tensor < tensors_.size(); ++tensor) {
    const TensorEntry& entry = tensors_[tensor];
    if (entry.is_removed && ledger_.is_committed(tensor))
      removed.push_back({entry.id, entry.record});
  }
  SPILLWAY_RETURN_IF_ERROR(change->RemoveTensors(removed));
  SPILLWAY_RETURN_IF_ERROR(CheckNoPageIsLost());
  absl::StatusOr<CatalogCommit> finished = change->FinishCommit(user_state);
  if (!finished.ok()) {
    if (change->may_be_durable()) ledger_.CommitInDoubt();
    SPILLWAY_RETURN_IF_ERROR(CheckFoldersAreThere());  // it says more than SQLite does
  }
  SPILLWAY_ASSIGN_OR_RETURN(CatalogCommit commit, std::move(finished));
  space_->files().Flushed();
  // The catalog now counts the pages of packs that were counted here.
  for (const PageKey& key : ledger_.Changed()) {
    if (const auto record = ledger_.Find(key); record && record->packed)
      packs_.Commit(record->extent);
  }
  for (const PageRecord& record : ledger_.Committed()) GiveUp(record);
  for (TensorIndex tensor = 0; tensor < tensors_.size(); ++tensor)
    if (!ledger_.is_transient(tensor)) ledger_.SetCommitted(tensor, !tensors_[tensor].is_removed);
  removed_names_.clear();
  Changed(commit, change->freed());
  return commit;
}

// Checks that what is about to be written would outlast this process. Every call that changes the
// durable state begins with it.
absl::Status StoreImpl::CheckFoldersAreThere() const {
  for (const StoreFolder& folder : folders_) SPILLWAY_RETURN_IF_ERROR(folder.CheckIsThere());
  return absl::OkStatus();
}

absl::Status StoreImpl::Commit(std::string_view user_state) {
  SPILLWAY_RETURN_IF_ERROR(CheckFoldersAreThere());
  SPILLWAY_RETURN_IF_ERROR(space_->files().Sync());
  return WriteChanges(user_state).status();
}

// Runs steps 3 and 4.
void StoreImpl::Changed(CatalogCommit commit, const std::vector<FreedExtent>& freed) {
  witness_.Write(commit);
  last_commit_ = std::move(commit);
  for (const FreedExtent& old : freed) {
    if (!old.packed || packs_.Unname(old.extent)) space_->Unnamed(old.extent);
  }
}

// Checks that the commit in progress names no page in a lost file. The catalog shows the rows of
// its transaction.
absl::Status StoreImpl::CheckNoPageIsLost() {
  for (const auto& [device, segment] : space_->files().lost()) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_pages, catalog_->HasPagesIn(device, segment));
    if (!has_pages) continue;
    return absl::DataLossError(
        absl::StrCat(space_->files().Path(device, segment),
                     " is missing, and the commit would have pages in it; go back to a snapshot "
                     "without it (spillway fsck names what each file is needed by), or restore the "
                     "store from a copy"));
  }
  return absl::OkStatus();
}

absl::Status StoreImpl::RequireCommit(std::string_view what) const {
  if (last_commit_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(absl::string_view(what.data(), what.size()),
                                                    ": the store in ", Names(),
                                                    " was never committed; commit first"));
}

absl::Status StoreImpl::Snapshot(std::string_view label) {
  SPILLWAY_RETURN_IF_ERROR(CheckLabel(label));
  SPILLWAY_RETURN_IF_ERROR(RequireCommit("snapshot"));
  SPILLWAY_RETURN_IF_ERROR(CheckFoldersAreThere());
  SPILLWAY_ASSIGN_OR_RETURN(auto change, CatalogChange::Begin(catalog_.get(), last_commit_));
  SPILLWAY_RETURN_IF_ERROR(change->AddSnapshot(label));
  SPILLWAY_ASSIGN_OR_RETURN(CatalogCommit commit, change->Finish());
  witness_.Write(commit);
  last_commit_ = std::move(commit);
  return absl::OkStatus();
}

absl::Status StoreImpl::Drop(std::string_view label) {
  SPILLWAY_RETURN_IF_ERROR(CheckLabel(label));
  SPILLWAY_RETURN_IF_ERROR(RequireCommit("drop"));
  SPILLWAY_RETURN_IF_ERROR(CheckFoldersAreThere());
  SPILLWAY_ASSIGN_OR_RETURN(auto change, CatalogChange::Begin(catalog_.get(), last_commit_));
  SPILLWAY_RETURN_IF_ERROR(change->Drop(label));
  SPILLWAY_ASSIGN_OR_RETURN(CatalogCommit commit, change->Finish());
  Changed(std::move(commit), change->freed());
  return absl::OkStatus();
}

// Returns the catalog's id for each tensor of this Store, as the change in progress leaves it; none
// for a tensor that is removed or not in the catalog.
absl::StatusOr<std::vector<std::optional<uint64_t>>> StoreImpl::MatchTensors() {
  std::vector<std::optional<uint64_t>> ids(tensors_.size());
  for (TensorIndex tensor = 0; tensor < tensors_.size(); ++tensor) {
    if (tensors_[tensor].is_removed) continue;
    const TensorRecord& here = tensors_[tensor].record;
    SPILLWAY_ASSIGN_OR_RETURN(const auto there, catalog_->FindTensor(here.name));
    if (!there) continue;
    if (ledger_.is_transient(tensor) || there->record.description != here.description ||
        there->record.num_pages != here.num_pages) {
      return absl::FailedPreconditionError(
          absl::StrCat("restore: tensor ", here.name, " is ", there->record.description, " with ",
                       base::FormatCount(there->record.num_pages, "page"), " in the snapshot, but ",
                       here.description, " with ", base::FormatCount(here.num_pages, "page"),
                       ledger_.is_transient(tensor) ? ", transient," : "",
                       " here; restore before such tensors are added"));
    }
    ids[tensor] = there->id;
  }
  return ids;
}

absl::Status StoreImpl::Restore(std::string_view label) {
  SPILLWAY_RETURN_IF_ERROR(CheckLabel(label));
  SPILLWAY_RETURN_IF_ERROR(RequireCommit("restore"));
  SPILLWAY_RETURN_IF_ERROR(CheckFoldersAreThere());
  SPILLWAY_ASSIGN_OR_RETURN(auto change, CatalogChange::Begin(catalog_.get(), last_commit_));
  SPILLWAY_RETURN_IF_ERROR(change->Restore(label));
  SPILLWAY_ASSIGN_OR_RETURN(const auto ids, MatchTensors());
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t next_id, catalog_->NextTensorId());
  SPILLWAY_RETURN_IF_ERROR(CheckNoPageIsLost());
  SPILLWAY_ASSIGN_OR_RETURN(CatalogCommit commit, change->FinishRestore());
  next_id_ = std::max(next_id, next_id_.value_or(0));
  for (const PageRecord& record : ledger_.Reset()) GiveUp(record);
  for (TensorIndex tensor = 0; tensor < tensors_.size(); ++tensor) {
    if (ledger_.is_transient(tensor)) continue;
    if (tensors_[tensor].is_removed) {
      ledger_.SetCommitted(tensor, false);
      continue;
    }
    // A tensor that the snapshot lacks gets a new id: its old one may be gone from the catalog.
    tensors_[tensor].id = ids[tensor] ? *ids[tensor] : (*next_id_)++;
    ledger_.SetCommitted(tensor, ids[tensor].has_value());
  }
  removed_names_.clear();
  Changed(std::move(commit), change->freed());
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> StoreImpl::Trim() {
  SPILLWAY_RETURN_IF_ERROR(CheckFoldersAreThere());
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t hole_bytes, space_->MakeHoles());
  SPILLWAY_RETURN_IF_ERROR(space_->CutEnds());
  if (last_commit_) {
    SPILLWAY_RETURN_IF_ERROR(space_->files().Sync());
    SPILLWAY_ASSIGN_OR_RETURN(auto change, CatalogChange::Begin(catalog_.get(), last_commit_));
    SPILLWAY_RETURN_IF_ERROR(space_->files().AddTo(change.get()));
    SPILLWAY_ASSIGN_OR_RETURN(CatalogCommit commit, change->Finish());
    space_->files().Flushed();
    Changed(std::move(commit), {});
  }
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t end_bytes, space_->files().CutTails());
  return hole_bytes + end_bytes;
}

}  // namespace spillway::io
