// SPDX-License-Identifier: Apache-2.0
//
// The check, in steps:
//   1. SQLite's own check of the catalog, which reads every page of it.
//   2. The small tables: commits, tensors, calibrations, segment files; and the files in the
//   folders.
//   3. The walk over all extents (store_walk.cc).
//   4. The digests and sums.
// If damage, or a device that fails, keeps a step from continuing, the step reports that, and the
// next step runs.

#include "io/store/store_check.h"

#include <sys/stat.h>

#include <cerrno>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/store/catalog_digest.h"
#include "io/store/catalog_schema.h"
#include "io/store/store_checker.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {

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
        &StoreChecker::CheckProfiles, &StoreChecker::LoadFiles, &StoreChecker::Walk,
        &StoreChecker::CheckSums}) {
    const absl::Status status = (this->*step)();
    if (status.ok()) continue;
    if (!absl::IsDataLoss(status) && !IsDeviceError(status)) return status;
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

absl::Status StoreChecker::CheckProfiles() {
  const absl::Status status = view_.catalog().ReadProfiles().status();
  if (!absl::IsDataLoss(status)) return status;
  return absl::DataLossError(
      absl::StrCat("a calibration is damaged, and no page: a store opens as not calibrated, and "
                   "calibrating it again replaces the row (",
                   status.message(), ")"));
}

// Compares the segment files in the catalog with those in the folders.
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
  const auto num_folders = static_cast<uint16_t>(view_.folders().size());
  for (uint16_t device = 0; device < num_folders; ++device) {
    const auto numbers = Folder(device).ListSegments();
    if (!Folder(device).is_there() || IsDeviceError(numbers.status())) {
      Found({.message =
                 absl::StrCat(Folder(device).path(), " is lost, and every file in it: ",
                              numbers.ok() ? "it could not be read" : numbers.status().message()),
             .path = Folder(device).path()});
      for (const auto& [key, segment] : segments_)
        if (key.first == device) there.insert(key);
      continue;
    }
    SPILLWAY_RETURN_IF_ERROR(numbers.status());
    for (const uint32_t number : *numbers) {
      const SegmentKey key(device, number);
      there.insert(key);
      struct stat info;
      if (::stat(PathOf(key).c_str(), &info) != 0) {
        FoundInFile(key, std::nullopt, std::string(base::ErrnoToStatus(errno, "stat").message()));
        continue;
      }
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

std::string StoreChecker::PathOf(SegmentKey key) const {
  // An impossible row may name a folder that does not exist.
  if (key.first >= view_.folders().size()) return absl::StrCat("folder ", key.first);
  return Folder(key.first).SegmentPath(key.second);
}

absl::StatusOr<StoreCheckReport> CheckStore(const StoreView& view, IoEngine* io,
                                            const StoreCheckOptions& options) {
  return StoreChecker(view, io, options).Run();
}

}  // namespace spillway::io
