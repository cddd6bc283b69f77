// SPDX-License-Identifier: Apache-2.0
//
// A small file that records which state of the catalog was the last to be durable. SQLite takes a
// damaged end of its log for one that was never written, and opens the state before it, so a commit
// that had returned would be lost without an error. The witness reveals that.
//
// One idea: the witness is written after the transaction and never synced by itself, so it can be
// older than the catalog, which is harmless, but not newer.

#ifndef SPILLWAY_IO_STORE_WITNESS_H_
#define SPILLWAY_IO_STORE_WITNESS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/store/catalog.h"

namespace spillway::io {

// The file of one store. Externally synchronised.
class Witness {
 public:
  Witness(std::string path, std::string store_id)
      : path_(std::move(path)), store_id_(std::move(store_id)) {}
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  ~Witness();

  // Compares the catalog's last commit (none if it has none) with the witness. Ok if the commit is
  // as new as the witness says or newer, if there is no witness, or if the file is not Spillway's.
  // DataLoss if the commit is older or another one, or if the witness is damaged or belongs to
  // another store.
  absl::Status Check(const std::optional<CatalogCommit>& last) const;
  // Records that the catalog has reached this state. A failure is harmless: the witness is then
  // older than the catalog.
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

  const std::string path_;
  const std::string store_id_;
  int fd_ = -1;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_WITNESS_H_
