// SPDX-License-Identifier: Apache-2.0
//
// From folder names to a locked store with an open catalog: what lies in the folders, whether it is
// this store, and how a new one is made so that a crash in the middle leaves nothing that could be
// taken for one. What the catalog says is then the store's to load.

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

// A store's folders, in order and locked, and its catalog. Whoever takes it decides whether the
// folders are kept.
struct OpenedStore {
  std::vector<StoreFolder> folders;
  std::unique_ptr<Catalog> catalog;
  bool is_new = false;
};

// Errors as in Store::Open. After an error everything that this call made is gone again.
absl::StatusOr<OpenedStore> OpenOrMakeStore(const StoreOptions& options);

// The folders of a store that is there, all of them and in order, not locked.
absl::StatusOr<std::vector<StoreFolder>> OpenStoreFolders(const std::vector<std::string>& names);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_OPENING_H_
