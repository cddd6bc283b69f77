// SPDX-License-Identifier: Apache-2.0
//
// Measures a profile with the loops of `spillway bench`, on less data than a benchmark takes.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/store/hash_threads.h"
#include "spillway/thread_pool.h"
#include "src/base/existing_folder.h"
#include "src/base/status_macros.h"
#include "tools/spillway/bench/io/hashing.h"
#include "tools/spillway/bench/io/machine.h"
#include "tools/spillway/bench/tiers/ceilings.h"
#include "tools/spillway/bench/update/limits.h"
#include "tools/spillway/bench/update/updated_state.h"
#include "tools/spillway/machine/machine_profile.h"
#include "tools/trainer/compute/peak_flops.h"

namespace spillway::command {
namespace {

constexpr uint64_t kMeasuredBytes = 256 * kMiB;  // of the file, and of memory
constexpr uint64_t kMeasuredBlockBytes = 2 * kMiB;
constexpr uint64_t kUpdatedParameters = uint64_t{8} << 20;  // more than a cache holds
constexpr int kRounds = 3;

// Returns the median of a few rounds.
template <typename Measure>
absl::StatusOr<double> MedianRate(const Measure& measure) {
  std::vector<double> rates;
  for (int round = 0; round < kRounds; ++round) {
    SPILLWAY_ASSIGN_OR_RETURN(rates.emplace_back(), measure());
  }
  std::sort(rates.begin(), rates.end());
  return rates[kRounds / 2];
}

absl::Status MeasureDrive(const std::string& folder, const std::atomic<bool>& stop,
                          MachineProfile* profile) {
  using bench_tiers::Edge;
  SPILLWAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<bench_tiers::Ceilings> ceilings,
      bench_tiers::Ceilings::Create(base::ExistingFolder(folder), Device::Host(), kMeasuredBytes,
                                    kMeasuredBlockBytes, stop));
  const auto rate_of = [&](Edge edge) {
    return MedianRate([&] { return ceilings->Measure(edge); });
  };
  simulation::Drive& drive = profile->drive.emplace();
  SPILLWAY_ASSIGN_OR_RETURN(drive.read, rate_of(Edge::kNvmePinned));
  SPILLWAY_ASSIGN_OR_RETURN(drive.write, rate_of(Edge::kPinnedNvme));
  SPILLWAY_ASSIGN_OR_RETURN(drive.both, MedianRate([&] { return ceilings->MeasureBoth(); }));
  SPILLWAY_ASSIGN_OR_RETURN(profile->copy_in, rate_of(Edge::kPinnedDevice));
  SPILLWAY_ASSIGN_OR_RETURN(profile->copy_out, rate_of(Edge::kDevicePinned));
  return absl::OkStatus();
}

absl::Status MeasureMemory(ThreadPool* pool, const std::atomic<bool>& stop,
                           MachineProfile* profile) {
  SPILLWAY_ASSIGN_OR_RETURN(const auto limits,
                            bench_update::Limits::Create("", kMeasuredBytes, pool, stop));
  const std::span<std::byte> memory = limits->memory().span();
  profile->checksum = bench_io::HashRate(memory, io::DefaultHashThreads());
  // The drive's measurement has better ones: those of the host's copy stream.
  profile->copy_in = profile->copy_out = bench_io::Look({}, memory).copy_bytes_per_second;
  std::fill(memory.begin(), memory.end(), std::byte{0x3f});  // floats near 1
  SPILLWAY_ASSIGN_OR_RETURN(profile->memory, MedianRate([&]() -> absl::StatusOr<double> {
                              SPILLWAY_ASSIGN_OR_RETURN(const double seconds,
                                                        limits->InPlaceSeconds(2 * kMeasuredBytes));
                              return 2.0 * kMeasuredBytes / seconds;
                            }));
  return absl::OkStatus();
}

absl::Status MeasureUpdates(ThreadPool* pool, const std::atomic<bool>& stop,
                            MachineProfile* profile) {
  std::vector<uint16_t> gradients(kUpdatedParameters, 0x2400);
  for (int format = 0; format < kNumStateFormats; ++format) {
    const bench_update::StateOptions options = {.rule = {},
                                                .format = static_cast<StateFormat>(format),
                                                .num_parameters = kUpdatedParameters,
                                                .store = "",
                                                .gradients = gradients,
                                                .announce = {}};
    SPILLWAY_ASSIGN_OR_RETURN(
        const uint64_t state_bytes,
        bench_update::StateBytes(options.rule, options.format, kUpdatedParameters));
    SPILLWAY_ASSIGN_OR_RETURN(const auto state,
                              bench_update::UpdatedState::Create(options, pool, stop));
    const double leased = static_cast<double>(state_bytes + 2 * kUpdatedParameters);
    SPILLWAY_ASSIGN_OR_RETURN(profile->update[static_cast<size_t>(format)],
                              MedianRate([&]() -> absl::StatusOr<double> {
                                SPILLWAY_ASSIGN_OR_RETURN(const double seconds, state->Pass());
                                return leased / seconds;
                              }));
  }
  return absl::OkStatus();
}

absl::Status MeasureAll(const std::string& folder, int threads, const std::atomic<bool>& stop,
                        MachineProfile* profile) {
  ThreadPool pool(threads);
  SPILLWAY_ASSIGN_OR_RETURN(profile->flops, trainer::MeasurePeakFlops(&pool));
  SPILLWAY_RETURN_IF_ERROR(MeasureMemory(&pool, stop, profile));
  SPILLWAY_RETURN_IF_ERROR(MeasureUpdates(&pool, stop, profile));
  return folder.empty() ? absl::OkStatus() : MeasureDrive(folder, stop, profile);
}

}  // namespace

absl::StatusOr<MachineProfile> MeasureMachine(const std::string& folder,
                                              const ProfileOptions& options) {
  static const std::atomic<bool> never = false;
  MachineProfile profile;
  const absl::Status status = MeasureAll(folder, static_cast<int>(options.threads),
                                         options.stop != nullptr ? *options.stop : never, &profile);
  if (status.ok()) return profile;
  return absl::Status(status.code(),
                      absl::StrCat("this machine could not be measured: ", status.message()));
}

}  // namespace spillway::command
