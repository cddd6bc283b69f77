// SPDX-License-Identifier: Apache-2.0
//
// A store opened for inspection: its folders and its catalog. It changes nothing, and does not even
// tidy up as an open store would.
//
// One idea: SQLite reads without writing in three ways, one for each state of a catalog: the file
// alone if no process has the store; with the log that a crash left, which is read without merging
// it; and as another reader beside the process that has the store.

#ifndef SPILLWAY_IO_STORE_STORE_VIEW_H_
#define SPILLWAY_IO_STORE_STORE_VIEW_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/store/catalog.h"
#include "io/store/store_folder.h"

namespace spillway::io {

// Externally synchronised. It holds the locks of the folders. While it holds one, no other process
// can open the store, unless one had it already.
class StoreView {
 public:
  enum class Wanted : uint8_t {
    kAlone,     // FailedPrecondition, naming the holder, if another process has the store
    kAnyState,  // if another process has the store, its last commit is seen
  };
  enum class Sparse : uint8_t { kRefused, kAllowed };
  // Opens a store for inspection. `folders` are all its folders, in its order. Any but the first
  // may be lost, with the files in it: it does not exist, or its device fails. Errors as for
  // Store::Open; NotFound if there is no store. FailedPrecondition for a sparse store, whose holes
  // nobody should take for data, unless it is allowed.
  static absl::StatusOr<std::unique_ptr<StoreView>> Open(const std::vector<std::string>& folders,
                                                         Wanted wanted,
                                                         Sparse sparse = Sparse::kRefused);

  const std::vector<StoreFolder>& folders() const { return folders_; }
  // Of the first folder.
  const FolderIdentity& identity() const { return identity_; }
  // Describes the process that has the store: "process 123"; empty if none has it.
  const std::string& holder() const { return holder_; }
  // For reading only.
  Catalog& catalog() const { return *catalog_; }
  // Closes the catalog, so that it can be opened in another mode. The locks stay held.
  void CloseCatalog() { catalog_.reset(); }

 private:
  StoreView() = default;
  absl::Status Lock(Wanted wanted);
  absl::Status OpenCatalog();

  // The order matters: the catalog is closed before the locks are released.
  std::vector<StoreFolder> folders_;
  FolderIdentity identity_;
  std::string holder_;
  std::unique_ptr<Catalog> catalog_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_VIEW_H_
