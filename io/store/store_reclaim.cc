// SPDX-License-Identifier: Apache-2.0
//
// Reclaims the orphans that a check found. The catalog is changed first, and then files are cut to
// the sizes in it, so a crash in between leaves tails, as before. The check read the log that a
// killed process left; no file is cut before that log is durable, because a power cut could bring
// back a catalog that names more.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/store/catalog.h"
#include "io/store/catalog_change.h"
#include "io/store/catalog_log.h"
#include "io/store/store_check.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

absl::Status FreeUnnamed(const std::string& catalog_path, const std::vector<Orphan>& orphans) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Catalog> catalog, Catalog::Open(catalog_path));
  SPILLWAY_ASSIGN_OR_RETURN(const std::optional<CatalogCommit> last, catalog->ReadCommit());
  if (!last) return absl::FailedPreconditionError(catalog_path + " has no commit");
  SPILLWAY_ASSIGN_OR_RETURN(const auto change, CatalogChange::Begin(catalog.get(), last));
  for (const Orphan& orphan : orphans) {
    if (orphan.kind != Orphan::Kind::kUnnamed) continue;
    change->AddSpace(orphan.device, orphan.segment, orphan.offset, orphan.size_bytes);
  }
  SPILLWAY_RETURN_IF_ERROR(change->Finish().status());
  return catalog->Accept();
}

absl::Status RemoveBytes(const Orphan& orphan) {
  const bool is_whole = orphan.offset == 0;
  const int result = is_whole ? ::unlink(orphan.path.c_str())
                              : ::truncate(orphan.path.c_str(), static_cast<off_t>(orphan.offset));
  if (result == 0 || (is_whole && errno == ENOENT)) return absl::OkStatus();
  return base::ErrnoToStatus(errno, absl::StrCat(is_whole ? "remove " : "shorten ", orphan.path));
}

}  // namespace

absl::Status ReclaimOrphans(StoreView* view, const std::vector<Orphan>& orphans) {
  for (const StoreFolder& folder : view->folders()) SPILLWAY_RETURN_IF_ERROR(folder.CheckIsThere());
  const std::string catalog_path = view->catalog().path();
  view->CloseCatalog();
  bool any_unnamed = false;
  for (const Orphan& orphan : orphans) any_unnamed |= orphan.kind == Orphan::Kind::kUnnamed;
  SPILLWAY_RETURN_IF_ERROR(any_unnamed ? FreeUnnamed(catalog_path, orphans)
                                       : MakeLogDurable(catalog_path));
  for (const Orphan& orphan : orphans) {
    if (orphan.kind != Orphan::Kind::kUnnamed) SPILLWAY_RETURN_IF_ERROR(RemoveBytes(orphan));
  }
  for (const StoreFolder& folder : view->folders()) SPILLWAY_RETURN_IF_ERROR(folder.Sync());
  return absl::OkStatus();
}

}  // namespace spillway::io
