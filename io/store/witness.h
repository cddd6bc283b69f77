// SPDX-License-Identifier: Apache-2.0
//
// A small file that says which state of the catalog was the last to be durable. SQLite takes a
// damaged end of its log for one that was never written and opens the state before it: a commit
// that had returned would be gone without a word. The witness tells.
//
// One idea: it is written after the transaction and never synced on its own account, so it can be
// older than the catalog, which means nothing, but not newer.

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

  // Ok: the catalog's last commit (none: it has none) is as new as the witness says, or there is no
  // witness, or a file that is none of ours. DataLoss: it is older, or the witness is damaged.
  absl::Status Check(const std::optional<CatalogCommit>& last) const;
  // The catalog has reached this state. Failing is harmless: the witness is then an older one.
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
