// SPDX-License-Identifier: Apache-2.0
//
// Question: what do opening a store, looking up pages and committing a change of 1,000 pages cost,
// and do these costs grow with the store? Limit: at 4 and 16 million pages of 1 MiB, at most 1.5
// times the cost at 1 million (the catalog is a tree, so one more level is allowed).
//
// Method: a store of each size is made with sparse segment files. The rows of its pages are written
// directly into its catalog, in one commit. Each round then does the following for every size. It
// opens the store. It looks up random pages, each in a different range (the unit that is loaded
// from the catalog). Four times, it records 1,000 random pages in new extents and commits them. No
// data is written, so only the catalog and the bookkeeping are timed. A ratio is computed within a
// round, and medians over the rounds are printed. The catalog pages that are read and written, in
// the database file and its log, are counted too, because load on the machine does not change them.

#include <fcntl.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/make_io_engine.h"
#include "io/store/catalog_change.h"
#include "io/store/page_ledger.h"
#include "io/store/segment_files.h"
#include "io/store/sqlite_page.h"
#include "io/store/sqlite_vfs.h"
#include "io/store/store.h"
#include "src/base/status_macros.h"

namespace spillway::bench {
namespace {

constexpr uint64_t kPageBytes = uint64_t{1} << 20;
constexpr uint64_t kPagesPerTensor = 8192;
constexpr uint64_t kRangePages = io::PageLedger::kRangePages;
constexpr int kLookedUpPages = 500;
constexpr int kChangedPages = 1000;  // by a commit
constexpr int kCommits = 4;          // in a round; some of them merge the log into the database

struct Options {
  std::string folder = ".";
  std::vector<uint64_t> millions = {1, 4};
  int rounds = 9;
  bool keep = false;
};

// Whole pages that SQLite has read and written since the process began, in the catalog or its log.
struct Traffic {
  double pages_read = 0;
  double pages_written = 0;
};

Traffic& CatalogTraffic() {
  static Traffic traffic;
  return traffic;
}

int Count(const io::SqliteCall& call) {
  if (call.bytes.size() < io::kSqlitePageBytes) return 0;
  if (call.op == io::SqliteCall::Op::kRead) ++CatalogTraffic().pages_read;
  if (call.op == io::SqliteCall::Op::kWrite) ++CatalogTraffic().pages_written;
  return 0;
}

// The cost of an operation in each round: wall and CPU milliseconds (on a busy machine only the CPU
// time is comparable), and the catalog pages that it read and wrote.
struct Costs {
  std::vector<double> wall;
  std::vector<double> cpu;
  std::vector<double> pages_read;
  std::vector<double> pages_written;
};

struct Figures {
  Costs open;
  Costs look_up;  // of kLookedUpPages pages
  Costs commit;   // of kChangedPages pages
  Costs snapshot;
  double next_lookup_us = 0;  // per page, for pages in order
  double open_ram_bytes = 0;  // of a store that has just been opened
  double ram_bytes = 0;       // per page that was looked up
  double catalog_bytes = 0;   // per page
  double build_s = 0;
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double CpuSeconds() {
  timespec time;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

class Meter {
 public:
  // Adds the time and the catalog pages since the meter was made.
  void Stop(Costs* costs) const {
    costs->wall.push_back((Seconds() - wall_) * 1e3);
    costs->cpu.push_back((CpuSeconds() - cpu_) * 1e3);
    costs->pages_read.push_back(CatalogTraffic().pages_read - traffic_.pages_read);
    costs->pages_written.push_back(CatalogTraffic().pages_written - traffic_.pages_written);
  }

 private:
  const Traffic traffic_ = CatalogTraffic();
  const double wall_ = Seconds();
  const double cpu_ = CpuSeconds();
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Adds the means of several operations as the costs of one round.
void AddMeans(const Costs& several, Costs* costs) {
  costs->wall.push_back(Mean(several.wall));
  costs->cpu.push_back(Mean(several.cpu));
  costs->pages_read.push_back(Mean(several.pages_read));
  costs->pages_written.push_back(Mean(several.pages_written));
}

// Returns the median, followed by the range in parentheses.
std::string Range(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  char text[80];
  std::snprintf(text, sizeof(text), "%.3f (%.3f-%.3f)", Median(values), *low, *high);
  return text;
}

double MedianRatio(const std::vector<double>& now, const std::vector<double>& first) {
  std::vector<double> ratios;
  for (size_t round = 0; round < now.size(); ++round) ratios.push_back(now[round] / first[round]);
  return Median(ratios);
}

std::string TensorName(uint64_t tensor) { return absl::StrCat("layers.", tensor, ".weight"); }

// One store. The public functions stand in the order in which they are called.
class Bench {
 public:
  Bench(std::string folder, uint64_t millions)
      : folder_(std::move(folder)), millions_(millions), pages_(millions * 1000000) {}

  const std::string& folder() const { return folder_; }
  uint64_t millions() const { return millions_; }
  const Figures& figures() const { return figures_; }

  absl::Status Build() {
    const double begin = Seconds();
    SPILLWAY_RETURN_IF_ERROR(Open());  // creates the store
    store_.reset();
    SPILLWAY_RETURN_IF_ERROR(Fill());
    figures_.build_s = Seconds() - begin;
    figures_.catalog_bytes =
        static_cast<double>(std::filesystem::file_size(folder_ + "/spillway-catalog.sqlite")) /
        static_cast<double>(pages_);
    return absl::OkStatus();
  }

  absl::Status OpenAndChange() {
    store_.reset();
    const double bytes_before = HeapBytes();
    const Meter meter;
    SPILLWAY_RETURN_IF_ERROR(Open());
    meter.Stop(&figures_.open);
    figures_.open_ram_bytes = HeapBytes() - bytes_before;
    SPILLWAY_RETURN_IF_ERROR(LookUp());
    return ChangeAndCommit();
  }

  absl::Status Snapshot(int round) {
    const Meter meter;
    SPILLWAY_RETURN_IF_ERROR(store_->Snapshot(absl::StrCat("round-", round)));
    meter.Stop(&figures_.snapshot);
    return absl::OkStatus();
  }

  absl::Status LookUpInOrder() {
    store_.reset();
    SPILLWAY_RETURN_IF_ERROR(Open());
    const uint64_t pages = std::min(pages_, uint64_t{1} << 20);
    // Memory is measured over the second half, because SQLite's own cache is full by then.
    double bytes_before = 0;
    const double start = Seconds();
    for (uint64_t page = 0; page < pages; ++page) {
      if (page == pages / 2) bytes_before = HeapBytes();
      SPILLWAY_RETURN_IF_ERROR(LookUpPage(page));
    }
    figures_.next_lookup_us = (Seconds() - start) * 1e6 / static_cast<double>(pages);
    figures_.ram_bytes = (HeapBytes() - bytes_before) / static_cast<double>(pages - pages / 2);
    store_.reset();
    return absl::OkStatus();
  }

 private:
  absl::Status Open() {
    if (!io_) {
      SPILLWAY_ASSIGN_OR_RETURN(io_, io::MakeIoEngine(IoKind::kPosix, {}, folder_));
    }
    SPILLWAY_ASSIGN_OR_RETURN(
        store_, io::Store::Open({.folders = {folder_}, .page_bytes = kPageBytes}, io_.get()));
    return absl::OkStatus();
  }

  // Writes the rows of all pages, in consecutive extents. Free space of a hundredth of their size
  // follows them.
  absl::Status Fill() {
    SPILLWAY_ASSIGN_OR_RETURN(auto catalog,
                              io::Catalog::Open(folder_ + "/spillway-catalog.sqlite"));
    SPILLWAY_ASSIGN_OR_RETURN(auto change, io::CatalogChange::Begin(catalog.get(), std::nullopt));
    uint64_t page = 0;
    uint64_t room = pages_ + pages_ / 100;
    io::PageRecord record;
    record.content_bytes = kPageBytes;
    record.extent.size_bytes = kPageBytes;
    for (uint32_t segment = 0; room > 0; ++segment) {
      const uint64_t pages_here =
          std::min(room, io::SegmentBoundBytes(io::kDefaultSegmentBytes, segment) / kPageBytes);
      SPILLWAY_RETURN_IF_ERROR(MakeFile(segment, pages_here * kPageBytes));
      change->AddSpace(0, segment, 0, pages_here * kPageBytes);
      SPILLWAY_RETURN_IF_ERROR(
          change->PutSegment({0, segment, pages_here * kPageBytes, pages_here * kPageBytes}));
      room -= pages_here;
      for (uint64_t i = 0; i < pages_here && page < pages_; ++i, ++page) {
        const uint64_t tensor = page / kPagesPerTensor;
        if (page % kPagesPerTensor == 0) {
          SPILLWAY_RETURN_IF_ERROR(
              change->AddTensor(tensor + 1, {TensorName(tensor), "{}", kPagesPerTensor}));
        }
        record.extent.segment = segment;
        record.extent.offset = i * kPageBytes;
        record.checksum = page * 0x9e3779b97f4a7c15u;
        SPILLWAY_RETURN_IF_ERROR(change->PutPage(tensor + 1, page % kPagesPerTensor, record, true));
      }
    }
    SPILLWAY_RETURN_IF_ERROR(change->FinishCommit("made").status());
    return catalog->Accept();
  }

  absl::Status MakeFile(uint32_t segment, uint64_t size_bytes) {
    char name[40];
    std::snprintf(name, sizeof(name), "/spillway-segment-%06u", segment);
    const int fd = ::open((folder_ + name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) return absl::UnavailableError("cannot make a segment file");
    const bool ok = ::ftruncate(fd, static_cast<off_t>(size_bytes)) == 0;
    ::close(fd);
    return ok ? absl::OkStatus() : absl::UnavailableError("cannot extend a segment file");
  }

  static double HeapBytes() {
    const auto info = ::mallinfo2();
    return static_cast<double>(info.uordblks + info.hblkhd);
  }

  absl::StatusOr<io::TensorIndex> Tensor(uint64_t page) {
    SPILLWAY_ASSIGN_OR_RETURN(const auto tensor,
                              store_->FindTensor(TensorName(page / kPagesPerTensor)));
    if (!tensor) return absl::InternalError("a tensor is missing");
    return *tensor;
  }

  absl::Status LookUpPage(uint64_t page) {
    SPILLWAY_ASSIGN_OR_RETURN(const io::TensorIndex tensor, Tensor(page));
    SPILLWAY_ASSIGN_OR_RETURN(const auto record, store_->FindPage(tensor, page % kPagesPerTensor));
    return record ? absl::OkStatus() : absl::InternalError("a page is missing");
  }

  absl::Status LookUp() {
    std::vector<uint64_t> ranges(pages_ / kRangePages);
    std::iota(ranges.begin(), ranges.end(), 0);
    std::shuffle(ranges.begin(), ranges.end(), random_);
    const Meter meter;
    for (int i = 0; i < kLookedUpPages; ++i)
      SPILLWAY_RETURN_IF_ERROR(LookUpPage(ranges[i] * kRangePages + random_() % kRangePages));
    meter.Stop(&figures_.look_up);
    return absl::OkStatus();
  }

  absl::Status ChangeAndCommit() {
    Costs commits;
    for (int commit = 0; commit < kCommits; ++commit) {
      for (int i = 0; i < kChangedPages; ++i) {
        const uint64_t page = random_() % pages_;
        SPILLWAY_ASSIGN_OR_RETURN(const io::TensorIndex tensor, Tensor(page));
        SPILLWAY_ASSIGN_OR_RETURN(const io::Extent extent, store_->Allocate(kPageBytes));
        store_->Record(tensor, page % kPagesPerTensor,
                       {.extent = extent, .content_bytes = kPageBytes, .checksum = random_()});
      }
      const Meter meter;
      SPILLWAY_RETURN_IF_ERROR(store_->Commit("changed"));
      meter.Stop(&commits);
    }
    AddMeans(commits, &figures_.commit);
    return absl::OkStatus();
  }

  const std::string folder_;
  const uint64_t millions_;
  const uint64_t pages_;
  std::mt19937_64 random_{20261121};
  std::unique_ptr<io::IoEngine> io_;
  std::unique_ptr<io::Store> store_;
  Figures figures_;
};

void Print(const Bench& bench, const Figures& first) {
  const Figures& now = bench.figures();
  std::printf("%llu million pages (%.1f TiB), made in %.1f s\n",
              static_cast<unsigned long long>(bench.millions()),
              static_cast<double>(bench.millions() * 1000000) * kPageBytes / (uint64_t{1} << 40),
              now.build_s);
  const auto line = [](const char* what, double operations, const Costs& costs, const Costs& base) {
    std::printf(
        "  %-20s CPU ms %-26s x%.2f  wall ms %-28s x%.2f  catalog pages read %.2f, written %.2f\n",
        what, Range(costs.cpu).c_str(), MedianRatio(costs.cpu, base.cpu), Range(costs.wall).c_str(),
        MedianRatio(costs.wall, base.wall), Median(costs.pages_read) / operations,
        Median(costs.pages_written) / operations);
  };
  line("open", 1, now.open, first.open);
  line("look up 500 ranges", kLookedUpPages, now.look_up, first.look_up);
  line("commit 1,000 pages", kChangedPages, now.commit, first.commit);
  line("snapshot", 1, now.snapshot, first.snapshot);
  std::printf(
      "  look up in order %.3f us a page; RAM %.0f KiB opened, %.1f bytes a page looked at; "
      "catalog "
      "%.1f bytes a page\n",
      now.next_lookup_us, now.open_ram_bytes / 1024, now.ram_bytes, now.catalog_bytes);
}

absl::Status Measure(std::vector<std::unique_ptr<Bench>>& benches, int rounds) {
  for (auto& bench : benches) SPILLWAY_RETURN_IF_ERROR(bench->Build());
  for (int round = 0; round < rounds; ++round)
    for (auto& bench : benches) SPILLWAY_RETURN_IF_ERROR(bench->OpenAndChange());
  for (int round = 0; round < rounds; ++round)
    for (auto& bench : benches) SPILLWAY_RETURN_IF_ERROR(bench->Snapshot(round));
  for (auto& bench : benches) SPILLWAY_RETURN_IF_ERROR(bench->LookUpInOrder());
  std::printf("Counts: of an opening, a look-up, a page that is committed, a snapshot\n");
  for (auto& bench : benches) Print(*bench, benches[0]->figures());
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  io::SetSqliteHook(Count);
  std::vector<std::unique_ptr<Bench>> benches;
  for (uint64_t millions : options.millions) {
    std::string folder = options.folder + "/spillway-catalog-bench-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr)
      return absl::UnavailableError(absl::StrCat("cannot make a folder in ", options.folder));
    benches.push_back(std::make_unique<Bench>(folder, millions));
  }
  const absl::Status status = Measure(benches, options.rounds);
  for (auto& bench : benches) {
    const std::string folder = bench->folder();
    bench.reset();
    std::error_code error;
    if (options.keep) {
      std::printf("%s\n", folder.c_str());
    } else {
      std::filesystem::remove_all(folder, error);
    }
  }
  return status;
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  spillway::bench::Options options;
  CLI::App app("What a store's catalog costs, by size of the store");
  app.add_option("--folder", options.folder, "folder for the stores, removed afterwards");
  app.add_option("--millions", options.millions, "sizes, in millions of pages of 1 MiB")
      ->delimiter(',');
  app.add_option("--rounds", options.rounds, "how often each figure is taken");
  app.add_flag("--keep", options.keep, "leave the stores and print their folders");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = spillway::bench::Run(options);
  if (!status.ok()) std::fprintf(stderr, "catalog_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
