// SPDX-License-Identifier: Apache-2.0
//
// The steps, each with what those before it found: the file is written once, so that what is
// measured was written before; the request size, by reads with 16 MiB under way; the depth of
// reads; of writes; of writes beside reads, by the bytes of both. Repetitions of a ladder's
// settings take turns, and each setting counts with its best: whatever else the machine does only
// slows.

#include "io/store/calibration.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/deadline.h"
#include "io/nameless_file.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr uint32_t kRequestLadder[] = {128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20};
// From two on: one under way while the other is looked at.
constexpr int kDepthLadder[] = {2, 4, 8, 16, 32, 64};
constexpr uint64_t kUnderWay = kLeastCalibrationBytes;  // while request sizes are compared
constexpr int kRepetitions = 3;
constexpr double kMostCpu = 1.25;
constexpr uint32_t kFillBytes = 1 << 20;

// Of all threads: some engines have their own.
double CpuSeconds() {
  timespec now;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

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
    SPILLWAY_ASSIGN_OR_RETURN(const Best request, BestOf(mixes, kMostCpu));
    profile.request_bytes = request.mix.request_bytes;

    SPILLWAY_ASSIGN_OR_RETURN(const Best read, BestOf(Depths(profile.request_bytes, 1, 0)));
    profile.read_depth = read.mix.reads;
    profile.read_bytes_per_second = read.rate;

    SPILLWAY_ASSIGN_OR_RETURN(const Best write, BestOf(Depths(profile.request_bytes, 0, 1)));
    profile.write_depth = write.mix.writes;
    profile.write_bytes_per_second = write.rate;

    mixes.clear();
    const auto slots = static_cast<int>(memory_.size() / profile.request_bytes);
    for (const MixedDepth& depth : MixedDepths(profile.read_depth, profile.write_depth, slots)) {
      mixes.push_back({profile.request_bytes, depth.reads, depth.writes});
    }
    SPILLWAY_ASSIGN_OR_RETURN(const Best mixed, BestOf(mixes));
    profile.mixed_write_depth = mixed.mix.writes;
    return profile;
  }

 private:
  struct Best {
    Mix mix;
    double rate = 0;
  };

  std::vector<Mix> Depths(uint32_t request_bytes, int read, int write) const {
    std::vector<Mix> mixes;
    for (const int depth : kDepthLadder) {
      const uint64_t bytes = static_cast<uint64_t>(depth) * request_bytes;
      if (bytes > memory_.size()) break;
      mixes.push_back({request_bytes, read * depth, write * depth});
    }
    return mixes;
  }

  absl::StatusOr<Best> BestOf(const std::vector<Mix>& mixes, double most_cpu = 1e9) {
    std::vector<CalibrationSample> samples(mixes.size());
    for (int round = 0; round < kRepetitions; ++round) {
      for (size_t i = 0; i < mixes.size(); ++i) {
        if (deadline_.passed() && (round > 0 || i > 0)) break;
        SPILLWAY_ASSIGN_OR_RETURN(const CalibrationSample sample,
                                  Run(mixes[i], UINT64_MAX, Deadline::After(options_.sample)));
        samples[i].cpu = round == 0 ? sample.cpu : std::min(samples[i].cpu, sample.cpu);
        samples[i].rate = std::max(samples[i].rate, sample.rate);
      }
    }
    const size_t best = SmallestGoodEnough(samples, most_cpu);
    return Best{mixes[best], samples[best].rate};
  }

  // Keeps the mix under way until `most_bytes` or the time.
  absl::StatusOr<CalibrationSample> Run(const Mix& mix, uint64_t most_bytes, Deadline until) {
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
    const double cpu_before = CpuSeconds();
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
    return CalibrationSample{.rate = static_cast<double>(done_bytes) / std::max(seconds, 1e-9),
                             .cpu = (CpuSeconds() - cpu_before) /
                                    static_cast<double>(std::max<uint64_t>(begun_bytes, 1))};
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

size_t SmallestGoodEnough(std::span<const CalibrationSample> samples, double most_cpu) {
  double best = 0;
  for (const CalibrationSample& sample : samples) best = std::max(best, sample.rate);
  const auto is_fast = [&](const CalibrationSample& sample) { return sample.rate >= 0.97 * best; };
  double least_cpu = std::numeric_limits<double>::max();
  for (const CalibrationSample& sample : samples) {
    if (is_fast(sample)) least_cpu = std::min(least_cpu, sample.cpu);
  }
  const auto found = std::find_if(samples.begin(), samples.end(), [&](const auto& sample) {
    return is_fast(sample) && sample.cpu <= most_cpu * least_cpu;
  });
  return static_cast<size_t>(found - samples.begin());
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
