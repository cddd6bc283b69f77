// SPDX-License-Identifier: Apache-2.0

#include "bench/io/fio.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace spillway::bench {
namespace {

std::string Command(const Passes& passes) {
  std::string command = absl::StrCat(
      "fio --output-format=json --disk_util=0 --ioengine=io_uring --direct=1 --fixedbufs=1",
      " --registerfiles=1 --scramble_buffers=0 --thread --invalidate=0 --overwrite=1 --stonewall",
      " --mem=", passes.huge_pages ? "shmhuge" : "mmap",
      " --rw=", passes.op == io::IoOp::kRead ? "read" : "write", " --bs=", passes.request_bytes,
      " --size=", passes.file_bytes, " --filename='", passes.path, "'");
  for (const int depth : passes.queue_depths) {
    absl::StrAppend(&command, " --name=depth", depth, " --iodepth=", depth);
  }
  return command + " 2>/dev/null";
}

PassResult Result(const nlohmann::json& job, io::IoOp op) {
  const nlohmann::json& side = job.at(op == io::IoOp::kRead ? "read" : "write");
  const double bytes_per_second = side.at("bw_bytes").get<double>();
  const double job_seconds = job.at("job_runtime").get<double>() / 1000;
  const double cpu_percent = job.at("usr_cpu").get<double>() + job.at("sys_cpu").get<double>();
  return {.seconds = side.at("io_bytes").get<double>() / std::max(1.0, bytes_per_second),
          .cpu_seconds = cpu_percent / 100 * job_seconds};
}

}  // namespace

absl::StatusOr<std::vector<PassResult>> RunFio(const Passes& passes) {
  FILE* pipe = ::popen(Command(passes).c_str(), "r");
  if (pipe == nullptr) return absl::NotFoundError("no shell to run fio with");
  std::string text;
  char piece[4096];
  for (size_t n; (n = std::fread(piece, 1, sizeof(piece), pipe)) > 0;) text.append(piece, n);
  if (::pclose(pipe) != 0) return absl::NotFoundError("fio is absent or failed");

  const auto report = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (report.is_discarded() || report["jobs"].size() != passes.queue_depths.size()) {
    return absl::InternalError("fio gave no report of all its jobs");
  }
  std::vector<PassResult> results;
  for (const nlohmann::json& job : report["jobs"]) results.push_back(Result(job, passes.op));
  return results;
}

}  // namespace spillway::bench
