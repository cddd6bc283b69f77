// SPDX-License-Identifier: Apache-2.0
//
// A change of what the catalog's commits name, as one transaction: a new commit, a snapshot
// restored or dropped, a file cut. It moves rows between pages and kept, counts the references of
// packs, keeps free_space and used_bytes in step, and gathers which extents nothing names any more.
//
// One idea: whether an extent may go is asked of the rows, inside the transaction that removes the
// last of them. Nothing outside has to remember what a commit named.

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

// An extent, or several that lie side by side, that no commit and no snapshot names since the
// change.
struct FreedExtent {
  Extent extent;
  bool packed = false;
};

// A transaction. It begins with the object and ends with Finish or, rolled back, with the
// destructor. After any error only the destructor may follow. An error of Finish leaves it unknown
// whether the change reached the disk: whoever opens the file next may find either state, whole;
// through this connection the old one stands.
//
//   SPILLWAY_ASSIGN_OR_RETURN(auto change, CatalogChange::Begin(catalog, last_commit));
//   SPILLWAY_RETURN_IF_ERROR(change->PutPage(id, 7, record, /*is_new_tensor=*/false));
//   SPILLWAY_ASSIGN_OR_RETURN(CatalogCommit commit, change->FinishCommit(user_state));
class CatalogChange {
 public:
  // `last` is the last commit; none: this will be the first. `catalog` must outlive it.
  static absl::StatusOr<std::unique_ptr<CatalogChange>> Begin(
      Catalog* catalog, const std::optional<CatalogCommit>& last);
  CatalogChange(const CatalogChange&) = delete;
  CatalogChange& operator=(const CatalogChange&) = delete;
  ~CatalogChange();

  // Segment files: bytes that exist from now on, bytes that do no more, and what is known of a file
  // (size_bytes 0: it is gone).
  void AddSpace(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes) {
    space_.Add(device, segment, offset, size_bytes);
  }
  void RemoveSpace(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes) {
    space_.Take(device, segment, offset, size_bytes);
  }
  absl::Status PutSegment(const CatalogSegment& segment);

  // For a new commit: a tensor that it has and the last had not; a page's new copy, or none any
  // more. A tensor that was added in this change has no rows to look for.
  absl::Status AddTensor(uint64_t id, const TensorRecord& tensor);
  absl::Status PutPage(uint64_t id, uint64_t page, const std::optional<PageRecord>& record,
                       bool is_new_tensor);
  // Tensors that the last commit has and the new one has not. REQUIRES: none of their pages has a
  // copy (PutPage).
  absl::Status RemoveTensors(const std::vector<CatalogTensor>& tensors);
  // Ends it as the next commit. Durable on return.
  absl::StatusOr<CatalogCommit> FinishCommit(std::string_view user_state);

  // AlreadyExists, NotFound: the label. End a snapshot, a drop and a cut with Finish, which leaves
  // the last commit what it is, and a restore with FinishRestore.
  absl::Status AddSnapshot(std::string_view label);
  absl::Status Drop(std::string_view label);
  absl::Status Restore(std::string_view label);
  absl::StatusOr<CatalogCommit> Finish();
  absl::StatusOr<CatalogCommit> FinishRestore();

  const std::vector<FreedExtent>& freed() const { return freed_; }

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
  // After the row that named it is gone.
  absl::Status Unname(uint64_t id, uint64_t page, const PageRecord& record);
  void AddFreed(const Extent& extent, bool packed);
  absl::StatusOr<uint64_t> PackReferences(const Extent& extent);
  absl::Status SetPackReferences(const Extent& extent, uint64_t references);
  absl::StatusOr<CatalogCommit> WriteLastCommit(CatalogCommit commit, bool is_new);

  Catalog* const catalog_;
  SqliteDatabase& database_;
  const std::optional<CatalogCommit> last_;
  const uint64_t number_;         // of the commit that this may become
  uint64_t newest_snapshot_ = 0;  // its commit's number; 0: there is none
  uint64_t rows_digest_ = 0;      // of all rows of tensors and pages that number_ has
  uint64_t used_bytes_ = 0;
  std::string restored_state_;
  FreeSpaceChange space_;
  std::vector<FreedExtent> freed_;

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
