// SPDX-License-Identifier: Apache-2.0
//
// Question: what share of fio's rate does an IoEngine reach on the same file, and what CPU does a
// GB cost? Limit: fio with io_uring, registered buffers and files, run in turn with the engines.
// The ring is held to at least 0.9 of it, for 1 MiB and 4 MiB at every depth.
//
// Method: the file is written before anything is measured (blocks never touched read at another
// rate). Each round runs fio, the ring and the threads over the whole file one after the other, in
// an order that turns from round to round; a ratio is formed inside its round, and the median and
// the range over the rounds are printed. All use the same number and kind of buffers, made for each
// pass: 2 MiB pages if the system's pool has enough, else ordinary ones. It takes under a minute;
// figures of one machine and time compare with each other only.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "bench/io/fio.h"
#include "io/direct_file.h"
#include "io/make_io_engine.h"
#include "src/base/status_macros.h"

namespace spillway::bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr int kMaxDepth = 16;
constexpr uint64_t kMaxRequest = 4 * kMiB;

struct Options {
  std::string folder = ".";
  uint64_t file_mib = 512;
  int rounds = 3;
};

// ---- The engines' passes

// One pass's buffers, of the page kind that fio uses too and, as fio's, made for that pass: whether
// ordinary pages lie together in memory is luck, and decides much of the rate.
class Memory {
 public:
  Memory(uint64_t size_bytes, bool huge_pages)
      : size_((size_bytes + 2 * kMiB - 1) / (2 * kMiB) * 2 * kMiB) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | (huge_pages ? MAP_HUGETLB : 0);
    void* mapped = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (mapped != MAP_FAILED) data_ = static_cast<std::byte*>(mapped);
    if (data_ == nullptr) return;
    if (!huge_pages) ::madvise(data_, size_, MADV_NOHUGEPAGE);  // as fio's
    for (uint64_t i = 0; i < size_; ++i) data_[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  }
  ~Memory() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  bool ok() const { return data_ != nullptr; }
  std::span<std::byte> span() const { return {data_, size_}; }

 private:
  const uint64_t size_;
  std::byte* data_ = nullptr;
};

double CpuSeconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return time.tv_sec + 1e-6 * time.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Keeps `depth` requests in flight from the file's start to its end; buffer i serves tag i.
absl::Status Transfer(io::IoEngine& engine, io::FileId file, const Passes& passes, int depth,
                      std::byte* memory) {
  uint64_t next = 0;
  std::vector<io::IoRequest> requests;
  const auto add = [&](uint64_t tag) {
    if (next == passes.file_bytes) return;
    std::byte* buffer = memory + tag * passes.request_bytes;
    requests.push_back({passes.op, file, next, buffer, passes.request_bytes, tag});
    next += passes.request_bytes;
  };
  for (int tag = 0; tag < depth; ++tag) add(static_cast<uint64_t>(tag));
  engine.Submit(requests);
  std::vector<io::IoCompletion> done;
  while (engine.in_flight() > 0) {
    done.clear();
    requests.clear();
    engine.Reap(absl::InfiniteDuration(), &done);
    for (const io::IoCompletion& completion : done) {
      SPILLWAY_RETURN_IF_ERROR(completion.status);
      add(completion.tag);
    }
    engine.Submit(requests);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PassResult>> RunEngine(io::IoEngineKind kind, const Passes& passes,
                                                  const io::DirectFile& file,
                                                  const std::string& folder) {
  std::vector<PassResult> results;
  for (const int depth : passes.queue_depths) {
    const Memory memory(static_cast<uint64_t>(depth) * passes.request_bytes, passes.huge_pages);
    if (!memory.ok()) return absl::ResourceExhaustedError("no memory for the buffers");
    SPILLWAY_ASSIGN_OR_RETURN(auto engine, io::MakeIoEngine(kind, {.queue_depth = depth}, folder));
    SPILLWAY_ASSIGN_OR_RETURN(const io::FileId id, engine->AddFile(file.fd(), passes.path, 0));
    engine->AddBuffer(memory.span());
    const double cpu_before = CpuSeconds();
    const auto start = std::chrono::steady_clock::now();
    SPILLWAY_RETURN_IF_ERROR(Transfer(*engine, id, passes, depth, memory.span().data()));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    results.push_back({.seconds = took.count(), .cpu_seconds = CpuSeconds() - cpu_before});
  }
  return results;
}

// ---- Figures

struct Summary {
  double low = 0, median = 0, high = 0;
};

Summary Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

enum Contender { kFio, kUring, kPosix, kContenders };
constexpr const char* kNames[] = {"fio", "uring", "posix"};

// One request size, operation and depth: what each contender took in each round. A contender that
// this machine has not stays empty.
struct Row {
  io::IoOp op;
  uint32_t request_bytes;
  int depth;
  std::vector<PassResult> results[kContenders];
};

std::vector<double> Ratios(const Row& row, Contender contender) {
  std::vector<double> ratios;
  for (size_t i = 0; i < row.results[contender].size() && i < row.results[kFio].size(); ++i) {
    ratios.push_back(row.results[kFio][i].seconds / row.results[contender][i].seconds);
  }
  return ratios;
}

nlohmann::json Report(const Row& row, double gigabytes) {
  nlohmann::json out = {{"op", row.op == io::IoOp::kRead ? "read" : "write"},
                        {"request_bytes", row.request_bytes},
                        {"queue_depth", row.depth}};
  std::printf("%-5s %llu MiB %3d ", row.op == io::IoOp::kRead ? "read" : "write",
              static_cast<unsigned long long>(row.request_bytes / kMiB), row.depth);
  for (int contender = 0; contender < kContenders; ++contender) {
    std::vector<double> rates, cpu;
    for (const PassResult& result : row.results[contender]) {
      rates.push_back(gigabytes / result.seconds);
      cpu.push_back(result.cpu_seconds / gigabytes);
    }
    if (rates.empty()) continue;
    const Summary ratio = Summarize(Ratios(row, static_cast<Contender>(contender)));
    const double rate = Summarize(rates).median, cost = Summarize(cpu).median;
    out[kNames[contender]] = {{"gb_per_s", rate}, {"cpu_s_per_gb", cost}};
    std::printf("| %5.2f GB/s %.4f s/GB ", rate, cost);
    if (contender == kFio || row.results[kFio].empty()) continue;
    out[kNames[contender]]["of_fio"] = {
        {"median", ratio.median}, {"low", ratio.low}, {"high", ratio.high}};
    std::printf("%.2f (%.2f-%.2f) ", ratio.median, ratio.low, ratio.high);
  }
  std::printf("\n");
  return out;
}

// The first line of a file or of a command's output that starts with `key`, after its colon.
std::string Field(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (absl::StartsWith(line, key)) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "";
}

std::string Output(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>/dev/null").c_str(), "r");
  char line[256] = "";
  if (pipe == nullptr || std::fgets(line, sizeof(line), pipe) == nullptr) line[0] = '\0';
  if (pipe != nullptr) ::pclose(pipe);
  std::string text(line);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

nlohmann::json Machine(const Options& options, bool huge_pages) {
  utsname system;
  ::uname(&system);
  return {{"cpu", Field("/proc/cpuinfo", "model name")},
          {"cpus", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"kernel", system.release},
          {"filesystem", Output("stat -f -c %T '" + options.folder + "'")},
          {"commit", Output("git rev-parse --short HEAD")},
          {"fio", Output("fio --version")},
          {"file_mib", options.file_mib},
          {"rounds", options.rounds},
          {"huge_pages", huge_pages}};
}

// ---- The run

absl::Status WriteFile(const Options& options, const std::string& path,
                       const io::DirectFile& file) {
  const Passes fill = {.op = io::IoOp::kWrite,
                       .path = path,
                       .file_bytes = options.file_mib * kMiB,
                       .request_bytes = kMaxRequest,
                       .huge_pages = false,
                       .queue_depths = {4}};
  return RunEngine(io::IoEngineKind::kAuto, fill, file, options.folder).status();
}

// Runs one round of every contender over one operation and request size, `first` first.
absl::Status Round(const Passes& passes, const Options& options, const io::DirectFile& file,
                   int first, std::span<Row> rows) {
  for (int i = 0; i < kContenders; ++i) {
    const int contender = (first + i) % kContenders;
    const io::IoEngineKind kind =
        contender == kUring ? io::IoEngineKind::kUring : io::IoEngineKind::kPosix;
    absl::StatusOr<std::vector<PassResult>> results =
        contender == kFio ? RunFio(passes) : RunEngine(kind, passes, file, options.folder);
    if (results.status().code() == absl::StatusCode::kNotFound ||
        results.status().code() == absl::StatusCode::kFailedPrecondition) {
      continue;  // not on this machine
    }
    SPILLWAY_RETURN_IF_ERROR(results.status());
    for (size_t row = 0; row < rows.size(); ++row) {
      rows[row].results[contender].push_back((*results)[row]);
    }
  }
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  // Twice the buffers: fio's and ours are there at once.
  const std::string free_pages = Field("/proc/meminfo", "HugePages_Free");
  const bool huge_pages =
      std::atoi(free_pages.c_str()) * 2 * kMiB >= 2 * kMaxDepth * kMaxRequest + 16 * kMiB;
  const std::string path = absl::StrCat(options.folder, "/io_engine_bench.", ::getpid());
  SPILLWAY_ASSIGN_OR_RETURN(const io::DirectFile file,
                            io::OpenDirect(path, O_RDWR | O_CREAT | O_EXCL));
  const auto remove = [](const std::string* name) { ::unlink(name->c_str()); };
  const std::unique_ptr<const std::string, decltype(remove)> remover(&path, remove);
  SPILLWAY_RETURN_IF_ERROR(WriteFile(options, path, file));

  const nlohmann::json machine = Machine(options, huge_pages);
  std::printf("%s\n", machine.dump().c_str());
  std::printf("op    size depth | fio | uring, ratio to fio: median (range) | posix, the same\n");
  nlohmann::json rows_report = nlohmann::json::array();
  for (const io::IoOp op : {io::IoOp::kRead, io::IoOp::kWrite}) {
    for (const uint64_t request : {kMiB, kMaxRequest}) {
      const Passes passes = {op,
                             path,
                             options.file_mib * kMiB,
                             static_cast<uint32_t>(request),
                             huge_pages,
                             {1, 4, kMaxDepth}};
      std::vector<Row> rows;
      for (const int depth : passes.queue_depths)
        rows.push_back({op, passes.request_bytes, depth, {}});
      for (int round = 0; round < options.rounds; ++round) {
        SPILLWAY_RETURN_IF_ERROR(Round(passes, options, file, round, rows));
      }
      const double gigabytes = static_cast<double>(passes.file_bytes) / 1e9;
      for (const Row& row : rows) rows_report.push_back(Report(row, gigabytes));
    }
  }
  const nlohmann::json report = {{"v", 1}, {"machine", machine}, {"rows", rows_report}};
  std::printf("%s\n", report.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  spillway::bench::Options options;
  CLI::App app("IoEngine against fio on one file");
  app.add_option("--folder", options.folder, "where the file is made")->capture_default_str();
  app.add_option("--file-mib", options.file_mib, "its size, a multiple of 4")
      ->capture_default_str();
  app.add_option("--rounds", options.rounds)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = spillway::bench::Run(options);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
