// SPDX-License-Identifier: Apache-2.0

#include "tests/hf/fuzz/fuzz_targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/temp_folder.h"
#include "tools/hf/config.h"
#include "tools/hf/model_folder.h"
#include "tools/hf/model_types.h"
#include "tools/hf/npy.h"
#include "tools/hf/safetensors_reader.h"

namespace spillway::hf {
namespace {

// Aborts if `condition` is false. A fuzzer reports the abort.
void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

// A file in memory that has a path, so that the readers can open it.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    Require(descriptor_ >= 0, "memfd_create works");
    Require(::write(descriptor_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
            "write works");
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(descriptor_); }

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  const int descriptor_;
};

// Requires that an error names its file and is short.
void CheckError(const absl::Status& status, std::string_view path) {
  const std::string message(status.message());
  Require(message.find(path) != std::string::npos, "an error names its file");
  Require(message.size() < 1000, "an error stays short");
}

void ReadAll(const SafetensorsFile& file, const TensorEntry& entry) {
  constexpr uint64_t kPiece = 1000;
  std::vector<float> out;
  for (uint64_t done = 0; done < entry.num_elements && entry.dtype.has_value();) {
    out.resize(static_cast<size_t>(std::min(kPiece, entry.num_elements - done)));
    Require(file.Read(entry.name, done, out).ok(), "an accepted tensor can be read");
    done += out.size();
  }
}

}  // namespace

bool FuzzSafetensors(std::string_view bytes) {
  const MemoryFile memory(bytes);
  const auto file = SafetensorsFile::Open(memory.path());
  if (!file.ok()) {
    CheckError(file.status(), memory.path());
    return false;
  }
  uint64_t data_bytes = 0;
  for (const TensorEntry& entry : (*file)->tensors()) {
    Require((*file)->Find(entry.name) == &entry, "names are unique");
    Require(entry.file_offset + entry.size_bytes <= bytes.size(), "tensors lie within the file");
    data_bytes += entry.size_bytes;
    ReadAll(**file, entry);
  }
  Require(data_bytes <= bytes.size() - kSafetensorsLengthBytes, "tensors do not overlap");
  return true;
}

bool FuzzShardIndex(std::string_view bytes) {
  static const test::TempFolder scratch;
  const std::string& folder = scratch.path();
  const std::string path = folder + "/" + kWeightsIndexFile;
  // Creates a new file each time. If the file were truncated instead, ext4 would write it to disk
  // when it is closed, which takes 5 ms.
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
  const auto model = ModelFolder::Open(folder);
  Require(!model.ok(), "an index of shards that are not there is refused");
  CheckError(model.status(), folder);
  return absl::IsNotFound(model.status());
}

bool FuzzNpy(std::string_view bytes) {
  const MemoryFile memory(bytes);
  const auto file = NpyFile::Open(memory.path());
  if (!file.ok()) {
    CheckError(file.status(), memory.path());
    return false;
  }
  Require((*file)->num_elements() <= bytes.size() / 2, "elements lie within the file");
  std::vector<int32_t> ids(static_cast<size_t>((*file)->num_elements()));
  const absl::Status status = (*file)->Read(0, ids);
  Require(status.ok() || absl::IsInvalidArgument(status), "an accepted file can be read");
  if (status.ok())
    Require(std::all_of(ids.begin(), ids.end(), [](int32_t id) { return id >= 0; }),
            "ids are positive");
  return true;
}

bool FuzzConfig(std::string_view bytes) {
  const auto config = ParseModelConfig(std::string(bytes), "config.json");
  if (!config.ok()) {
    CheckError(config.status(), "config.json");
    return false;
  }
  Require(config->num_heads > 0 && config->num_heads % config->num_kv_heads == 0, "heads divide");
  Require(config->head_dim > 0, "heads have a width");
  if (ModelTypeOf(config->model_type).contains("rope"))
    Require(config->head_dim % 2 == 0, "rope has pairs");
  Require(config->windows.empty() || std::ssize(config->windows) == config->num_layers,
          "each layer has a window");
  for (const int64_t window : config->windows) Require(window >= 0, "windows are no less than 0");
  Require(config->rope_theta > 0 && config->rms_norm_eps > 0, "constants are positive");
  return true;
}

}  // namespace spillway::hf
