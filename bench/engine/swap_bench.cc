// SPDX-License-Identifier: Apache-2.0
//
// Question: what share of fio's rate does the engine reach when it swaps a tensor larger than its
// pinned memory, and how much CPU time does a GB cost? Limit: fio (io_uring, O_DIRECT, registered
// buffers and files, requests of a page, depth 16) on the same file system in the same run. fio
// computes no checksums and keeps no page table. Its buffers lie in ordinary pages, the engine's
// arena in huge pages where the kernel provides them, so a share above 1 is possible.
//
//   read:  AcquireHost(kRead) of every tile in order, declared by Prefetch, none resident at first
//   write: AcquireHost(kDiscard) of every tile in order, until the last one has reached the store;
//          the tiles are not filled (nor are fio's buffers)
//
// Method: every block is written before it is measured: fio's file once, the engine's extents
// twice, because they are written out of place. Each iteration is a round: fio and the engine run
// one after the other, and the order alternates. A share is computed within its round. Medians and
// ranges over the rounds are reported. The whole run takes under a minute.
//
//   build/release/bin/swap_bench [--folder DIR] [--benchmark_out=FILE]

#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/engine/environment.h"
#include "spillway/engine.h"
#include "src/base/status_macros.h"
#include "tools/spillway/bench/io/fio.h"

namespace spillway::bench {
namespace {

constexpr uint64_t kTensorBytes = 384 * kMiB;
constexpr uint64_t kPinnedBytes = 64 * kMiB;
constexpr uint64_t kPageBytes = kMiB;
constexpr int kFioDepth = 16;
constexpr int kRounds = 7;

double CpuSeconds() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// A tensor in its own engine, whose tiles are leased one after the other.
class Swapper {
 public:
  static absl::StatusOr<std::unique_ptr<Swapper>> Create(const std::string& folder,
                                                         uint64_t tile_bytes) {
    EngineOptions options;
    options.store = {folder};
    options.mode = OpenMode::kScratch;
    options.device_bytes = kMiB;  // unused
    options.pinned_bytes = kPinnedBytes;
    options.page_bytes = kPageBytes;
    SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Open(std::move(options)));
    TensorSpec spec;
    spec.name = "t";
    spec.dtype = DType::kU8;
    spec.shape = {static_cast<int64_t>(kTensorBytes / kPageBytes), kPageBytes};
    spec.role = Role::kMoment;
    spec.tile_rows = static_cast<int64_t>(tile_bytes / kPageBytes);
    SPILLWAY_ASSIGN_OR_RETURN(TensorId id, engine->Register(spec));
    return std::unique_ptr<Swapper>(new Swapper(std::move(engine), id, spec.num_tiles()));
  }

  // Moves the whole tensor, and returns the wall and CPU seconds that this took. Internal if the
  // number of bytes moved is not the tensor's size.
  absl::StatusOr<bench_io::FioResult> Pass(io::IoOp op) {
    const bool read = op == io::IoOp::kRead;
    if (read) {
      for (uint64_t tile = 0; tile < num_tiles_; ++tile) {
        SPILLWAY_RETURN_IF_ERROR(engine_->Evict(TileRef(id_, tile)));
      }
    }
    const uint64_t before = Moved(op);
    const double cpu_before = CpuSeconds();
    const auto start = std::chrono::steady_clock::now();
    SPILLWAY_RETURN_IF_ERROR(LeaseAll(read ? Access::kRead : Access::kDiscard));
    if (!read) SPILLWAY_RETURN_IF_ERROR(AwaitWritten(before + kTensorBytes));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const bench_io::FioResult result = {.seconds = seconds.count(),
                                        .cpu_seconds = CpuSeconds() - cpu_before};
    if (const uint64_t moved = Moved(op) - before; moved != kTensorBytes) {
      return absl::InternalError(absl::StrCat("a pass moved ", moved, " bytes"));
    }
    return result;
  }

  EngineStats Stats() const { return engine_->Stats(); }

 private:
  Swapper(std::unique_ptr<Engine> engine, TensorId id, uint64_t num_tiles)
      : engine_(std::move(engine)), id_(id), num_tiles_(num_tiles) {}

  uint64_t Moved(io::IoOp op) const {
    const EngineStats stats = engine_->Stats();
    return op == io::IoOp::kRead ? stats.nvme.read_bytes : stats.nvme.written_bytes;
  }

  absl::Status LeaseAll(Access access) {
    std::vector<Use> uses;
    uses.reserve(num_tiles_);
    for (uint64_t tile = 0; tile < num_tiles_; ++tile) {
      uses.push_back({.tile = TileRef(id_, tile), .tier = Tier::kPinned, .access = access});
    }
    SPILLWAY_RETURN_IF_ERROR(engine_->Prefetch(uses));
    for (const Use& use : uses) {
      SPILLWAY_ASSIGN_OR_RETURN(Lease lease, engine_->AcquireHost(use.tile, access));
    }
    return absl::OkStatus();
  }

  absl::Status AwaitWritten(uint64_t written_bytes) {
    for (uint64_t tile = 0; tile < num_tiles_; ++tile) {
      SPILLWAY_RETURN_IF_ERROR(engine_->Evict(TileRef(id_, tile)));
    }
    while (Moved(io::IoOp::kWrite) < written_bytes) {
      SPILLWAY_RETURN_IF_ERROR(engine_->EndStep());
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    return absl::OkStatus();
  }

  std::unique_ptr<Engine> engine_;
  TensorId id_;
  uint64_t num_tiles_;
};

// Reports the median of one quantity over the rounds and, if `range` is set, its range.
void Report(benchmark::State& state, const std::string& name, std::vector<double> values,
            bool range) {
  std::sort(values.begin(), values.end());
  state.counters[name] = values[values.size() / 2];
  if (!range) return;
  state.counters[name + "_min"] = values.front();
  state.counters[name + "_max"] = values.back();
}

const std::atomic<bool> kNeverInterrupted = false;

bench_io::FioJob Job(const std::string& folder, io::IoOp op) {
  return {.op = op == io::IoOp::kRead ? bench_io::Op::kRead : bench_io::Op::kWrite,
          .block_bytes = kPageBytes,
          .depth = kFioDepth,
          .size_bytes = kTensorBytes,
          .paths = {folder + "/fio"}};
}

// Runs the engine and fio in turns and reports both. A round is one of `state`'s iterations.
absl::Status Measure(benchmark::State& state, const std::string& folder, io::IoOp op,
                     uint64_t tile_bytes) {
  SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<Swapper> swapper,
                            Swapper::Create(folder + "/store", tile_bytes));
  for (int pass = 0; pass < 2; ++pass) {
    SPILLWAY_RETURN_IF_ERROR(swapper->Pass(io::IoOp::kWrite).status());
  }
  const bench_io::FioJob job = Job(folder, op);
  constexpr double kGb = static_cast<double>(kTensorBytes) * 1e-9;
  std::vector<double> fio_rate, rate, share, fio_cpu, cpu;
  for (auto _ : state) {
    bench_io::FioResult fio, engine;
    const bool engine_first = rate.size() % 2 != 0;
    for (const bool engine_turn : {engine_first, !engine_first}) {
      if (engine_turn) {
        SPILLWAY_ASSIGN_OR_RETURN(engine, swapper->Pass(op));
      } else {
        SPILLWAY_ASSIGN_OR_RETURN(fio, RunFio(job, kNeverInterrupted));
      }
    }
    state.SetIterationTime(engine.seconds);
    fio_rate.push_back(kGb / fio.seconds);
    rate.push_back(kGb / engine.seconds);
    share.push_back(fio.seconds / engine.seconds);
    fio_cpu.push_back(fio.cpu_seconds / kGb);
    cpu.push_back(engine.cpu_seconds / kGb);
  }
  Report(state, "GB/s", rate, true);
  Report(state, "fio_GB/s", fio_rate, true);
  Report(state, "of_fio", share, true);
  Report(state, "CPU_s/GB", cpu, false);
  Report(state, "fio_CPU_s/GB", fio_cpu, false);
  state.SetLabel(swapper->Stats().io_engine);
  return absl::OkStatus();
}

void RegisterBenchmarks(const std::string& folder) {
  for (const io::IoOp op : {io::IoOp::kRead, io::IoOp::kWrite}) {
    for (const uint64_t tile_mib : {2, 4}) {
      const std::string name =
          absl::StrCat("Swap/", op == io::IoOp::kRead ? "read" : "write", "/tile_MiB:", tile_mib);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [=](benchmark::State& state) {
                                     const absl::Status status =
                                         Measure(state, folder, op, tile_mib * kMiB);
                                     if (!status.ok())
                                       state.SkipWithError(std::string(status.message()).c_str());
                                   })
          ->Iterations(kRounds)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::string parent = ".";
  CLI::App app("The engine's swap throughput against fio's");
  app.add_option("--folder", parent, "a folder on the file system to measure")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  const std::string folder = absl::StrCat(parent, "/swap_bench-", ::getpid());
  std::filesystem::create_directory(folder);
  DescribeMachine(folder);
  const auto laid_out = RunFio(Job(folder, io::IoOp::kWrite), kNeverInterrupted);
  if (laid_out.ok()) {
    RegisterBenchmarks(folder);
    benchmark::RunSpecifiedBenchmarks();
  } else {
    std::fprintf(stderr, "swap_bench: %s\n", std::string(laid_out.status().message()).c_str());
  }
  benchmark::Shutdown();
  std::filesystem::remove_all(folder);
  return laid_out.ok() ? 0 : 1;
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) { return spillway::bench::Main(argc, argv); }
