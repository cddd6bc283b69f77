// SPDX-License-Identifier: Apache-2.0
//
// A small file in each folder that records which state of the catalog was the last to be durable.
// SQLite takes a damaged end of its log for one that was never written, and opens the state before
// it, so a commit that had returned would be lost without an error. The witness reveals that. Those
// of the other folders also reveal an older copy of the first folder.
//
// One idea: the files are written after the transaction and never synced by themselves, so each can
// be older than the catalog, which is harmless, but not newer.

#ifndef SPILLWAY_IO_STORE_WITNESS_H_
#define SPILLWAY_IO_STORE_WITNESS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "io/store/catalog.h"
#include "io/store/store_folder.h"

namespace spillway::io {

// The files of one store, whose folders must outlive it. Externally synchronised.
class Witness {
 public:
  Witness(const std::vector<StoreFolder>& folders, std::string store_id);
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  ~Witness();

  // Compares the catalog's last commit (none if it has none) with each file. Ok if the commit is as
  // new as the file says or newer, if there is no file, or if it is not Spillway's. DataLoss if the
  // commit is older or another one, or if the file is damaged or belongs to another store.
  absl::Status Check(const std::optional<CatalogCommit>& last) const;
  // Records that the catalog has reached this state. A failure is harmless: the file is then older
  // than the catalog.
  void Write(const CatalogCommit& last);

 private:
  struct Content {
    std::string store_id;
    uint64_t number = 0;
    uint64_t revision = 0;
    uint64_t digest = 0;
  };
  static std::string Format(const Content& content);
  static std::optional<Content> Parse(const std::string& text);
  static int Open(const StoreFolder& folder);
  absl::Status CheckFile(const std::string& path, const std::optional<CatalogCommit>& last) const;

  struct File {
    const StoreFolder* folder = nullptr;
    int fd = -1;  // open from the first Write on
  };
  std::vector<File> files_;
  const std::string store_id_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_WITNESS_H_
