// SPDX-License-Identifier: Apache-2.0
//
// The state of one check of a store: what it has read of the small tables, and the position of its
// walk. store_check.cc implements the checks of tables and sums, store_walk.cc the walk.

#ifndef SPILLWAY_IO_STORE_STORE_CHECKER_H_
#define SPILLWAY_IO_STORE_STORE_CHECKER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/direct_file.h"
#include "io/io_engine.h"
#include "io/store/catalog.h"
#include "io/store/page_verifier.h"
#include "io/store/sqlite.h"
#include "io/store/store_check.h"
#include "io/store/store_view.h"

namespace spillway::io {

// Makes one check. Externally synchronised.
class StoreChecker {
 public:
  StoreChecker(const StoreView& view, IoEngine* io, const StoreCheckOptions& options)
      : view_(view), io_(io), options_(options) {}
  ~StoreChecker() { CloseFiles(); }

  absl::StatusOr<StoreCheckReport> Run();

 private:
  // A commit that the store retains: the last, or a snapshot's.
  struct KeptCommit {
    std::string name;
    uint64_t number = 0;
    uint64_t digest = 0;      // as stored
    uint64_t sum = 0;         // as added up
    bool is_complete = true;  // false: a row could not be read, so the sum is not compared
  };

  struct TensorFacts {
    std::string name;
    uint64_t num_pages = 0;
    bool is_alive = false;  // in the last commit
  };

  // A row of the table pages (died is 0) or kept.
  struct Row {
    PageRecord record;
    uint64_t tensor = 0;
    uint64_t page = 0;
    uint64_t born = 0;
    uint64_t died = 0;
    uint64_t pack_references = 0;
    uint64_t pack_bytes = 0;
  };

  // Bytes [begin, end) of a file.
  struct Piece {
    uint64_t begin = 0;
    uint64_t end = 0;
    bool is_free = false;
  };

  using SegmentKey = std::pair<uint16_t, uint32_t>;
  struct OpenFile {
    DirectFile file;
    FileId id;
  };

  // The steps of a check. DataLoss, or an error of the device, ends the step and becomes a finding.
  absl::Status CheckDatabase();
  absl::Status LoadCommits();
  absl::Status LoadTensors();
  absl::Status CheckProfiles();
  absl::Status LoadFiles();
  absl::Status Walk();
  absl::Status CheckSums();

  absl::StatusOr<uint64_t> ReadNumber(const char* sql);
  absl::Status TakeRow(const SqliteStatement& row);
  absl::Status FinishExtent();
  absl::Status FinishFile();
  absl::Status FinishFilesBefore(SegmentKey key);
  void CheckRow(const Row& row);
  void CheckSharing();
  void AddToDigests(const Row& row);
  absl::Status Verify();
  absl::StatusOr<FileId> FileOf(const Extent& extent);
  absl::StatusOr<std::vector<Piece>> FreePieces(SegmentKey key);
  void Compare(SegmentKey key, std::vector<Piece> pieces, uint64_t size_bytes);
  void CloseFiles();

  const StoreFolder& Folder(uint16_t device) const { return view_.folders()[device]; }
  std::string PathOf(SegmentKey key) const;
  std::vector<std::string> CommitsWith(uint64_t born, uint64_t died) const;
  void Found(StoreFinding finding);
  void FoundOnPage(const Row& row, const std::string& what);
  void FoundInFile(SegmentKey key, std::optional<uint64_t> offset, const std::string& what);

  const StoreView& view_;
  IoEngine* const io_;
  const StoreCheckOptions& options_;
  StoreCheckReport report_;

  std::optional<CatalogCommit> last_;
  std::vector<KeptCommit> commits_;  // the last commit first, if there is one
  std::map<uint64_t, TensorFacts> tensors_;
  std::map<SegmentKey, CatalogSegment> segments_;
  uint64_t walked_free_bytes_ = 0;
  uint64_t named_packs_ = 0;

  // State of the walk: the rows of the current extent, and the extents of the current file.
  std::vector<Row> rows_;
  std::vector<Piece> used_;
  std::optional<SegmentKey> file_;
  std::map<SegmentKey, CatalogSegment>::const_iterator next_file_;
  std::map<SegmentKey, absl::StatusOr<OpenFile>> open_files_;
  std::optional<PageVerifier> verifier_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_CHECKER_H_
