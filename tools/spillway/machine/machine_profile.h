// SPDX-License-Identifier: Apache-2.0
//
// How fast this machine is: the rates that a simulation of a step here takes. They are measured in
// a few seconds by the loops of `spillway bench`, and kept for a month in a file of the user's
// cache, one for each drive and kernel.

#ifndef SPILLWAY_TOOLS_SPILLWAY_MACHINE_MACHINE_PROFILE_H_
#define SPILLWAY_TOOLS_SPILLWAY_MACHINE_MACHINE_PROFILE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/optimizer.h"
#include "src/simulation/links.h"

namespace spillway::command {

// Rates in bytes per second, but for `flops`.
struct MachineProfile {
  std::optional<simulation::Drive> drive;  // none without a folder
  double copy_in = 0;                      // between pinned memory and the host's device tier
  double copy_out = 0;
  double checksum = 0;                               // of the threads that may hash, together
  double memory = 0;                                 // read and written by all threads
  double flops = 0;                                  // of fp32 products by all threads, per second
  std::array<double, kNumStateFormats> update = {};  // leased bytes that AdamW updates, by format

  friend bool operator==(const MachineProfile&, const MachineProfile&) = default;
};

struct ProfileOptions {
  int64_t threads = 1;                             // that compute
  std::string cache;                               // folder of the files; empty: nothing is kept
  const std::atomic<bool>* stop = nullptr;         // true: ends soon, with Cancelled
  std::function<void(std::string_view)> announce;  // one sentence: that it measures
};

// Returns the user's cache: $XDG_CACHE_HOME/spillway, or else ~/.cache/spillway. Empty if the
// environment names no absolute folder.
std::string CacheFolder();

// What a profile is of, as text: kernel, processor, threads, and file system and device of the
// folder. Equal texts have equal profiles.
std::string MachineIdentity(const std::string& folder, int64_t threads);

// The profile as a file has it, and back. `measured` is in seconds since 1970. Parsing fails with
// InvalidArgument, and says why, if the text is no profile, is of another machine, or is older than
// a month (or from the future) at `now`.
std::string SerializeProfile(const MachineProfile& profile, const std::string& identity,
                             int64_t measured);
absl::StatusOr<MachineProfile> ParseProfile(std::string_view text, const std::string& identity,
                                            int64_t now);

// Measures the machine, and the drive of `folder` unless that is empty. Takes a few seconds.
// ResourceExhausted: there is no room for a file of 256 MiB in the folder, or no memory.
absl::StatusOr<MachineProfile> MeasureMachine(const std::string& folder,
                                              const ProfileOptions& options);

// The profile of a folder's drive: from the cache, or measured and kept there. A file that cannot
// be used is measured again and replaced. Errors of MeasureMachine.
absl::StatusOr<MachineProfile> ProfileOf(const std::string& folder, const ProfileOptions& options);

// The profiles of a store's folders together: the machine for a simulation, and the rates of
// computing, which are those of the first.
struct ThisMachine {
  simulation::Machine links;
  MachineProfile rates;
};
absl::StatusOr<ThisMachine> ProfileOfAll(const std::vector<std::string>& folders,
                                         const ProfileOptions& options);
std::string Describe(const ThisMachine& machine);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_MACHINE_MACHINE_PROFILE_H_
