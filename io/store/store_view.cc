// SPDX-License-Identifier: Apache-2.0

#include "io/store/store_view.h"

#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/store/store_opening.h"
#include "io/store/witness.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

// Whether there is a write-ahead log that is not empty.
bool HasLog(const std::string& catalog_path) {
  struct stat info;
  return ::stat((catalog_path + "-wal").c_str(), &info) == 0 && info.st_size > 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoreView>> StoreView::Open(const std::vector<std::string>& folders,
                                                           Wanted wanted, Sparse sparse) {
  std::unique_ptr<StoreView> view(new StoreView);
  SPILLWAY_ASSIGN_OR_RETURN(view->folders_, OpenStoreFolders(folders));
  SPILLWAY_RETURN_IF_ERROR(view->Lock(wanted));
  for (const StoreFolder& folder : view->folders_) {
    SPILLWAY_ASSIGN_OR_RETURN(std::optional<FolderIdentity> identity, folder.ReadIdentity());
    if (!folder.is_there()) continue;
    if (!identity) {
      return absl::NotFoundError(absl::StrCat("the store in ", folder.path(), " was just removed"));
    }
    if (identity->sparse && sparse == Sparse::kRefused) return IsSparseStore(folder);
    if (&folder == view->folders_.data()) view->identity_ = *std::move(identity);
  }
  SPILLWAY_RETURN_IF_ERROR(view->OpenCatalog());
  return view;
}

absl::Status StoreView::Lock(Wanted wanted) {
  for (StoreFolder& folder : folders_) {
    const absl::Status status = folder.LockToRead();
    if (status.ok()) {
      folder.Keep();
      continue;
    }
    if (wanted == Wanted::kAlone) return status;
    if (absl::IsUnavailable(status)) continue;  // the lock file is missing and cannot be made
    if (!absl::IsFailedPrecondition(status)) return status;
    // Reading beside the holder takes the index of the catalog's log. If it is missing and cannot
    // be made, the holder only inspects the store, too.
    const bool has_index = ::access((folders_[0].CatalogPath() + "-shm").c_str(), F_OK) == 0;
    if (!has_index && ::access(folders_[0].path().c_str(), W_OK) != 0) continue;
    holder_ = folder.HolderOfLock();
    break;
  }
  return absl::OkStatus();
}

absl::Status StoreView::OpenCatalog() {
  const std::string path = folders_[0].CatalogPath();
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_catalog, folders_[0].HasCatalog());
  if (!has_catalog) {
    return absl::DataLossError(
        absl::StrCat(path,
                     " is missing; restore the catalog from a copy, or remove the store's "
                     "files and start over"));
  }
  using Mode = SqliteDatabase::Mode;
  const Mode mode = !holder_.empty() ? Mode::kReadShared
                    : HasLog(path)   ? Mode::kReadWithLog
                                     : Mode::kReadAlone;
  SPILLWAY_ASSIGN_OR_RETURN(catalog_, Catalog::OpenToRead(path, mode));
  const CatalogMeta& meta = catalog_->meta();
  if (meta.store_id != identity_.store_id || meta.num_folders != folders_.size() ||
      meta.sparse != identity_.sparse) {
    return absl::DataLossError(absl::StrCat(path, " is the catalog of store ", meta.store_id,
                                            " with ", base::FormatCount(meta.num_folders, "folder"),
                                            ", not of the store whose folder it lies "
                                            "in; put the right catalog back"));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const auto last, catalog_->ReadCommit());
  // While another process commits, the witness may be newer than the state that is seen here.
  if (!holder_.empty()) return absl::OkStatus();
  return Witness(folders_, meta.store_id).Check(last);
}

}  // namespace spillway::io
