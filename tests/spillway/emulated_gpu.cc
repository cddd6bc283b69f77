// SPDX-License-Identifier: Apache-2.0
//
// Opens an emulated GPU for spillway_emulated, which is the command with this instead of
// tools/spillway/gpu/open_gpu.cc. EMULATED_GPU in the environment limits it:
//   free=BYTES   its memory
//   launches=N   it is lost after so many
//   name=TEXT    another GPU
//   rates=N      that it tells: operations of products, and bytes of copies, per second
// SPILLWAY_TEST_SEED decides the order of its threads.

#include <charconv>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "src/base/status_macros.h"
#include "tools/spillway/gpu/open_gpu.h"
#include "tools/trainer/compute/gpu/emulated_device.h"

namespace spillway::command {

absl::StatusOr<std::unique_ptr<trainer::gpu::Device>> OpenGpu(
    int index, const std::string& /*cublaslt_file*/) {
  if (index != 0)
    return absl::UnimplementedError("there is no such GPU: this command emulates one");
  trainer::gpu::EmulatedDevice::Limits limits;
  const char* const given = std::getenv("EMULATED_GPU");
  for (const absl::string_view word :
       absl::StrSplit(given == nullptr ? "" : given, ' ', absl::SkipEmpty())) {
    const std::string part(word);
    const auto number = [&part](size_t from) {
      int64_t value = 0;
      std::from_chars(part.data() + from, part.data() + part.size(), value);
      return value;
    };
    if (part.starts_with("free=")) {
      limits.free_bytes = static_cast<uint64_t>(number(5));
    } else if (part.starts_with("launches=")) {
      limits.launches = number(9);
    } else if (part.starts_with("rates=")) {
      const auto rate = static_cast<double>(number(6));
      limits.rates = {.flops = rate, .copy = rate, .from_pinned = rate, .to_pinned = rate};
    } else if (part.starts_with("name=")) {
      limits.name = part.substr(5);
    } else {
      return absl::InvalidArgumentError(absl::StrCat("EMULATED_GPU has ", part));
    }
  }
  uint64_t seed = std::random_device{}();
  if (const char* const given_seed = std::getenv("SPILLWAY_TEST_SEED"))
    seed = std::strtoull(given_seed, nullptr, 10);
  return std::make_unique<trainer::gpu::EmulatedDevice>(seed, limits);
}

}  // namespace spillway::command
