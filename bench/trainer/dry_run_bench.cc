// SPDX-License-Identifier: Apache-2.0
//
// How long does a dry step of a very large model take, and how much memory? Planning a machine
// before it is bought runs many of them. The limit is 10 s and 300 MiB for a million tiles; the
// exit status is 1 above it.
//
//   dry_run_bench [LAYERS]    of 12,288 wide, in tiles of 1 Mi elements: 90 layers, the default
//                             (166 G parameters), have a million

#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "tools/trainer/dry_run.h"

namespace {

constexpr double kMostSeconds = 10;
constexpr int64_t kMostMib = 300;
constexpr int64_t kTileElements = 1 << 20;

using spillway::trainer::ModelOptions;
using spillway::trainer::RecordedStep;

spillway::hf::ModelConfig LargeModel(int64_t layers) {
  spillway::hf::ModelConfig config;
  config.vocab_size = 128256;
  config.hidden_size = 12288;
  config.intermediate_size = 4 * 12288 * 2 / 3;
  config.num_layers = layers;
  config.num_heads = 96;
  config.num_kv_heads = 96;
  config.head_dim = 128;
  config.max_position_embeddings = 8192;
  return config;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t layers = argc > 1 ? std::atoll(argv[1]) : 90;
  ModelOptions options;
  options.precision = spillway::trainer::Precision::kBf16;
  options.gradient_dtype = spillway::DType::kBF16;
  options.sequence = 4096;
  options.tiles = {kTileElements, kTileElements};
  const auto start = std::chrono::steady_clock::now();
  const auto step = spillway::trainer::RecordStep(LargeModel(layers), options);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  if (!step.ok()) {
    std::fprintf(stderr, "%s\n", step.status().ToString().c_str());
    return 1;
  }
  uint64_t tiles = 0;
  for (const spillway::TensorSpec& spec : step->tensors) tiles += spec.num_tiles();
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const int64_t peak_mib = usage.ru_maxrss / 1024;
  absl::PrintF("{\"tiles\":%d,\"events\":%d,\"seconds\":%.2f,\"peak_mib\":%d}\n", tiles,
               step->events.size(), elapsed.count(), peak_mib);
  return elapsed.count() > kMostSeconds || peak_mib > kMostMib ? 1 : 0;
}
