// SPDX-License-Identifier: Apache-2.0
//
// Opening, in steps:
//   1. Open each folder, making it if allowed; lock it. From here on no other process changes it.
//   2. Read the identity files. If nothing of Spillway's is there, there is no store. If the first
//      folder has an identity and a catalog, there is a store, and the folders, their order and
//      their number must be the store's. Anything less holds no data: it was never finished, or is
//      a scratch store whose process was killed. What a later folder has of another store is no
//      leftover, and the folder is refused.
//   3. Remove such leftovers, if a store may be made.
//   4. Make what is missing: the catalog first, then the identities from the last folder to the
//      first, each durable before the next. The store exists once the first folder has its
//      identity.
//   5. Open the catalog and check that it belongs to these folders.
// No segment file exists before step 4 is complete. So segment files without an identity in the
// first folder belong to a store whose first folder is elsewhere (on a disk that is not mounted),
// or which has lost its identity, and are left alone.

#include "io/store/store_opening.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/base/bytes.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

// The bound on a segment file doubles up to ten times and must stay below 2^44 bytes, where 32-bit
// unit numbers end.
constexpr uint64_t kMaxSegmentBytes = uint64_t{1} << 33;

using Folders = std::vector<StoreFolder>;
using Identities = std::vector<std::optional<FolderIdentity>>;

enum class Found { kNothing, kLeftovers, kScratchLeftovers, kStore };

absl::Status CheckOptions(const StoreOptions& options) {
  if (options.folders.empty())
    return absl::InvalidArgumentError("a store needs at least one folder; name one");
  if (options.folders.size() > Catalog::kMaxFolders) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.folders.size(), " store folders; at most ", Catalog::kMaxFolders, " are possible"));
  }
  if (options.segment_bytes == 0 || options.segment_bytes % kIoAlignment != 0 ||
      options.segment_bytes > kMaxSegmentBytes) {
    return absl::InvalidArgumentError(absl::StrCat("segment_bytes is ", options.segment_bytes,
                                                   "; it must be a multiple of ", kIoAlignment,
                                                   ", at most ", kMaxSegmentBytes));
  }
  const uint64_t page_bytes = options.page_bytes;
  if (page_bytes % kIoAlignment != 0 || page_bytes > kMaxPageBytes ||
      page_bytes > options.segment_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_bytes is ", page_bytes, "; it must be a multiple of ", kIoAlignment,
                     ", at most ", std::min(kMaxPageBytes, options.segment_bytes)));
  }
  return absl::OkStatus();
}

// Opens the first folder in the one mode, and the others in the other.
absl::StatusOr<Folders> OpenFolders(const std::vector<std::string>& names, StoreFolder::Mode first,
                                    StoreFolder::Mode others) {
  Folders folders;
  folders.reserve(names.size());
  for (const std::string& path : names) {
    SPILLWAY_ASSIGN_OR_RETURN(StoreFolder folder,
                              StoreFolder::Open(path, folders.empty() ? first : others));
    for (const StoreFolder& other : folders) {
      if (folder.IsSameAs(other)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "store folders ", other.path(), " and ", path, " are the same folder; name each once"));
      }
    }
    folders.push_back(std::move(folder));
  }
  return folders;
}

absl::StatusOr<Identities> ReadIdentities(const Folders& folders) {
  Identities identities;
  for (const StoreFolder& folder : folders) {
    SPILLWAY_ASSIGN_OR_RETURN(auto identity, folder.ReadIdentity());
    identities.push_back(std::move(identity));
  }
  return identities;
}

absl::Status NoStore(const Folders& folders, std::string_view why) {
  return absl::NotFoundError(absl::StrCat("there is no store in ", folders[0].path(),
                                          absl::string_view(why.data(), why.size())));
}

// Returns advice that names the folders in the order of their identities; empty if these are not
// all the folders of one store.
std::string RightOrder(const Folders& folders, const Identities& identities) {
  std::vector<std::string> ordered(folders.size());
  for (size_t i = 0; i < folders.size(); ++i) {
    if (!identities[i] || identities[i]->index >= folders.size()) return "";
    ordered[identities[i]->index] = folders[i].path();
  }
  for (const std::string& path : ordered) {
    if (path.empty()) return "";
  }
  return absl::StrCat("; name them in this order: ", absl::StrJoin(ordered, ","));
}

// Checks that these are all the folders of one store, in its order. Ignores those that are lost.
absl::Status CheckFoldersBelongTogether(const Folders& folders, const Identities& identities) {
  for (size_t i = 0; i < folders.size(); ++i) {
    if (!folders[i].is_there()) continue;
    if (!identities[i] && identities[0]->num_folders == folders.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat(folders[i].path(), " has no identity (spillway-store), and the store in ",
                       folders[0].path(), " has ", base::FormatCount(folders.size(), "folder"),
                       ": is a disk not mounted, or is it another folder?"));
    }
    if (!identities[i]) {
      return absl::InvalidArgumentError(absl::StrCat(
          folders[i].path(), " does not belong to the store in ", folders[0].path(), ", which has ",
          base::FormatCount(identities[0]->num_folders, "folder"), ": name no others"));
    }
    if (identities[i]->store_id != identities[0]->store_id) {
      return absl::InvalidArgumentError(
          absl::StrCat(folders[i].path(), " belongs to store ", identities[i]->store_id, " and ",
                       folders[0].path(), " to store ", identities[0]->store_id,
                       "; name the folders of one store"));
    }
    if (identities[i]->num_folders != folders.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          folders[i].path(), " is folder ", identities[i]->index + 1, " of a store that has ",
          base::FormatCount(identities[i]->num_folders, "folder"), "; ", folders.size(),
          folders.size() == 1 ? " was" : " were", " named: name them all, and no others"));
    }
  }
  for (size_t i = 0; i < folders.size(); ++i) {
    if (!folders[i].is_there() || identities[i]->index == i) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        folders[i].path(), " is folder ", identities[i]->index + 1,
        " of its store and was named as folder ", i + 1, RightOrder(folders, identities)));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> AnyLeftovers(const Folders& folders, const Identities& identities) {
  for (size_t i = 0; i < folders.size(); ++i) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_catalog, folders[i].HasCatalog());
    SPILLWAY_ASSIGN_OR_RETURN(const auto unfinished, folders[i].ListUnfinishedFiles());
    if (identities[i] || has_catalog || !unfinished.empty()) return true;
  }
  return false;
}

// Returns the first folder with segment files that were not made by a scratch store; null if there
// is none.
absl::StatusOr<const StoreFolder*> FolderWithSegments(const Folders& folders,
                                                      const Identities& identities) {
  for (size_t i = 0; i < folders.size(); ++i) {
    if (identities[i] && identities[i]->scratch) continue;
    SPILLWAY_ASSIGN_OR_RETURN(const auto segments, folders[i].ListSegments());
    if (!segments.empty()) return &folders[i];
  }
  return nullptr;
}

// Returns the first of the later folders that belongs to a store which does not begin in the first
// folder; null if there is none. A store that was never finished has its catalog in the first
// folder, so only that catalog's store id says that an identity in a later folder is a leftover.
// REQUIRES: the first folder has no identity, or that of a scratch store.
absl::StatusOr<const StoreFolder*> FolderOfAnotherStore(const Folders& folders,
                                                        const Identities& identities) {
  SPILLWAY_ASSIGN_OR_RETURN(const bool is_half_made, folders[0].HasCatalog());
  for (size_t i = 1; i < folders.size(); ++i) {
    if (identities[i] && identities[i]->scratch) continue;
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_catalog, folders[i].HasCatalog());
    if (has_catalog) return &folders[i];
    if (!identities[i]) continue;
    if (!is_half_made) return &folders[i];
    const auto catalog =
        Catalog::OpenToRead(folders[0].CatalogPath(), SqliteDatabase::Mode::kReadAlone);
    if (!catalog.ok() || (*catalog)->meta().store_id != identities[i]->store_id) return &folders[i];
  }
  return nullptr;
}

absl::StatusOr<Found> Look(const Folders& folders, const Identities& identities) {
  bool any_scratch = false;
  const StoreFolder* with_identity = nullptr;  // of a store that is not scratch
  for (size_t i = 0; i < folders.size(); ++i) {
    if (identities[i] && identities[i]->scratch) any_scratch = true;
    if (identities[i] && !identities[i]->scratch) with_identity = &folders[i];
  }
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_catalog, folders[0].HasCatalog());
  const bool has_store = with_identity && identities[0];
  if (has_store) SPILLWAY_RETURN_IF_ERROR(CheckFoldersBelongTogether(folders, identities));
  if (has_store && has_catalog) return Found::kStore;
  SPILLWAY_ASSIGN_OR_RETURN(const StoreFolder* const with_segments,
                            FolderWithSegments(folders, identities));
  if (has_store) {
    if (!with_segments) return Found::kLeftovers;
    return absl::DataLossError(
        absl::StrCat(folders[0].CatalogPath(), " is missing, but ", with_segments->path(),
                     " holds the store's data; restore the catalog from a copy, or remove "
                     "the store's files and start over"));
  }
  // A store that was never finished has its catalog in the first folder before it has an identity
  // in any folder.
  if (with_segments == &folders[0] && has_catalog) {
    return absl::DataLossError(
        absl::StrCat(folders[0].path(),
                     " holds the data of a store whose identity (spillway-store) is missing; "
                     "restore that file from a copy, or remove the files by hand and start over"));
  }
  if (with_segments == &folders[0]) {
    return absl::FailedPreconditionError(absl::StrCat(
        folders[0].path(),
        " has segment files, and neither an identity (spillway-store) nor a catalog: they are of a "
        "store that lost both, or of its other folder; restore both from a copy, name the store's "
        "folders in order, or choose another folder"));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const StoreFolder* const of_another,
                            FolderOfAnotherStore(folders, identities));
  if (const StoreFolder* const elsewhere = with_segments ? with_segments : of_another) {
    return absl::FailedPreconditionError(absl::StrCat(
        elsewhere->path(), " belongs to a store whose first folder is not ", folders[0].path(),
        "; name its folders in order (is a disk not mounted?), or choose another"));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const bool any_leftovers, AnyLeftovers(folders, identities));
  if (!any_leftovers) return Found::kNothing;
  return any_scratch && !with_identity ? Found::kScratchLeftovers : Found::kLeftovers;
}

// Returns the error for a first folder without an identity: what is wrong there, or that there is
// no store.
absl::Status NoIdentity(const Folders& folders, const Identities& identities) {
  SPILLWAY_RETURN_IF_ERROR(Look(folders, identities).status());
  return NoStore(folders, "");
}

absl::StatusOr<std::string> RandomStoreId() {
  std::array<char, 16> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return base::ErrnoToStatus(errno, "get random bytes for a store id");
  }
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

absl::Status MakeStore(const StoreOptions& options, Folders& folders) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::string store_id, RandomStoreId());
  const uint16_t num_folders = static_cast<uint16_t>(folders.size());
  const uint64_t page_bytes = options.page_bytes > 0
                                  ? options.page_bytes
                                  : std::min(kDefaultPageBytes, options.segment_bytes);
  SPILLWAY_RETURN_IF_ERROR(Catalog::Create(folders[0].CatalogPath(),
                                           {store_id, page_bytes, num_folders, options.sparse}));
  SPILLWAY_RETURN_IF_ERROR(folders[0].Sync());
  for (uint16_t i = num_folders; i-- > 0;) {
    SPILLWAY_RETURN_IF_ERROR(folders[i].WriteIdentity(
        {store_id, i, num_folders, options.scratch || options.sparse, options.sparse}));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Catalog>> OpenCatalog(const StoreFolder& folder,
                                                     const StoreOptions& options) {
  using Mode = SqliteDatabase::Mode;
  SPILLWAY_ASSIGN_OR_RETURN(const auto identity, folder.ReadIdentity());
  auto opened = Catalog::Open(folder.CatalogPath(), Mode::kExisting, options.announce);
  if (options.when_full && absl::IsResourceExhausted(opened.status()))
    opened = Catalog::Open(folder.CatalogPath(), Mode::kAlone, options.announce);
  SPILLWAY_ASSIGN_OR_RETURN(auto catalog, std::move(opened));
  const CatalogMeta& meta = catalog->meta();
  if (!identity || meta.store_id != identity->store_id ||
      meta.num_folders != identity->num_folders || meta.sparse != identity->sparse) {
    return absl::DataLossError(absl::StrCat(catalog->path(), " is the catalog of store ",
                                            meta.store_id, " with ",
                                            base::FormatCount(meta.num_folders, "folder"),
                                            ", not of the store whose folder it lies in; "
                                            "put the right catalog back"));
  }
  return catalog;
}

}  // namespace

absl::Status IsSparseStore(const StoreFolder& folder) {
  return absl::FailedPreconditionError(absl::StrCat(
      folder.path(),
      " has the sparse store of a capacity trial, most of whose pages are holes, so nothing can be "
      "run from it or read from it; 'spillway remove' removes it, or choose another folder"));
}

absl::Status RemoveEmptyStore(std::vector<StoreFolder>& folders, bool is_scratch) {
  if (is_scratch) {
    for (StoreFolder& folder : folders) SPILLWAY_RETURN_IF_ERROR(folder.RemoveStoreFiles());
    return absl::OkStatus();
  }
  for (StoreFolder& folder : folders) SPILLWAY_RETURN_IF_ERROR(folder.RemoveData());
  for (StoreFolder& folder : folders) SPILLWAY_RETURN_IF_ERROR(folder.RemoveIdentity());
  for (StoreFolder& folder : folders) SPILLWAY_RETURN_IF_ERROR(folder.RemoveCatalog());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StoreFolder>> OpenStoreFolders(const std::vector<std::string>& names) {
  const StoreOptions options{.folders = names, .create = false};
  SPILLWAY_RETURN_IF_ERROR(CheckOptions(options));
  using Mode = StoreFolder::Mode;
  SPILLWAY_ASSIGN_OR_RETURN(Folders folders, OpenFolders(names, Mode::kExisting, Mode::kIfThere));
  for (const StoreFolder& folder : folders) SPILLWAY_RETURN_IF_ERROR(folder.CheckFiles());
  SPILLWAY_ASSIGN_OR_RETURN(const Identities identities, ReadIdentities(folders));
  if (!identities[0]) return NoIdentity(folders, identities);
  SPILLWAY_RETURN_IF_ERROR(CheckFoldersBelongTogether(folders, identities));
  for (StoreFolder& folder : folders) folder.Keep();
  return folders;
}

absl::StatusOr<OpenedStore> OpenOrMakeStore(const StoreOptions& options) {
  SPILLWAY_RETURN_IF_ERROR(CheckOptions(options));
  OpenedStore opened;
  const auto mode = options.create ? StoreFolder::Mode::kMake : StoreFolder::Mode::kExisting;
  SPILLWAY_ASSIGN_OR_RETURN(opened.folders, OpenFolders(options.folders, mode, mode));
  if (!options.create) {
    SPILLWAY_ASSIGN_OR_RETURN(const Identities identities, ReadIdentities(opened.folders));
    if (!identities[0]) return NoIdentity(opened.folders, identities);
    if (identities[0]->sparse && !options.sparse) return IsSparseStore(opened.folders[0]);
  }
  for (StoreFolder& folder : opened.folders) SPILLWAY_RETURN_IF_ERROR(folder.Lock());

  SPILLWAY_ASSIGN_OR_RETURN(Identities identities, ReadIdentities(opened.folders));
  // To everybody else a sparse store is a scratch store that was left.
  for (std::optional<FolderIdentity>& identity : identities) {
    if (options.sparse && !options.must_not_exist && !options.scratch && identity)
      identity->scratch = identity->scratch && !identity->sparse;
  }
  SPILLWAY_ASSIGN_OR_RETURN(const Found found, Look(opened.folders, identities));
  const auto cure = [&](const char* what) {
    return options.scratch ? std::string(
                                 "a store that is removed at the end needs a folder without one: "
                                 "choose another")
                           : absl::StrCat("open it with OpenMode::kOpenOrCreate to ", what,
                                          ", or choose another folder");
  };
  if (found == Found::kStore && (options.must_not_exist || options.scratch)) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is a store in ", opened.folders[0].path(), " already (",
                     identities[0]->store_id, "); ", cure("go on from it")));
  }
  if (found == Found::kLeftovers && (options.must_not_exist || options.scratch)) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is a half-made store in ", opened.folders[0].path(),
                     " already, without a commit; ", cure("start over in it")));
  }
  if (found == Found::kStore && options.sparse != identities[0]->sparse) {
    return absl::FailedPreconditionError(
        absl::StrCat("the store in ", opened.folders[0].path(),
                     " is no sparse store, so it is not opened as one; choose another folder"));
  }
  if (found != Found::kStore) {
    if (!options.create) return NoStore(opened.folders, ": what lies there was never finished");
    if (found != Found::kNothing) {
      SPILLWAY_RETURN_IF_ERROR(RemoveEmptyStore(opened.folders, found == Found::kScratchLeftovers));
    }
    if (absl::Status status = MakeStore(options, opened.folders); !status.ok()) {
      // The first error is the one to report. What cannot be removed is found as a leftover next
      // time.
      (void)RemoveEmptyStore(opened.folders, options.scratch || options.sparse);
      return status;
    }
    opened.is_new = true;
  }
  SPILLWAY_ASSIGN_OR_RETURN(opened.catalog, OpenCatalog(opened.folders[0], options));
  return opened;
}

}  // namespace spillway::io
