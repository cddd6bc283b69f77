// SPDX-License-Identifier: Apache-2.0
//
// The cache of profiles. measure_machine.cc measures them.

#include "tools/spillway/machine/machine_profile.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/checksum.h"
#include "nlohmann/json.hpp"
#include "src/base/bytes.h"
#include "src/base/existing_folder.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"
#include "tools/hf/file.h"
#include "tools/hf/strict_json.h"
#include "tools/spillway/bench/io/machine.h"

namespace spillway::command {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMonthSeconds = int64_t{30} * 24 * 60 * 60;
constexpr uint64_t kMostProfileBytes = 16 << 10;
constexpr double kMostProfileRate = 1e18;
constexpr char kWhat[] = "spillway machine profile";

// Calls `each(name, rate)` for every rate but the drive's and the updates'.
template <typename Profile, typename Each>
void ForRates(Profile& profile, const Each& each) {
  each("copy_in", profile.copy_in);
  each("copy_out", profile.copy_out);
  each("checksum", profile.checksum);
  each("memory", profile.memory);
  each("flops", profile.flops);
}
template <typename Drive, typename Each>
void ForDriveRates(Drive& drive, const Each& each) {
  each("read", drive.read);
  each("write", drive.write);
  each("both", drive.both);
}
std::string NameOfFormat(int format) { return std::string(Name(static_cast<StateFormat>(format))); }

absl::Status TakeRate(const nlohmann::json& from, const std::string& name, double* rate) {
  const auto found = from.find(name);
  if (found == from.end() || !found->is_number())
    return absl::InvalidArgumentError(absl::StrCat(name, " is missing"));
  *rate = found->get<double>();
  if (std::isfinite(*rate) && *rate > 0 && *rate < kMostProfileRate) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", *rate));
}

std::string FileOf(const std::string& cache, const std::string& identity) {
  const std::span text(identity.data(), identity.size());
  return absl::StrFormat("%s/machine-%016x.json", cache, io::Checksum(std::as_bytes(text)));
}

// Returns the kept profile. An error if there is none that can be used.
absl::StatusOr<MachineProfile> ReadKept(const std::string& file, const std::string& identity) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return absl::NotFoundError("there is no file");
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text, hf::ReadTextFile(file, kMostProfileBytes));
  return ParseProfile(text, identity, std::time(nullptr));
}

}  // namespace

std::string CacheFolder() {
  for (const auto& [variable, below] :
       {std::pair{"XDG_CACHE_HOME", "spillway"}, std::pair{"HOME", ".cache/spillway"}}) {
    const char* const folder = std::getenv(variable);
    if (folder != nullptr && *folder == '/') return fs::path(folder) / below;
  }
  return "";
}

std::string MachineIdentity(const std::string& folder, int64_t threads) {
  std::vector<std::string> folders;
  if (!folder.empty()) folders.push_back(base::ExistingFolder(folder));
  const bench_io::Machine machine = bench_io::Describe(folders);
  std::string identity = absl::StrCat("kernel ", machine.kernel, ", ", machine.cpu, ", ",
                                      machine.num_cpus, " CPUs, ", threads, " threads");
  for (const bench_io::Volume& volume : machine.volumes) {
    struct stat info{};
    struct statvfs space{};
    const bool found =
        stat(volume.folder.c_str(), &info) == 0 && statvfs(volume.folder.c_str(), &space) == 0;
    absl::StrAppend(&identity, ", ", volume.file_system, " on ", volume.device, " ", volume.model);
    // A file system keeps its id; one without has the number of its device.
    if (found)
      absl::StrAppend(&identity, " ",
                      absl::Hex(space.f_fsid != 0 ? uint64_t{space.f_fsid} : info.st_dev));
  }
  return identity;
}

std::string SerializeProfile(const MachineProfile& profile, const std::string& identity,
                             int64_t measured) {
  nlohmann::ordered_json json = {
      {"v", 1}, {"what", kWhat}, {"of", identity}, {"measured", measured}};
  const auto add = [&](const char* name, double rate) { json[name] = rate; };
  ForRates(profile, add);
  for (int format = 0; format < kNumStateFormats; ++format)
    json["update"][NameOfFormat(format)] = profile.update[static_cast<size_t>(format)];
  if (profile.drive) {
    ForDriveRates(*profile.drive,
                  [&](const char* name, double rate) { json["drive"][name] = rate; });
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

absl::StatusOr<MachineProfile> ParseProfile(std::string_view text, const std::string& identity,
                                            int64_t now) {
  SPILLWAY_ASSIGN_OR_RETURN(const nlohmann::json json, hf::ParseStrictJson(text, "the profile"));
  if (!json.is_object() || json.value("what", nlohmann::json()) != kWhat ||
      json.value("v", nlohmann::json()) != 1)
    return absl::InvalidArgumentError("it is no profile of this version");
  // Text that is not UTF-8 is replaced when it is written, so it is compared as written.
  const nlohmann::json own = nlohmann::json::parse(
      nlohmann::json(identity).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  if (json.value("of", nlohmann::json()) != own)
    return absl::InvalidArgumentError("it is of another machine, drive or kernel");
  const nlohmann::json measured = json.value("measured", nlohmann::json());
  if (!measured.is_number_integer() || measured.get<int64_t>() > now ||
      now - measured.get<int64_t>() > kMonthSeconds)
    return absl::InvalidArgumentError("it is older than a month");
  MachineProfile profile;
  absl::Status status;
  ForRates(profile,
           [&](const char* name, double& rate) { status.Update(TakeRate(json, name, &rate)); });
  const nlohmann::json update = json.value("update", nlohmann::json::object());
  for (int format = 0; format < kNumStateFormats; ++format) {
    status.Update(
        TakeRate(update, NameOfFormat(format), &profile.update[static_cast<size_t>(format)]));
  }
  if (const auto found = json.find("drive"); found != json.end()) {
    profile.drive.emplace();
    ForDriveRates(*profile.drive, [&](const char* name, double& rate) {
      status.Update(TakeRate(*found, name, &rate));
    });
  }
  SPILLWAY_RETURN_IF_ERROR(status);
  return profile;
}

absl::StatusOr<MachineProfile> ProfileOf(const std::string& folder, const ProfileOptions& options) {
  const std::string identity = MachineIdentity(folder, options.threads);
  const std::string file = options.cache.empty() ? "" : FileOf(options.cache, identity);
  if (!file.empty()) {
    const absl::StatusOr<MachineProfile> kept = ReadKept(file, identity);
    if (kept.ok() && kept->drive.has_value() == !folder.empty()) return kept;
  }
  if (options.announce) {
    options.announce(absl::StrCat(
        "measuring this machine", folder.empty() ? "" : absl::StrCat(" and the drive of ", folder),
        ", a few seconds",
        file.empty() ? "; it is not kept, because neither XDG_CACHE_HOME nor HOME is set"
                     : absl::StrCat(", kept for 30 days in ", file)));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const MachineProfile profile, MeasureMachine(folder, options));
  if (file.empty()) return profile;
  std::error_code error;
  fs::create_directories(options.cache, error);
  const absl::Status kept = hf::WriteTextFile(
      file, SerializeProfile(profile, identity, std::time(nullptr)), hf::IfExists::kReplace);
  if (!kept.ok() && options.announce)
    options.announce(absl::StrCat("the profile could not be kept: ", kept.message()));
  return profile;
}

absl::StatusOr<ThisMachine> ProfileOfAll(const std::vector<std::string>& folders,
                                         const ProfileOptions& options) {
  ThisMachine machine;
  if (folders.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(machine.rates, ProfileOf("", options));
  } else {
    machine.links.drives.clear();
    for (const std::string& folder : folders) {
      SPILLWAY_ASSIGN_OR_RETURN(const MachineProfile profile, ProfileOf(folder, options));
      if (machine.links.drives.empty()) machine.rates = profile;
      machine.links.drives.push_back(*profile.drive);
    }
  }
  machine.links.copy_in = machine.rates.copy_in;
  machine.links.copy_out = machine.rates.copy_out;
  machine.links.checksum = machine.rates.checksum;
  return machine;
}

std::string Describe(const ThisMachine& machine) {
  const auto rate = [](double bytes) { return absl::StrFormat("%.3g GB/s", bytes / 1e9); };
  std::string text;
  if (machine.rates.drive) {
    const plan::Rates all = machine.links.Rates();
    text = absl::StrCat("reads ", rate(all[plan::Transfer::kRead]), ", writes ",
                        rate(all[plan::Transfer::kWrite]), ", both ", rate(all.nvme), "; ");
  }
  return absl::StrCat(text, "copies ", rate(machine.rates.copy_in), ", hashes ",
                      rate(machine.rates.checksum), ", updates ", rate(machine.rates.update[0]),
                      ", memory ", rate(machine.rates.memory),
                      absl::StrFormat("; products %.3g GFLOP/s", machine.rates.flops / 1e9));
}

}  // namespace spillway::command
