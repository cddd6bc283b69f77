// SPDX-License-Identifier: Apache-2.0
//
// The durable half of the store: an SQLite file in the first folder that says which tensors exist,
// where each of their pages rests, which bytes are free, and what the last commit and the snapshots
// were. io/FORMAT.md specifies its tables.
//
// One idea: nothing is read before it is asked for, so that a store of millions of pages opens as
// fast as an empty one. What is written goes through a CatalogChange (catalog_change.h).

#ifndef SPILLWAY_IO_STORE_CATALOG_H_
#define SPILLWAY_IO_STORE_CATALOG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/store/free_space.h"
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
  uint64_t number = 0;      // 1, 2, 3, ...
  uint64_t revision = 0;    // counts every change of the catalog that takes or frees extents
  uint64_t digest = 0;      // sum of the digests of all its rows and of this commit
  uint64_t used_bytes = 0;  // of extents that the commit or a snapshot names
  std::string user_state;
};

struct CatalogTensor {
  uint64_t id = 0;
  TensorRecord record;
};

// A segment file as the last change left it.
struct CatalogSegment {
  uint16_t device = 0;
  uint32_t segment = 0;
  uint64_t size_bytes = 0;
  uint64_t written_bytes = 0;  // bytes from here on were never handed out
};

// Errors as in io/store/sqlite.h; besides, DataLoss for rows that break the invariants of
// io/FORMAT.md. Externally synchronised.
class Catalog {
 public:
  static constexpr uint64_t kFormatVersion = 2;
  static constexpr uint64_t kMaxFolders = 256;

  // Makes an empty catalog that appears at `path` at once and complete, replacing none: there must
  // be no file. The caller syncs the folder. A crash leaves at most files whose names start with
  // `path` + ".new".
  static absl::Status Create(const std::string& path, const CatalogMeta& meta);
  // FailedPrecondition for another format version; DataLoss for a file that is no catalog.
  static absl::StatusOr<std::unique_ptr<Catalog>> Open(
      const std::string& path, SqliteDatabase::Mode mode = SqliteDatabase::Mode::kExisting);

  // The same, in one of the modes that change nothing.
  static absl::StatusOr<std::unique_ptr<Catalog>> OpenToRead(const std::string& path,
                                                             SqliteDatabase::Mode mode);

  const CatalogMeta& meta() const { return meta_; }
  const std::string& path() const { return database_->path(); }
  SqliteDatabase& database() { return *database_; }

  // The last commit; none: never committed.
  absl::StatusOr<std::optional<CatalogCommit>> ReadCommit();
  // A tensor of the last commit.
  absl::StatusOr<std::optional<CatalogTensor>> FindTensor(std::string_view name);
  // An id that no tensor has.
  absl::StatusOr<uint64_t> NextTensorId();
  // The last commit's rows of pages [first, first + count) of a tensor, in order.
  absl::Status ReadPages(uint64_t id, uint64_t first, uint64_t count,
                         absl::FunctionRef<void(uint64_t page, const PageRecord&)> take);
  absl::StatusOr<std::vector<CatalogSegment>> ReadSegments();
  // At most `limit` chunks of a device that have free bytes, in order, from chunk `from` on.
  absl::StatusOr<std::vector<FreeChunk>> ReadFreeChunks(uint16_t device, ChunkId from,
                                                        uint64_t limit);
  absl::StatusOr<std::vector<SnapshotRecord>> ReadSnapshots();               // oldest commit first
  absl::StatusOr<std::vector<std::optional<DeviceProfile>>> ReadProfiles();  // by device
  absl::Status WriteProfile(uint16_t device, const DeviceProfile& profile);

  // For a store without a commit.
  absl::Status ChangePageBytes(uint64_t page_bytes);

  // DataLoss that names the catalog and says what to do.
  absl::Status Damaged(std::string_view what) const;

 private:
  explicit Catalog(std::unique_ptr<SqliteDatabase> database) : database_(std::move(database)) {}
  absl::Status CheckIsCatalog();
  absl::StatusOr<std::string> ReadMetaText(std::string_view key);
  absl::StatusOr<uint64_t> ReadMetaInteger(std::string_view key);
  absl::Status ReadMeta();
  absl::Status SwitchToWal();
  absl::Status PrepareStatements();

  std::unique_ptr<SqliteDatabase> database_;
  CatalogMeta meta_;
  std::optional<SqliteStatement> find_tensor_;
  std::optional<SqliteStatement> read_pages_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_CATALOG_H_
