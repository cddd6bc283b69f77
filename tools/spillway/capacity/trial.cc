// SPDX-License-Identifier: Apache-2.0
//
// The phases:
//   1. Lay out: every page gets an extent; a sample is written.
//   2. Commit: one transaction with a row for each page.
//   3. Verify: the sample and as many holes are read back.
//   4. Reopen: the row of every page is compared with the layout.
//   5. Second commit: under a snapshot, a part of the sample is written anew. The copies of the
//      first commit must be whole before the second commit, and after it.
//   6. Restore: the snapshot is restored; the part has its first bytes again. The snapshot is
//      dropped.
//   7. Kills: a process writes the part anew and is killed while it commits. The store must have
//      the one commit or the other, whole. Repeated until kMostKills came during a commit.
//   8. Verify again: the part, a quarter of the rest of the sample, and the holes.
//   9. Check: all rows of the closed store, as `spillway fsck --catalog-only` does: they add up to
//   the
//      digest, no two extents overlap, and what they leave of the files is free.

#include "tools/spillway/capacity/trial.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "io/io_engine.h"
#include "io/posix_io_engine.h"
#include "io/store/segment_files.h"
#include "io/store/store_check.h"
#include "io/store/store_view.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/capacity/killed_commit.h"
#include "tools/spillway/capacity/page_sample.h"
#include "tools/spillway/capacity/trial_store.h"

namespace spillway::capacity {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kRewrittenShare = 16;  // one in so many written pages is written anew
constexpr uint64_t kVerifiedAgainShare = 4;
constexpr uint64_t kMostKills = 4;
constexpr int kMostRounds = 12;
constexpr char kSnapshot[] = "first";
// What a row takes of the catalog and of its log, with what its pages leave empty.
constexpr uint64_t kCatalogBytesPerRow = 192;
constexpr uint64_t kCatalogBytes = 4 * kMiB;

std::vector<LaidPage> Rewritten(const std::vector<LaidPage>& written) {
  std::vector<LaidPage> pages;
  for (size_t i = 0; i < written.size(); i += kRewrittenShare) pages.push_back(written[i]);
  return pages;
}

uint64_t PeakMemoryBytes() {
  rusage usage{};
  return ::getrusage(RUSAGE_SELF, &usage) == 0 ? static_cast<uint64_t>(usage.ru_maxrss) * 1024 : 0;
}

class Trial {
 public:
  explicit Trial(const TrialOptions& options)
      : options_(options), layout_(options.specs, options.page_bytes), random_(options.seed) {}

  absl::Status Run() {
    report_.page_bytes = options_.page_bytes;
    report_.rows = layout_.Totals(/*transient=*/false);
    report_.transient = layout_.Totals(/*transient=*/true);
    report_.needed_bytes = NeedOf(options_).Total(options_.folders.size());
    SPILLWAY_RETURN_IF_ERROR(Phase("lay out", &Trial::LayOut));
    SPILLWAY_RETURN_IF_ERROR(Phase("commit", &Trial::CommitAll));
    SPILLWAY_RETURN_IF_ERROR(Phase("verify", &Trial::VerifyAll));
    SPILLWAY_RETURN_IF_ERROR(Phase("reopen", &Trial::Reopen));
    SPILLWAY_RETURN_IF_ERROR(Phase("check rows", &Trial::CheckRows));
    SPILLWAY_RETURN_IF_ERROR(Phase("second commit", &Trial::SecondCommit));
    SPILLWAY_RETURN_IF_ERROR(Phase("restore", &Trial::Restore));
    SPILLWAY_RETURN_IF_ERROR(Phase("kills", &Trial::Kill));
    SPILLWAY_RETURN_IF_ERROR(Phase("verify again", &Trial::VerifyAgain));
    return Phase("check", &Trial::CheckClosed);
  }

  // Whether this object has made the store.
  bool has_made() const { return has_made_; }
  TrialReport& report() { return report_; }

 private:
  absl::Status Phase(const char* name, absl::Status (Trial::*run)());
  absl::Status LayOut();
  absl::Status CommitAll();
  absl::Status VerifyAll() { return Verify(1); }
  absl::Status VerifyAgain() { return Verify(kVerifiedAgainShare); }
  absl::Status Verify(uint64_t share);
  absl::Status CheckClosed();
  absl::Status Reopen();
  absl::Status CheckRows() { return store_->CheckRows(sampled_.written); }
  absl::Status SecondCommit();
  absl::Status Restore();
  absl::Status Kill();
  absl::Status Commit(TrialStore* store, uint64_t version);
  absl::Status WriteAndCommit(uint64_t version, const std::function<void()>& begins);
  absl::Status CheckAfterKill(uint64_t number_before, bool came_during);
  absl::Status Measure();

  const TrialOptions& options_;
  const Layout layout_;
  std::mt19937_64 random_;
  TrialReport report_;
  std::unique_ptr<TrialStore> store_;
  bool has_made_ = false;
  Sampled sampled_;
  std::vector<LaidPage> rewritten_;  // a part of sampled_.written
  std::set<std::pair<uint32_t, uint64_t>> is_rewritten_;
  uint64_t version_ = 1;       // of the rewritten pages
  double commit_seconds_ = 0;  // of the second commit
};

absl::Status Trial::Phase(const char* name, absl::Status (Trial::*run)()) {
  if (options_.before_phase) options_.before_phase(name);
  if (options_.stop != nullptr && options_.stop->load()) return absl::CancelledError("interrupted");
  const Clock::time_point start = Clock::now();
  const absl::Status status = (this->*run)();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report_.phases.push_back({name, seconds});
  SPILLWAY_RETURN_IF_ERROR(status);
  return Measure();
}

// Checks the cap after each phase, when the catalog's log is at its longest.
absl::Status Trial::Measure() {
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t bytes, TakenDiskBytes(options_.folders));
  report_.disk_bytes = std::max(report_.disk_bytes, bytes);
  report_.memory_bytes = PeakMemoryBytes();
  if (bytes <= options_.disk_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the trial has taken ", base::FormatBytes(bytes), " of the disk, more than the ",
                   base::FormatBytes(options_.disk_bytes), " that it may, and ends here"));
}

absl::Status Trial::Commit(TrialStore* store, uint64_t version) {
  return store->store().Commit(absl::StrCat(version));
}

absl::Status Trial::LayOut() {
  SPILLWAY_ASSIGN_OR_RETURN(store_, TrialStore::Open(options_, layout_, TrialStore::Mode::kNew));
  has_made_ = true;
  SPILLWAY_ASSIGN_OR_RETURN(sampled_, store_->LayOut());
  rewritten_ = Rewritten(sampled_.written);
  for (const LaidPage& page : rewritten_) is_rewritten_.insert({page.tensor, page.page});
  report_.files = store_->num_files();
  report_.written_pages = sampled_.written.size();
  for (const LaidPage& page : sampled_.written) report_.written_bytes += page.bytes;
  report_.rewritten_pages = rewritten_.size();
  report_.verified_holes = sampled_.holes.size();
  return absl::OkStatus();
}

absl::Status Trial::CommitAll() {
  SPILLWAY_RETURN_IF_ERROR(Commit(store_.get(), version_));
  ++report_.commits;
  return absl::OkStatus();
}

// Reads the pages that are written anew, one in `share` of the others, and the holes.
absl::Status Trial::Verify(uint64_t share) {
  std::vector<LaidPage> others;
  uint64_t index = 0;
  for (const LaidPage& page : sampled_.written) {
    const bool is_other = !is_rewritten_.contains({page.tensor, page.page});
    if (is_other && index++ % share == 0) others.push_back(page);
  }
  SPILLWAY_RETURN_IF_ERROR(store_->Verify("verify", others, 1));
  SPILLWAY_RETURN_IF_ERROR(store_->Verify("verify", rewritten_, version_));
  return store_->Verify("verify holes", sampled_.holes, 0);
}

absl::Status Trial::CheckClosed() {
  store_.reset();
  using io::StoreView;
  SPILLWAY_ASSIGN_OR_RETURN(
      const auto view,
      StoreView::Open(options_.folders, StoreView::Wanted::kAlone, StoreView::Sparse::kAllowed));
  // All rows are sorted: in memory, because a file for that would lie outside the folders.
  SPILLWAY_RETURN_IF_ERROR(view->catalog().database().Execute("PRAGMA temp_store = MEMORY"));
  SPILLWAY_ASSIGN_OR_RETURN(const auto io, io::PosixIoEngine::Create({}));
  io::StoreCheckOptions check;
  check.read_pages = false;
  check.stop = options_.stop;
  check.progress = [this](uint64_t done, uint64_t total) {
    if (options_.progress) options_.progress("check", done / kMiB, total / kMiB);
  };
  SPILLWAY_ASSIGN_OR_RETURN(const io::StoreCheckReport found,
                            io::CheckStore(*view, io.get(), check));
  if (found.damage > 0) {
    return absl::DataLossError(
        absl::StrCat("the store is damaged in ", base::FormatCount(found.damage, "place"),
                     "; first: ", found.findings.empty() ? "" : found.findings.front().message));
  }
  report_.file_bytes = found.used_bytes + found.free_bytes;
  std::error_code error;
  report_.catalog_bytes = std::filesystem::file_size(view->folders()[0].CatalogPath(), error);
  if (found.pages == report_.rows.pages) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the catalog has ", found.pages, " rows, and the layout ",
                                          report_.rows.pages, " pages"));
}

absl::Status Trial::Reopen() {
  store_.reset();
  SPILLWAY_ASSIGN_OR_RETURN(store_,
                            TrialStore::Open(options_, layout_, TrialStore::Mode::kExisting));
  return absl::OkStatus();
}

absl::Status Trial::SecondCommit() {
  SPILLWAY_RETURN_IF_ERROR(store_->store().Snapshot(kSnapshot));
  SPILLWAY_ASSIGN_OR_RETURN(const auto first, store_->Records(rewritten_));
  SPILLWAY_RETURN_IF_ERROR(store_->Write(rewritten_, version_ + 1));
  SPILLWAY_RETURN_IF_ERROR(store_->VerifyRecords(rewritten_, first, version_));
  const Clock::time_point start = Clock::now();
  SPILLWAY_RETURN_IF_ERROR(Commit(store_.get(), version_ + 1));
  commit_seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
  ++report_.commits;
  SPILLWAY_RETURN_IF_ERROR(store_->Verify("verify", rewritten_, version_ + 1));
  return store_->VerifyRecords(rewritten_, first, version_);
}

absl::Status Trial::Restore() {
  SPILLWAY_RETURN_IF_ERROR(store_->store().Restore(kSnapshot));
  ++report_.commits;
  SPILLWAY_RETURN_IF_ERROR(store_->Verify("verify", rewritten_, version_));
  return store_->store().Drop(kSnapshot);
}

// --- Kills ---

// In the child. What it opens is not closed, as in a process that is killed.
absl::Status Trial::WriteAndCommit(uint64_t version, const std::function<void()>& begins) {
  TrialOptions silent = options_;
  silent.progress = {};
  silent.note = {};
  silent.stop = nullptr;
  SPILLWAY_ASSIGN_OR_RETURN(auto opened,
                            TrialStore::Open(silent, layout_, TrialStore::Mode::kExisting));
  TrialStore* const store = opened.release();
  SPILLWAY_RETURN_IF_ERROR(store->Write(rewritten_, version));
  begins();
  return Commit(store, version);
}

absl::Status Trial::Kill() {
  uint64_t number = store_->store().commit_number();
  double longest = 1.25 * commit_seconds_;
  for (int round = 0; round < kMostRounds && report_.kills < kMostKills; ++round) {
    if (options_.progress) options_.progress("kills", report_.kills, kMostKills);
    store_.reset();
    const double share = std::uniform_real_distribution<double>(0, 1)(random_);
    const uint64_t next = version_ + 1;
    SPILLWAY_ASSIGN_OR_RETURN(const bool came_during,
                              KillDuringCommit(
                                  [this, next](const std::function<void()>& begins) {
                                    return WriteAndCommit(next, begins);
                                  },
                                  absl::Seconds(share * longest), options_.stop));
    if (!came_during) longest /= 2;
    SPILLWAY_RETURN_IF_ERROR(Reopen());
    SPILLWAY_RETURN_IF_ERROR(CheckAfterKill(number, came_during));
    number = store_->store().commit_number();
  }
  return absl::OkStatus();
}

absl::Status Trial::CheckAfterKill(uint64_t number_before, bool came_during) {
  const uint64_t number = store_->store().commit_number();
  const bool has_new = number == number_before + 1;
  uint64_t version = 0;
  const std::optional<std::string> state = store_->store().UserState();
  const bool has_version = state && absl::SimpleAtoi(*state, &version);
  const bool is_one_of_both = (number == number_before || has_new) && has_version &&
                              version == version_ + (has_new ? 1 : 0);
  if (!is_one_of_both || (!came_during && !has_new)) {
    return absl::DataLossError(absl::StrCat("after a kill during commit ", number_before + 1,
                                            " the store has commit ", number, ", of version '",
                                            state.value_or("none"), "'"));
  }
  version_ = version;
  if (came_during) ++report_.kills;
  if (came_during && has_new) ++report_.kills_with_commit;
  if (has_new) ++report_.commits;
  return store_->Verify("verify", rewritten_, version_);
}

}  // namespace

DiskNeed NeedOf(const TrialOptions& options) {
  const Layout layout(options.specs, options.page_bytes);
  const LayoutTotals rows = layout.Totals(/*transient=*/false);
  const LayoutTotals transient = layout.Totals(/*transient=*/true);
  const size_t num_folders = std::max<size_t>(1, options.folders.size());
  // Room in the files, with what pages do not fill of their last 4 KiB.
  const uint64_t room = rows.bytes + transient.bytes + (rows.pages + transient.pages) * kKiB * 4;
  uint32_t files = 0;  // of a folder
  DiskNeed need;
  for (uint64_t held = 0; held < room / num_folders + 1; ++files) {
    need.largest_file_bytes =
        io::SegmentBoundBytes(std::max(options.segment_bytes, options.page_bytes), files);
    held += need.largest_file_bytes;
  }
  PageSample sample(options.seed, rows.pages);
  uint64_t written = 0;
  uint64_t largest_page = 0;
  for (uint32_t tensor = 0; tensor < layout.specs().size(); ++tensor) {
    if (layout.specs()[tensor].transient) continue;
    layout.ForEachPage(tensor, [&](const LaidPage& page) {
      const bool is_written = sample.Next(IsPacked(layout, page)) == PageUse::kWritten;
      if (is_written) written += base::RoundUp(page.bytes, io::kIoAlignment);
      largest_page = std::max<uint64_t>(largest_page, page.bytes);
      return true;
    });
  }
  // Two more copies of the part that is written anew, the part being one page larger at most.
  const uint64_t anew = 2 * (written / kRewrittenShare + largest_page);
  // The first two pages of each file may be written besides.
  need.folder_bytes = (written + anew) / num_folders + 2 * files * largest_page;
  need.first_folder_bytes = kCatalogBytes + rows.pages * kCatalogBytesPerRow;
  return need;
}

absl::StatusOr<TrialReport> RunTrial(const TrialOptions& options) {
  const std::vector<std::string> made = MissingFolders(options.folders);
  auto trial = std::make_unique<Trial>(options);
  absl::Status status = trial->Run();
  TrialReport report = std::move(trial->report());
  const bool has_made = trial->has_made();
  trial.reset();  // closes the store
  if (has_made) {
    const Clock::time_point start = Clock::now();
    status.Update(RemoveTrial(options.folders, made));
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    report.phases.push_back({"remove", seconds});
  }
  SPILLWAY_RETURN_IF_ERROR(status);
  return report;
}

}  // namespace spillway::capacity
