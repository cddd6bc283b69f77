// SPDX-License-Identifier: Apache-2.0
//
// The walk of a check reads the rows of pages and kept in the order of device, segment and offset,
// so the rows of one extent follow each other, and so do the extents of one file. Each row's digest
// is added to the commits that have the row. Each extent must lie behind the one before and within
// its file. Its pages are handed to the verifier. At the end of a file, the bytes that its extents
// left are compared with free_space.

#include <fcntl.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/store/catalog_digest.h"
#include "io/store/catalog_schema.h"
#include "io/store/free_space.h"
#include "io/store/store_checker.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr char kWalk[] =
    "SELECT " SPILLWAY_PAGE_COLUMNS
    ", p.tensor, p.page, p.born, 0, coalesce(k.num_references, 0), coalesce(k.size_bytes, 0) "
    "FROM pages p" SPILLWAY_PACK_JOIN "UNION ALL SELECT " SPILLWAY_PAGE_COLUMNS
    ", p.tensor, p.page, p.born, p.died, coalesce(k.num_references, 0), coalesce(k.size_bytes, 0) "
    "FROM kept p" SPILLWAY_PACK_JOIN "ORDER BY 1, 2, 3, 7";

}  // namespace

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
  SPILLWAY_RETURN_IF_ERROR(verifier_->Finish());
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
  rows_.push_back(row);
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
  const uint64_t content_bytes = row.record.content_bytes;
  if (base::RoundUp(row.record.skip_bytes % kIoAlignment + content_bytes, kIoAlignment) >
      base::RoundUp(content_bytes, kIoAlignment)) {
    FoundOnPage(row, absl::StrFormat("its %d bytes cross more units of %d than they fill",
                                     content_bytes, kIoAlignment));
  }
  if (!last_ || row.born > last_->number || row.died > last_->number) {
    FoundOnPage(row, "it is of a commit that never was");
  } else if (CommitsWith(row.born, row.died).empty()) {
    FoundOnPage(row, "it is kept, but no snapshot needs it");
  }
}

// Checks that the rows of one extent are of one page, or share the extent as a pack.
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
    const absl::StatusCode code = file.status().code();
    // Any other error, such as a limit on open files, says nothing about the store.
    if (code != absl::StatusCode::kNotFound && code != absl::StatusCode::kDataLoss &&
        code != absl::StatusCode::kUnavailable) {
      return file.status();
    }
    for (const Row& row : rows_) FoundOnPage(row, std::string(file.status().message()));
    return absl::OkStatus();
  }
  std::vector<PageVerifier::Page> pages;
  for (const Row& row : rows_) {
    // CheckSharing has reported it. What is read has the size of the first row's extent.
    if (row.record.extent.size_bytes != extent.size_bytes) continue;
    // A restored page and the kept one have the same bytes, so they are verified once.
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
  return verifier_->Add(*file, extent, std::move(pages));
}

absl::StatusOr<FileId> StoreChecker::FileOf(const Extent& extent) {
  const SegmentKey key(extent.device, extent.segment);
  auto found = open_files_.find(key);
  if (found == open_files_.end()) {
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
  if (verifier_) verifier_->Finish().IgnoreError();  // the next call of Add or Finish returns it
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

// Compares the files before `key` that have no extent.
absl::Status StoreChecker::FinishFilesBefore(SegmentKey key) {
  for (; next_file_ != segments_.end() && next_file_->first < key; ++next_file_) {
    SPILLWAY_ASSIGN_OR_RETURN(std::vector<Piece> pieces, FreePieces(next_file_->first));
    Compare(next_file_->first, std::move(pieces), next_file_->second.size_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StoreChecker::Piece>> StoreChecker::FreePieces(SegmentKey key) {
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
    // The walk has already reported extents that overlap.
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

}  // namespace spillway::io
