// SPDX-License-Identifier: Apache-2.0
//
// A store opened to be looked at, not used: its folders and its catalog, with nothing changed by
// it, not even what an open store would tidy up.
//
// One idea: SQLite keeps to reading in three ways, one for each state that a catalog can be in: the
// file alone while nobody has the store; with the log that a crash left, read without merging it;
// and beside the process that has the store, as any reader.

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

// Externally synchronised. While it lives nobody else can open the store, unless somebody had it.
class StoreView {
 public:
  enum class Wanted : uint8_t {
    kAlone,     // FailedPrecondition, naming the holder, if another process has the store
    kAnyState,  // then its last commit is what is seen
  };
  // `folders` in the store's order, all of them. Errors as of Store::Open; NotFound: no store.
  static absl::StatusOr<std::unique_ptr<StoreView>> Open(const std::vector<std::string>& folders,
                                                         Wanted wanted);

  const std::vector<StoreFolder>& folders() const { return folders_; }
  const std::vector<FolderIdentity>& identities() const { return identities_; }
  // In words, "process 123"; empty: nobody.
  const std::string& holder() const { return holder_; }
  // To read from alone.
  Catalog& catalog() const { return *catalog_; }
  // So that it can be opened otherwise; the locks stay.
  void CloseCatalog() { catalog_.reset(); }

 private:
  StoreView() = default;
  absl::Status Lock(Wanted wanted);
  absl::Status OpenCatalog();

  // The catalog is closed before the locks are let go.
  std::vector<StoreFolder> folders_;
  std::vector<FolderIdentity> identities_;
  std::string holder_;
  std::unique_ptr<Catalog> catalog_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_VIEW_H_
