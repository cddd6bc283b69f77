// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/hardware.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"

namespace spillway::command {
namespace {

using base::View;

constexpr uint64_t kGB = 1'000'000'000;
constexpr double kMostRate = 1e15;
constexpr int64_t kMostDrives = 1024;

// Links: what one direction reaches of PCIe 3.0, 4.0 and 5.0 with 16 lanes (12, 25 and 50 GB/s). A
// GPU's memory is its maker's GB, which are GiB for the 4090.
constexpr std::array<Gpu, 6> kGpus = {{
    {.name = "v100",
     .title = "NVIDIA V100 SXM2 32 GB",
     .flops = 125e12,
     .flops_fp32 = 15.7e12,
     .memory_bytes = 32 * kGB,
     .memory_bytes_per_second = 900e9,
     .link = 12e9,
     .source = "NVIDIA V100 datasheet (2020); PCIe 3.0 x16"},
    {.name = "a100",
     .title = "NVIDIA A100 SXM 80 GB",
     .flops = 312e12,
     .flops_fp32 = 19.5e12,
     .memory_bytes = 80 * kGB,
     .memory_bytes_per_second = 2039e9,
     .link = 25e9,
     .source = "NVIDIA A100 datasheet (2021), dense; PCIe 4.0 x16"},
    {.name = "h100",
     .title = "NVIDIA H100 SXM 80 GB",
     .flops = 989e12,
     .flops_fp32 = 67e12,
     .memory_bytes = 80 * kGB,
     .memory_bytes_per_second = 3350e9,
     .link = 50e9,
     .source = "NVIDIA H100 datasheet (2023), dense; PCIe 5.0 x16"},
    {.name = "h200",
     .title = "NVIDIA H200 SXM 141 GB",
     .flops = 989e12,
     .flops_fp32 = 67e12,
     .memory_bytes = 141 * kGB,
     .memory_bytes_per_second = 4800e9,
     .link = 50e9,
     .source = "NVIDIA H200 datasheet (2024), dense; PCIe 5.0 x16"},
    {.name = "rtx4090",
     .title = "NVIDIA GeForce RTX 4090 24 GB",
     .flops = 165e12,
     .flops_fp32 = 82.6e12,
     .memory_bytes = uint64_t{24} << 30,
     .memory_bytes_per_second = 1008e9,
     .link = 25e9,
     .source = "NVIDIA Ada architecture white paper (2022), fp32 accumulators; PCIe 4.0 x16"},
    {.name = "dgx-2",
     .title = "NVIDIA DGX-2: 16 V100 together",
     .flops = 16 * 125e12,
     .flops_fp32 = 16 * 15.7e12,
     .memory_bytes = 16 * 32 * kGB,
     .memory_bytes_per_second = 16 * 900e9,
     .link = 16 * 3e9,
     .source =
         "NVIDIA DGX-2 datasheet; links and drives: Rajbhandari et al., ZeRO-Infinity (2021), "
         "3 GB/s to memory and 1.6 GB/s to NVMe a GPU when all transfer",
     .count = 16,
     .dram_bytes = 1500 * kGB,
     .drives = 8,
     .drive_read = 3.2e9,
     .drive_write = 3.2e9,
     .drive_bytes = 3500 * kGB},
}};

absl::Status BadDrives(std::string_view text, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "'", View(text), "' are no drives: ", why,
      ". The form is 8x7/5GB/s:3.8TB: how many, the rate of reading and of writing of one, and its "
      "size; 7GB/s is enough"));
}

// Parses a number above 0 with the unit of a rate, as in "7GB/s". `unit`: what a number without
// one takes.
absl::StatusOr<double> RateWithUnit(std::string_view text, std::string_view unit) {
  if (text.ends_with("/s")) text.remove_suffix(2);
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  const bool is_bare = error == std::errc() && rest == end;
  const std::string full = absl::StrCat(View(text), is_bare ? View(unit) : "");
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t bytes, base::ParseBytes(full));
  if (bytes == 0 || static_cast<double>(bytes) >= kMostRate) {
    return absl::InvalidArgumentError(
        absl::StrCat("a rate must be above 0 and below 10^15 bytes/s; it is ", full, "/s"));
  }
  return static_cast<double>(bytes);
}

}  // namespace

std::span<const Gpu> Gpus() { return kGpus; }

absl::StatusOr<Gpu> FindGpu(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Gpu& gpu : kGpus) {
    if (absl::EqualsIgnoreCase(View(gpu.name), View(name))) return gpu;
    names.push_back(gpu.name);
  }
  return absl::NotFoundError(absl::StrCat(
      "'", View(name), "' is no GPU that is known; the presets are ",
      absl::StrJoin(names, ", ",
                    [](std::string* out, std::string_view each) { out->append(each); }),
      ". For another, give the nearest, and --link and --flops-share"));
}

absl::StatusOr<double> ParseRate(std::string_view text) {
  if (!text.ends_with("/s")) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", View(text), "' is no rate: want a size a second, such as 25GB/s"));
  }
  return RateWithUnit(text, "");
}

absl::StatusOr<Drives> ParseDrives(std::string_view text) {
  const std::string_view whole = text;
  Drives drives;
  if (const size_t x = text.find('x'); x != std::string_view::npos) {
    const char* const end = text.data() + x;
    const auto [rest, error] = std::from_chars(text.data(), end, drives.count);
    if (error != std::errc() || rest != end || drives.count < 1 || drives.count > kMostDrives)
      return BadDrives(whole, absl::StrCat("their number must be from 1 to ", kMostDrives));
    text.remove_prefix(x + 1);
  }
  if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    const absl::StatusOr<uint64_t> size = base::ParseBytes(text.substr(colon + 1));
    if (!size.ok()) return BadDrives(whole, std::string(size.status().message()));
    if (*size == 0 || *size == UINT64_MAX)
      return BadDrives(whole, "a drive's size must be above 0");
    drives.size_bytes = *size;
    text = text.substr(0, colon);
  }
  if (!text.ends_with("/s")) return BadDrives(whole, "the rate must end in /s, as 7GB/s does");
  text.remove_suffix(2);
  const size_t slash = text.find('/');
  const std::string_view last = slash == std::string_view::npos ? text : text.substr(slash + 1);
  const size_t unit = last.find_last_of("0123456789.");
  const std::string_view units = unit == std::string_view::npos ? "" : last.substr(unit + 1);
  const absl::StatusOr<double> read = RateWithUnit(text.substr(0, slash), units);
  if (!read.ok()) return BadDrives(whole, std::string(read.status().message()));
  drives.read = *read;
  drives.write = *read / 2;
  if (slash == std::string_view::npos) return drives;
  const absl::StatusOr<double> write = RateWithUnit(last, units);
  if (!write.ok()) return BadDrives(whole, std::string(write.status().message()));
  drives.write = *write;
  return drives;
}

simulation::Machine Hardware::Links() const {
  simulation::Machine machine;
  // A flash drive moves in both directions together what it moves in its faster one.
  const double both = drives.both > 0 ? drives.both : std::max(drives.read, drives.write);
  const simulation::Drive drive = {drives.read, drives.write, both};
  machine.drives.assign(static_cast<size_t>(drives.count), drive);
  machine.copy_in = machine.copy_out = link;
  machine.checksum = checksum;
  machine.latency_seconds = latency_seconds;
  machine.jitter = jitter;
  machine.seed = seed;
  return machine;
}

}  // namespace spillway::command
