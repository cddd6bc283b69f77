// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/io/ceiling.h"

#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "io/store/hash_threads.h"
#include "io/store/page_io.h"
#include "io/store/store.h"
#include "src/base/bytes.h"
#include "src/base/clock.h"
#include "src/base/status_macros.h"
#include "tools/spillway/bench/io/hashing.h"
#include "tools/spillway/bench/io/memory.h"
#include "tools/spillway/bench/io/nop_io_engine.h"
#include "tools/spillway/bench/io/own_folder.h"
#include "tools/spillway/bench/io/room.h"
#include "tools/spillway/bench/io/rows.h"

namespace spillway::bench_io {
namespace {

constexpr uint64_t kUnderWay = 64;                     // blocks in flight, of one page each
constexpr uint64_t kSlackBytes = uint64_t{256} << 20;  // more than is in flight, in whole segments

double ProcessCpuSeconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The result of one row in one round.
struct Measured {
  double bytes_per_second = 0;
  double memory_hash_bytes_per_second = 0;
  double hash_seconds_per_gib = 0;
  double bookkeeping_seconds_per_gib = 0;
  double submission_seconds_per_gib = 0;
};

class Ceiling {
 public:
  Ceiling(const CeilingOptions& options, const std::atomic<bool>& interrupted)
      : options_(options), interrupted_(interrupted) {}

  absl::StatusOr<CeilingReport> Run() {
    SPILLWAY_RETURN_IF_ERROR(Open());
    // The rows: reads, then writes, each with one, two, four ... threads.
    std::vector<CeilingRow> rows;
    for (const io::IoOp op : {io::IoOp::kRead, io::IoOp::kWrite}) {
      for (const int threads : ThreadCounts()) rows.push_back({.op = op, .hash_threads = threads});
    }
    std::vector<std::vector<Measured>> measured(rows.size());
    SPILLWAY_RETURN_IF_ERROR(Pass(io::IoOp::kWrite, 1).status());  // so that reads find the data
    int done = 0;
    for (int round = 0; round < options_.rounds; ++round) {
      for (size_t i = 0; i < rows.size(); ++i) {
        if (options_.progress) {
          options_.progress(done++, options_.rounds * static_cast<int>(rows.size()),
                            absl::StrCat("ceiling, ", rows[i].hash_threads, " hashing threads"));
        }
        SPILLWAY_ASSIGN_OR_RETURN(Measured one, Pass(rows[i].op, rows[i].hash_threads));
        one.memory_hash_bytes_per_second = HashRate(memory_->span(), rows[i].hash_threads);
        measured[i].push_back(one);
      }
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t first = rows[i].op == io::IoOp::kRead ? 0 : rows.size() / 2;
      Summarise(measured[i], measured[first], &rows[i]);
    }
    CeilingReport report;
    report.machine = Look(std::vector<std::string>{options_.folder},
                          memory_->span().first(std::min<size_t>(memory_->span().size(), kMost)));
    report.rows = std::move(rows);
    return report;
  }

 private:
  static constexpr size_t kMost = size_t{256} << 20;

  static std::vector<int> ThreadCounts() {
    std::vector<int> counts;
    const int most = io::DefaultHashThreads();
    for (int threads = 1; threads < most; threads *= 2) counts.push_back(threads);
    counts.push_back(most);
    return counts;
  }

  absl::Status Open() {
    SPILLWAY_RETURN_IF_ERROR(CheckRoom({&options_.folder, 1},
                                       options_.memory_bytes + kSlackBytes + kStoreSlackBytes,
                                       "give a smaller --memory"));
    SPILLWAY_ASSIGN_OR_RETURN(
        const uint64_t memory_bytes,
        CutToAvailableMemory(options_.memory_bytes, /*num_users=*/1, options_.note));
    SPILLWAY_ASSIGN_OR_RETURN(OwnFolder folder, options_.make_folder(options_.folder));
    folder_.emplace(std::move(folder));
    SPILLWAY_ASSIGN_OR_RETURN(memory_, Memory::Make(memory_bytes, /*huge=*/true));
    num_blocks_ = memory_->span().size() / kPageBytes;
    SPILLWAY_ASSIGN_OR_RETURN(engine_, NopIoEngine::Create());
    SPILLWAY_ASSIGN_OR_RETURN(store_, io::Store::Open({.folders = {folder_->path() + "/store"},
                                                       .scratch = true,
                                                       .page_bytes = kPageBytes},
                                                      engine_.get()));
    SPILLWAY_ASSIGN_OR_RETURN(data_, store_->AddTensor({"data", "{}", num_blocks_}, false));
    return absl::OkStatus();
  }

  // Moves every block once, in order.
  absl::StatusOr<Measured> Pass(io::IoOp op, int hash_threads) {
    io::PageIo pages(store_.get(), engine_.get(), {.hash_threads = hash_threads});
    uint64_t begun = 0, ended = 0;
    const auto begin = [&] {
      for (; begun < num_blocks_ && begun < ended + kUnderWay; ++begun) {
        std::byte* const memory = memory_->span().data() + begun * kPageBytes;
        if (op == io::IoOp::kRead) {
          pages.Read(begun, data_, begun, kPageBytes, memory);
        } else {
          pages.Write(begun, data_, begun, kPageBytes, memory);
        }
      }
    };
    std::vector<io::PageIo::Result> results;
    absl::Status status;
    const double cpu = ProcessCpuSeconds(), submission = engine_->submission_cpu_seconds();
    const double start = base::Now();
    begin();
    while (ended < begun) {
      results.clear();
      pages.Reap(absl::InfiniteDuration(), &results);
      for (const io::PageIo::Result& result : results) status.Update(result.status);
      ended += results.size();
      if (interrupted_) status.Update(absl::CancelledError("interrupted"));
      if (status.ok()) begin();
    }
    const double seconds = base::Now() - start;
    SPILLWAY_RETURN_IF_ERROR(status);
    const double gib = static_cast<double>(num_blocks_ * kPageBytes) / kGiB;
    Measured measured;
    measured.bytes_per_second = gib * kGiB / seconds;
    measured.hash_seconds_per_gib = pages.hashing().seconds / gib;
    measured.submission_seconds_per_gib = (engine_->submission_cpu_seconds() - submission) / gib;
    measured.bookkeeping_seconds_per_gib =
        std::max(0.0, (ProcessCpuSeconds() - cpu) / gib - measured.hash_seconds_per_gib -
                          measured.submission_seconds_per_gib);
    return measured;
  }

  static double Median(const std::vector<Measured>& measured, double Measured::* member) {
    std::vector<double> values;
    for (const Measured& one : measured) values.push_back(one.*member);
    return Summarize(std::move(values)).median;
  }

  // Returns the median over the rounds of a value's ratio to the value of the first row in the same
  // round.
  static double Gain(const std::vector<Measured>& measured, const std::vector<Measured>& first,
                     double Measured::* member) {
    std::vector<double> gains;
    for (size_t round = 0; round < measured.size(); ++round) {
      gains.push_back(measured[round].*member / first[round].*member);
    }
    return Summarize(std::move(gains)).median;
  }

  static void Summarise(const std::vector<Measured>& measured, const std::vector<Measured>& first,
                        CeilingRow* row) {
    row->bytes_per_second = Median(measured, &Measured::bytes_per_second);
    row->memory_hash_bytes_per_second = Median(measured, &Measured::memory_hash_bytes_per_second);
    row->hash_cpu_seconds_per_gib = Median(measured, &Measured::hash_seconds_per_gib);
    row->bookkeeping_cpu_seconds_per_gib = Median(measured, &Measured::bookkeeping_seconds_per_gib);
    row->submission_cpu_seconds_per_gib = Median(measured, &Measured::submission_seconds_per_gib);
    row->gain = Gain(measured, first, &Measured::bytes_per_second);
    row->memory_hash_gain = Gain(measured, first, &Measured::memory_hash_bytes_per_second);
  }

  const CeilingOptions& options_;
  const std::atomic<bool>& interrupted_;
  std::optional<OwnFolder> folder_;
  std::optional<Memory> memory_;
  std::unique_ptr<NopIoEngine> engine_;
  std::unique_ptr<io::Store> store_;
  io::TensorIndex data_ = 0;
  uint64_t num_blocks_ = 0;
};

}  // namespace

absl::StatusOr<CeilingReport> RunCeiling(const CeilingOptions& options,
                                         const std::atomic<bool>& interrupted) {
  Ceiling ceiling(options, interrupted);
  return ceiling.Run();
}

}  // namespace spillway::bench_io
