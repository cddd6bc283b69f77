// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/compute/gpu/cublaslt_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace spillway::trainer::gpu {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
constexpr size_t kOldestVersion = 120000;
constexpr char kHowToGetIt[] =
    "it comes with the CUDA Toolkit and with PyTorch for CUDA, or alone: pip install "
    "nvidia-cublas-cu12 (nvidia-cublas of CUDA 13); name another place with --cublaslt FILE";

// Appends the files of the library's names in a folder, whether they exist or not.
void AddFolder(const fs::path& folder, std::vector<std::string>* places) {
  for (const char* const name : kNames) places->push_back(folder / name);
}

void AddToolkit(const fs::path& toolkit, std::vector<std::string>* places) {
  AddFolder(toolkit / "lib64", places);
}

// Adds the folders of the packages that PyTorch installs with itself, of CUDA 13 and 12.
void AddPackages(const fs::path& site_packages, std::vector<std::string>* places) {
  AddFolder(site_packages / "nvidia" / "cu13" / "lib", places);
  AddFolder(site_packages / "nvidia" / "cublas" / "lib", places);
}

// Adds the packages of every Python 3 below `prefix`, the newest first.
void AddPythons(const fs::path& prefix, const char* packages, std::vector<std::string>* places) {
  std::vector<fs::path> pythons;
  std::error_code ignored;
  for (fs::directory_iterator entry(prefix / "lib", ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    if (absl::StartsWith(entry->path().filename().string(), "python3"))
      pythons.push_back(entry->path());
  }
  const auto minor = [](const fs::path& python) {
    const std::string name = python.filename();
    return name.size() > 8 ? std::atoi(name.c_str() + 8) : 0;  // after "python3."
  };
  std::sort(pythons.begin(), pythons.end(),
            [&](const fs::path& a, const fs::path& b) { return minor(a) > minor(b); });
  for (const fs::path& python : pythons) AddPackages(python / packages, places);
}

// Returns why the library is of no use, or OK. Its age comes first: an older one lacks functions.
absl::Status CheckLibrary(void* handle, const std::string& path, size_t* version) {
  const auto get_version = reinterpret_cast<size_t (*)()>(dlsym(handle, "cublasLtGetVersion"));
  if (get_version != nullptr) *version = get_version();
  if (get_version != nullptr && *version < kOldestVersion) {
    return absl::UnimplementedError(
        absl::StrFormat("%s has the version %d, and %d (CUDA 12.0) or newer is needed; %s", path,
                        *version, kOldestVersion, kHowToGetIt));
  }
  for (const char* const function : kCublasLtFunctions) {
    if (dlsym(handle, function) != nullptr) continue;
    return absl::UnimplementedError(
        absl::StrCat(path, " is no whole cuBLASLt: it lacks ", function, "; ", kHowToGetIt));
  }
  return absl::OkStatus();
}

// The file that the system found for a name.
std::string PathOf(void* handle, const std::string& name) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || *map->l_name == '\0')
    return name;
  return map->l_name;
}

}  // namespace

std::vector<std::string> CublasLtPlaces() {
  std::vector<std::string> places(std::begin(kNames), std::end(kNames));
  for (const char* const name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* const folder = std::getenv(name); folder != nullptr && *folder != '\0')
      AddToolkit(folder, &places);
  }
  AddToolkit("/usr/local/cuda", &places);
  std::error_code ignored;
  // A wheel has this program in site-packages/spillway/bin.
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  AddPackages(program.parent_path().parent_path().parent_path(), &places);
  for (const char* const name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* const folder = std::getenv(name); folder != nullptr && *folder != '\0')
      AddPythons(folder, "site-packages", &places);
  }
  if (const char* const home = std::getenv("HOME"); home != nullptr && *home != '\0')
    AddPythons(fs::path(home) / ".local", "site-packages", &places);
  AddPythons("/usr/local", "dist-packages", &places);
  return places;
}

absl::StatusOr<CublasLtLibrary> CublasLtLibrary::Load(const std::string& file) {
  // Without a slash, dlopen would search the system's folders for a file in this one.
  const std::string named =
      file.empty() || absl::StrContains(file, "/") ? file : absl::StrCat("./", file);
  const std::vector<std::string> places =
      named.empty() ? CublasLtPlaces() : std::vector<std::string>{named};
  std::string failures;  // of files that exist
  for (const std::string& place : places) {
    void* const handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const std::string why = dlerror();
      std::error_code ignored;
      if (!named.empty() || fs::exists(place, ignored)) absl::StrAppend(&failures, "; ", why);
      continue;
    }
    const std::string path = PathOf(handle, place);
    size_t version = 0;
    if (const absl::Status status = CheckLibrary(handle, path, &version); !status.ok()) {
      if (!named.empty()) return status;
      absl::StrAppend(&failures, "; ", std::string(status.message()));
      continue;
    }
    return CublasLtLibrary(handle, path, version);
  }
  if (!named.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("cannot load --cublaslt ", file, failures, "; ", kHowToGetIt));
  }
  std::string looked;
  for (const std::string& place : places) {
    if (!absl::StrContains(place, "/")) continue;
    const std::string folder = fs::path(place).parent_path();
    if (!absl::StrContains(looked, folder))
      absl::StrAppend(&looked, looked.empty() ? "" : ", ", folder);
  }
  return absl::UnimplementedError(absl::StrCat("cuBLASLt (", kNames[0], " or ", kNames[1],
                                               ") was found neither by the system's search nor in ",
                                               looked, failures, "; ", kHowToGetIt));
}

std::string CublasLtLibrary::VersionName() const {
  return absl::StrFormat("%d.%d.%d", version_ / 10000, version_ / 100 % 100, version_ % 100);
}

void* CublasLtLibrary::Function(const char* name) const { return dlsym(handle_, name); }

}  // namespace spillway::trainer::gpu
