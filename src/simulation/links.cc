// SPDX-License-Identifier: Apache-2.0

#include "src/simulation/links.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"

namespace spillway::simulation {
namespace {

using plan::Transfer;

absl::Status CheckRate(absl::string_view name, double rate) {
  if (std::isfinite(rate) && rate > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", rate, " bytes/s; it must be a finite number above 0"));
}

}  // namespace

absl::Status Machine::Check() const {
  if (drives.empty()) return absl::InvalidArgumentError("there is no drive; name at least one");
  for (const Drive& drive : drives) {
    SPILLWAY_RETURN_IF_ERROR(CheckRate("a drive's read rate", drive.read));
    SPILLWAY_RETURN_IF_ERROR(CheckRate("a drive's write rate", drive.write));
    SPILLWAY_RETURN_IF_ERROR(CheckRate("a drive's rate in both directions", drive.both));
  }
  SPILLWAY_RETURN_IF_ERROR(CheckRate("the rate of copies to the device", copy_in));
  SPILLWAY_RETURN_IF_ERROR(CheckRate("the rate of copies from the device", copy_out));
  SPILLWAY_RETURN_IF_ERROR(CheckRate("the rate of checksums", checksum));
  if (!std::isfinite(latency_seconds) || latency_seconds < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the latency is ", latency_seconds, " s; it must be finite and at least 0"));
  }
  if (!std::isfinite(jitter) || jitter < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the jitter is ", jitter, "; it must be finite and at least 0"));
  }
  return absl::OkStatus();
}

plan::Rates Machine::Rates() const {
  Drive all = {0, 0, 0};
  Drive slowest = drives.front();
  for (const Drive& drive : drives) {
    all = {all.read + drive.read, all.write + drive.write, all.both + drive.both};
    slowest = {std::min(slowest.read, drive.read), std::min(slowest.write, drive.write),
               std::min(slowest.both, drive.both)};
  }
  if (!is_calibrated) {
    const auto n = static_cast<double>(drives.size());
    all = {slowest.read * n, slowest.write * n, slowest.both * n};
  }
  plan::Rates rates;
  rates.link = {all.read, all.write, copy_in, copy_out};
  rates.nvme = all.both;
  rates.checksum = checksum;
  return rates;
}

Machine MachineOf(const plan::Rates& rates) {
  static constexpr double kMostRate = 1e15;
  const auto finite = [](double rate) { return std::min(rate, kMostRate); };
  Machine machine;
  machine.drives.front() = {.read = finite(rates[Transfer::kRead]),
                            .write = finite(rates[Transfer::kWrite]),
                            .both = finite(rates.nvme)};
  machine.copy_in = finite(rates[Transfer::kCopyIn]);
  machine.copy_out = finite(rates[Transfer::kCopyOut]);
  machine.checksum = finite(rates.checksum);
  return machine;
}

Links::Links(Machine machine)
    : machine_(std::move(machine)),
      free_at_(machine_.drives.size()),
      drive_free_at_(machine_.drives.size()),
      random_(machine_.seed) {
  double sum = 0;
  for (const Drive& drive : machine_.drives)
    sum += shares_.emplace_back(machine_.is_calibrated ? drive.both : 1);
  for (double& share : shares_) share /= sum;
}

double Links::Jittered(double seconds) {
  if (machine_.jitter == 0) return seconds;
  // The upper 53 bits make a double in [0, 1), equal with every standard library.
  const double share = static_cast<double>(random_() >> 11) * 0x1p-53;
  return seconds * (1 + machine_.jitter * share);
}

Links::Span Links::Carry(Transfer transfer, uint64_t size_bytes, double now) {
  const auto bytes = static_cast<double>(size_bytes);
  if (transfer == Transfer::kCopyIn || transfer == Transfer::kCopyOut) {
    const bool is_in = transfer == Transfer::kCopyIn;
    double& free_at = copy_free_at_[is_in ? 0 : 1];
    const double begin = std::max(now, free_at);
    free_at = begin + Jittered(bytes / (is_in ? machine_.copy_in : machine_.copy_out));
    return {begin, free_at};
  }
  const bool is_read = transfer == Transfer::kRead;
  double begin = hash_free_at_ = std::max(now, hash_free_at_);
  double end = hash_free_at_ += bytes / machine_.checksum;
  begin = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < shares_.size(); ++i) {
    const Drive& drive = machine_.drives[i];
    const double part = bytes * shares_[i];
    double& free_at = free_at_[i][is_read ? 0 : 1];
    const double starts = std::max(now, free_at);
    free_at = starts + Jittered(part / (is_read ? drive.read : drive.write));
    drive_free_at_[i] = std::max(drive_free_at_[i], starts) + part / drive.both;
    begin = std::min(begin, starts);
    end = std::max({end, free_at, drive_free_at_[i]});
  }
  return {begin, end + machine_.latency_seconds};
}

}  // namespace spillway::simulation
