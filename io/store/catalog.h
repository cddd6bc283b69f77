// SPDX-License-Identifier: Apache-2.0
//
// The durable state of the store: an SQLite file in the first folder. It records which tensors
// exist, where each of their pages lies, which bytes are free, and what the last commit and the
// snapshots are. io/FORMAT.md specifies its tables.
//
// One idea: rows are read only on request, so a store of millions of pages opens as fast as an
// empty one. Changes of tensors, pages, segments and snapshots go through a CatalogChange
// (catalog_change.h).

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
#include "io/direct_file.h"
#include "io/store/free_space.h"
#include "io/store/sqlite.h"
#include "io/store/store.h"

namespace spillway::io {

// The properties of a store that never change once it holds a commit.
struct CatalogMeta {
  std::string store_id;
  uint64_t page_bytes = 0;
  uint16_t num_folders = 0;
  bool sparse = false;
};

struct CatalogCommit {
  uint64_t number = 0;      // 1, 2, 3, ...
  uint64_t revision = 0;    // counts commits, snapshots, drops and trims
  uint64_t digest = 0;      // sum of the digests of its tensors and pages and of the commit
  uint64_t used_bytes = 0;  // bytes of extents that the commit or a snapshot names
  std::string user_state;
};

struct CatalogTensor {
  uint64_t id = 0;
  TensorRecord record;
};

// A segment file as of the last change of the catalog.
struct CatalogSegment {
  uint16_t device = 0;
  uint32_t segment = 0;
  uint64_t size_bytes = 0;
  uint64_t written_bytes = 0;  // bytes from here on were never handed out
};

// Errors are those of io/store/sqlite.h, and DataLoss for rows that break the invariants of
// io/FORMAT.md. Externally synchronised.
class Catalog {
 public:
  static constexpr uint64_t kFormatVersion = 2;
  static constexpr uint64_t kSparseFormatVersion = 3;  // the same tables, of a sparse store
  static constexpr uint64_t kMaxFolders = 256;

  // Makes an empty catalog, which appears at `path` at once and complete. REQUIRES: there is no
  // file at `path`. The caller syncs the folder. A crash leaves at most files whose names start
  // with `path` + ".new".
  static absl::Status Create(const std::string& path, const CatalogMeta& meta);
  // Opens a catalog. What a killed process left in its log is durable on return: only then may
  // bytes that the catalog calls free be changed. FailedPrecondition for another format version;
  // DataLoss for a file that is no catalog. `announce` is called if the log's pages cannot be moved
  // into the file, so that the log grows: once if that fails, and once if a reader holds them. It
  // may be empty. Closing leaves the log as it is, until Accept.
  static absl::StatusOr<std::unique_ptr<Catalog>> Open(
      const std::string& path, SqliteDatabase::Mode mode = SqliteDatabase::Mode::kExisting,
      Announce announce = {});

  // Opens a catalog only to read it. `mode` is one of those that change nothing. Errors as for
  // Open.
  static absl::StatusOr<std::unique_ptr<Catalog>> OpenToRead(const std::string& path,
                                                             SqliteDatabase::Mode mode);

  // Says that this is the catalog that is wanted, and its state the newest. From then on, closing
  // moves the log into the file. A log with a damaged end holds more than SQLite takes from it, so
  // a catalog that is refused must keep its log. REQUIRES: opened with Open.
  absl::Status Accept() { return database_->SetMovesLogOnClose(true); }

  const CatalogMeta& meta() const { return meta_; }
  const std::string& path() const { return database_->path(); }
  SqliteDatabase& database() { return *database_; }

  // Returns the last commit; none if the store was never committed.
  absl::StatusOr<std::optional<CatalogCommit>> ReadCommit();
  // Returns a tensor of the last commit; none if that has no tensor of this name.
  absl::StatusOr<std::optional<CatalogTensor>> FindTensor(std::string_view name);
  // Returns an id that no tensor has.
  absl::StatusOr<uint64_t> NextTensorId();
  // Passes the last commit's rows of pages [first, first + count) of a tensor to `take`, in order.
  absl::Status ReadPages(uint64_t id, uint64_t first, uint64_t count,
                         absl::FunctionRef<void(uint64_t page, const PageRecord&)> take);
  absl::StatusOr<std::vector<CatalogSegment>> ReadSegments();
  // Returns at most `limit` chunks of a device that have free bytes, in order, from chunk `from`
  // on.
  absl::StatusOr<std::vector<FreeChunk>> ReadFreeChunks(uint16_t device, ChunkId from,
                                                        uint64_t limit);
  absl::StatusOr<uint64_t> FreeBytesIn(uint16_t device, uint32_t segment);
  // Whether the last commit, or the one in progress, has a page in the file. Reads all of pages.
  absl::StatusOr<bool> HasPagesIn(uint16_t device, uint32_t segment);
  absl::StatusOr<std::vector<SnapshotRecord>> ReadSnapshots();               // oldest commit first
  absl::StatusOr<std::vector<std::optional<DeviceProfile>>> ReadProfiles();  // by device
  absl::Status WriteProfile(uint16_t device, const DeviceProfile& profile);

  // REQUIRES: the store has no commit.
  absl::Status ChangePageBytes(uint64_t page_bytes);

  // Returns a DataLoss error that names the catalog and says what to do.
  absl::Status Damaged(std::string_view what) const;

 private:
  explicit Catalog(std::unique_ptr<SqliteDatabase> database) : database_(std::move(database)) {}
  absl::Status CheckIsCatalog();
  absl::StatusOr<std::string> ReadMetaText(std::string_view key);
  absl::StatusOr<uint64_t> ReadMetaInteger(std::string_view key);
  absl::Status ReadMeta();
  absl::Status SwitchToWal();
  void CheckLogIsBounded(const SqliteDatabase::Checkpoint& checkpoint);
  absl::Status PrepareStatements();

  std::unique_ptr<SqliteDatabase> database_;
  CatalogMeta meta_;
  Announce announce_;
  bool has_announced_failure_ = false;
  bool has_announced_reader_ = false;
  int held_log_pages_ = 0;  // at the last checkpoint, if readers held pages of a long log
  std::optional<SqliteStatement> find_tensor_;
  std::optional<SqliteStatement> read_pages_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_CATALOG_H_
