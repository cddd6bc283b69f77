// SPDX-License-Identifier: Apache-2.0
//
// A tensor's tiles follow one another in its pages. Each tile begins a page, so the last page of a
// tile may be short.

#include "src/engine/tensor_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "io/checksum.h"
#include "io/store/catalog_schema.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::engine {
namespace {

using io::SqliteStatement;

constexpr size_t kMaxOpenFiles = 64;

// Reads all `size_bytes`, and continues after short reads.
absl::Status ReadAt(const io::DirectFile& file, std::byte* out, size_t size_bytes,
                    uint64_t offset) {
  size_t done = 0;
  while (done < size_bytes) {
    const ssize_t got =
        pread(file.fd(), out + done, size_bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::ErrnoToStatus(errno, "read " + file.path());
    if (got == 0) return absl::DataLossError(file.path() + " ends too early");
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<TensorReader::Found>> TensorReader::FindRow(const std::string& name) {
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement get,
      view_.catalog().database().Prepare(
          "SELECT t.id, t.num_pages, t.description FROM tensors t JOIN tensor_spans s ON s.tensor "
          "= "
          "t.id WHERE t.name = ?1 AND s.born <= ?2 AND (s.died IS NULL OR s.died > ?2)"));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.BindText(1, name).Bind(2, commit_).Step());
  if (!has_row) return std::optional<Found>();
  io::RowReader reader(get);
  Found found;
  found.id = reader.Next(io::kMaxInteger);
  found.num_pages = reader.Next(io::kMaxInteger);
  found.description = get.Bytes(2);
  if (!reader.ok()) return view_.catalog().Damaged("the row of tensor " + name + " is impossible");
  return std::optional(std::move(found));
}

absl::StatusOr<std::optional<std::string>> TensorReader::Description(const std::string& name) {
  SPILLWAY_ASSIGN_OR_RETURN(std::optional<Found> found, FindRow(name));
  if (!found) return std::optional<std::string>();
  return std::optional(std::move(found->description));
}

absl::StatusOr<std::map<uint64_t, io::PageRecord>> TensorReader::ReadRows(uint64_t id) {
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement get,
      view_.catalog().database().Prepare(
          "SELECT " SPILLWAY_PAGE_COLUMNS ", p.page FROM pages p" SPILLWAY_PACK_JOIN
          "WHERE p.tensor = ?1 AND p.born <= ?2 UNION ALL SELECT " SPILLWAY_PAGE_COLUMNS
          ", p.page FROM kept p" SPILLWAY_PACK_JOIN
          "WHERE p.tensor = ?1 AND p.born <= ?2 AND p.died > ?2"));
  get.Bind(1, id).Bind(2, commit_);
  std::map<uint64_t, io::PageRecord> rows;
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
    if (!has_row) return rows;
    io::RowReader reader(get);
    const io::PageRecord record = reader.NextPage(view_.catalog().meta().num_folders);
    const uint64_t page = reader.Next(io::kMaxInteger);
    if (!reader.ok()) {
      return view_.catalog().Damaged(
          absl::StrFormat("the row of page %d of tensor %d is impossible", page, id));
    }
    rows[page] = record;
  }
}

absl::StatusOr<TensorReader::Located> TensorReader::Locate(const TensorSpec& spec) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::optional<Found> found, FindRow(spec.name));
  if (!found) return absl::NotFoundError("the commit has no tensor " + spec.name);
  SPILLWAY_ASSIGN_OR_RETURN(auto rows, ReadRows(found->id));
  return Located{spec, std::move(rows)};
}

absl::Status TensorReader::Read(const TensorSpec& spec, const Consume& consume) {
  SPILLWAY_ASSIGN_OR_RETURN(const Located tensor, Locate(spec));
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile)
    SPILLWAY_RETURN_IF_ERROR(ReadTile(tensor, tile, consume));
  return absl::OkStatus();
}

absl::Status TensorReader::ReadTile(const Located& tensor, uint64_t tile, const Consume& consume) {
  const TensorSpec& spec = tensor.spec;
  const uint64_t page_bytes = view_.catalog().meta().page_bytes;
  const uint64_t pages_per_tile = (spec.tile_bytes(0) + page_bytes - 1) / page_bytes;
  const uint64_t tile_bytes = spec.tile_bytes(tile);
  for (uint64_t at = 0; at < tile_bytes; at += page_bytes) {
    const uint64_t wanted = std::min(page_bytes, tile_bytes - at);
    const auto row = tensor.pages.find(tile * pages_per_tile + at / page_bytes);
    if (row == tensor.pages.end()) {
      SPILLWAY_RETURN_IF_ERROR(consume(std::vector<std::byte>(wanted)));
      continue;
    }
    if (row->second.content_bytes != wanted) {
      return view_.catalog().Damaged(
          absl::StrFormat("page %d of tensor %s has %d bytes and should have %d", row->first,
                          spec.name, row->second.content_bytes, wanted));
    }
    SPILLWAY_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                              ReadPage(spec.name, row->first, row->second));
    SPILLWAY_RETURN_IF_ERROR(consume(bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const std::byte>> TensorReader::ReadPage(const std::string& tensor,
                                                                  uint64_t page,
                                                                  const io::PageRecord& record) {
  const io::Extent& extent = record.extent;
  SPILLWAY_ASSIGN_OR_RETURN(const io::DirectFile* const file, Open(extent));
  if (buffer_bytes_ < extent.size_bytes) {
    buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(io::kIoAlignment, extent.size_bytes)));
    buffer_bytes_ = buffer_ == nullptr ? 0 : extent.size_bytes;
    if (buffer_ == nullptr) return absl::ResourceExhaustedError("no memory for a page");
  }
  absl::Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    status = ReadAt(*file, buffer_.get(), extent.size_bytes, extent.offset);
    const std::span<const std::byte> bytes(buffer_.get() + record.skip_bytes, record.content_bytes);
    if (status.ok() && io::Checksum(bytes) == record.checksum) return bytes;
  }
  if (!status.ok()) return status;
  return absl::DataLossError(absl::StrFormat(
      "tensor '%s' page %d at offset %d of %s does not match its checksum; spillway "
      "fsck lists all damage, and a snapshot without it, or a copy, can be restored",
      tensor, page, extent.offset + record.skip_bytes, file->path()));
}

absl::StatusOr<const io::DirectFile*> TensorReader::Open(const io::Extent& extent) {
  const std::pair key(extent.device, extent.segment);
  if (const auto found = files_.find(key); found != files_.end()) return &found->second;
  if (files_.size() >= kMaxOpenFiles) files_.clear();
  const std::string path = view_.folders()[extent.device].SegmentPath(extent.segment);
  absl::StatusOr<io::DirectFile> file = io::OpenDirect(path, O_RDONLY);
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(
        path +
        " is missing, but the catalog knows pages in it; restore the store from a copy, or remove "
        "it and start over");
  }
  SPILLWAY_RETURN_IF_ERROR(file.status());
  return &files_.emplace(key, *std::move(file)).first->second;
}

}  // namespace spillway::engine
