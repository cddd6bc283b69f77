// SPDX-License-Identifier: Apache-2.0
//
// The check, in steps:
//   1. SQLite's own check of the catalog, which reads every page of it.
//   2. The small tables: commits, tensors, segment files; and the files that there are.
//   3. The walk: rows of pages and kept in the order of device, segment, offset. Rows of one extent
//      come together, extents of one file follow each other. Each row's digest goes to the commits
//      that have it; each extent must lie behind the one before and within its file; its pages are
//      handed to the verifier; when a file ends, what its extents left is compared with free_space.
//   4. The digests and sums.
// A step that meets damage which it cannot pass reports it, and the next step goes on.

#include "io/store/store_check.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/direct_file.h"
#include "io/store/catalog_digest.h"
#include "io/store/catalog_schema.h"
#include "io/store/free_space.h"
#include "io/store/page_verifier.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

// A commit that the store keeps: the last, or a snapshot's.
struct KeptCommit {
  std::string name;
  uint64_t number = 0;
  uint64_t digest = 0;      // as stored
  uint64_t sum = 0;         // as added up
  bool is_complete = true;  // false: a row could not be read, so the sum says nothing
};

struct TensorFacts {
  std::string name;
  uint64_t num_pages = 0;
  bool is_alive = false;  // in the last commit
};

// A row of pages (died 0) or kept.
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

constexpr char kWalk[] =
    "SELECT " SPILLWAY_PAGE_COLUMNS
    ", p.tensor, p.page, p.born, 0, coalesce(k.num_references, 0), coalesce(k.size_bytes, 0) "
    "FROM pages p" SPILLWAY_PACK_JOIN "UNION ALL SELECT " SPILLWAY_PAGE_COLUMNS
    ", p.tensor, p.page, p.born, p.died, coalesce(k.num_references, 0), coalesce(k.size_bytes, 0) "
    "FROM kept p" SPILLWAY_PACK_JOIN "ORDER BY 1, 2, 3, 7";

class StoreChecker {
 public:
  StoreChecker(const StoreView& view, IoEngine* io, const StoreCheckOptions& options)
      : view_(view), io_(io), options_(options) {}
  ~StoreChecker() { CloseFiles(); }

  absl::StatusOr<StoreCheckReport> Run();

 private:
  using SegmentKey = std::pair<uint16_t, uint32_t>;
  struct OpenFile {
    DirectFile file;
    FileId id;
  };

  // Steps. DataLoss ends the step and becomes a finding.
  absl::Status CheckDatabase();
  absl::Status LoadCommits();
  absl::Status LoadTensors();
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
  std::string PathOf(SegmentKey key) const {
    // An impossible row may name a folder that is none.
    if (key.first >= view_.folders().size()) return absl::StrCat("folder ", key.first);
    return Folder(key.first).SegmentPath(key.second);
  }
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

  // The walk: the rows of the extent at hand, and the extents of the file at hand.
  std::vector<Row> rows_;
  std::vector<Piece> used_;
  std::optional<SegmentKey> file_;
  std::map<SegmentKey, CatalogSegment>::const_iterator next_file_;
  std::map<SegmentKey, absl::StatusOr<OpenFile>> open_files_;
  std::optional<PageVerifier> verifier_;
};

absl::StatusOr<StoreCheckReport> StoreChecker::Run() {
  verifier_.emplace(
      io_, [this](const Extent& extent, const PageVerifier::Page& page, const absl::Status& why) {
        Row row;
        row.record.extent = extent;
        row.record.skip_bytes = page.skip_bytes;
        row.tensor = page.tensor;
        row.page = page.page;
        row.born = page.born;
        row.died = page.died;
        FoundOnPage(row, std::string(why.message()));
      });
  for (const auto step :
       {&StoreChecker::CheckDatabase, &StoreChecker::LoadCommits, &StoreChecker::LoadTensors,
        &StoreChecker::LoadFiles, &StoreChecker::Walk, &StoreChecker::CheckSums}) {
    const absl::Status status = (this->*step)();
    if (status.ok()) continue;
    if (!absl::IsDataLoss(status)) return status;
    Found({.message = std::string(status.message()), .path = view_.catalog().path()});
  }
  report_.read_bytes = verifier_->read_bytes();
  return std::move(report_);
}

// --- The small tables ---

absl::Status StoreChecker::CheckDatabase() {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement check,
                            view_.catalog().database().Prepare("PRAGMA integrity_check(20)"));
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, check.Step());
    if (!has_row) return absl::OkStatus();
    const std::string text = check.Bytes(0);
    if (text == "ok") continue;
    Found({.message = absl::StrCat(view_.catalog().path(), " is damaged: ", text),
           .path = view_.catalog().path()});
  }
}

absl::Status StoreChecker::LoadCommits() {
  SPILLWAY_ASSIGN_OR_RETURN(last_, view_.catalog().ReadCommit());
  const uint64_t page_bytes = view_.catalog().meta().page_bytes;
  if (last_) {
    commits_.push_back({"the last commit", last_->number, last_->digest,
                        CommitDigest(last_->number, page_bytes, last_->user_state)});
  }
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement get,
      view_.catalog().database().Prepare(
          "SELECT number, digest, label, user_state FROM snapshots ORDER BY number, label"));
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
    if (!has_row) return absl::OkStatus();
    RowReader reader(get);
    KeptCommit commit;
    commit.number = reader.Next(kMaxInteger);
    commit.digest = reader.NextHash();
    commit.name = absl::StrCat("snapshot '", get.Bytes(2), "'");
    commit.sum = CommitDigest(commit.number, page_bytes, get.Bytes(3));
    ++report_.snapshots;
    if (!reader.ok() || !last_ || commit.number == 0 || commit.number > last_->number) {
      Found({.message = absl::StrCat(commit.name, " names an impossible commit")});
      continue;
    }
    commits_.push_back(std::move(commit));
  }
}

absl::Status StoreChecker::LoadTensors() {
  {
    SPILLWAY_ASSIGN_OR_RETURN(
        SqliteStatement get,
        view_.catalog().database().Prepare("SELECT id, num_pages, name, description FROM tensors"));
    while (true) {
      SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
      if (!has_row) break;
      RowReader reader(get);
      const uint64_t id = reader.Next(kMaxInteger);
      TensorFacts facts{.num_pages = reader.Next(kMaxInteger)};
      facts.name = get.Bytes(2);
      if (!reader.ok() || id == 0 || facts.name.empty() || facts.name.size() > 512) {
        return view_.catalog().Damaged(absl::StrCat("the row of tensor ", id, " is impossible"));
      }
      tensors_[id] = std::move(facts);
    }
  }
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement get,
      view_.catalog().database().Prepare("SELECT s.tensor, s.born, coalesce(s.died, 0), "
                                         "t.num_pages, t.name, t.description FROM tensor_spans s "
                                         "JOIN tensors t ON t.id = s.tensor"));
  std::set<std::string> alive;
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
    if (!has_row) break;
    RowReader reader(get);
    const uint64_t id = reader.Next(kMaxInteger);
    const uint64_t born = reader.Next(kMaxInteger);
    const uint64_t died = reader.Next(kMaxInteger);
    const TensorRecord record{get.Bytes(4), get.Bytes(5), reader.Next(kMaxInteger)};
    const bool possible =
        reader.ok() && last_ && born > 0 && born <= last_->number && died <= last_->number;
    if (!possible) return view_.catalog().Damaged("a row of tensor_spans is impossible");
    if (died == 0) {
      tensors_[id].is_alive = true;
      ++report_.tensors;
      if (!alive.insert(record.name).second) {
        Found({.message =
                   absl::StrCat("two tensors of the last commit are named '", record.name, "'"),
               .tensor = record.name});
      }
    }
    const uint64_t digest = TensorDigest(id, record);
    for (KeptCommit& commit : commits_) {
      if (born <= commit.number && (died == 0 || commit.number < died)) commit.sum += digest;
    }
  }
  SPILLWAY_ASSIGN_OR_RETURN(
      const uint64_t lost,
      ReadNumber("SELECT (SELECT count(*) FROM tensor_spans WHERE tensor NOT IN (SELECT id FROM "
                 "tensors)) + (SELECT count(*) FROM tensors WHERE id NOT IN (SELECT tensor FROM "
                 "tensor_spans))"));
  if (lost > 0) {
    Found({.message = absl::StrCat(lost,
                                   " rows of tensors and tensor_spans do not belong to one "
                                   "another")});
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> StoreChecker::ReadNumber(const char* sql) {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement get, view_.catalog().database().Prepare(sql));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
  return has_row ? static_cast<uint64_t>(get.Integer(0)) : 0;
}

// The catalog's segment files, against those that are there.
absl::Status StoreChecker::LoadFiles() {
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<CatalogSegment> known,
                            view_.catalog().ReadSegments());
  for (const CatalogSegment& segment : known) {
    segments_[{segment.device, segment.segment}] = segment;
  }
  const auto orphan = [&](Orphan found) {
    report_.orphan_bytes += found.size_bytes;
    report_.orphans.push_back(std::move(found));
  };
  std::set<SegmentKey> there;
  for (uint16_t device = 0; device < view_.folders().size(); ++device) {
    SPILLWAY_ASSIGN_OR_RETURN(const auto numbers, Folder(device).ListSegments());
    for (const uint32_t number : numbers) {
      const SegmentKey key(device, number);
      there.insert(key);
      struct stat info;
      if (::stat(PathOf(key).c_str(), &info) != 0) continue;
      const auto bytes = static_cast<uint64_t>(info.st_size);
      const auto segment = segments_.find(key);
      const uint64_t expected = segment == segments_.end() ? 0 : segment->second.size_bytes;
      if (bytes < expected) {
        FoundInFile(key, std::nullopt,
                    absl::StrFormat("it has %d bytes and should have %d", bytes, expected));
      } else if (bytes > expected || expected == 0) {
        orphan({Orphan::Kind::kTail, device, number, PathOf(key), expected, bytes - expected});
      }
    }
    SPILLWAY_ASSIGN_OR_RETURN(const auto leftovers, Folder(device).ListUnfinishedFiles());
    for (const std::string& path : leftovers) {
      struct stat info;
      const bool known_size = ::stat(path.c_str(), &info) == 0;
      orphan({Orphan::Kind::kLeftover, device, 0, path, 0,
              known_size ? static_cast<uint64_t>(info.st_size) : 0});
    }
  }
  for (const auto& [key, segment] : segments_) {
    if (!there.contains(key)) FoundInFile(key, std::nullopt, "it is missing");
  }
  return absl::OkStatus();
}

// --- The walk ---

absl::Status StoreChecker::Walk() {
  next_file_ = segments_.begin();
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement rows, view_.catalog().database().Prepare(kWalk));
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, rows.Step());
    if (!has_row) break;
    SPILLWAY_RETURN_IF_ERROR(TakeRow(rows));
  }
  SPILLWAY_RETURN_IF_ERROR(FinishExtent());
  SPILLWAY_RETURN_IF_ERROR(FinishFile());
  SPILLWAY_RETURN_IF_ERROR(FinishFilesBefore({UINT16_MAX, UINT32_MAX}));
  verifier_->Finish();
  CloseFiles();
  return absl::OkStatus();
}

absl::Status StoreChecker::TakeRow(const SqliteStatement& statement) {
  RowReader reader(statement);
  Row row;
  row.record = reader.NextPage(view_.catalog().meta().num_folders);
  row.tensor = reader.Next(kMaxInteger);
  row.page = reader.Next(kMaxInteger);
  row.born = reader.Next(kMaxInteger);
  row.died = reader.Next(kMaxInteger);
  row.pack_references = reader.Next(kMaxInteger);
  row.pack_bytes = reader.Next(kMaxInteger);
  ++report_.pages;
  if (!reader.ok()) {
    for (KeptCommit& commit : commits_) commit.is_complete = false;
    FoundOnPage(row, "its row in the catalog is impossible");
    return absl::OkStatus();
  }
  const Extent& extent = row.record.extent;
  const bool same_extent = !rows_.empty() && rows_[0].record.extent.device == extent.device &&
                           rows_[0].record.extent.segment == extent.segment &&
                           rows_[0].record.extent.offset == extent.offset;
  if (!same_extent) {
    SPILLWAY_RETURN_IF_ERROR(FinishExtent());
    const SegmentKey key(extent.device, extent.segment);
    if (file_ != key) {
      SPILLWAY_RETURN_IF_ERROR(FinishFile());
      SPILLWAY_RETURN_IF_ERROR(FinishFilesBefore(key));
      file_ = key;
    }
  }
  AddToDigests(row);
  CheckRow(row);
  rows_.push_back(std::move(row));
  return absl::OkStatus();
}

void StoreChecker::AddToDigests(const Row& row) {
  const uint64_t digest = PageDigest(row.tensor, row.page, row.record);
  for (KeptCommit& commit : commits_) {
    const bool is_last = &commit == commits_.data();
    const bool has_row =
        is_last ? row.died == 0
                : row.born <= commit.number && (row.died == 0 || commit.number < row.died);
    if (has_row) commit.sum += digest;
  }
}

void StoreChecker::CheckRow(const Row& row) {
  const auto tensor = tensors_.find(row.tensor);
  if (tensor == tensors_.end()) {
    FoundOnPage(row, "the catalog has no such tensor");
  } else if (row.page >= tensor->second.num_pages) {
    FoundOnPage(row, absl::StrFormat("the tensor has %d pages", tensor->second.num_pages));
  } else if (row.died == 0 && !tensor->second.is_alive) {
    FoundOnPage(row, "the tensor is no part of the last commit");
  }
  if (row.record.content_bytes > view_.catalog().meta().page_bytes) {
    FoundOnPage(row,
                absl::StrFormat("it has %d bytes, more than a page", row.record.content_bytes));
  }
  if (!last_ || row.born > last_->number || row.died > last_->number) {
    FoundOnPage(row, "it is of a commit that never was");
  } else if (CommitsWith(row.born, row.died).empty()) {
    FoundOnPage(row, "it is kept, but no snapshot needs it");
  }
}

// Rows of one extent are of one page, or share it through packs.
void StoreChecker::CheckSharing() {
  const Row& first = rows_[0];
  uint64_t end = 0;
  for (size_t i = 1; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    const bool same_page = row.tensor == rows_[i - 1].tensor && row.page == rows_[i - 1].page;
    if (row.record.extent.size_bytes != first.record.extent.size_bytes) {
      FoundOnPage(row, "its extent has another size in another row");
    } else if (!row.record.packed && !same_page) {
      FoundOnPage(row, absl::StrFormat("its extent is also page %d of tensor %d", first.page,
                                       first.tensor));
    }
  }
  if (!first.record.packed) return;
  ++named_packs_;
  if (first.pack_references != rows_.size() || first.pack_bytes != first.record.extent.size_bytes) {
    FoundInFile(
        {first.record.extent.device, first.record.extent.segment}, first.record.extent.offset,
        absl::StrFormat("its row in packs counts %d pages and %d bytes; there are %d and %d",
                        first.pack_references, first.pack_bytes, rows_.size(),
                        first.record.extent.size_bytes));
  }
  std::vector<const Row*> by_place;
  for (const Row& row : rows_) by_place.push_back(&row);
  std::sort(by_place.begin(), by_place.end(), [](const Row* a, const Row* b) {
    return std::tuple(a->record.skip_bytes, a->tensor, a->page) <
           std::tuple(b->record.skip_bytes, b->tensor, b->page);
  });
  const Row* before = nullptr;
  for (const Row* row : by_place) {
    const bool same_page =
        before != nullptr && before->tensor == row->tensor && before->page == row->page;
    if (row->record.skip_bytes < end && !same_page) {
      FoundOnPage(*row, "it overlaps another page of its extent");
    }
    end = std::max<uint64_t>(end, row->record.skip_bytes + row->record.content_bytes);
    before = row;
  }
}

absl::Status StoreChecker::FinishExtent() {
  if (rows_.empty()) return absl::OkStatus();
  if (options_.stop != nullptr && options_.stop->load()) {
    return absl::CancelledError("the check was interrupted");
  }
  const Extent extent = rows_[0].record.extent;
  const uint64_t end = extent.offset + extent.size_bytes;
  CheckSharing();
  if (!used_.empty() && extent.offset < used_.back().end) {
    FoundOnPage(rows_[0], absl::StrFormat("its extent begins within another, which ends at %d",
                                          used_.back().end));
  }
  const auto segment = segments_.find(*file_);
  if (segment == segments_.end()) {
    FoundOnPage(rows_[0], "the catalog does not know its file");
  } else if (end > segment->second.written_bytes) {
    FoundOnPage(rows_[0], absl::StrFormat("its extent ends at %d, but the file was written to %d",
                                          end, segment->second.written_bytes));
  }
  if (!used_.empty() && used_.back().end == extent.offset) {
    used_.back().end = end;
  } else {
    used_.push_back({extent.offset, end, false});
  }
  ++report_.extents;
  report_.used_bytes += extent.size_bytes;
  if (options_.read_pages) SPILLWAY_RETURN_IF_ERROR(Verify());
  if (options_.progress) options_.progress(report_.used_bytes, last_ ? last_->used_bytes : 0);
  rows_.clear();
  return absl::OkStatus();
}

absl::Status StoreChecker::Verify() {
  const Extent& extent = rows_[0].record.extent;
  const absl::StatusOr<FileId> file = FileOf(extent);
  if (!file.ok()) {
    for (const Row& row : rows_) FoundOnPage(row, std::string(file.status().message()));
    return absl::OkStatus();
  }
  std::vector<PageVerifier::Page> pages;
  for (const Row& row : rows_) {
    // A restored page and the kept one are the same bytes.
    const bool same = !pages.empty() && pages.back().tensor == row.tensor &&
                      pages.back().page == row.page &&
                      pages.back().skip_bytes == row.record.skip_bytes &&
                      pages.back().content_bytes == row.record.content_bytes &&
                      pages.back().checksum == row.record.checksum;
    if (same) {
      pages.back().born = std::min(pages.back().born, row.born);
      pages.back().died = row.died == 0 ? 0 : std::max(pages.back().died, row.died);
      continue;
    }
    pages.push_back({.tensor = row.tensor,
                     .page = row.page,
                     .born = row.born,
                     .died = row.died,
                     .skip_bytes = row.record.skip_bytes,
                     .content_bytes = row.record.content_bytes,
                     .checksum = row.record.checksum});
  }
  verifier_->Add(*file, extent, std::move(pages));
  return absl::OkStatus();
}

absl::StatusOr<FileId> StoreChecker::FileOf(const Extent& extent) {
  const SegmentKey key(extent.device, extent.segment);
  auto found = open_files_.find(key);
  if (found == open_files_.end()) {
    verifier_->Finish();  // of the file before, which is not needed any more
    CloseFiles();
    const auto open = [&]() -> absl::StatusOr<OpenFile> {
      SPILLWAY_ASSIGN_OR_RETURN(DirectFile file, OpenDirect(PathOf(key), O_RDONLY));
      SPILLWAY_ASSIGN_OR_RETURN(const FileId id, io_->AddFile(file.fd(), PathOf(key), key.first));
      return OpenFile{std::move(file), id};
    };
    found = open_files_.emplace(key, open()).first;
  }
  if (!found->second.ok()) return found->second.status();
  return found->second->id;
}

void StoreChecker::CloseFiles() {
  if (verifier_) verifier_->Finish();
  for (const auto& [key, file] : open_files_) {
    if (file.ok()) (void)io_->RemoveFile(file->id);
  }
  open_files_.clear();
}

// --- What is between the extents ---

absl::Status StoreChecker::FinishFile() {
  if (!file_) return absl::OkStatus();
  const SegmentKey key = *std::exchange(file_, std::nullopt);
  const std::vector<Piece> used = std::exchange(used_, {});
  const auto segment = segments_.find(key);
  if (segment == segments_.end()) return absl::OkStatus();
  SPILLWAY_ASSIGN_OR_RETURN(std::vector<Piece> pieces, FreePieces(key));
  pieces.insert(pieces.end(), used.begin(), used.end());
  Compare(key, std::move(pieces), segment->second.size_bytes);
  next_file_ = std::next(segment);
  return absl::OkStatus();
}

// Files without any extent.
absl::Status StoreChecker::FinishFilesBefore(SegmentKey key) {
  for (; next_file_ != segments_.end() && next_file_->first < key; ++next_file_) {
    SPILLWAY_ASSIGN_OR_RETURN(std::vector<Piece> pieces, FreePieces(next_file_->first));
    Compare(next_file_->first, std::move(pieces), next_file_->second.size_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Piece>> StoreChecker::FreePieces(SegmentKey key) {
  constexpr uint64_t kChunksAtOnce = 1024;
  std::vector<Piece> pieces;
  ChunkId from{key.second, 0};
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<FreeChunk> chunks,
                              view_.catalog().ReadFreeChunks(key.first, from, kChunksAtOnce));
    for (const FreeChunk& chunk : chunks) {
      if (chunk.id.segment != key.second) return pieces;
      for (const UnitRun& run : chunk.runs) {
        const uint64_t begin = uint64_t{chunk.id.chunk} * kChunkBytes + run.first * kIoAlignment;
        pieces.push_back({begin, begin + run.count * kIoAlignment, true});
        walked_free_bytes_ += run.count * kIoAlignment;
      }
    }
    if (chunks.size() < kChunksAtOnce) return pieces;
    from = {chunks.back().id.segment, chunks.back().id.chunk + 1};
  }
}

void StoreChecker::Compare(SegmentKey key, std::vector<Piece> pieces, uint64_t size_bytes) {
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  uint64_t at = 0;
  const auto unnamed = [&](uint64_t end) {
    if (end <= at) return;
    report_.orphan_bytes += end - at;
    report_.orphans.push_back(
        {Orphan::Kind::kUnnamed, key.first, key.second, PathOf(key), at, end - at});
  };
  bool before_is_free = false;
  for (const Piece& piece : pieces) {
    // Extents that overlap were reported by the walk.
    if (piece.begin < at && (piece.is_free || before_is_free)) {
      FoundInFile(key, piece.begin, "bytes are free and a page's at once");
    }
    unnamed(std::min(piece.begin, size_bytes));
    at = std::max(at, piece.end);
    before_is_free = piece.is_free;
  }
  unnamed(size_bytes);
  if (at > size_bytes) {
    FoundInFile(key, size_bytes, "bytes are named that lie beyond what the catalog knows of it");
  }
}

// --- The end ---

absl::Status StoreChecker::CheckSums() {
  for (const KeptCommit& commit : commits_) {
    if (commit.sum == commit.digest || !commit.is_complete) continue;
    Found(
        {.message = absl::StrFormat("%s: the catalog's rows add up to the digest %016x, not %016x: "
                                    "rows were changed, lost or added",
                                    commit.name, commit.sum, commit.digest),
         .path = view_.catalog().path()});
  }
  SPILLWAY_ASSIGN_OR_RETURN(report_.free_bytes,
                            ReadNumber("SELECT coalesce(sum(free_bytes), 0) FROM free_space"));
  if (report_.free_bytes != walked_free_bytes_) {
    Found({.message = absl::StrFormat("free_space counts %d bytes, its runs in known files have %d",
                                      report_.free_bytes, walked_free_bytes_),
           .path = view_.catalog().path()});
  }
  if (last_ && last_->used_bytes != report_.used_bytes) {
    Found({.message = absl::StrFormat("the last commit counts %d bytes in use, its extents have %d",
                                      last_->used_bytes, report_.used_bytes),
           .path = view_.catalog().path()});
  }
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t packs, ReadNumber("SELECT count(*) FROM packs"));
  if (packs != named_packs_) {
    Found({.message =
               absl::StrFormat("packs has %d rows, of which pages name %d", packs, named_packs_),
           .path = view_.catalog().path()});
  }
  return absl::OkStatus();
}

std::vector<std::string> StoreChecker::CommitsWith(uint64_t born, uint64_t died) const {
  std::vector<std::string> names;
  for (const KeptCommit& commit : commits_) {
    if (born <= commit.number && (died == 0 || commit.number < died)) names.push_back(commit.name);
  }
  return names;
}

void StoreChecker::Found(StoreFinding finding) {
  if (++report_.damage <= options_.max_findings) report_.findings.push_back(std::move(finding));
}

void StoreChecker::FoundOnPage(const Row& row, const std::string& what) {
  const auto tensor = tensors_.find(row.tensor);
  StoreFinding finding;
  finding.tensor = tensor != tensors_.end() ? tensor->second.name : absl::StrCat("#", row.tensor);
  finding.page = row.page;
  finding.path = PathOf({row.record.extent.device, row.record.extent.segment});
  finding.offset = row.record.extent.offset + row.record.skip_bytes;
  finding.commits = CommitsWith(row.born, row.died);
  finding.message = absl::StrFormat("tensor '%s' page %d at offset %d of %s: %s", finding.tensor,
                                    row.page, *finding.offset, finding.path, what);
  if (!finding.commits.empty()) {
    absl::StrAppend(&finding.message, " (needed by ", absl::StrJoin(finding.commits, ", "), ")");
  }
  Found(std::move(finding));
}

void StoreChecker::FoundInFile(SegmentKey key, std::optional<uint64_t> offset,
                               const std::string& what) {
  const std::string place = offset ? absl::StrFormat("offset %d of ", *offset) : "";
  Found({.message = absl::StrCat(place, PathOf(key), ": ", what),
         .path = PathOf(key),
         .offset = offset});
}

}  // namespace

absl::StatusOr<StoreCheckReport> CheckStore(const StoreView& view, IoEngine* io,
                                            const StoreCheckOptions& options) {
  return StoreChecker(view, io, options).Run();
}

}  // namespace spillway::io
