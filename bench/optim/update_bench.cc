// SPDX-License-Identifier: Apache-2.0
//
// Question: does the fused update run at the speed of memory? Each rule and format moves a certain
// number of bytes per element. fp32 AdamW moves 28, both with fp16 gradients and weights (14 read,
// 14 written) and with fp32 ones (16 read, 12 written). Limit: the rate of an in-place update
// (x ← a·x, 4 bytes read and 4 written) over as many bytes on the same threads. That rate differs
// from machine to machine and from minute to minute, so each iteration measures both, one after the
// other, and the share is reported.
//
//   build/release/bin/update_bench [--benchmark_filter=adamw.*half:1] [--benchmark_out=FILE]

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

#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "src/optim/fused_update.h"
#include "src/optim/rule_kernels.h"
#include "src/optim/state_specs.h"

namespace spillway::optim {
namespace {

constexpr int64_t kElements = int64_t{32} << 20;  // 448 MiB of AdamW's state, far beyond any cache
constexpr int64_t kGrainElements = 16384;
constexpr size_t kHugePageBytes = size_t{2} << 20;

// Zeroed memory in huge pages.
class Array {
 public:
  explicit Array(int64_t size_bytes)
      : size_bytes_((static_cast<size_t>(size_bytes) + kHugePageBytes - 1) & ~(kHugePageBytes - 1)),
        data_(static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, size_bytes_)),
              &std::free) {
    (void)madvise(data_.get(), size_bytes_, MADV_HUGEPAGE);
    std::memset(data_.get(), 0, size_bytes_);
  }
  std::byte* at(int64_t offset_bytes) { return data_.get() + offset_bytes; }
  float* floats() { return reinterpret_cast<float*>(data_.get()); }

 private:
  size_t size_bytes_;
  std::unique_ptr<std::byte, decltype(&std::free)> data_;
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

struct Measured {
  Rule rule;
  StateFormat format;
  bool halves;  // gradient and weight are fp16
  int threads;
};

// Elements in a row of encoded state. The row's bytes include its scales.
constexpr uint64_t kRowElements = 4096;

// Returns the bytes per element of each moment's tensor; zero if the format has no such tensors.
int64_t MomentBytes(StateFormat format) {
  if (format == StateFormat::kF32) return 4;
  return format == StateFormat::kBf16 ? 2 : 0;
}

// The arrays that an update reads and writes.
class State {
 public:
  explicit State(const Measured& of)
      : of_(of),
        num_moments_(static_cast<int>(MomentNames(of.rule).size())),
        moment_bytes_(MomentBytes(of.format)),
        gradient_(kElements * value_bytes()),
        master_(IsSplit(of.format) ? 0 : kElements * 4),
        weight_(of.halves ? kElements * 2 : 0) {
    for (int m = 0; m < num_moments_; ++m) moments_.emplace_back(kElements * moment_bytes_);
    if (IsEncoded(of.format)) {
      row_ = RowOf(of.format, {kRows, kRowElements}, static_cast<uint64_t>(num_moments_));
      moments_.emplace_back(kRows * row_bytes());
    }
    for (int64_t i = 0; !IsSplit(of.format) && i < kElements; ++i)
      master_.floats()[i] = static_cast<float>(i % 100) * 0.01f;
  }

  int64_t value_bytes() const { return of_.halves ? 2 : 4; }
  // Returns the bytes read and written per element.
  double element_bytes() const {
    const double moments = IsEncoded(of_.format)
                               ? static_cast<double>(row_bytes()) / kRowElements
                               : static_cast<double>(num_moments_ * moment_bytes_);
    // A weight that has a separate master weight is only written. The weight of a split format is
    // read and written.
    const int master = IsSplit(of_.format) ? 4 : 8 + (of_.halves ? 2 : 0);
    return static_cast<double>(value_bytes() + master) + 2 * moments;
  }

  void Update(const RuleFactors& factors, int64_t begin, int64_t end) {
    FusedRun run = {.num_elements = end - begin,
                    .first_element = static_cast<uint64_t>(begin),
                    .gradient = gradient_.at(begin * value_bytes()),
                    .gradient_dtype = of_.halves ? DType::kF16 : DType::kF32,
                    .master = IsSplit(of_.format) ? nullptr : master_.floats() + begin,
                    .weight = of_.halves ? weight_.at(begin * 2) : nullptr,
                    .format = of_.format,
                    .num_moments = static_cast<size_t>(num_moments_)};
    const std::vector<std::string_view> names = MomentNames(of_.rule);
    for (size_t m = 0; m < run.num_moments; ++m) {
      run.moments[m] = {
          .slot = SlotOf(of_.rule.kind, names[m]), .index = m, .map = MapOf(names[m])};
    }
    if (IsEncoded(of_.format)) return UpdateRows(factors, run, begin, end);
    for (size_t m = 0; m < run.num_moments; ++m)
      run.moments[m].data = moments_[m].at(begin * moment_bytes_);
    UpdateFused(factors, run);
  }

 private:
  static constexpr auto kRows = kElements / static_cast<int64_t>(kRowElements);

  int64_t row_bytes() const { return static_cast<int64_t>(row_.size_bytes()); }

  // Updates the rows from element `begin` to `end`. REQUIRES: these are whole rows.
  void UpdateRows(const RuleFactors& factors, FusedRun run, int64_t begin, int64_t end) {
    run.num_elements = static_cast<int64_t>(kRowElements);
    run.encoded.layout = row_;
    for (int64_t at = begin; at < end; at += run.num_elements) {
      run.encoded.row = moments_.back().at(at / run.num_elements * row_bytes());
      run.first_element = static_cast<uint64_t>(at);
      run.gradient = gradient_.at(at * value_bytes());
      if (!IsSplit(of_.format)) run.master = master_.floats() + at;
      if (of_.halves) run.weight = weight_.at(at * 2);
      UpdateFused(factors, run);
    }
  }

  const Measured of_;
  EncodedRow row_;
  const int num_moments_;
  const int64_t moment_bytes_;
  Array gradient_, master_, weight_;
  std::vector<Array> moments_;
};

void BM_Update(benchmark::State& state, const Measured& of) {
  ThreadPool pool(of.threads);
  State updated(of);
  // The reference moves as many bytes as the update: it reads and writes 8 bytes per float.
  const auto reference_elements =
      static_cast<int64_t>(static_cast<double>(kElements) * updated.element_bytes() / 8);
  Array reference(reference_elements * 4);
  const RuleFactors factors = MakeFactors(of.rule, {.step = 10, .learning_rate = 1e-4});

  double update_seconds = 0, reference_seconds = 0;
  for (auto _ : state) {
    const double seconds = SecondsOf([&] {
      pool.ParallelPortions(kElements, kGrainElements, [&](int64_t begin, int64_t end) {
        updated.Update(factors, begin, end);
      });
    });
    reference_seconds += SecondsOf([&] {
      pool.ParallelPortions(reference_elements, kGrainElements, [&](int64_t begin, int64_t end) {
        ScaleInPlace(reference.floats() + begin, end - begin);
      });
    });
    update_seconds += seconds;
    state.SetIterationTime(seconds);
  }
  const auto iterations = static_cast<double>(state.iterations());
  const double bytes = iterations * static_cast<double>(kElements) * updated.element_bytes();
  state.counters["G_elements/s"] =
      iterations * static_cast<double>(kElements) / update_seconds * 1e-9;
  state.counters["GB/s"] = bytes / update_seconds * 1e-9;
  state.counters["limit_GB/s"] = bytes / reference_seconds * 1e-9;
  state.counters["share"] = reference_seconds / update_seconds;
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

std::string NameOf(const Measured& of) {
  return std::string(Name(of.rule.kind)) + (of.rule.momentum != 0 ? "_momentum/" : "/") +
         std::string(Name(of.format)) + "/threads:" + std::to_string(of.threads) +
         "/half:" + std::to_string(of.halves ? 1 : 0);
}

void Register(const Measured& of) {
  auto* const bench = benchmark::RegisterBenchmark(
      NameOf(of).c_str(), [of](benchmark::State& state) { BM_Update(state, of); });
  bench->Unit(benchmark::kMillisecond)->UseManualTime();
  bench->Repetitions(9)->Iterations(3)->ReportAggregatesOnly(true);
}

// Registers every rule, with momentum if the rule may have one, in every format that exists for it.
void RegisterBenchmarks() {
  const int most = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<int> threads = {1};
  if (most > 1) threads.push_back(most);
  for (int kind = 0; kind < kNumRuleKinds; ++kind) {
    Rule rule = UsualRule(static_cast<RuleKind>(kind));
    if (rule.kind == RuleKind::kSgd || rule.kind == RuleKind::kRmsProp) rule.momentum = 0.9;
    for (int format = 0; format < kNumStateFormats; ++format) {
      if (!Exists(rule, static_cast<StateFormat>(format))) continue;
      for (const int count : threads) {
        for (const bool halves : {true, false}) {
          if (halves || !IsSplit(static_cast<StateFormat>(format)))
            Register({rule, static_cast<StateFormat>(format), halves, count});
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway::optim

int main(int argc, char** argv) {
  benchmark::AddCustomContext("cpu_model", spillway::optim::CpuModel());
  benchmark::AddCustomContext("instruction_set", spillway::optim::InstructionSet());
  benchmark::AddCustomContext("kernel", spillway::optim::KernelRelease());
  spillway::optim::RegisterBenchmarks();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
