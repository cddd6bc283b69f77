// SPDX-License-Identifier: Apache-2.0
//
// Does the AdamW kernel run at the speed of memory? It reads and writes 28 bytes an element, with
// fp16 gradients and weights (14 and 14) as with fp32 ones (16 and 12). The limit is what an
// in-place update (x ← a·x, 4 read and 4 written) over as many bytes reaches on the same threads.
// That limit differs from machine to machine and from minute to minute, so each iteration measures
// both, one after the other, and reports the share.
//
//   build/release/bin/adamw_bench [--benchmark_filter=half:1] [--benchmark_out=FILE]

#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "spillway/thread_pool.h"
#include "src/optim/adamw_kernel.h"

namespace spillway::optim {
namespace {

constexpr int64_t kElements = int64_t{32} << 20;  // 448 MiB of state: far beyond any cache
constexpr int64_t kBytesAnElement = 28;
constexpr int64_t kGrainElements = 16384;
constexpr size_t kHugePageBytes = size_t{2} << 20;

// Zeroed memory in huge pages.
template <typename T>
class Array {
 public:
  explicit Array(int64_t count)
      : size_bytes_((static_cast<size_t>(count) * sizeof(T) + kHugePageBytes - 1) &
                    ~(kHugePageBytes - 1)),
        data_(static_cast<T*>(std::aligned_alloc(kHugePageBytes, size_bytes_)), &std::free) {
    (void)madvise(data_.get(), size_bytes_, MADV_HUGEPAGE);
    std::memset(data_.get(), 0, size_bytes_);
  }
  T* data() { return data_.get(); }
  T& operator[](int64_t i) { return data_.get()[i]; }

 private:
  size_t size_bytes_;
  std::unique_ptr<T, decltype(&std::free)> data_;
};

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void ScaleInPlace(float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] *= 1.0000001f;
}

double SecondsOf(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// range(0): threads; range(1): whether gradient and weight are halves.
void BM_AdamW(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const bool halves = state.range(1) != 0;
  Array<float> gradient(kElements), master(kElements), moment1(kElements), moment2(kElements);
  Array<uint16_t> weight(halves ? kElements : 0);
  for (int64_t i = 0; i < kElements; ++i) {
    master[i] = static_cast<float>(i % 100) * 0.01f;
    moment2[i] = 1e-4f;
  }
  // The reference's bytes: one float read and written for each 8 of the kernel's.
  constexpr int64_t kReferenceElements = kElements * kBytesAnElement / 8;
  Array<float> reference(kReferenceElements);
  const AdamWFactors factors = MakeAdamWFactors({}, {.step = 10, .learning_rate = 1e-4});

  double kernel_seconds = 0, reference_seconds = 0;
  for (auto _ : state) {
    const double kernel = SecondsOf([&] {
      pool.ParallelRanges(kElements, kGrainElements, [&](int64_t begin, int64_t end) {
        AdamWRun run;
        run.num_elements = end - begin;
        run.gradient_is_f16 = halves;
        run.gradient = reinterpret_cast<std::byte*>(gradient.data()) + begin * (halves ? 2 : 4);
        run.master = master.data() + begin;
        run.moment1 = moment1.data() + begin;
        run.moment2 = moment2.data() + begin;
        run.weight = halves ? weight.data() + begin : nullptr;
        UpdateAdamW(factors, run);
      });
    });
    reference_seconds += SecondsOf([&] {
      pool.ParallelRanges(kReferenceElements, kGrainElements, [&](int64_t begin, int64_t end) {
        ScaleInPlace(reference.data() + begin, end - begin);
      });
    });
    kernel_seconds += kernel;
    state.SetIterationTime(kernel);
  }
  const auto iterations = static_cast<double>(state.iterations());
  const double bytes = iterations * static_cast<double>(kElements * kBytesAnElement);
  state.counters["G_elements/s"] =
      iterations * static_cast<double>(kElements) / kernel_seconds * 1e-9;
  state.counters["GB/s"] = bytes / kernel_seconds * 1e-9;
  state.counters["limit_GB/s"] = bytes / reference_seconds * 1e-9;
  state.counters["share"] = reference_seconds / kernel_seconds;
}

std::string CpuModel() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string KernelRelease() {
  utsname name = {};
  return uname(&name) == 0 ? name.release : "unknown";
}

void RegisterBenchmarks() {
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  auto* bench = benchmark::RegisterBenchmark("AdamW", BM_AdamW);
  bench->ArgNames({"threads", "half"})->Unit(benchmark::kMillisecond)->UseManualTime();
  bench->Repetitions(9)->Iterations(3)->ReportAggregatesOnly(true);
  for (int count : threads > 1 ? std::vector<int>{1, threads} : std::vector<int>{1}) {
    for (int half : {1, 0}) bench->Args({count, half});
  }
}

}  // namespace
}  // namespace spillway::optim

int main(int argc, char** argv) {
  benchmark::AddCustomContext("cpu_model", spillway::optim::CpuModel());
  benchmark::AddCustomContext("instruction_set", spillway::optim::AdamWInstructionSet());
  benchmark::AddCustomContext("kernel", spillway::optim::KernelRelease());
  spillway::optim::RegisterBenchmarks();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
