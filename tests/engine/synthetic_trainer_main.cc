// SPDX-License-Identifier: Apache-2.0
//
// The synthetic trainer as a program, for runs that are longer than a test or under other tools:
//
//   synthetic_trainer --device cuda:0 --seed 7 --steps 2000 --most-tile-bytes 4194304

#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <string>

#include "tests/engine/synthetic_trainer.h"

int main(int argc, char** argv) {
  using spillway::Device;
  spillway::test::SyntheticOptions options;
  std::string device = "host";
  std::string folder = ".";
  CLI::App app("Leases tiles, checks and writes every byte, in random order and time");
  app.add_option("--device", device, "host or cuda:N")->capture_default_str();
  app.add_option("--folder", folder, "where its store is for a while")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_option("--steps", options.steps)->capture_default_str();
  app.add_option("--uses-per-step", options.uses_per_step)->capture_default_str();
  app.add_option("--most-tile-bytes", options.most_tile_bytes)
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--most-microseconds", options.most_microseconds)
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  int index = 0;
  if (std::sscanf(device.c_str(), "cuda:%d", &index) == 1) {
    options.device = Device::Cuda(index);
  } else if (device != "host") {
    std::fprintf(stderr, "synthetic_trainer: --device is host or cuda:N, not '%s'\n",
                 device.c_str());
    return 2;
  }
  std::string own = folder + "/spillway-synthetic-XXXXXX";
  if (::mkdtemp(own.data()) == nullptr) {
    std::perror("synthetic_trainer: making a folder");
    return 1;
  }
  options.store = own + "/store";
  const auto result = spillway::test::RunSyntheticTrainer(options);
  std::filesystem::remove_all(own);
  if (!result.ok()) {
    std::fprintf(stderr, "synthetic_trainer: %s\n", std::string(result.status().message()).c_str());
    return 1;
  }
  std::printf("seed %llu on %s: %llu kernels checked %llu bytes, %llu commits, none wrong\n",
              static_cast<unsigned long long>(options.seed), result->stats.device.c_str(),
              static_cast<unsigned long long>(result->kernels),
              static_cast<unsigned long long>(result->bytes_checked),
              static_cast<unsigned long long>(result->commits));
  return 0;
}
