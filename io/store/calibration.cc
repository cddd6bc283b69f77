// SPDX-License-Identifier: Apache-2.0
//
// The calibration has these steps. Each uses the results of those before it.
//
//   1. Write the file once, so that the later steps move bytes that were written before.
//   2. Choose the request size, with 128 MiB in flight, or less on a slow device: the default,
//      unless another is clearly faster twice. A size counts with the least share that it has of
//      the best rate, over reads, writes, and a stream that alternates between both.
//   3. Choose the depth of reads.
//   4. Choose the depth of writes.
//   5. Choose the depth of writes beside reads, from one to the depth of writes, in such a stream,
//      as a run has that writes tiles to make room for those that it reads. If too few writes go
//      beside reads, all of the stream's requests soon are writes that wait. So the depth is the
//      smallest that is as fast as any: a request that waits in our own queue can still be
//      overtaken.
//
// Each block is hashed as a store hashes it: a block that was read before its memory is used again,
// a block that is written while the write is in flight. A device needs more requests in flight
// where hashing takes time between them. The settings of a ladder are measured in turn, in several
// rounds, and each setting counts with the median of its rates: other load on the machine slows a
// sample, and a cache or a burst makes it faster than a run. Samples of one setting differ by 10 to
// 25% on some disks, so Smoothed also compares each depth of reads or of writes with its
// neighbours.

#include "io/store/calibration.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/checksum.h"
#include "io/deadline.h"
#include "io/nameless_file.h"
#include "io/store/calibration_ladder.h"
#include "io/store/page_io.h"
#include "src/base/bytes.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/huge_pages.h"
#include "src/base/interrupt.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

// Larger requests give a device too few to work on, and make a read wait too long. The default is
// measured first, because a slow device leaves no time for another.
constexpr uint32_t kRequestLadder[] = {2 << 20, 512 << 10, 128 << 10};
constexpr size_t kDefaultRequest = 0;
static_assert(kRequestLadder[kDefaultRequest] == kDefaultRequestBytes);
constexpr int kDepthLadder[] = {4, 8, 16, 32, 64, 128, 256, 512, 1024};
static_assert(kMaxQueueDepth == 1024);
static_assert(kMostCalibrationBytes == uint64_t{kMaxQueueDepth} * kRequestLadder[0]);
// A queue holds at most kLongestQueueSeconds of work at the best rate so far, but may always hold
// kShortestQueue bytes.
constexpr uint64_t kShortestQueue = uint64_t{4} << 20;
// When each step's time is over, as a share of the time limit.
// One sample of each depth takes up to 1.3 s, 0.6 s of it for the longest queue.
constexpr double kFillUntil = 0.12, kRequestsUntil = 0.4, kAgainUntil = 0.5, kReadsUntil = 0.62,
                 kWritesUntil = 0.83;
// The first sample of a step is taken even if the step's time is over, and may last for this share.
constexpr double kLeastForAStep = 0.1;
// What is under way while request sizes are compared: so many bytes, or less on a device that would
// need longer than this for them. With half as many, a stream of reads and writes on a fast device
// favours small requests, as the device then has too few large ones. A sample takes four times as
// long, and nine are to be measured in 1.7 s, some of which may be slow.
constexpr uint64_t kUnderWay = uint64_t{128} << 20;
constexpr double kRequestSeconds = 0.03;
// The work under way while numbers of writes beside reads are compared. A sample takes four times
// as long, and five numbers are to be measured in the step's 1 s.
constexpr double kMixedSeconds = 0.05;
constexpr int kRepetitions = 3;
constexpr double kInterruptSeconds = 0.05;  // between checks of the thread's interrupt
// A depth of reads that could reach less than this part of the best rate in a run is not measured.
constexpr double kLeastReached = 0.75;
constexpr uint32_t kFillBytes = 1 << 20;
constexpr uint64_t kLeastFileBytes = 2 * (2 << 20);  // room for the largest request in each half

struct Unmap {
  size_t size_bytes = 0;
  void operator()(std::byte* memory) const { ::munmap(memory, size_bytes); }
};
using Mapping = std::unique_ptr<std::byte, Unmap>;

// Maps memory in the largest pages available, as an engine's pinned memory is.
absl::StatusOr<Mapping> MapMemory(uint64_t size_bytes) {
  size_bytes = base::RoundUp(size_bytes, base::kHugePageBytes);
  std::byte* memory = base::MapHugePages(size_bytes);
  if (memory == nullptr) {
    void* const mapped =
        ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no ", base::FormatBytes(size_bytes),
                       " of memory for the transfers; end other programs, or allow this one more "
                       "('ulimit -v')"));
    }
    (void)::madvise(mapped, size_bytes, MADV_HUGEPAGE);  // plain pages are enough if it fails
    memory = static_cast<std::byte*>(mapped);
  }
  // Pages that were never written all map one page of zeros.
  for (uint64_t i = 0; i < size_bytes; i += kIoAlignment) memory[i] = std::byte{1};
  return Mapping(memory, Unmap{size_bytes});
}

// A load for the device: the request size, and how many reads and writes are under way. If
// `mixed_writes` is above 0, the engine's queues have the depths that were found, and let that many
// writes go beside reads; else they let all requests go.
struct Mix {
  uint32_t request_bytes = 0;
  int reads = 0;
  int writes = 0;
  int mixed_writes = 0;

  bool is_mixed() const { return reads > 0 && writes > 0; }
  uint64_t bytes() const { return static_cast<uint64_t>(reads + writes) * request_bytes; }
};

// Chooses the kind, the block of the file and the memory for each request of a mix. In a mix of
// reads and writes the kinds alternate, and each keeps to its own half of the file. All of the
// memory is used in turn, as a store uses its pinned budget: a device that moves the same few
// blocks finds them in a cache. If more requests are under way than the memory has room for, each
// part of it has several of them.
class Load {
 public:
  Load(const Mix& mix, FileId file, uint64_t file_bytes, std::span<std::byte> memory,
       uint64_t most_bytes)
      : mix_(mix), file_(file), memory_(memory), most_bytes_(most_bytes) {
    const uint64_t blocks = file_bytes / mix.request_bytes;
    num_blocks_ = mix.is_mixed() ? blocks / 2 : blocks;
    first_block_[static_cast<size_t>(IoOp::kWrite)] = mix.is_mixed() ? num_blocks_ : 0;
    SPILLWAY_CHECK(num_blocks_ > 0);
    const uint64_t num_slots = memory.size() / mix.request_bytes;
    for (uint64_t i = 0; i < std::max(num_slots, depth()); ++i) free_.push_back(i % num_slots);
  }

  uint64_t begun_bytes() const { return begun_bytes_; }
  uint64_t depth() const { return mix_.bytes() / mix_.request_bytes; }

  // Returns the requests to start with.
  std::vector<IoRequest> First() {
    std::vector<IoRequest> requests;
    for (int i = 0; i < mix_.reads + mix_.writes; ++i) Add(&requests);
    return requests;
  }
  // Returns the request that follows the one that has ended in `slot`; none once most_bytes are
  // begun.
  std::vector<IoRequest> Next(uint64_t slot) {
    std::vector<IoRequest> requests;
    free_.push_back(slot);
    Add(&requests);
    return requests;
  }

 private:
  void Add(std::vector<IoRequest>* requests) {
    if (begun_bytes_ >= most_bytes_) return;
    const bool is_read = mix_.is_mixed() ? last_ == IoOp::kWrite : mix_.reads > 0;
    const IoOp op = last_ = is_read ? IoOp::kRead : IoOp::kWrite;
    const auto side = static_cast<size_t>(op);
    const uint64_t block = first_block_[side] + next_[side];
    next_[side] = (next_[side] + 1) % num_blocks_;
    const uint64_t slot = free_.front();
    free_.pop_front();
    requests->push_back({op, file_, block * mix_.request_bytes,
                         memory_.data() + slot * mix_.request_bytes, mix_.request_bytes, slot});
    begun_bytes_ += mix_.request_bytes;
  }

  const Mix mix_;
  const FileId file_;
  const std::span<std::byte> memory_;
  const uint64_t most_bytes_;
  uint64_t num_blocks_ = 0;
  uint64_t first_block_[2] = {0, 0};  // by IoOp
  uint64_t next_[2] = {0, 0};
  IoOp last_ = IoOp::kWrite;  // the kind of the request before
  uint64_t begun_bytes_ = 0;
  std::deque<uint64_t> free_;  // free slots, the one that was used least recently first
};

class Calibrator {
 public:
  Calibrator(IoEngine& engine, uint16_t device, FileId file, std::span<std::byte> memory,
             const CalibrationOptions& options)
      : engine_(engine),
        device_(device),
        file_(file),
        memory_(memory),
        options_(options),
        file_bytes_(base::RoundDown(options.file_bytes, uint64_t{kFillBytes})) {}

  // Writes the file. Sets file_bytes_ to the size of the written part.
  absl::Status Fill() {
    const Deadline until = Deadline::After(kFillUntil * options_.limit);
    SPILLWAY_ASSIGN_OR_RETURN(const Passed passed,
                              Run({.request_bytes = kFillBytes, .writes = 8}, file_bytes_, until));
    file_bytes_ = std::max<uint64_t>(passed.begun_bytes, kLeastFileBytes);
    fill_bytes_per_second_ = passed.bytes_per_second;
    return absl::OkStatus();
  }

  absl::StatusOr<DeviceProfile> Measure() {
    DeviceProfile& profile = profile_;
    SPILLWAY_ASSIGN_OR_RETURN(profile.request_bytes, RequestBytes());
    SPILLWAY_RETURN_IF_ERROR(MeasureDepth(IoOp::kRead, kReadsUntil, &profile.read_depth,
                                          &profile.read_bytes_per_second));
    SPILLWAY_RETURN_IF_ERROR(MeasureDepth(IoOp::kWrite, kWritesUntil, &profile.write_depth,
                                          &profile.write_bytes_per_second));
    if (profile.read_bytes_per_second == 0 || profile.write_bytes_per_second == 0) {
      return absl::DeadlineExceededError(absl::StrCat(
          "too few of its transfers ended within ", absl::FormatDuration(options_.limit),
          "; calibrate it when it has less other work, and check it ('dmesg') if this "
          "recurs"));
    }
    SPILLWAY_ASSIGN_OR_RETURN(profile.mixed_write_depth, MixedWriteDepth());
    return profile;
  }

 private:
  struct Passed {
    uint64_t begun_bytes = 0;
    double bytes_per_second = 0;
    bool is_whole = false;  // false: the sample was cut short, so the rate is a rough one
  };

  absl::StatusOr<uint32_t> RequestBytes() {
    const uint64_t under_way =
        std::min(kUnderWay, BytesOf(kRequestSeconds, fill_bytes_per_second_));
    std::vector<Mix> mixes;  // all kinds of load with the first size come first
    for (const uint32_t size : kRequestLadder) {
      const auto requests = static_cast<int>(under_way / size);
      mixes.push_back({.request_bytes = size, .reads = requests});
      mixes.push_back({.request_bytes = size, .writes = requests});
      mixes.push_back({.request_bytes = size, .reads = requests / 2, .writes = requests / 2});
    }
    SPILLWAY_ASSIGN_OR_RETURN(std::vector<double> rates,
                              Rates(mixes, kRequestsUntil, /*any_queue=*/true));
    constexpr size_t kNumKinds = 3;
    std::vector<std::vector<double>> by_kind(kNumKinds);
    for (size_t i = 0; i < rates.size(); ++i) by_kind[i % kNumKinds].push_back(rates[i]);
    for (const IoOp op : {IoOp::kRead, IoOp::kWrite}) {
      const auto kind = static_cast<size_t>(op);
      best_[kind] = *std::max_element(by_kind[kind].begin(), by_kind[kind].end());
    }
    const size_t found = DefaultOrBest(LeastShares(by_kind), kDefaultRequest);
    if (found == kDefaultRequest) return kDefaultRequestBytes;
    // There may have been time for one sample of each, so the two are compared once more, in the
    // kind of load in which the default is slowest.
    const auto share = [&](size_t kind) {
      return by_kind[kind][kDefaultRequest] / by_kind[kind][found];
    };
    const size_t slowest = std::min({size_t{0}, size_t{1}, size_t{2}},
                                    [&](size_t x, size_t y) { return share(x) < share(y); });
    SPILLWAY_ASSIGN_OR_RETURN(rates, Rates({mixes[kDefaultRequest * kNumKinds + slowest],
                                            mixes[found * kNumKinds + slowest]},
                                           kAgainUntil, /*any_queue=*/true));
    return DefaultOrBest(rates, 0) == 0 ? kDefaultRequestBytes : kRequestLadder[found];
  }

  // Finds the depth of one kind of request, and its rate.
  absl::Status MeasureDepth(IoOp op, double until, int* depth, double* bytes_per_second) {
    std::vector<Mix> mixes;
    for (const int requests : kDepthLadder) {
      const bool is_read = op == IoOp::kRead;
      const Mix mix = {profile_.request_bytes, is_read ? requests : 0, is_read ? 0 : requests};
      if (mix.bytes() > options_.queue_bytes) break;
      mixes.push_back(mix);
    }
    const std::vector<Mix> all = mixes;
    // With fewer depths, each is measured more often. The deepest stays.
    const auto is_too_short = [best = best_[static_cast<size_t>(op)]](const Mix& mix) {
      const auto bytes = static_cast<double>(mix.bytes());
      return bytes < kLeastReached * (bytes + best * kGapSeconds);
    };
    const auto enough = std::find_if_not(mixes.begin(), mixes.end() - 1, is_too_short);
    mixes.erase(mixes.begin(), enough);
    SPILLWAY_ASSIGN_OR_RETURN(std::vector<double> rates, Rates(mixes, until));
    // A device may have been faster before, for example until its cache was full.
    if (mixes.size() < all.size() && IsTooLong(mixes[0], rates[0])) {
      mixes = all;
      SPILLWAY_ASSIGN_OR_RETURN(rates, Rates(mixes, until));
    }
    rates = Smoothed(rates);
    const size_t found = SmallestGoodEnough(RunRates(rates, QueueBytes(mixes)));
    *depth = mixes[found].reads + mixes[found].writes;
    *bytes_per_second = rates[found];
    return absl::OkStatus();
  }

  absl::StatusOr<int> MixedWriteDepth() {
    const double rate = std::min(profile_.read_bytes_per_second, profile_.write_bytes_per_second);
    const auto most = static_cast<int>(BytesOf(kMixedSeconds, rate) / profile_.request_bytes);
    const int together = std::min(profile_.read_depth + profile_.write_depth, most);
    std::vector<Mix> mixes;
    for (const int writes : MixedWriteDepths(std::min(profile_.write_depth, together))) {
      mixes.push_back({.request_bytes = profile_.request_bytes,
                       .reads = together / 2,
                       .writes = together / 2,
                       .mixed_writes = writes});
    }
    // The last one lets all writes of the stream go, as all of a queue's depth does.
    mixes.back().mixed_writes = profile_.write_depth;
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<double> rates, Rates(mixes, 1, /*any_queue=*/true));
    return mixes[SmallestGoodEnough(rates)].mixed_writes;
  }

  // Returns the bytes of a queue that holds that much work.
  uint64_t BytesOf(double seconds, double bytes_per_second) const {
    return std::clamp(static_cast<uint64_t>(seconds * bytes_per_second), kShortestQueue,
                      options_.queue_bytes);
  }

  static std::vector<uint64_t> QueueBytes(const std::vector<Mix>& mixes) {
    std::vector<uint64_t> bytes;
    for (const Mix& mix : mixes) bytes.push_back(mix.bytes());
    return bytes;
  }

  // Returns the median rate of each mix, in bytes per second. It is 0 if there was no time for the
  // mix, or if its queue would be too long at the best rate so far and not any queue may be tried.
  absl::StatusOr<std::vector<double>> Rates(const std::vector<Mix>& mixes, double until,
                                            bool any_queue = false) {
    std::vector<std::vector<double>> samples(mixes.size());
    const double end = start_ + until * absl::ToDoubleSeconds(options_.limit);
    double best = 0;
    for (int round = 0; round < kRepetitions; ++round) {
      for (size_t i = 0; i < mixes.size(); ++i) {
        const bool is_first = round == 0 && i == 0;
        const bool is_too_long = !any_queue && IsTooLong(mixes[i], best);
        if (!is_first && (base::Now() >= end || is_too_long)) continue;
        const absl::Duration least = (is_first ? kLeastForAStep : 0) * options_.limit;
        const absl::Duration left = absl::Seconds(end - base::Now());
        SPILLWAY_ASSIGN_OR_RETURN(
            const Passed passed, Run(mixes[i], UINT64_MAX, Deadline::After(std::max(left, least))));
        if (!is_first && !passed.is_whole) continue;
        samples[i].push_back(passed.bytes_per_second);
        best = std::max(best, samples[i].back());
      }
    }
    std::vector<double> rates;
    for (std::vector<double>& of : samples) rates.push_back(Median(std::move(of)));
    return rates;
  }

  static bool IsTooLong(const Mix& mix, double bytes_per_second) {
    return mix.bytes() > kShortestQueue &&
           static_cast<double>(mix.bytes()) > kLongestQueueSeconds * bytes_per_second;
  }

  // Keeps the mix in flight until `most_bytes` are begun, `until` has passed or, if most_bytes is
  // UINT64_MAX, a sample is over. A sample begins when as many requests have ended as the mix has
  // in flight. It is over when twice as many more have ended (devices may complete a whole queue at
  // once) and options_.sample has passed. The rate is that of the sample or, if `until` has passed
  // before the sample was over, of all that has ended.
  absl::StatusOr<Passed> Run(const Mix& mix, uint64_t most_bytes, Deadline until) {
    Load load(mix, file_, file_bytes_, memory_, most_bytes);
    absl::Status status = StopStatus();
    if (mix.mixed_writes > 0) {
      profile_.mixed_write_depth = mix.mixed_writes;
      engine_.SetDepths(device_, DepthsOf(profile_));
    }
    if (status.ok()) engine_.Submit(load.First());
    const uint64_t warm_up = most_bytes == UINT64_MAX ? load.depth() : 0;
    std::vector<IoCompletion> done;
    uint64_t ended = 0;
    const double sample_seconds = absl::ToDoubleSeconds(options_.sample);
    const double start = base::Now();
    double sample_start = start;
    std::optional<double> end;
    bool is_whole = false;
    while (engine_.in_flight() > 0) {
      done.clear();
      engine_.Reap(absl::InfiniteDuration(), &done);
      for (const IoCompletion& completion : done) {
        status.Update(completion.status);
        status.Update(StopStatus());
        // Requests that are in flight when the time is up are waited for, and not counted.
        if (end || !status.ok()) continue;
        if (++ended == warm_up) sample_start = base::Now();
        Renew(load, completion);
      }
      if (end) continue;
      is_whole =
          warm_up > 0 && ended >= 3 * warm_up && base::Now() - sample_start >= sample_seconds;
      if (is_whole || until.passed() || !status.ok()) end = base::Now();
    }
    SPILLWAY_RETURN_IF_ERROR(status);
    const double seconds = end.value_or(base::Now()) - (is_whole ? sample_start : start);
    const uint64_t counted = is_whole ? ended - warm_up : ended;
    const double rate = static_cast<double>(counted * mix.request_bytes) / std::max(seconds, 1e-9);
    return Passed{load.begun_bytes(), rate, is_whole};
  }

  // Submits the next request and hashes its block in a store's order: before a read, after a write.
  void Renew(Load& load, const IoCompletion& completion) {
    const std::vector<IoRequest> next = load.Next(completion.tag);
    for (const IoRequest& request : next) {
      const std::span<const std::byte> block(request.buffer, request.size_bytes);
      if (request.op == IoOp::kRead) hashes_ += Checksum(block);
      engine_.Submit({&request, 1});
      if (request.op == IoOp::kWrite) hashes_ += Checksum(block);
    }
  }

  absl::Status StopStatus() {
    if (!is_interrupted_ && base::Now() >= next_check_) {
      next_check_ = base::Now() + kInterruptSeconds;
      is_interrupted_ = base::TakeInterrupt();
    }
    const bool stop = is_interrupted_ || (options_.stop != nullptr && options_.stop->load());
    return stop ? absl::CancelledError("interrupted while calibrating") : absl::OkStatus();
  }

  IoEngine& engine_;
  const uint16_t device_;
  const FileId file_;
  const std::span<std::byte> memory_;
  const CalibrationOptions& options_;
  const double start_ = base::Now();
  uint64_t file_bytes_;
  DeviceProfile profile_;  // the results so far
  double fill_bytes_per_second_ = 0;
  double best_[2] = {0, 0};  // by IoOp: the best rate of any request size
  uint64_t hashes_ = 0;      // keeps the compiler from removing the hashing
  double next_check_ = 0;    // of the thread's interrupt
  bool is_interrupted_ = false;
};

}  // namespace

QueueDepths DepthsOf(const DeviceProfile& profile) {
  return {.read = profile.read_depth,
          .write = profile.write_depth,
          .mixed_write = profile.mixed_write_depth,
          .request_bytes = profile.request_bytes};
}

double SecondsBehindWrites(const DeviceProfile& profile) {
  return static_cast<double>(profile.write_depth) * profile.request_bytes /
         profile.write_bytes_per_second;
}

namespace {

absl::StatusOr<DeviceProfile> CalibrateHere(const std::string& folder, IoEngine& engine,
                                            uint16_t device, const CalibrationOptions& options) {
  SPILLWAY_CHECK(engine.in_flight() == 0);
  SPILLWAY_CHECK(options.queue_bytes >= kLeastCalibrationBytes);
  SPILLWAY_CHECK(options.memory_bytes >= kRequestLadder[0]);
  SPILLWAY_CHECK(options.file_bytes >= kLeastCalibrationBytes);
  SPILLWAY_ASSIGN_OR_RETURN(const DirectFile file, OpenNamelessFile(folder));
  const uint64_t memory_bytes = std::min(options.memory_bytes, options.queue_bytes);
  SPILLWAY_ASSIGN_OR_RETURN(const Mapping memory, MapMemory(memory_bytes));
  SPILLWAY_ASSIGN_OR_RETURN(
      const FileId id, engine.AddFile(file.fd(), absl::StrCat(folder, " (calibration)"), device));
  const std::span<std::byte> span(memory.get(), memory_bytes);
  engine.AddBuffer(span);
  engine.SetDepths(
      device, {.read = kMaxQueueDepth, .write = kMaxQueueDepth, .mixed_write = kMaxQueueDepth});
  Calibrator calibrator(engine, device, id, span, options);
  const absl::Status filled = calibrator.Fill();
  const absl::StatusOr<DeviceProfile> profile =
      filled.ok() ? calibrator.Measure() : absl::StatusOr<DeviceProfile>(filled);
  engine.RemoveBuffers();
  SPILLWAY_RETURN_IF_ERROR(engine.RemoveFile(id));
  engine.SetDepths(device, profile.ok() ? DepthsOf(*profile) : QueueDepths{});
  return profile;
}

}  // namespace

absl::StatusOr<DeviceProfile> Calibrate(const std::string& folder, IoEngine& engine,
                                        uint16_t device, const CalibrationOptions& options) {
  auto profile = CalibrateHere(folder, engine, device, options);
  if (profile.ok() || absl::IsCancelled(profile.status())) return profile;
  return absl::Status(
      profile.status().code(),
      absl::StrCat("cannot calibrate the device of ", folder, ": ", profile.status().message()));
}

void ApplyProfiles(const Store& store, IoEngine& engine) {
  for (uint16_t device = 0; device < store.num_devices(); ++device) {
    if (const auto profile = store.Profile(device)) engine.SetDepths(device, DepthsOf(*profile));
  }
}

absl::Status CalibrateStore(Store& store, std::span<const std::string> folders, IoEngine& engine,
                            bool again, const CalibrationOptions& options) {
  absl::Status first_error;
  for (uint16_t device = 0; device < store.num_devices(); ++device) {
    if (!again && store.Profile(device)) continue;
    const auto profile = Calibrate(folders[device], engine, device, options);
    if (absl::IsCancelled(profile.status())) return profile.status();
    first_error.Update(profile.ok() ? store.SetProfile(device, *profile) : profile.status());
  }
  ApplyProfiles(store, engine);
  return first_error;
}

}  // namespace spillway::io
