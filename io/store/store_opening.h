// SPDX-License-Identifier: Apache-2.0
//
// Opens or makes a store: from folder names to locked folders and an open catalog. Finds out what
// lies in the folders and whether it is this store, and makes a new store so that a crash in the
// middle leaves nothing that could be taken for a store. Loading what the catalog says is left to
// the store.

#ifndef SPILLWAY_IO_STORE_STORE_OPENING_H_
#define SPILLWAY_IO_STORE_STORE_OPENING_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "io/store/catalog.h"
#include "io/store/store.h"
#include "io/store/store_folder.h"

namespace spillway::io {

// A store's folders, in order and locked, and its catalog. The receiver decides whether the folders
// are kept (StoreFolder::Keep).
struct OpenedStore {
  std::vector<StoreFolder> folders;
  std::unique_ptr<Catalog> catalog;
  bool is_new = false;
};

// Opens the store, or makes it. Errors as in Store::Open. After an error, everything that this call
// made is removed again.
absl::StatusOr<OpenedStore> OpenOrMakeStore(const StoreOptions& options);

// Returns the error for a sparse store that is opened as another (StoreOptions::sparse).
absl::Status IsSparseStore(const StoreFolder& folder);

// Removes a scratch store, or a store without a commit. Wherever this is broken off, the next
// opening finds the store or leftovers that it may remove. In a scratch store each folder's
// identity is last, which says that its segments may go. Otherwise the first folder's identity goes
// before the others', as it comes after them in a new store, and the catalog is last, which says
// whose the others are.
absl::Status RemoveEmptyStore(std::vector<StoreFolder>& folders, bool is_scratch);

// Opens the folders of an existing store to look at it, without locking them. `names` are all of
// them, in order. Any but the first may be lost (StoreFolder::Mode::kIfThere).
absl::StatusOr<std::vector<StoreFolder>> OpenStoreFolders(const std::vector<std::string>& names);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_OPENING_H_
