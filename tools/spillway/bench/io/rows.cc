// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/io/rows.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/view.h"

namespace spillway::bench_io {
namespace {

constexpr int kMostRounds = 9;

using base::View;

// Of `depths`, in ascending order, keeps those that the memory has blocks for. The others become
// one depth, the most that it has blocks for.
std::vector<int> DepthsWithin(uint64_t memory_bytes, uint32_t block_bytes,
                              std::initializer_list<int> depths) {
  const auto most = static_cast<int>(std::max<uint64_t>(memory_bytes / block_bytes, 1));
  std::vector<int> within;
  for (const int depth : depths) {
    within.push_back(std::min(depth, most));
    if (depth >= most) break;
  }
  return within;
}

RowSpec Spec(Op op, uint32_t block_bytes, int depth, Through through) {
  return {.op = op, .block_bytes = block_bytes, .depth = depth, .through = through};
}

// Adds the main rows, which are compared with fio. They go through the store, use all of the memory
// and run in every round.
void AddMain(const RowOptions& options, std::vector<RowSpec>* rows) {
  for (const Op op : {Op::kRead, Op::kWrite, Op::kMixed}) {
    for (const uint32_t block : {kMiB, 4 * kMiB}) {
      RowSpec spec = Spec(op, block, CalibratedDepth(options, op, block), Through::kStore);
      spec.memory_bytes = options.memory_bytes;
      spec.rounds = kMostRounds;
      spec.also_without_checksums = true;
      rows->push_back(spec);
    }
  }
}

// Adds one brief row for each variant that the main rows leave out.
void AddBrief(const RowOptions& options, std::vector<RowSpec>* rows) {
  const uint64_t memory_bytes = std::min<uint64_t>(options.memory_bytes, 256 * kMiB);
  const auto add = [&](RowSpec spec) {
    spec.depth = DepthsWithin(memory_bytes, spec.block_bytes, {spec.depth}).front();
    spec.memory_bytes = memory_bytes;
    spec.most_seconds = 0.4;
    rows->push_back(spec);
  };
  for (const Op op : {Op::kRead, Op::kWrite}) {
    for (const int depth : DepthsWithin(memory_bytes, kMiB, {1, 4, 16}))
      add(Spec(op, kMiB, depth, Through::kUringFile));
    add(Spec(op, kMiB, 8, Through::kPosixFile));
    RowSpec random = Spec(op, 4 * kKiB, 64, Through::kUringFile);
    random.pattern = Pattern::kRandom;
    add(random);
    RowSpec plain = Spec(op, 4 * kMiB, 16, Through::kUringFile);
    plain.huge_pages = false;
    add(plain);
  }
  RowSpec random =
      Spec(Op::kRead, kMiB, CalibratedDepth(options, Op::kRead, kMiB), Through::kStore);
  random.pattern = Pattern::kRandom;
  add(random);
}

void AddAll(const RowOptions& options, std::vector<RowSpec>* rows) {
  const uint64_t memory_bytes = std::min<uint64_t>(options.memory_bytes, 256 * kMiB);
  for (const Through through : {Through::kStore, Through::kUringFile, Through::kPosixFile}) {
    for (const Op op : {Op::kRead, Op::kWrite, Op::kMixed}) {
      for (const Pattern pattern : {Pattern::kSequential, Pattern::kRandom}) {
        for (const uint32_t block : {4 * kKiB, 64 * kKiB, 256 * kKiB, kMiB, 4 * kMiB}) {
          if (through == Through::kStore && block < kMiB) continue;  // a page is 1 MiB
          const std::vector<int> depths = DepthsWithin(memory_bytes, block, {1, 4, 16, 64});
          const int with_plain_pages = depths[std::min<size_t>(depths.size() - 1, 2)];
          for (const int depth : depths) {
            for (const bool huge : {true, false}) {
              if (!huge && (pattern == Pattern::kRandom || depth != with_plain_pages)) continue;
              RowSpec spec = Spec(op, block, depth, through);
              spec.pattern = pattern;
              spec.huge_pages = huge;
              spec.memory_bytes = memory_bytes;
              spec.most_seconds = 1;
              spec.rounds = 3;
              rows->push_back(spec);
            }
          }
        }
      }
    }
  }
}

std::vector<double> Values(const std::vector<Sample>& samples, double Sample::* member) {
  std::vector<double> values;
  for (const Sample& sample : samples) values.push_back(sample.*member);
  return values;
}

}  // namespace

std::string_view NameOf(Through through) {
  constexpr std::string_view kNames[] = {"store", "uring file", "posix file"};
  return kNames[static_cast<size_t>(through)];
}

int CalibratedDepth(const RowOptions& options, Op op, uint32_t block_bytes) {
  uint64_t queued_bytes = 0;
  for (const io::DeviceProfile& profile : options.profiles) {
    const int reads = op == Op::kWrite ? 0 : profile.read_depth;
    const int writes = op == Op::kRead ? 0 : profile.write_depth;
    queued_bytes += static_cast<uint64_t>(reads + writes) * profile.request_bytes;
  }
  const uint64_t most = std::max<uint64_t>(options.memory_bytes / block_bytes, 1);
  const uint64_t blocks = std::max<uint64_t>(2 * queued_bytes / block_bytes, 4);
  return static_cast<int>(std::min(blocks, most));
}

bool HasChecksums(const RowSpec& spec) { return spec.through == Through::kStore; }

std::string Describe(const RowSpec& spec) {
  return absl::StrCat(View(NameOf(spec.op)), " ", base::FormatBytes(spec.block_bytes), " ",
                      View(NameOf(spec.pattern)), ", depth ", spec.depth, ", ",
                      View(NameOf(spec.through)), spec.first_touch ? ", first touch" : "",
                      spec.huge_pages ? "" : ", plain pages");
}

std::vector<RowSpec> MakeRows(const RowOptions& options) {
  std::vector<RowSpec> rows;
  AddMain(options, &rows);
  if (options.full) {
    AddAll(options, &rows);
  } else {
    AddBrief(options, &rows);
  }
  return rows;
}

Summary Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {values.front(), median, values.back()};
}

Summary Rate(const std::vector<Sample>& samples) {
  return Summarize(Values(samples, &Sample::bytes_per_second));
}

double CpuSecondsPerGib(const std::vector<Sample>& samples) {
  return Summarize(Values(samples, &Sample::cpu_seconds_per_gib)).median;
}

double ChecksumSecondsPerGib(const std::vector<Sample>& samples) {
  return Summarize(Values(samples, &Sample::checksum_seconds_per_gib)).median;
}

Summary ShareOfFio(const Row& row, const std::vector<Sample>& fio) {
  std::vector<double> shares;
  for (size_t round = 0; round < std::min(row.ours.size(), fio.size()); ++round) {
    shares.push_back(row.ours[round].bytes_per_second / fio[round].bytes_per_second);
  }
  return Summarize(shares);
}

std::string_view NameOf(Limit limit) {
  constexpr std::string_view kNames[] = {"none", "fio", "hash"};
  return kNames[static_cast<size_t>(limit)];
}

ShareOfLimit CompareWithLimit(const Row& row) {
  std::vector<double> limits, shares;
  size_t by_hash = 0;
  for (size_t round = 0; round < row.ours.size(); ++round) {
    // Where fio failed after some rounds, the others have another limit and do not mix with them.
    if (!row.fio.empty() && round >= row.fio.size()) break;
    std::vector<double> bounds;
    if (round < row.fio.size()) bounds.push_back(row.fio[round].bytes_per_second);
    if (round < row.hash_bytes_per_second.size()) {
      const double hash = kHashShare * row.hash_bytes_per_second[round];
      if (bounds.empty() || hash < bounds.front()) ++by_hash;
      bounds.push_back(hash);
    }
    if (bounds.empty()) continue;
    limits.push_back(*std::min_element(bounds.begin(), bounds.end()));
    shares.push_back(row.ours[round].bytes_per_second / limits.back());
  }
  if (limits.empty()) return {};
  const Limit limit = 2 * by_hash > limits.size() ? Limit::kHash : Limit::kFio;
  return {limit, Summarize(std::move(limits)).median, Summarize(std::move(shares))};
}

double Quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const auto last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<size_t>(std::lround(q * last))];
}

std::vector<std::string> Doubts(const Row& row, double copy_bytes_per_second, int num_cpus) {
  std::vector<std::string> doubts;
  if (row.cached) doubts.push_back("page cache: the device was not measured");
  const Summary rate = Rate(row.ours);
  // A device moves bytes to memory without a thread's help, but not faster than memory takes them.
  if (copy_bytes_per_second > 0 && rate.high > 8 * copy_bytes_per_second) {
    doubts.push_back("faster than memory");
  }
  if (CpuSecondsPerGib(row.ours) * rate.median / kGiB > num_cpus * 1.05) {
    doubts.push_back("more CPU than there is");
  }
  return doubts;
}

}  // namespace spillway::bench_io
