// SPDX-License-Identifier: Apache-2.0
//
// Checks the machine itself, whatever folder is used.

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "spillway/types.h"
#include "src/base/available_memory.h"
#include "src/base/bytes.h"
#include "tiers/make_device_runtime.h"
#include "tools/spillway/doctor/checkup.h"
#include "tools/trainer/compute/gpu/cublaslt_library.h"

namespace spillway::command {
namespace {

// Reads a file of the kernel, without line breaks at its end; "" if there is none.
std::string ReadKernelFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  std::string content = text.str();
  while (!content.empty() && content.back() == '\n') content.pop_back();
  return content;
}

// Returns the value of "key : value" or "key: value" in a text of such lines; "" if there is none.
std::string ValueIn(const std::string& text, std::string_view key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(parts.first) == absl::string_view(key.data(), key.size())) {
      return std::string(absl::StripAsciiWhitespace(parts.second));
    }
  }
  return "";
}

Finding CheckKernel() {
  utsname name{};
  uname(&name);
  return {"kernel", Verdict::kOk,
          absl::StrFormat("%s %s on %s", name.sysname, name.release, name.machine), ""};
}

Finding CheckProcessor() {
  Finding finding = {.name = "cpu"};
  const std::string model = ValueIn(ReadKernelFile("/proc/cpuinfo"), "model name");
  finding.found = absl::StrFormat("%s, %d threads", model.empty() ? "unknown model" : model,
                                  std::thread::hardware_concurrency());
#if defined(__x86_64__)
  __builtin_cpu_init();
  std::string features;
  const auto note = [&](bool has, const char* feature) {
    if (has) absl::StrAppend(&features, " ", feature);
  };
  note(__builtin_cpu_supports("avx2"), "avx2");
  note(__builtin_cpu_supports("fma"), "fma");
  note(__builtin_cpu_supports("avx512f"), "avx512f");
  note(__builtin_cpu_supports("avx512bf16"), "avx512bf16");
  absl::StrAppend(&finding.found, ";", features.empty() ? " no avx2" : features);
  if (!__builtin_cpu_supports("avx2")) {
    finding.verdict = Verdict::kWarn;
    finding.cure =
        "updates and checksums take several times as long without AVX2: in a virtual "
        "machine, pass the host's processor through";
  }
#endif
  return finding;
}

Finding CheckMemory() {
  Finding finding = {.name = "memory"};
  const uint64_t available = base::AvailableMemoryBytes();
  const auto total =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  finding.found = absl::StrFormat("%s, %s of it available", base::FormatBytes(total),
                                  base::FormatBytes(available));
  if (available < 256 * kMiB) {
    finding.verdict = Verdict::kWarn;
    finding.cure = "end other programs, or give small --pinned-bytes and --device-bytes";
  }
  return finding;
}

// Checks the limit of locked memory by locking some, as the pinned arena does.
Finding CheckMemlock() {
  constexpr uint64_t kProbeBytes = 64 * kMiB;
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  Finding finding = {.name = "memlock"};
  const bool unlimited = limit.rlim_cur == RLIM_INFINITY;
  finding.found =
      unlimited ? "unlimited" : absl::StrCat("at most ", base::FormatBytes(limit.rlim_cur));
  void* const memory = mmap(nullptr, kProbeBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const bool mapped = memory != MAP_FAILED;
  const bool locked = mapped && mlock(memory, kProbeBytes) == 0;
  const int error = errno;
  if (mapped) munmap(memory, kProbeBytes);
  if (locked) {
    if (!unlimited) absl::StrAppend(&finding.found, ", not enforced for this user");
    return finding;
  }
  absl::StrAppendFormat(&finding.found, "; locking %s fails: %s", base::FormatBytes(kProbeBytes),
                        std::strerror(error));
  finding.verdict = Verdict::kWarn;
  finding.cure =
      "pinned memory beyond that is not locked and may be swapped: ulimit -l unlimited, memlock in "
      "/etc/security/limits.conf, LimitMEMLOCK=infinity, or docker run --ulimit memlock=-1";
  return finding;
}

Finding CheckHugePages() {
  Finding finding = {.name = "huge_pages"};
  const std::string modes = ReadKernelFile("/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t open = modes.find('[');
  const std::string mode =
      open == std::string::npos ? "absent" : modes.substr(open + 1, modes.find(']') - open - 1);
  const std::string info = ReadKernelFile("/proc/meminfo");
  finding.found = absl::StrFormat("transparent: %s; reserved: %s of %s", mode,
                                  ValueIn(info, "HugePages_Total"), ValueIn(info, "Hugepagesize"));
  if (mode != "always" && mode != "madvise") {
    finding.verdict = Verdict::kWarn;
    finding.cure =
        "pinned memory in small pages costs more CPU for each byte moved: echo madvise > "
        "/sys/kernel/mm/transparent_hugepage/enabled";
  }
  return finding;
}

// Returns the driver's version as its kernel module reports it.
std::string NvidiaModule() {
  std::string version = ReadKernelFile("/sys/module/nvidia/version");
  if (!version.empty()) return version;
  return ReadKernelFile("/proc/driver/nvidia/version").substr(0, 200);
}

bool HasNvidiaNode() {
  std::error_code error;
  return std::filesystem::exists("/dev/nvidiactl", error);
}

Finding CheckDriver() {
  Finding finding = {.name = "driver"};
  const std::string version = NvidiaModule();
  if (!version.empty()) {
    finding.found = "nvidia " + version;
    if (HasNvidiaNode()) return finding;
    finding.verdict = Verdict::kWarn;
    absl::StrAppend(&finding.found, ", but there is no /dev/nvidiactl");
    finding.cure = "give the container its GPU: docker run --gpus all";
    return finding;
  }
  finding.verdict = Verdict::kWarn;
  finding.found = "no nvidia driver is loaded";
  finding.cure = "none is needed to compute on the host; for a GPU, install NVIDIA's driver";
  return finding;
}

// The driver's library, called as CUDA's driver interface declares its functions.
class CudaLibrary {
 public:
  CudaLibrary() : handle_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {}
  CudaLibrary(const CudaLibrary&) = delete;
  CudaLibrary& operator=(const CudaLibrary&) = delete;
  ~CudaLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  bool is_there() const { return handle_ != nullptr; }

  // Returns CUDA's result code, which is 0 for success, or -1 if the library lacks the function.
  template <typename... Arguments>
  int Call(const char* name, Arguments... arguments) const {
    using Function = int (*)(Arguments...);
    const auto function = reinterpret_cast<Function>(dlsym(handle_, name));
    return function == nullptr ? -1 : function(arguments...);
  }

 private:
  void* handle_;
};

Finding CheckGpu() {
  Finding finding = {.name = "gpu", .verdict = Verdict::kWarn};
  if (!tiers::HasCuda()) {
    finding.found = "not looked for: this build has no CUDA tier";
    finding.cure =
        "none is needed to compute on the host; for a GPU, build where nvcc is (SPILLWAY_CUDA=ON)";
    return finding;
  }
  const CudaLibrary cuda;
  if (!cuda.is_there()) {
    finding.found = "none: there is no libcuda.so.1";
    finding.cure = "none is needed to compute on the host; in a container, docker run --gpus all";
    return finding;
  }
  int count = 0;
  int result = cuda.Call("cuInit", 0U);
  if (result == 0) result = cuda.Call("cuDeviceGetCount", &count);
  if (result != 0 || count == 0) {
    finding.found = absl::StrFormat("none that CUDA can use (its code is %d)", result);
    finding.cure = "look at nvidia-smi; without a GPU everything is computed on the host";
    return finding;
  }
  int version = 0;
  (void)cuda.Call("cuDriverGetVersion", &version);
  finding.found = absl::StrFormat("CUDA %d.%d", version / 1000, version % 1000 / 10);
  for (int index = 0; index < count; ++index) {
    int device = 0;
    std::array<char, 128> name{};
    size_t bytes = 0;
    if (cuda.Call("cuDeviceGet", &device, index) != 0) continue;
    (void)cuda.Call("cuDeviceGetName", name.data(), static_cast<int>(name.size() - 1), device);
    (void)cuda.Call("cuDeviceTotalMem_v2", &bytes, device);
    absl::StrAppendFormat(&finding.found, "; %d: %s, %s", index, name.data(),
                          base::FormatBytes(bytes));
  }
  finding.verdict = Verdict::kOk;
  return finding;
}

// The library that makes a GPU's products, where `train --device cuda` would find it.
Finding CheckCublasLt() {
  Finding finding = {.name = "cublaslt"};
  const auto library = trainer::gpu::CublasLtLibrary::Load();
  if (library.ok()) {
    finding.found = absl::StrCat(library->VersionName(), ", ", library->path());
    return finding;
  }
  finding.verdict = Verdict::kWarn;
  finding.found = "none";
  finding.cure = absl::StrCat("none is needed to compute on the host; for a GPU: ",
                              std::string(library.status().message()));
  return finding;
}

}  // namespace

std::vector<Finding> CheckMachine() {
  return {CheckKernel(),    CheckProcessor(), CheckMemory(), CheckMemlock(),
          CheckHugePages(), CheckDriver(),    CheckGpu(),    CheckCublasLt()};
}

}  // namespace spillway::command
