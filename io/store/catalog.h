// SPDX-License-Identifier: Apache-2.0
//
// The durable half of the store: an SQLite file in the first folder that says which tensors exist,
// where each of their pages rests, and what the last commit was. io/FORMAT.md specifies its tables.
//
// One idea: a commit is one transaction. It is durable when Write returns Ok, and before that
// invisible. Which extents may be reused, and when, is the ledger's and the store's.

#ifndef SPILLWAY_IO_STORE_CATALOG_H_
#define SPILLWAY_IO_STORE_CATALOG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/store/sqlite.h"
#include "io/store/store.h"

namespace spillway::io {

// What never changes in a store that holds a commit.
struct CatalogMeta {
  std::string store_id;
  uint64_t page_bytes = 0;
  uint16_t num_folders = 0;
};

struct CatalogCommit {
  uint64_t number = 0;  // 1, 2, 3, ...
  uint64_t digest = 0;  // sum of the digests of all rows and of this commit
  std::string user_state;
};

// Errors as in io/store/sqlite.h; besides, DataLoss for rows that break the invariants of
// io/FORMAT.md. Externally synchronised.
class Catalog {
 public:
  static constexpr uint64_t kFormatVersion = 1;
  static constexpr uint64_t kMaxFolders = 256;

  // Makes an empty catalog that appears at `path` at once and complete, replacing none: there must
  // be no file. The caller syncs the folder. A crash leaves at most files whose names start with
  // `path` + ".new".
  static absl::Status Create(const std::string& path, const CatalogMeta& meta);
  // FailedPrecondition for another format version; DataLoss for a file that is no catalog.
  static absl::StatusOr<std::unique_ptr<Catalog>> Open(const std::string& path);

  const CatalogMeta& meta() const { return meta_; }
  const std::string& path() const { return database_->path(); }

  // The last commit; none: never committed.
  absl::StatusOr<std::optional<CatalogCommit>> ReadCommit();
  // Every row, in the order of ids and pages, until `take` gives an error.
  absl::Status ReadTensors(absl::FunctionRef<absl::Status(uint64_t id, TensorRecord tensor)> take);
  absl::Status ReadPages(
      absl::FunctionRef<absl::Status(uint64_t id, uint64_t page, const PageRecord&)> take);

  // One commit. The transaction's content comes from `put`, which calls the functions below and
  // nothing else. After an error the last commit stands in this catalog, but whether the new one
  // reached the disk may be unknown: whoever opens the file next may find either.
  absl::Status Write(uint64_t number, uint64_t digest, std::string_view user_state,
                     absl::FunctionRef<absl::Status()> put);
  absl::Status PutTensor(uint64_t id, const TensorRecord& tensor);
  absl::Status PutPage(uint64_t id, uint64_t page, const PageRecord& record);
  absl::Status ErasePage(uint64_t id, uint64_t page);

  // For a store without a commit.
  absl::Status ChangePageBytes(uint64_t page_bytes);

 private:
  explicit Catalog(std::unique_ptr<SqliteDatabase> database) : database_(std::move(database)) {}
  absl::Status CheckIsCatalog();
  absl::StatusOr<std::string> ReadMetaText(std::string_view key);
  absl::StatusOr<uint64_t> ReadMetaInteger(std::string_view key);
  absl::Status ReadMeta();
  absl::Status SwitchToWal();
  absl::Status PrepareStatements();
  absl::Status Damaged(std::string_view what) const;

  std::unique_ptr<SqliteDatabase> database_;
  CatalogMeta meta_;
  std::optional<SqliteStatement> put_tensor_;
  std::optional<SqliteStatement> put_page_;
  std::optional<SqliteStatement> erase_page_;
  std::optional<SqliteStatement> put_commit_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_CATALOG_H_
