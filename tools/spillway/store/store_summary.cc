// SPDX-License-Identifier: Apache-2.0
//
// The queries of a summary. Each is one pass over a table.

#include "tools/spillway/store/store_summary.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/store/calibration.h"
#include "io/store/catalog.h"
#include "io/store/free_space.h"
#include "io/store/store_folder.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/hf/strict_json.h"

namespace spillway::command {
namespace {

using Json = nlohmann::ordered_json;
using io::SqliteStatement;

uint64_t Unsigned(const SqliteStatement& row, int column) {
  return static_cast<uint64_t>(row.Integer(column));
}

absl::Status ReadCommit(const io::StoreView& view, StoreSummary* summary) {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement get,
                            view.catalog().database().Prepare(
                                "SELECT number, time, used_bytes, user_state FROM last_commit"));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
  if (has_row) {
    summary->commit = CommitSummary{Unsigned(get, 0), get.Bytes(1), Unsigned(get, 2), get.Bytes(3)};
  }
  return absl::OkStatus();
}

absl::Status ReadTensors(const io::StoreView& view, StoreSummary* summary) {
  // Two queries, because a join would look up each page's tensor.
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> stored;  // by id: pages and their bytes
  {
    SPILLWAY_ASSIGN_OR_RETURN(
        SqliteStatement get,
        view.catalog().database().Prepare(
            "SELECT tensor, count(*), sum(content_bytes) FROM pages GROUP BY tensor"));
    while (true) {
      SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
      if (!has_row) break;
      stored[Unsigned(get, 0)] = {Unsigned(get, 1), Unsigned(get, 2)};
    }
  }
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement get,
                            view.catalog().database().Prepare(
                                "SELECT t.id, t.name, t.description, t.num_pages FROM tensors t "
                                "JOIN tensor_spans s ON s.tensor = t.id AND s.died IS NULL "
                                "ORDER BY t.id"));
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
    if (!has_row) return absl::OkStatus();
    TensorSummary& tensor = summary->tensors.emplace_back();
    tensor.name = get.Bytes(1);
    const std::string description = get.Bytes(2);
    if (hf::ParseStrictJson(description, tensor.name).ok())  // not nested so deep that a copy fails
      tensor.description = Json::parse(description, nullptr, /*allow_exceptions=*/false);
    tensor.pages = Unsigned(get, 3);
    std::tie(tensor.stored_pages, tensor.stored_bytes) = stored[Unsigned(get, 0)];
  }
}

// Reads the runs of free bytes, and joins those that the catalog cuts at the ends of chunks.
absl::Status ReadFreeSpace(const io::StoreView& view, uint16_t device, DeviceSummary* summary) {
  constexpr uint64_t kChunksAtOnce = 4096;
  io::ChunkId from;
  uint32_t segment = UINT32_MAX;
  uint64_t end = 0;
  uint64_t length = 0;
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<io::FreeChunk> chunks,
                              view.catalog().ReadFreeChunks(device, from, kChunksAtOnce));
    for (const io::FreeChunk& chunk : chunks) {
      for (const io::UnitRun& run : chunk.runs) {
        const uint64_t begin = chunk.id.chunk * io::kChunkBytes + run.first * io::kIoAlignment;
        const uint64_t bytes = run.count * io::kIoAlignment;
        const bool joins = chunk.id.segment == segment && begin == end;
        if (!joins) ++summary->free_runs;
        length = joins ? length + bytes : bytes;
        segment = chunk.id.segment;
        end = begin + bytes;
        summary->free_bytes += bytes;
        summary->largest_free_bytes = std::max(summary->largest_free_bytes, length);
      }
    }
    if (chunks.size() < kChunksAtOnce) return absl::OkStatus();
    from = {chunks.back().id.segment, chunks.back().id.chunk + 1};
  }
}

// Returns the bytes that the file system has allocated for the folder's segment files. A process
// that has the store may remove a file meanwhile. A folder that is lost has none.
uint64_t DiskBytes(const io::StoreFolder& folder) {
  const auto segments = folder.ListSegments();
  if (!segments.ok()) return 0;
  uint64_t bytes = 0;
  for (const uint32_t segment : *segments) {
    struct stat info{};
    if (stat(folder.SegmentPath(segment).c_str(), &info) == 0)
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

absl::Status ReadDevices(const io::StoreView& view, StoreSummary* summary) {
  auto profiles = view.catalog().ReadProfiles();
  if (absl::IsDataLoss(profiles.status()))  // as for a store that is opened
    profiles = std::vector<std::optional<io::DeviceProfile>>(view.folders().size());
  SPILLWAY_RETURN_IF_ERROR(profiles.status());
  const auto num_devices = static_cast<uint16_t>(view.folders().size());
  for (uint16_t device = 0; device < num_devices; ++device) {
    DeviceSummary& entry = summary->devices.emplace_back();
    entry.path = view.folders()[device].path();
    entry.profile = (*profiles)[device];
    entry.disk_bytes = DiskBytes(view.folders()[device]);
    SPILLWAY_RETURN_IF_ERROR(ReadFreeSpace(view, device, &entry));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const auto segments, view.catalog().ReadSegments());
  for (const io::CatalogSegment& segment : segments) {
    DeviceSummary& entry = summary->devices[segment.device];
    ++entry.segments;
    entry.file_bytes += segment.size_bytes;
    entry.written_bytes += segment.written_bytes;
  }
  return absl::OkStatus();
}

absl::Status ReadSnapshots(const io::StoreView& view, StoreSummary* summary) {
  SPILLWAY_ASSIGN_OR_RETURN(summary->snapshots, view.catalog().ReadSnapshots());
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement get,
      view.catalog().database().Prepare(
          "SELECT coalesce(sum(size_bytes), 0) FROM (SELECT k.size_bytes FROM kept k "
          "LEFT JOIN packs c ON c.device = k.device AND c.segment = k.segment AND "
          "c.offset = k.offset GROUP BY k.device, k.segment, k.offset HAVING CASE "
          "WHEN c.num_references NOT NULL THEN count(*) = c.num_references "
          "ELSE NOT EXISTS (SELECT 1 FROM pages p WHERE p.tensor = k.tensor AND p.page = k.page "
          "AND p.device = k.device AND p.segment = k.segment AND p.offset = k.offset) END)"));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
  if (has_row) summary->snapshot_bytes = Unsigned(get, 0);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StoreSummary> SummarizeStore(const io::StoreView& view) {
  StoreSummary summary;
  summary.store_id = view.identity().store_id;
  summary.format_version = io::Catalog::kFormatVersion;
  summary.page_bytes = view.catalog().meta().page_bytes;
  summary.is_scratch = view.identity().scratch;
  summary.holder = view.holder();
  for (const auto read : {&ReadCommit, &ReadTensors, &ReadDevices, &ReadSnapshots}) {
    SPILLWAY_RETURN_IF_ERROR(read(view, &summary));
  }
  return summary;
}

std::string DescribeCalibration(const io::DeviceProfile& profile) {
  return absl::StrFormat(
      "read %.2f GB/s, write %.2f GB/s; requests of %s, depths %d read, %d write, %d write beside "
      "reads; a read waits at most %.0f ms for writes",
      profile.read_bytes_per_second / 1e9, profile.write_bytes_per_second / 1e9,
      base::FormatBytes(profile.request_bytes), profile.read_depth, profile.write_depth,
      profile.mixed_write_depth, 1e3 * io::SecondsBehindWrites(profile));
}

std::optional<int64_t> StepIn(const std::string& user_state) {
  const Json json = Json::parse(user_state, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<int64_t>();
}

}  // namespace spillway::command
