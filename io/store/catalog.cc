// SPDX-License-Identifier: Apache-2.0
//
// A catalog is made under a temporary name, with a rollback journal, and renamed when it is
// complete. It switches to write-ahead logging when it is first opened under its own name, because
// the side files of that mode are named after the catalog.

#include "io/store/catalog.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "io/store/catalog_log.h"
#include "io/store/catalog_schema.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

// SQLite reports a missing table or column with its general error. So an Internal status while a
// catalog is opened means that the catalog is damaged.
absl::Status InternalIsDamage(const absl::Status& status) {
  return absl::IsInternal(status) ? absl::DataLossError(status.message()) : status;
}

// The most memory for pages of the catalog. A commit of 1,000 random tensor pages changes about
// 2,000 catalog pages. Those that do not fit are written to the log twice.
constexpr int kCacheKiB = 16384;

// A commit that leaves this many pages in the log moves them into the file, and the next commit
// starts the log again. The log, with its index and what a small commit adds, stays below half of
// what StoreSpace sets aside for the catalog. SQLite's default of 1,000 pages would be four times
// what is set aside for a small store.
constexpr int kLogPages = 96;
// A log of more pages, of which some could not be moved, is announced.
constexpr int kAnnouncedLogPages = 8 * kLogPages;

constexpr int kMaxDepth = 1 << 20;

bool IsPossible(const DeviceProfile& profile) {
  const auto is_depth = [](int depth) { return depth > 0 && depth <= kMaxDepth; };
  const auto is_rate = [](double rate) { return rate > 0 && std::isfinite(rate); };
  return profile.request_bytes > 0 && is_depth(profile.read_depth) &&
         is_depth(profile.write_depth) && is_depth(profile.mixed_write_depth) &&
         is_rate(profile.read_bytes_per_second) && is_rate(profile.write_bytes_per_second);
}

}  // namespace

absl::Status Catalog::Create(const std::string& path, const CatalogMeta& meta) {
  const std::string temporary = path + ".new";
  for (const char* suffix : {"", "-journal"}) {
    if (::unlink((temporary + suffix).c_str()) != 0 && errno != ENOENT) {
      return base::ErrnoToStatus(errno, absl::StrCat("remove ", temporary, suffix));
    }
  }
  {
    SPILLWAY_ASSIGN_OR_RETURN(auto database,
                              SqliteDatabase::Open(temporary, SqliteDatabase::Mode::kCreate));
    SPILLWAY_RETURN_IF_ERROR(
        database->Execute("PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL"));
    SPILLWAY_RETURN_IF_ERROR(database->Execute(kCatalogSchema));
    {
      SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement put,
                                database->Prepare("INSERT INTO meta VALUES (?, ?)"));
      const uint64_t version = meta.sparse ? kSparseFormatVersion : kFormatVersion;
      SPILLWAY_RETURN_IF_ERROR(put.BindText(1, "format_version").Bind(2, version).Run());
      SPILLWAY_RETURN_IF_ERROR(put.BindText(1, "store_id").BindText(2, meta.store_id).Run());
      SPILLWAY_RETURN_IF_ERROR(put.BindText(1, "page_bytes").Bind(2, meta.page_bytes).Run());
      SPILLWAY_RETURN_IF_ERROR(put.BindText(1, "num_folders").Bind(2, meta.num_folders).Run());
    }
    SPILLWAY_RETURN_IF_ERROR(database->Execute("COMMIT"));
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    return base::ErrnoToStatus(errno, absl::StrCat("rename ", temporary, " to ", path));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Catalog>> Catalog::Open(const std::string& path,
                                                       SqliteDatabase::Mode mode,
                                                       Announce announce) {
  SPILLWAY_RETURN_IF_ERROR(MakeLogDurable(path));
  SPILLWAY_ASSIGN_OR_RETURN(auto database, SqliteDatabase::Open(path, mode));
  SPILLWAY_RETURN_IF_ERROR(database->SetMovesLogOnClose(false));
  std::unique_ptr<Catalog> catalog(new Catalog(std::move(database)));
  catalog->announce_ = std::move(announce);
  SPILLWAY_RETURN_IF_ERROR(InternalIsDamage(catalog->CheckIsCatalog()));
  SPILLWAY_RETURN_IF_ERROR(InternalIsDamage(catalog->ReadMeta()));
  SPILLWAY_RETURN_IF_ERROR(catalog->SwitchToWal());
  SPILLWAY_RETURN_IF_ERROR(InternalIsDamage(catalog->PrepareStatements()));
  return catalog;
}

absl::StatusOr<std::unique_ptr<Catalog>> Catalog::OpenToRead(const std::string& path,
                                                             SqliteDatabase::Mode mode) {
  SPILLWAY_ASSIGN_OR_RETURN(auto database, SqliteDatabase::Open(path, mode));
  std::unique_ptr<Catalog> catalog(new Catalog(std::move(database)));
  SPILLWAY_RETURN_IF_ERROR(InternalIsDamage(catalog->CheckIsCatalog()));
  SPILLWAY_RETURN_IF_ERROR(InternalIsDamage(catalog->ReadMeta()));
  SPILLWAY_RETURN_IF_ERROR(InternalIsDamage(catalog->PrepareStatements()));
  return catalog;
}

absl::Status Catalog::Damaged(std::string_view what) const {
  return absl::DataLossError(
      absl::StrCat(path(), " is damaged: ", absl::string_view(what.data(), what.size()),
                   "; restore the store from a copy, or remove it and start over"));
}

absl::Status Catalog::CheckIsCatalog() {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement get, database_->Prepare("PRAGMA application_id"));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
  if (!has_row || get.Integer(0) != kCatalogApplicationId) {
    return Damaged("it is an SQLite file, but not one that a Spillway store made");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Catalog::ReadMetaText(std::string_view key) {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement get,
                            database_->Prepare("SELECT value FROM meta WHERE key = ?"));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.BindText(1, key).Step());
  if (!has_row)
    return Damaged(absl::StrCat("meta has no ", absl::string_view(key.data(), key.size())));
  return get.Bytes(0);
}

absl::StatusOr<uint64_t> Catalog::ReadMetaInteger(std::string_view key) {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement get,
                            database_->Prepare("SELECT value FROM meta WHERE key = ?"));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.BindText(1, key).Step());
  if (!has_row || !get.IsInteger(0) || get.Integer(0) < 0) {
    return Damaged(absl::StrCat("meta has no number ", absl::string_view(key.data(), key.size())));
  }
  return static_cast<uint64_t>(get.Integer(0));
}

absl::Status Catalog::ReadMeta() {
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t version, ReadMetaInteger("format_version"));
  meta_.sparse = version == kSparseFormatVersion;
  if (version != kFormatVersion && !meta_.sparse) {
    return absl::FailedPreconditionError(absl::StrCat(
        path(), " has store format ", version, "; this Spillway reads and writes format ",
        kFormatVersion, version < kFormatVersion ? " and cannot upgrade an older store" : "",
        ". Use the version that made the store, or another folder"));
  }
  SPILLWAY_ASSIGN_OR_RETURN(meta_.store_id, ReadMetaText("store_id"));
  SPILLWAY_ASSIGN_OR_RETURN(meta_.page_bytes, ReadMetaInteger("page_bytes"));
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t num_folders, ReadMetaInteger("num_folders"));
  if (meta_.page_bytes == 0 || meta_.page_bytes % kIoAlignment != 0 ||
      meta_.page_bytes > kMaxPageBytes)
    return Damaged("its page size is impossible");
  if (num_folders == 0 || num_folders > kMaxFolders)
    return Damaged("its folder count is impossible");
  meta_.num_folders = static_cast<uint16_t>(num_folders);
  return absl::OkStatus();
}

absl::Status Catalog::SwitchToWal() {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement get, database_->Prepare("PRAGMA journal_mode = WAL"));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
  const std::string mode = has_row ? get.Bytes(0) : "";
  if (mode != "wal") {
    return absl::UnavailableError(absl::StrCat(
        path(), ": its file system cannot hold a write-ahead log (SQLite stays in mode \"", mode,
        "\"); put the first store folder on a local file system"));
  }
  SPILLWAY_RETURN_IF_ERROR(get.Run());
  SPILLWAY_RETURN_IF_ERROR(database_->Execute("PRAGMA synchronous = FULL"));
  database_->CheckpointAfterCommits(
      kLogPages, [this](const SqliteDatabase::Checkpoint& done) { CheckLogIsBounded(done); });
  // A statement that changes many pages, as a restore does, can be undone alone. SQLite would keep
  // what that takes in a file in /var/tmp, which a service often cannot write. In memory it is at
  // most the old catalog pages that the statement changes: about 100 bytes for each tensor page.
  SPILLWAY_RETURN_IF_ERROR(database_->Execute("PRAGMA temp_store = MEMORY"));
  return database_->Execute(absl::StrCat("PRAGMA cache_size = -", kCacheKiB).c_str());
}

// Announces a log that grows. The state is whole meanwhile: what is not in the file is in the log.
void Catalog::CheckLogIsBounded(const SqliteDatabase::Checkpoint& checkpoint) {
  // One reader that was there for a moment may hold the pages of one large commit.
  const bool is_held =
      checkpoint.moved_pages < checkpoint.log_pages && checkpoint.log_pages > kAnnouncedLogPages;
  const int held_before = std::exchange(held_log_pages_, is_held ? checkpoint.log_pages : 0);
  const bool grows = held_before > 0 && held_log_pages_ > held_before;
  bool& has_announced = checkpoint.status.ok() ? has_announced_reader_ : has_announced_failure_;
  if (has_announced || !announce_ || (checkpoint.status.ok() && !grows)) return;
  has_announced = true;
  announce_(checkpoint.status.ok()
                ? absl::StrCat("a program that reads ", path(),
                               " keeps the catalog's log in use, so ", path(),
                               "-wal grows with each commit (it has ", checkpoint.log_pages,
                               " pages of 4 KiB): close that program")
                : absl::StrCat(checkpoint.status.message(), "; commits succeed, but ", path(),
                               "-wal grows with each: check the device and its free space"));
}

absl::Status Catalog::PrepareStatements() {
  SPILLWAY_ASSIGN_OR_RETURN(
      find_tensor_, database_->Prepare("SELECT t.id, t.num_pages, t.description FROM tensors t "
                                       "JOIN tensor_spans s ON s.tensor = t.id AND s.died IS NULL "
                                       "WHERE t.name = ?"));
  SPILLWAY_ASSIGN_OR_RETURN(
      read_pages_,
      database_->Prepare("SELECT p.page, " SPILLWAY_PAGE_COLUMNS " FROM pages p" SPILLWAY_PACK_JOIN
                         "WHERE p.tensor = ? AND p.page BETWEEN ? AND ? ORDER BY p.page"));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<CatalogCommit>> Catalog::ReadCommit() {
  auto get = database_->Prepare(
      "SELECT number, revision, digest, used_bytes, user_state FROM last_commit");
  if (!get.ok()) return InternalIsDamage(get.status());
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get->Step());
  if (!has_row) return std::optional<CatalogCommit>();
  RowReader reader(*get);
  CatalogCommit commit;
  commit.number = reader.Next(kMaxInteger);
  commit.revision = reader.Next(kMaxInteger);
  commit.digest = reader.NextHash();
  commit.used_bytes = reader.Next(kMaxInteger);
  if (!reader.ok() || commit.number == 0 || commit.used_bytes % kIoAlignment != 0)
    return Damaged("the row of last_commit is impossible");
  commit.user_state = get->Bytes(4);
  return std::optional(std::move(commit));
}

absl::StatusOr<std::optional<CatalogTensor>> Catalog::FindTensor(std::string_view name) {
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, find_tensor_->BindText(1, name).Step());
  if (!has_row) return std::optional<CatalogTensor>();
  RowReader reader(*find_tensor_);
  CatalogTensor tensor;
  tensor.id = reader.Next(kMaxInteger);
  tensor.record.num_pages = reader.Next(kMaxInteger);
  tensor.record.name = std::string(name);
  tensor.record.description = find_tensor_->Bytes(2);
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_another, find_tensor_->Step());
  find_tensor_->Reset();
  if (!reader.ok() || has_another)
    return Damaged(absl::StrCat("the rows of tensor ", tensor.record.name, " are impossible"));
  return std::optional(std::move(tensor));
}

absl::StatusOr<uint64_t> Catalog::NextTensorId() {
  auto get = database_->Prepare("SELECT coalesce(max(id), 0) + 1 FROM tensors");
  if (!get.ok()) return InternalIsDamage(get.status());
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get->Step());
  RowReader reader(*get);
  const uint64_t id = has_row ? reader.Next(kMaxInteger) : 0;
  if (!reader.ok() || id == 0) return Damaged("a tensor's id is impossible");
  return id;
}

absl::Status Catalog::ReadPages(uint64_t id, uint64_t first, uint64_t count,
                                absl::FunctionRef<void(uint64_t, const PageRecord&)> take) {
  read_pages_->Bind(1, id).Bind(2, first).Bind(3, first + count - 1);
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, read_pages_->Step());
    if (!has_row) return absl::OkStatus();
    RowReader reader(*read_pages_);
    const uint64_t page = reader.Next(kMaxInteger);
    const PageRecord record = reader.NextPage(meta_.num_folders);
    if (!reader.ok() || page < first || page - first >= count) {
      read_pages_->Reset();
      return Damaged(absl::StrCat("the row of page ", page, " of tensor ", id, " is impossible"));
    }
    take(page, record);
  }
}

absl::StatusOr<std::vector<CatalogSegment>> Catalog::ReadSegments() {
  auto get = database_->Prepare(
      "SELECT device, segment, size_bytes, written_bytes FROM segments ORDER BY device, segment");
  if (!get.ok()) return InternalIsDamage(get.status());
  std::vector<CatalogSegment> segments;
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get->Step());
    if (!has_row) return segments;
    RowReader reader(*get);
    CatalogSegment segment;
    segment.device = static_cast<uint16_t>(reader.Next(meta_.num_folders - 1));
    segment.segment = static_cast<uint32_t>(reader.Next(kMaxSegmentNumber));
    segment.size_bytes = reader.Next(kMaxSegmentFileBytes);
    segment.written_bytes = reader.Next(segment.size_bytes);
    if (!reader.ok() || segment.size_bytes % kIoAlignment != 0 ||
        segment.written_bytes % kIoAlignment != 0)
      return Damaged("a row of segments is impossible");
    segments.push_back(segment);
  }
}

absl::StatusOr<std::vector<FreeChunk>> Catalog::ReadFreeChunks(uint16_t device, ChunkId from,
                                                               uint64_t limit) {
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement get,
      database_->Prepare("SELECT segment, chunk, runs FROM free_space WHERE device = ? AND "
                         "(segment, chunk) >= (?, ?) ORDER BY segment, chunk LIMIT ?"));
  get.Bind(1, device).Bind(2, from.segment).Bind(3, from.chunk).Bind(4, limit);
  std::vector<FreeChunk> chunks;
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
    if (!has_row) return chunks;
    RowReader reader(get);
    FreeChunk chunk;
    chunk.id.segment = static_cast<uint32_t>(reader.Next(kMaxSegmentNumber));
    chunk.id.chunk = static_cast<uint32_t>(reader.Next(kMaxSegmentFileBytes / kChunkBytes - 1));
    auto runs = ParseRuns(get.Bytes(2));
    if (!reader.ok() || !runs) return Damaged("a row of free_space is impossible");
    chunk.runs = *std::move(runs);
    chunks.push_back(std::move(chunk));
  }
}

absl::StatusOr<uint64_t> Catalog::FreeBytesIn(uint16_t device, uint32_t segment) {
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement get,
      database_->Prepare("SELECT coalesce(sum(free_bytes), 0) FROM free_space WHERE device = ? AND "
                         "segment = ?"));
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Bind(1, device).Bind(2, segment).Step());
  return has_row ? static_cast<uint64_t>(get.Integer(0)) : 0;
}

absl::StatusOr<bool> Catalog::HasPagesIn(uint16_t device, uint32_t segment) {
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement get,
      database_->Prepare("SELECT 1 FROM pages WHERE device = ? AND segment = ? LIMIT 1"));
  return get.Bind(1, device).Bind(2, segment).Step();
}

absl::StatusOr<std::vector<SnapshotRecord>> Catalog::ReadSnapshots() {
  auto get = database_->Prepare(
      "SELECT number, label, time, user_state FROM snapshots ORDER BY number, label");
  if (!get.ok()) return InternalIsDamage(get.status());
  std::vector<SnapshotRecord> snapshots;
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get->Step());
    if (!has_row) return snapshots;
    RowReader reader(*get);
    const uint64_t number = reader.Next(kMaxInteger);
    if (!reader.ok() || number == 0) return Damaged("a row of snapshots is impossible");
    snapshots.push_back({get->Bytes(1), number, get->Bytes(2), get->Bytes(3)});
  }
}

absl::StatusOr<std::vector<std::optional<DeviceProfile>>> Catalog::ReadProfiles() {
  auto get = database_->Prepare(
      "SELECT device, request_bytes, read_depth, write_depth, mixed_write_depth, "
      "read_bytes_per_second, write_bytes_per_second FROM devices");
  if (!get.ok()) return InternalIsDamage(get.status());
  std::vector<std::optional<DeviceProfile>> profiles(meta_.num_folders);
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get->Step());
    if (!has_row) return profiles;
    RowReader reader(*get);
    DeviceProfile profile;
    const uint64_t device = reader.Next(meta_.num_folders - 1);
    profile.request_bytes = static_cast<uint32_t>(reader.Next(UINT32_MAX));
    profile.read_depth = static_cast<int>(reader.Next(kMaxDepth));
    profile.write_depth = static_cast<int>(reader.Next(kMaxDepth));
    profile.mixed_write_depth = static_cast<int>(reader.Next(kMaxDepth));
    profile.read_bytes_per_second = get->Real(5);
    profile.write_bytes_per_second = get->Real(6);
    if (!reader.ok() || !IsPossible(profile)) return Damaged("a row of devices is impossible");
    profiles[device] = profile;
  }
}

absl::Status Catalog::WriteProfile(uint16_t device, const DeviceProfile& profile) {
  if (device >= meta_.num_folders || !IsPossible(profile)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a device's profile needs a request size, depths of 1 to ", kMaxDepth,
                     " and bandwidths above zero, and a device below ", meta_.num_folders));
  }
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement put,
      database_->Prepare("INSERT OR REPLACE INTO devices (device, request_bytes, read_depth, "
                         "write_depth, mixed_write_depth, read_bytes_per_second, "
                         "write_bytes_per_second, time) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"));
  const std::string time = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
  return put.Bind(1, device)
      .Bind(2, profile.request_bytes)
      .Bind(3, static_cast<uint64_t>(profile.read_depth))
      .Bind(4, static_cast<uint64_t>(profile.write_depth))
      .Bind(5, static_cast<uint64_t>(profile.mixed_write_depth))
      .BindReal(6, profile.read_bytes_per_second)
      .BindReal(7, profile.write_bytes_per_second)
      .BindText(8, time)
      .Run();
}

absl::Status Catalog::ChangePageBytes(uint64_t page_bytes) {
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement put,
      database_->Prepare("UPDATE meta SET value = ? WHERE key = 'page_bytes'"));
  SPILLWAY_RETURN_IF_ERROR(put.Bind(1, page_bytes).Run());
  meta_.page_bytes = page_bytes;
  return absl::OkStatus();
}

}  // namespace spillway::io
