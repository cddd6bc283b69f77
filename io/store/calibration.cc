// SPDX-License-Identifier: Apache-2.0
//
// The steps, each with what those before it found: the file is written once, so that what is
// measured was written before; the request size, by reads with 16 MiB under way (the default,
// unless another is clearly faster); the depth of reads; of writes; of writes beside reads, by the
// bytes of both (the smallest that is as fast as any: what waits in a queue of ours can still be
// overtaken). Here completions are only counted, and followed up at once; a store
// hashes a page in between, so that alone its reads and writes get twice the depth. Repetitions of
// a ladder's settings take turns, and each setting counts with its best: whatever else the machine
// does only slows.

#include "io/store/calibration.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/deadline.h"
#include "io/nameless_file.h"
#include "io/store/page_io.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

// Larger ones leave a device too few to work on, and a read too much to wait for.
constexpr uint32_t kRequestLadder[] = {128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20};
constexpr size_t kDefaultRequest = 4;
static_assert(kRequestLadder[kDefaultRequest] == kDefaultRequestBytes);
// From two on: one under way while the other is looked at.
constexpr int kDepthLadder[] = {2, 4, 8, 16, 32, 64};
constexpr uint64_t kUnderWay = kLeastCalibrationBytes;  // while request sizes are compared
constexpr int kRepetitions = 5;
constexpr double kGoodEnough = 0.97;  // of the best rate
constexpr double kClose = 0.93;       // of the best rate: not clearly slower
constexpr uint32_t kFillBytes = 1 << 20;

struct Unmap {
  size_t size_bytes = 0;
  void operator()(std::byte* memory) const { ::munmap(memory, size_bytes); }
};
using Mapping = std::unique_ptr<std::byte, Unmap>;

absl::StatusOr<Mapping> MapMemory(uint64_t size_bytes) {
  void* const mapped =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no ", size_bytes, " bytes of memory to calibrate with"));
  }
  (void)::madvise(mapped, size_bytes, MADV_HUGEPAGE);  // where there are none, plain pages do
  std::byte* const memory = static_cast<std::byte*>(mapped);
  // Pages never written all show one page of zeros.
  for (uint64_t i = 0; i < size_bytes; i += kIoAlignment) memory[i] = std::byte{1};
  return Mapping(memory, Unmap{size_bytes});
}

// A load to put on the device, and the requests under way of each class.
struct Mix {
  uint32_t request_bytes = 0;
  int reads = 0;
  int writes = 0;
};

class Calibrator {
 public:
  Calibrator(IoEngine& engine, FileId file, std::span<std::byte> memory,
             const CalibrationOptions& options)
      : engine_(engine),
        file_(file),
        memory_(memory),
        options_(options),
        deadline_(Deadline::After(options.limit)) {}

  absl::Status Fill() {
    return Run({kFillBytes, 0, 8}, options_.file_bytes, Deadline::Never()).status();
  }

  absl::StatusOr<DeviceProfile> Measure() {
    DeviceProfile profile;
    std::vector<Mix> mixes;
    for (const uint32_t request : kRequestLadder) {
      mixes.push_back({request, static_cast<int>(kUnderWay / request), 0});
    }
    SPILLWAY_ASSIGN_OR_RETURN(std::vector<double> rates, Rates(mixes));
    profile.request_bytes = mixes[DefaultOrBest(rates, kDefaultRequest)].request_bytes;

    mixes = Depths(profile.request_bytes, 1, 0);
    SPILLWAY_ASSIGN_OR_RETURN(rates, Rates(mixes));
    size_t found = SmallestGoodEnough(rates);
    const int read_depth = mixes[found].reads;
    profile.read_depth = 2 * read_depth;
    profile.read_bytes_per_second = rates[found];

    mixes = Depths(profile.request_bytes, 0, 1);
    SPILLWAY_ASSIGN_OR_RETURN(rates, Rates(mixes));
    found = SmallestGoodEnough(rates);
    const int write_depth = mixes[found].writes;
    profile.write_depth = 2 * write_depth;
    profile.write_bytes_per_second = rates[found];

    mixes.clear();
    const auto slots = static_cast<int>(memory_.size() / profile.request_bytes);
    for (const MixedDepth& depth : MixedDepths(read_depth, write_depth, slots)) {
      mixes.push_back({profile.request_bytes, depth.reads, depth.writes});
    }
    SPILLWAY_ASSIGN_OR_RETURN(rates, Rates(mixes));
    profile.mixed_write_depth = mixes[SmallestGoodEnough(rates)].writes;
    return profile;
  }

 private:
  std::vector<Mix> Depths(uint32_t request_bytes, int read, int write) const {
    std::vector<Mix> mixes;
    for (const int depth : kDepthLadder) {
      const uint64_t bytes = static_cast<uint64_t>(depth) * request_bytes;
      if (bytes > memory_.size()) break;
      mixes.push_back({request_bytes, read * depth, write * depth});
    }
    return mixes;
  }

  // Of each mix, in bytes per second; 0 if there was no time for it.
  absl::StatusOr<std::vector<double>> Rates(const std::vector<Mix>& mixes) {
    std::vector<double> rates(mixes.size());
    for (int round = 0; round < kRepetitions; ++round) {
      for (size_t i = 0; i < mixes.size(); ++i) {
        if (deadline_.passed() && (round > 0 || i > 0)) break;
        SPILLWAY_ASSIGN_OR_RETURN(const double rate,
                                  Run(mixes[i], UINT64_MAX, Deadline::After(options_.sample)));
        rates[i] = std::max(rates[i], rate);
      }
    }
    return rates;
  }

  // Keeps the mix under way until `most_bytes` or the time; its rate.
  absl::StatusOr<double> Run(const Mix& mix, uint64_t most_bytes, Deadline until) {
    const uint64_t slots = static_cast<uint64_t>(mix.reads) + static_cast<uint64_t>(mix.writes);
    SPILLWAY_CHECK(slots * mix.request_bytes <= memory_.size());
    const uint64_t blocks = options_.file_bytes / mix.request_bytes;
    // Reads and writes keep to halves of their own.
    const bool both = mix.reads > 0 && mix.writes > 0;
    const uint64_t most = both ? blocks / 2 : blocks;
    uint64_t next[2] = {0, both ? blocks / 2 : 0};
    uint64_t begun_bytes = 0, done_bytes = 0;
    std::vector<IoRequest> requests;
    const auto add = [&](uint64_t slot) {
      if (begun_bytes >= most_bytes) return;
      const IoOp op = slot < static_cast<uint64_t>(mix.reads) ? IoOp::kRead : IoOp::kWrite;
      uint64_t& block = next[op == IoOp::kRead ? 0 : 1];
      requests.push_back({op, file_, block * mix.request_bytes,
                          memory_.data() + slot * mix.request_bytes, mix.request_bytes, slot});
      const uint64_t first = both && op == IoOp::kWrite ? blocks / 2 : 0;
      block = block + 1 == first + most ? first : block + 1;
      begun_bytes += mix.request_bytes;
    };
    const absl::Time start = absl::Now();
    for (uint64_t slot = 0; slot < slots; ++slot) add(slot);
    engine_.Submit(requests);
    absl::Status status;
    std::vector<IoCompletion> done;
    // What is under way when the time is up is waited for, and not counted.
    std::optional<absl::Duration> took;
    while (engine_.in_flight() > 0) {
      done.clear();
      requests.clear();
      engine_.Reap(absl::InfiniteDuration(), &done);
      for (const IoCompletion& completion : done) {
        status.Update(completion.status);
        if (!took) done_bytes += mix.request_bytes;
        if (!took && status.ok()) add(completion.tag);
      }
      if (IsStopped()) status.Update(absl::CancelledError("interrupted while calibrating"));
      if (!took && (until.passed() || !status.ok())) took = absl::Now() - start;
      if (!took) engine_.Submit(requests);
    }
    SPILLWAY_RETURN_IF_ERROR(status);
    const double seconds = absl::ToDoubleSeconds(took.value_or(absl::Now() - start));
    return static_cast<double>(done_bytes) / std::max(seconds, 1e-9);
  }

  bool IsStopped() const { return options_.stop != nullptr && options_.stop->load(); }

  IoEngine& engine_;
  const FileId file_;
  const std::span<std::byte> memory_;
  const CalibrationOptions& options_;
  const Deadline deadline_;
};

QueueDepths DepthsOf(const DeviceProfile& profile) {
  return {.read = profile.read_depth,
          .write = profile.write_depth,
          .mixed_write = profile.mixed_write_depth};
}

}  // namespace

size_t SmallestGoodEnough(std::span<const double> rates) {
  const double enough = kGoodEnough * *std::max_element(rates.begin(), rates.end());
  const auto is_enough = [enough](double rate) { return rate >= enough; };
  return static_cast<size_t>(std::find_if(rates.begin(), rates.end(), is_enough) - rates.begin());
}

size_t DefaultOrBest(std::span<const double> rates, size_t by_default) {
  const auto best = std::max_element(rates.begin(), rates.end());
  if (rates[by_default] >= kClose * *best) return by_default;
  return static_cast<size_t>(best - rates.begin());
}

std::vector<MixedDepth> MixedDepths(int read_depth, int write_depth, int slots) {
  std::vector<MixedDepth> depths;
  for (int writes = 1; writes <= write_depth && writes < slots; writes *= 2) {
    depths.push_back({std::min(read_depth, slots - writes), writes});
  }
  return depths;
}

absl::StatusOr<DeviceProfile> Calibrate(const std::string& folder, IoEngine& engine,
                                        uint16_t device, const CalibrationOptions& options) {
  SPILLWAY_CHECK(engine.in_flight() == 0);
  SPILLWAY_CHECK(options.memory_bytes >= kLeastCalibrationBytes);
  SPILLWAY_CHECK(options.file_bytes >= options.memory_bytes);
  SPILLWAY_ASSIGN_OR_RETURN(const DirectFile file, OpenNamelessFile(folder));
  SPILLWAY_ASSIGN_OR_RETURN(const Mapping memory, MapMemory(options.memory_bytes));
  SPILLWAY_ASSIGN_OR_RETURN(
      const FileId id, engine.AddFile(file.fd(), absl::StrCat(folder, " (calibration)"), device));
  const std::span<std::byte> span(memory.get(), options.memory_bytes);
  engine.AddBuffer(span);
  engine.SetDepths(
      device, {.read = kMaxQueueDepth, .write = kMaxQueueDepth, .mixed_write = kMaxQueueDepth});
  Calibrator calibrator(engine, id, span, options);
  const absl::Status filled = calibrator.Fill();
  const absl::StatusOr<DeviceProfile> profile =
      filled.ok() ? calibrator.Measure() : absl::StatusOr<DeviceProfile>(filled);
  engine.RemoveBuffers();
  SPILLWAY_RETURN_IF_ERROR(engine.RemoveFile(id));
  engine.SetDepths(device, profile.ok() ? DepthsOf(*profile) : QueueDepths{});
  return profile;
}

void ApplyProfiles(const Store& store, IoEngine& engine) {
  for (uint16_t device = 0; device < store.num_devices(); ++device) {
    if (const auto profile = store.Profile(device)) engine.SetDepths(device, DepthsOf(*profile));
  }
}

absl::Status CalibrateStore(Store& store, std::span<const std::string> folders, IoEngine& engine,
                            bool again, const CalibrationOptions& options) {
  for (uint16_t device = 0; device < store.num_devices(); ++device) {
    if (!again && store.Profile(device)) continue;
    SPILLWAY_ASSIGN_OR_RETURN(const DeviceProfile profile,
                              Calibrate(folders[device], engine, device, options));
    SPILLWAY_RETURN_IF_ERROR(store.SetProfile(device, profile));
  }
  ApplyProfiles(store, engine);
  return absl::OkStatus();
}

}  // namespace spillway::io
