// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/io/bench.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "io/make_io_engine.h"
#include "io/nameless_file.h"
#include "io/store/calibration.h"
#include "io/store/hash_threads.h"
#include "src/base/bytes.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"
#include "tools/spillway/bench/io/fio.h"
#include "tools/spillway/bench/io/hashing.h"
#include "tools/spillway/bench/io/own_folder.h"
#include "tools/spillway/bench/io/room.h"
#include "tools/spillway/bench/io/targets.h"

namespace spillway::bench_io {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kLeastSlackBytes = uint64_t{256} << 20;  // see MakeSlack
// Of a device. A row has at most two queues of reads and two of writes under way.
constexpr uint64_t kMostSlackBytes = 4 * io::kMostCalibrationBytes;
constexpr uint64_t kPlainBytes = uint64_t{256} << 20;  // of memory in plain pages
constexpr size_t kHashedBytes = size_t{512} << 20;     // for the rate of hashing alone
// The depths at which fio is tried before the rounds, and the bytes that each trial moves.
constexpr int kFioDepths[] = {16, 64, 256, 512, 1024};
constexpr uint64_t kFioTrialBytes = uint64_t{1} << 30;
// Of distinct memory that a row which moves all data cycles through: caches hold less.
constexpr uint64_t kLeastDistinctBytes = uint64_t{512} << 20;

class Bench {
 public:
  Bench(const BenchOptions& options, const std::atomic<bool>& interrupted)
      : options_(options), interrupted_(interrupted) {}
  ~Bench() {
    store_.reset();  // scratch: removes its files
    if (ring_) ring_->RemoveBuffers();
    if (threads_) threads_->RemoveBuffers();
  }

  absl::StatusOr<BenchReport> Run() {
    const Clock::time_point start = Clock::now();
    SPILLWAY_RETURN_IF_ERROR(CheckRoom());
    SPILLWAY_RETURN_IF_ERROR(MakeMemory());
    report_.machine =
        Look(options_.folders,
             memory_->span().first(std::min<size_t>(memory_->span().size(), size_t{256} << 20)));
    SPILLWAY_RETURN_IF_ERROR(MakeFiles());
    const RowOptions row_options = {size_bytes_, memory_bytes_, options_.full, report_.profiles};
    for (const RowSpec& spec : MakeRows(row_options)) {
      if (spec.through == Through::kUringFile && ring_->name() != "uring") continue;
      report_.rows.push_back({.spec = spec});
    }
    const size_t num_filled = report_.rows.size();
    SPILLWAY_RETURN_IF_ERROR(Fill(row_options));
    std::rotate(report_.rows.begin(), report_.rows.begin() + static_cast<ptrdiff_t>(num_filled),
                report_.rows.end());
    SPILLWAY_RETURN_IF_ERROR(FindFioDepths(start));
    for (Row& row : report_.rows) UseMemoryOfFio(row);
    for (int round = 0;; ++round) {
      const std::chrono::duration<double> spent = Clock::now() - start;
      if (round > 0 && !options_.full && spent.count() > options_.seconds * (round < 3 ? 2 : 1))
        break;
      bool any = false;
      hash_bytes_per_second_ = HashRate(HashedSpan(), io::DefaultHashThreads());
      for (Row& row : report_.rows) {
        if (row.spec.first_touch || round >= row.spec.rounds) continue;
        any = true;
        SPILLWAY_RETURN_IF_ERROR(RunRow(row, round));
      }
      if (!any) break;
    }
    for (Row& row : report_.rows) {
      std::sort(row.latency_seconds.begin(), row.latency_seconds.end());
    }
    const bool has_fio = std::any_of(report_.rows.begin(), report_.rows.end(),
                                     [](const Row& row) { return !row.fio.empty(); });
    if (!has_fio) report_.fio_version.clear();
    return std::move(report_);
  }

 private:
  void Note(const std::string& text) const {
    if (options_.note) options_.note(text);
  }

  // Checks that each folder has room for its share of the data, the slack and the bare file. A
  // tenth of the free bytes must stay free. The slack is assumed to be as large as it can be.
  absl::Status CheckRoom() {
    const uint64_t num_folders = options_.folders.size();
    size_bytes_ = base::RoundUp(options_.size_bytes, uint64_t{8} * kMiB * num_folders);
    const uint64_t slack =
        std::clamp(options_.memory_bytes, kLeastSlackBytes, kMostSlackBytes * num_folders);
    const uint64_t needed = (2 * size_bytes_ + slack + kStoreSlackBytes) / num_folders;
    return bench_io::CheckRoom(
        options_.folders, needed,
        slack > kLeastSlackBytes ? "give a smaller --size or --memory" : "give a smaller --size");
  }

  absl::Status MakeMemory() {
    report_.fio_version = options_.fio && !options_.verify ? FioVersion() : "";
    const bool fio_shares = FreeHugePageBytes() >= options_.memory_bytes + Memory::kRestBytes;
    const int users = report_.fio_version.empty() || fio_shares ? 1 : 2;
    SPILLWAY_ASSIGN_OR_RETURN(memory_bytes_,
                              CutToAvailableMemory(options_.memory_bytes, users, options_.note));
    SPILLWAY_ASSIGN_OR_RETURN(memory_, Memory::Make(memory_bytes_, /*huge=*/true));
    SPILLWAY_ASSIGN_OR_RETURN(plain_,
                              Memory::Make(std::min(kPlainBytes, memory_bytes_), /*huge=*/false));
    return absl::OkStatus();
  }

  absl::Status MakeFiles() {
    const auto note = [this](std::string_view text) { Note(std::string(text)); };
    const io::IoEngineOptions deep = {.queue_depth = io::kMaxQueueDepth};
    SPILLWAY_ASSIGN_OR_RETURN(ring_,
                              io::MakeIoEngine(IoKind::kAuto, deep, options_.folders[0], note));
    report_.io_engine = std::string(ring_->name());
    SPILLWAY_ASSIGN_OR_RETURN(threads_,
                              io::MakeIoEngine(IoKind::kPosix, deep, options_.folders[0]));
    std::vector<std::string> store_folders;
    for (size_t i = 0; i < options_.folders.size(); ++i) {
      SPILLWAY_ASSIGN_OR_RETURN(OwnFolder folder, options_.make_folder(options_.folders[i]));
      SPILLWAY_ASSIGN_OR_RETURN(io::DirectFile file, io::OpenNamelessFile(folder.path()));
      // Allocates the file as the store allocates its segments. If the file were too short, fio
      // would lay it out itself.
      const auto share_bytes = static_cast<off_t>(size_bytes_ / options_.folders.size());
      if (::fallocate(file.fd(), 0, 0, share_bytes) != 0 &&
          ::ftruncate(file.fd(), share_bytes) != 0) {
        return base::ErrnoToStatus(errno, absl::StrCat("making a file in ", folder.path()));
      }
      const auto device = static_cast<uint16_t>(i);
      Report(i);
      SPILLWAY_ASSIGN_OR_RETURN(const io::DeviceProfile profile,
                                io::Calibrate(folder.path(), *ring_, device,
                                              {.queue_bytes = CalibrationBytes(),
                                               .limit = CalibrationTime(),
                                               .stop = &interrupted_}));
      report_.profiles.push_back(profile);
      is_cached_ |= IsCached(file);
      SPILLWAY_ASSIGN_OR_RETURN(const io::FileId on_ring,
                                ring_->AddFile(file.fd(), folder.path(), device));
      SPILLWAY_ASSIGN_OR_RETURN(const io::FileId on_threads,
                                threads_->AddFile(file.fd(), folder.path(), device));
      ring_files_.push_back(on_ring);
      thread_files_.push_back(on_threads);
      file_paths_.push_back(absl::StrCat("/proc/", ::getpid(), "/fd/", file.fd()));
      files_.push_back(std::move(file));
      store_folders.push_back(absl::StrCat(folder.path(), "/store"));
      own_folders_.push_back(std::move(folder));
    }
    SPILLWAY_ASSIGN_OR_RETURN(
        store_,
        io::Store::Open(
            {.folders = store_folders, .scratch = true, .page_bytes = kPageBytes, .announce = note},
            ring_.get()));
    for (size_t i = 0; i < options_.folders.size(); ++i) {
      // If the store cannot keep the profile, it uses the default.
      (void)store_->SetProfile(static_cast<uint16_t>(i), report_.profiles[i]);
    }
    SPILLWAY_ASSIGN_OR_RETURN(data_,
                              store_->AddTensor({"data", "{}", size_bytes_ / kPageBytes}, false));
    memory_->AddTo(*ring_);
    plain_->AddTo(*ring_);
    return absl::OkStatus();
  }

  // A quarter of the memory that bytes move through, as an engine's queues are measured with up to
  // a quarter of its pinned budget.
  uint64_t CalibrationBytes() const {
    return std::clamp(memory_bytes_ / 4, io::kLeastCalibrationBytes, io::kMostCalibrationBytes);
  }
  absl::Duration CalibrationTime() const {
    return absl::Seconds(std::clamp(options_.seconds / 6, 1.0, 10.0));
  }

  std::span<std::byte> HashedSpan() const {
    return memory_->span().first(std::min(memory_->span().size(), kHashedBytes));
  }

  void Report(size_t folder) const {
    if (options_.progress) {
      options_.progress(0, 0, absl::StrCat("calibrating ", options_.folders[folder]));
    }
  }

  // Measures the first touch: this benchmark writes the store, and fio writes the bare file. If
  // there is no fio, this benchmark writes the bare file, too, but does not report it.
  absl::Status Fill(const RowOptions& row_options) {
    Row row;
    row.spec = {.op = Op::kWrite,
                .block_bytes = 4 * kMiB,
                .depth = CalibratedDepth(row_options, Op::kWrite, 4 * kMiB),
                .through = Through::kStore,
                .first_touch = true,
                .memory_bytes = memory_bytes_,
                .rounds = 1};
    if (options_.progress) options_.progress(0, NumSteps(), Describe(row.spec));
    hash_bytes_per_second_ = HashRate(HashedSpan(), io::DefaultHashThreads());
    SPILLWAY_RETURN_IF_ERROR(RunOurs(row, 0));
    const std::optional<FioJob> job = MakeJob(row);
    if (job) SPILLWAY_RETURN_IF_ERROR(RunFioRow(row, *job, &row.fio));
    if (row.fio.empty()) {
      Row other = row;
      other.spec.through = Through::kPosixFile;
      SPILLWAY_RETURN_IF_ERROR(RunOurs(other, 0));
    }
    report_.rows.push_back(std::move(row));
    return MakeSlack();
  }

  // Writes pages and forgets them, so that writes out of place find free runs that were written
  // before: as many as a row has under way, because a block's old pages are free only once its new
  // ones are written.
  absl::Status MakeSlack() {
    uint64_t slack_bytes = kLeastSlackBytes;
    for (const Row& row : report_.rows) {
      if (row.spec.through != Through::kStore || row.spec.op == Op::kRead) continue;
      slack_bytes =
          std::max(slack_bytes, static_cast<uint64_t>(row.spec.depth) * row.spec.block_bytes);
    }
    const uint64_t num_pages = slack_bytes / kPageBytes;
    SPILLWAY_ASSIGN_OR_RETURN(const io::TensorIndex slack,
                              store_->AddTensor({"slack", "{}", num_pages}, true));
    StoreTarget target(store_.get(), ring_.get(), slack, kPageBytes);
    const Pass pass = {
        .op = Op::kWrite, .block_bytes = kPageBytes, .depth = 16, .num_blocks = num_pages};
    SPILLWAY_RETURN_IF_ERROR(RunPass(pass, target, memory_->span(), interrupted_).status());
    for (uint64_t page = 0; page < num_pages; ++page) store_->Forget(slack, page);
    return absl::OkStatus();
  }

  // Finds the depth at which fio is fastest, for each row that moves all data except the first
  // touch. Tries each depth twice, in turns. Stops when a third of the time is over (not with
  // --full): in the rows left, fio gets the depth at which it uses as much memory as this
  // benchmark.
  absl::Status FindFioDepths(Clock::time_point start) {
    if (report_.fio_version.empty()) return absl::OkStatus();
    for (Row& row : report_.rows) {
      if (row.spec.most_seconds < 1e6 || row.spec.first_touch) continue;
      std::map<int, double> rates;
      for (int turn = 0; turn < 2; ++turn) {
        for (int depth : kFioDepths) {
          const std::chrono::duration<double> spent = Clock::now() - start;
          if (!options_.full && spent.count() > options_.seconds / 3) {
            row.fio_depth = 0;
            return absl::OkStatus();
          }
          depth = std::min(depth, static_cast<int>(row.spec.memory_bytes / row.spec.block_bytes));
          if (options_.progress) {
            options_.progress(0, NumSteps(),
                              absl::StrCat("fio at depth ", depth, ": ", Describe(row.spec)));
          }
          row.fio_depth = depth;
          std::optional<FioJob> job = MakeJob(row);
          if (!job) {
            row.fio_depth = 0;
            return absl::OkStatus();
          }
          job->move_bytes = std::min(kFioTrialBytes, size_bytes_);
          const absl::StatusOr<FioResult> result = RunFio(*job, interrupted_);
          if (absl::IsNotFound(result.status())) continue;  // perhaps fio cannot go this deep
          SPILLWAY_RETURN_IF_ERROR(result.status());
          rates[depth] = std::max(rates[depth], result->bytes / result->seconds);
        }
      }
      row.fio_depth = 0;
      for (const auto& [depth, rate] : rates) {
        if (row.fio_depth == 0 || rate > rates[row.fio_depth]) row.fio_depth = depth;
      }
    }
    return absl::OkStatus();
  }

  // Makes a row that moves all data cycle through the memory that fio's depth takes, because parts
  // of the memory differ in speed by several percent on a virtual machine.
  void UseMemoryOfFio(Row& row) const {
    if (row.fio_depth == 0) return;  // no fio, or its depth was not sought: it uses all memory
    const uint64_t fio_bytes = static_cast<uint64_t>(row.fio_depth) * row.spec.block_bytes;
    const uint64_t needed_bytes = static_cast<uint64_t>(row.spec.depth) * row.spec.block_bytes;
    row.spec.memory_bytes =
        std::min(std::max({fio_bytes, needed_bytes, kLeastDistinctBytes}), row.spec.memory_bytes);
  }

  absl::Status RunRow(Row& row, int round) {
    if (options_.progress) options_.progress(num_done_++, NumSteps(), Describe(row.spec));
    const bool whole = row.spec.most_seconds > 1e6;
    const bool even = round % 2 == 0;
    if (whole) SPILLWAY_RETURN_IF_ERROR(even ? MeasureFio(row) : MeasureFioBesideHashing(row));
    SPILLWAY_RETURN_IF_ERROR(RunOurs(row, round));
    return whole && even ? MeasureFioBesideHashing(row) : MeasureFio(row);
  }

  // If the row is not a whole one, fio moves as much as this benchmark's last pass.
  absl::Status MeasureFio(Row& row) {
    const std::optional<FioJob> job = MakeJob(row);
    return job ? RunFioRow(row, *job, &row.fio) : absl::OkStatus();
  }

  // Beside fio, as many bytes of the same memory are hashed as fio moved by itself. This is what a
  // store that keeps up with fio does with the memory.
  absl::Status MeasureFioBesideHashing(Row& row) {
    const std::optional<FioJob> job = MakeJob(row);
    if (!job || row.fio.empty() || !row.spec.also_without_checksums) return absl::OkStatus();
    const uint64_t fio_bytes = static_cast<uint64_t>(row.fio_depth) * row.spec.block_bytes;
    const HashLoad load(memory_->span().first(std::min(memory_->span().size(), fio_bytes)),
                        Rate(row.fio).median, io::DefaultHashThreads());
    return RunFioRow(row, *job, &row.fio_beside_hashing);
  }

  int NumSteps() const { return static_cast<int>(report_.rows.size()); }

  // The pass without checksums goes first: the pages that it writes fail to verify, and the pass
  // with checksums overwrites them.
  absl::Status RunOurs(Row& row, int round) {
    if (row.spec.also_without_checksums) {
      StoreTarget target(store_.get(), ring_.get(), data_, row.spec.block_bytes,
                         {.checksums = io::Checksums::kNone});
      SPILLWAY_ASSIGN_OR_RETURN(const PassResult result, RunOnce(row, round, target));
      row.without_checksums.push_back(ToSample(result));
    }
    const std::unique_ptr<Target> target = MakeTarget(row.spec);
    SPILLWAY_ASSIGN_OR_RETURN(const PassResult result, RunOnce(row, round, *target));
    row.ours.push_back(ToSample(result));
    if (HasChecksums(row.spec)) row.hash_bytes_per_second.push_back(hash_bytes_per_second_);
    row.latency_seconds.insert(row.latency_seconds.end(), result.latency_seconds.begin(),
                               result.latency_seconds.end());
    row.moved_bytes = result.bytes;
    return absl::OkStatus();
  }

  static Sample ToSample(const PassResult& result) {
    const double gib = static_cast<double>(result.bytes) / kGiB;
    return {static_cast<double>(result.bytes) / result.seconds, result.cpu_seconds / gib,
            result.checksum_seconds / gib};
  }

  absl::StatusOr<PassResult> RunOnce(Row& row, int round, Target& target) {
    const RowSpec& spec = row.spec;
    const Memory& memory = spec.huge_pages ? *memory_ : *plain_;
    row.pages = memory.kind();
    row.cached = is_cached_;
    SetDepths(spec);
    const Pass pass = {.op = spec.op,
                       .pattern = spec.pattern,
                       .block_bytes = spec.block_bytes,
                       .depth = spec.depth,
                       .num_blocks = size_bytes_ / spec.block_bytes,
                       .most_seconds = spec.most_seconds,
                       .seed = static_cast<uint64_t>(round) + 1,
                       .stamp = options_.verify};
    const auto span = memory.span();
    return RunPass(pass, target, span.first(std::min<uint64_t>(span.size(), spec.memory_bytes)),
                   interrupted_);
  }

  // Sets the calibrated depths for a row of the store, and the largest depths for a row of a bare
  // file, where the row's own depth is the limit.
  void SetDepths(const RowSpec& spec) {
    for (size_t i = 0; i < report_.profiles.size(); ++i) {
      ring_->SetDepths(static_cast<uint16_t>(i), spec.through == Through::kStore
                                                     ? io::DepthsOf(report_.profiles[i])
                                                     : io::DefaultDepths(io::kMaxQueueDepth));
    }
  }

  std::unique_ptr<Target> MakeTarget(const RowSpec& spec) {
    switch (spec.through) {
      case Through::kStore:
        return std::make_unique<StoreTarget>(store_.get(), ring_.get(), data_, spec.block_bytes);
      case Through::kUringFile:
        return std::make_unique<FileTarget>(ring_.get(), ring_files_, spec.block_bytes);
      case Through::kPosixFile: break;
    }
    return std::make_unique<FileTarget>(threads_.get(), thread_files_, spec.block_bytes);
  }

  // nullopt if fio is absent, failed or was not requested.
  std::optional<FioJob> MakeJob(Row& row) const {
    if (report_.fio_version.empty() || has_fio_failed_) return std::nullopt;
    const RowSpec& spec = row.spec;
    const bool whole = spec.most_seconds > 1e6;
    if (row.fio_depth == 0) {
      row.fio_depth = whole ? static_cast<int>(spec.memory_bytes / spec.block_bytes) : spec.depth;
    }
    const uint64_t bytes = static_cast<uint64_t>(row.fio_depth) * spec.block_bytes;
    const std::string memory_path = spec.huge_pages ? memory_->path() : "";
    row.fio_huge_pages = !memory_path.empty();
    return FioJob{.op = spec.op,
                  .pattern = spec.pattern,
                  .block_bytes = spec.block_bytes,
                  .depth = row.fio_depth,
                  .memory_path = memory_path,
                  .first_touch = spec.first_touch,
                  .uring = report_.io_engine == "uring",
                  .size_bytes = size_bytes_,
                  .move_bytes = whole ? 0 : std::max<uint64_t>(row.moved_bytes, bytes),
                  .paths = file_paths_};
  }

  absl::Status RunFioRow(Row& row, const FioJob& job, std::vector<Sample>* samples) {
    const absl::StatusOr<FioResult> result = RunFio(job, interrupted_);
    if (absl::IsNotFound(result.status())) {
      Note(absl::StrCat("fio could not do ", Describe(row.spec), ", and is not run again"));
      has_fio_failed_ = true;
      return absl::OkStatus();
    }
    SPILLWAY_RETURN_IF_ERROR(result.status());
    samples->push_back(
        {result->bytes / result->seconds, result->cpu_seconds / (result->bytes / kGiB)});
    return absl::OkStatus();
  }

  const BenchOptions& options_;
  const std::atomic<bool>& interrupted_;
  BenchReport report_;
  uint64_t size_bytes_ = 0;
  uint64_t memory_bytes_ = 0;
  int num_done_ = 0;
  double hash_bytes_per_second_ = 0;  // of the default hashing threads, in this round
  bool is_cached_ = false;
  bool has_fio_failed_ = false;
  std::optional<Memory> memory_, plain_;
  std::vector<OwnFolder> own_folders_;
  std::vector<io::DirectFile> files_;
  std::vector<std::string> file_paths_;  // for fio
  std::unique_ptr<io::IoEngine> ring_, threads_;
  std::vector<io::FileId> ring_files_, thread_files_;
  std::unique_ptr<io::Store> store_;
  io::TensorIndex data_ = 0;
};

}  // namespace

absl::StatusOr<BenchReport> RunBench(const BenchOptions& options,
                                     const std::atomic<bool>& interrupted) {
  Bench bench(options, interrupted);
  return bench.Run();
}

}  // namespace spillway::bench_io
