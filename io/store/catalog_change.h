// SPDX-License-Identifier: Apache-2.0
//
// A change of the catalog, as one transaction: a new commit, a snapshot that is made, restored or
// dropped, or segment files that are cut. It moves rows between the tables pages and kept, counts
// the references of packs, keeps free_space and used_bytes consistent with the rows, and collects
// the extents that no row names any more.
//
// One idea: the rows themselves show whether an extent is free, inside the transaction that removes
// the last row that names it. No other part has to remember which extents a commit named.

#ifndef SPILLWAY_IO_STORE_CATALOG_CHANGE_H_
#define SPILLWAY_IO_STORE_CATALOG_CHANGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/store/catalog.h"
#include "io/store/free_space.h"

namespace spillway::io {

// An extent, or several adjacent ones, that no commit and no snapshot names after the change.
struct FreedExtent {
  Extent extent;
  bool packed = false;
};

// A transaction. It begins in Begin and ends in Finish, FinishCommit or FinishRestore; otherwise
// the destructor rolls it back. After any error only may_be_durable and the destructor may be
// called. This connection still has the old state then. If may_be_durable, it is unknown whether
// the change reached the disk: the next opening of the file may find either state, complete.
//
//   SPILLWAY_ASSIGN_OR_RETURN(auto change, CatalogChange::Begin(catalog, last_commit));
//   SPILLWAY_RETURN_IF_ERROR(change->PutPage(id, 7, record, /*is_new_tensor=*/false));
//   SPILLWAY_ASSIGN_OR_RETURN(CatalogCommit commit, change->FinishCommit(user_state));
class CatalogChange {
 public:
  // Begins the transaction. `last` is the last commit; none if there is no commit yet. `catalog`
  // must outlive the change.
  static absl::StatusOr<std::unique_ptr<CatalogChange>> Begin(
      Catalog* catalog, const std::optional<CatalogCommit>& last);
  CatalogChange(const CatalogChange&) = delete;
  CatalogChange& operator=(const CatalogChange&) = delete;
  ~CatalogChange();

  // Changes of segment files. AddSpace adds new, free bytes, and RemoveSpace removes free bytes
  // that no longer exist. PutSegment records a file's sizes; size_bytes 0 means that the file is
  // gone.
  void AddSpace(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes) {
    space_.Add(device, segment, offset, size_bytes);
  }
  void RemoveSpace(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes) {
    space_.Take(device, segment, offset, size_bytes);
  }
  absl::Status PutSegment(const CatalogSegment& segment);

  // Changes for a new commit. AddTensor adds a tensor that the last commit does not have. PutPage
  // records a page's new copy, or that it has none any more. `is_new_tensor`: the tensor was added
  // in this change, so it has no older rows to look for.
  absl::Status AddTensor(uint64_t id, const TensorRecord& tensor);
  absl::Status PutPage(uint64_t id, uint64_t page, const std::optional<PageRecord>& record,
                       bool is_new_tensor);
  // Removes tensors of the last commit from the new one. REQUIRES: none of their pages has a copy
  // any more (PutPage).
  absl::Status RemoveTensors(const std::vector<CatalogTensor>& tensors);
  // Ends the change as the next commit, which is durable on return.
  absl::StatusOr<CatalogCommit> FinishCommit(std::string_view user_state);

  // Changes of snapshots. AlreadyExists and NotFound refer to the label. A restore ends with
  // FinishRestore, which makes the next commit. A new snapshot, a drop and a cut of files end with
  // Finish, which keeps the last commit and updates only its revision and used_bytes.
  absl::Status AddSnapshot(std::string_view label);
  absl::Status Drop(std::string_view label);
  absl::Status Restore(std::string_view label);
  absl::StatusOr<CatalogCommit> Finish();
  absl::StatusOr<CatalogCommit> FinishRestore();

  const std::vector<FreedExtent>& freed() const { return freed_; }
  // Whether SQLite was told to commit the transaction. Otherwise the change is on no disk, and
  // never will be.
  bool may_be_durable() const { return may_be_durable_; }

 private:
  struct Row {
    uint64_t id = 0;
    uint64_t page = 0;
    PageRecord record;
  };
  struct SnapshotRow {
    uint64_t number = 0;
    uint64_t digest = 0;
    std::string user_state;
  };

  CatalogChange(Catalog* catalog, const std::optional<CatalogCommit>& last);
  absl::Status Prepare();
  absl::Status Execute(std::string_view sql, std::initializer_list<uint64_t> parameters);
  absl::StatusOr<uint64_t> ReadNumber(std::string_view sql,
                                      std::initializer_list<uint64_t> parameters);
  absl::Status RemoveRows(std::string_view table, std::string_view condition,
                          std::initializer_list<uint64_t> parameters);
  absl::StatusOr<SnapshotRow> FindSnapshot(std::string_view label);
  absl::Status DropUnneededTensors();
  absl::Status Name(const PageRecord& record);
  // REQUIRES: the row that named the extent is deleted already.
  absl::Status Unname(uint64_t id, uint64_t page, const PageRecord& record);
  void AddFreed(const Extent& extent, bool packed);
  absl::StatusOr<uint64_t> PackReferences(const Extent& extent);
  absl::Status SetPackReferences(const Extent& extent, uint64_t references);
  absl::StatusOr<CatalogCommit> WriteLastCommit(CatalogCommit commit, bool is_new);

  Catalog* const catalog_;
  SqliteDatabase& database_;
  const std::optional<CatalogCommit> last_;
  const uint64_t number_;         // the number of the next commit
  uint64_t newest_snapshot_ = 0;  // the number of its commit; 0: there is no snapshot
  uint64_t rows_digest_ = 0;      // sum over all tensors and pages of commit number_
  uint64_t used_bytes_ = 0;
  std::string restored_state_;
  FreeSpaceChange space_;
  std::vector<FreedExtent> freed_;
  bool may_be_durable_ = false;

  std::optional<SqliteStatement> get_page_;
  std::optional<SqliteStatement> keep_page_;
  std::optional<SqliteStatement> put_page_;
  std::optional<SqliteStatement> erase_page_;
  std::optional<SqliteStatement> is_named_;
  std::optional<SqliteStatement> get_pack_;
  std::optional<SqliteStatement> put_pack_;
  std::optional<SqliteStatement> erase_pack_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_CATALOG_CHANGE_H_
