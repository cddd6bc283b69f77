// SPDX-License-Identifier: Apache-2.0
//
// Question: what do opening a store, looking up pages and committing a change of 1,000 pages cost,
// and do they grow with the store? Limit: at 4 and 16 million pages of 1 MiB no more than 1.5 times
// what they cost at 1 million (the catalog is a tree: one more level is allowed).
//
// Method: a store is made with sparse segment files and the rows of its pages written straight into
// its catalog, in one commit. Then it is opened again and again; pages are looked up at random, and
// one after another; and 1,000 pages at random are recorded in new extents and committed, with no
// byte of data written: what is timed is catalog and bookkeeping. Medians and ranges; figures of
// one run compare with each other only.

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
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/make_io_engine.h"
#include "io/store/catalog_change.h"
#include "io/store/segment_files.h"
#include "io/store/store.h"
#include "src/base/status_macros.h"

namespace spillway::bench {
namespace {

constexpr uint64_t kPageBytes = uint64_t{1} << 20;
constexpr uint64_t kPagesPerTensor = 8192;
constexpr int kChangedPages = 1000;

struct Options {
  std::string folder = ".";
  std::vector<uint64_t> millions = {1, 4};
  int rounds = 9;
};

// What a piece of work took, by the clock and of CPU: on a busy machine only the latter compares.
struct Times {
  std::vector<double> wall;
  std::vector<double> cpu;
};

struct Figures {
  Times open_ms;
  Times lookup_us;  // each, the first in its range
  Times commit_ms;
  Times snapshot_ms;
  double next_lookup_us = 0;  // each, one after another
  double ram_bytes = 0;       // a page that was looked at
  double catalog_bytes = 0;   // a page
  double build_s = 0;
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Stopwatch {
 public:
  // Adds what went by, in units of `scale` a second.
  void Stop(double scale, Times* times) const {
    times->wall.push_back((Seconds() - wall_) * scale);
    times->cpu.push_back((Cpu() - cpu_) * scale);
  }

 private:
  static double Cpu() {
    timespec time;
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }
  const double wall_ = Seconds();
  const double cpu_ = Cpu();
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string Range(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  char text[80];
  std::snprintf(text, sizeof(text), "%8.3f (%.3f-%.3f)", Median(values), *low, *high);
  return text;
}

std::string TensorName(uint64_t tensor) { return absl::StrCat("layers.", tensor, ".weight"); }

class Bench {
 public:
  Bench(std::string folder, uint64_t pages, int rounds)
      : folder_(std::move(folder)), pages_(pages), rounds_(rounds) {}

  absl::StatusOr<Figures> Run() {
    const double begin = Seconds();
    SPILLWAY_RETURN_IF_ERROR(Open());  // makes it
    store_.reset();
    SPILLWAY_RETURN_IF_ERROR(Fill());
    figures_.build_s = Seconds() - begin;
    figures_.catalog_bytes =
        static_cast<double>(std::filesystem::file_size(folder_ + "/spillway-catalog.sqlite")) /
        static_cast<double>(pages_);
    for (int round = 0; round < rounds_; ++round) {
      store_.reset();
      const Stopwatch watch;
      SPILLWAY_RETURN_IF_ERROR(Open());
      watch.Stop(1e3, &figures_.open_ms);
      SPILLWAY_RETURN_IF_ERROR(LookUp());
    }
    SPILLWAY_RETURN_IF_ERROR(LookUpInOrder());
    for (int round = 0; round < rounds_; ++round) SPILLWAY_RETURN_IF_ERROR(Change());
    for (int round = 0; round < rounds_; ++round) {
      const Stopwatch watch;
      SPILLWAY_RETURN_IF_ERROR(store_->Snapshot(absl::StrCat("round-", round)));
      watch.Stop(1e3, &figures_.snapshot_ms);
    }
    store_.reset();
    return figures_;
  }

 private:
  absl::Status Open() {
    if (!io_) {
      SPILLWAY_ASSIGN_OR_RETURN(io_, io::MakeIoEngine(io::IoEngineKind::kPosix, {}, folder_));
    }
    SPILLWAY_ASSIGN_OR_RETURN(
        store_, io::Store::Open({.folders = {folder_}, .page_bytes = kPageBytes}, io_.get()));
    return absl::OkStatus();
  }

  // All pages, one behind the other, and a hundredth of the room free behind them.
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
    return change->FinishCommit("made").status();
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

  absl::StatusOr<io::TensorIndex> Tensor(uint64_t page) {
    SPILLWAY_ASSIGN_OR_RETURN(const auto tensor,
                              store_->FindTensor(TensorName(page / kPagesPerTensor)));
    if (!tensor) return absl::InternalError("a tensor is missing");
    return *tensor;
  }

  absl::Status LookUp() {
    const Stopwatch watch;
    for (int i = 0; i < kChangedPages; ++i) {
      const uint64_t page = random_() % pages_;
      SPILLWAY_ASSIGN_OR_RETURN(const io::TensorIndex tensor, Tensor(page));
      SPILLWAY_ASSIGN_OR_RETURN(const auto record,
                                store_->FindPage(tensor, page % kPagesPerTensor));
      if (!record) return absl::InternalError("a page is missing");
    }
    watch.Stop(1e6 / kChangedPages, &figures_.lookup_us);
    return absl::OkStatus();
  }

  absl::Status LookUpInOrder() {
    store_.reset();
    SPILLWAY_RETURN_IF_ERROR(Open());
    const uint64_t pages = std::min(pages_, uint64_t{1} << 20);
    // Of the second half: by then SQLite's own cache is full.
    double bytes_before = 0;
    const double start = Seconds();
    for (uint64_t page = 0; page < pages; ++page) {
      if (page == pages / 2) bytes_before = static_cast<double>(::mallinfo2().uordblks);
      SPILLWAY_ASSIGN_OR_RETURN(const io::TensorIndex tensor, Tensor(page));
      SPILLWAY_RETURN_IF_ERROR(store_->FindPage(tensor, page % kPagesPerTensor).status());
    }
    figures_.next_lookup_us = (Seconds() - start) * 1e6 / static_cast<double>(pages);
    figures_.ram_bytes = (static_cast<double>(::mallinfo2().uordblks) - bytes_before) /
                         static_cast<double>(pages - pages / 2);
    return absl::OkStatus();
  }

  absl::Status Change() {
    for (int i = 0; i < kChangedPages; ++i) {
      const uint64_t page = random_() % pages_;
      SPILLWAY_ASSIGN_OR_RETURN(const io::TensorIndex tensor, Tensor(page));
      SPILLWAY_ASSIGN_OR_RETURN(const io::Extent extent, store_->Allocate(kPageBytes));
      store_->Record(tensor, page % kPagesPerTensor,
                     {.extent = extent, .content_bytes = kPageBytes, .checksum = random_()});
    }
    const Stopwatch watch;
    SPILLWAY_RETURN_IF_ERROR(store_->Commit("changed"));
    watch.Stop(1e3, &figures_.commit_ms);
    return absl::OkStatus();
  }

  const std::string folder_;
  const uint64_t pages_;
  const int rounds_;
  std::mt19937_64 random_{20261121};
  std::unique_ptr<io::IoEngine> io_;
  std::unique_ptr<io::Store> store_;
  Figures figures_;
};

void Print(uint64_t millions, const Figures& now, const Figures& first) {
  std::printf(
      "%2llu million pages (%.1f TiB), made in %.1f s\n", static_cast<unsigned long long>(millions),
      static_cast<double>(millions * 1000000) * kPageBytes / (uint64_t{1} << 40), now.build_s);
  const auto line = [](const char* what, const Times& times, const Times& base) {
    std::printf("  %-30s %-30s x%-5.2f CPU %-30s x%.2f\n", what, Range(times.wall).c_str(),
                Median(times.wall) / Median(base.wall), Range(times.cpu).c_str(),
                Median(times.cpu) / Median(base.cpu));
  };
  line("open, ms", now.open_ms, first.open_ms);
  line("look up at random, us a page", now.lookup_us, first.lookup_us);
  line("commit 1,000 pages, ms", now.commit_ms, first.commit_ms);
  line("snapshot, ms", now.snapshot_ms, first.snapshot_ms);
  std::printf(
      "  look up in order %.3f us a page; RAM %.1f bytes a page looked at; catalog %.1f "
      "bytes a page\n",
      now.next_lookup_us, now.ram_bytes, now.catalog_bytes);
  std::fflush(stdout);
}

absl::Status Run(const Options& options) {
  std::optional<Figures> first;
  for (uint64_t millions : options.millions) {
    std::string folder = options.folder + "/spillway-catalog-bench-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr)
      return absl::UnavailableError(absl::StrCat("cannot make a folder in ", options.folder));
    const auto figures = Bench(folder, millions * 1000000, options.rounds).Run();
    std::error_code error;
    std::filesystem::remove_all(folder, error);
    if (!figures.ok()) return figures.status();
    if (!first) first = *figures;
    Print(millions, *figures, *first);
  }
  return absl::OkStatus();
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
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = spillway::bench::Run(options);
  if (!status.ok()) std::fprintf(stderr, "catalog_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
