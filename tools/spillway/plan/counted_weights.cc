// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/counted_weights.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "tools/hf/safetensors_reader.h"

namespace spillway::command {
namespace {

namespace fs = std::filesystem;

bool IsSafetensors(const fs::path& path) {
  std::error_code ignored;
  return path.extension() == ".safetensors" && fs::is_regular_file(path, ignored);
}

// Returns the files in the order of their names.
std::vector<std::string> SafetensorsIn(const std::string& path) {
  std::vector<std::string> files;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (IsSafetensors(path)) files.push_back(path);
    return files;
  }
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    if (IsSafetensors(it->path())) files.push_back(it->path().string());
  std::sort(files.begin(), files.end());
  return files;
}

trainer::ParameterShape AsParameter(const hf::TensorEntry& tensor) {
  const auto elements = static_cast<int64_t>(tensor.num_elements);
  if (tensor.shape.size() < 2) return {.name = tensor.name, .shape = {elements}};
  return {.name = tensor.name, .shape = {tensor.shape[0], elements / tensor.shape[0]}};
}

}  // namespace

bool HasSafetensors(const std::string& path) { return !SafetensorsIn(path).empty(); }

absl::StatusOr<CountedWeights> CountWeights(const std::string& path) {
  CountedWeights counted;
  std::set<std::string> names;
  for (const std::string& file : SafetensorsIn(path)) {
    SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<hf::SafetensorsFile> opened,
                              hf::SafetensorsFile::Open(file));
    ++counted.num_files;
    for (const hf::TensorEntry& tensor : opened->tensors()) {
      if (tensor.num_elements == 0 || !names.insert(tensor.name).second) continue;
      counted.file_bytes += tensor.size_bytes;
      const bool is_float = tensor.dtype_name.starts_with('F') || tensor.dtype_name == "BF16";
      if (is_float) {
        counted.parameters.push_back(AsParameter(tensor));
      } else {
        ++counted.num_other;
        counted.other_bytes += tensor.size_bytes;
      }
    }
  }
  if (counted.num_files == 0)
    return absl::NotFoundError(absl::StrCat(path, " has no safetensors file"));
  if (counted.parameters.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the safetensors files have no tensor of floating-point numbers"));
  }
  return counted;
}

}  // namespace spillway::command
