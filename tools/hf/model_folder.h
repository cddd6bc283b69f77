// SPDX-License-Identifier: Apache-2.0
//
// The weights of a Hugging Face folder as one set of names: `model.safetensors`, or the shards that
// `model.safetensors.index.json` lists. The index is not trusted: every shard must hold exactly the
// tensors that the index places there. Buffers (IsSkippedTensor) are passed over wherever they are:
// the set has none. tools/python/spillway_tools/hugging_face_folder.py judges
// folders alike; tests/python/same_folders_test.py compares the two.

#ifndef SPILLWAY_TOOLS_HF_MODEL_FOLDER_H_
#define SPILLWAY_TOOLS_HF_MODEL_FOLDER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/hf/safetensors_reader.h"

namespace spillway::hf {

inline constexpr char kWeightsFile[] = "model.safetensors";
inline constexpr char kWeightsIndexFile[] = "model.safetensors.index.json";

// Whether a tensor of this name is no parameter but a buffer of some model type: its name ends as
// the table says. Old versions of transformers saved rotary frequencies and masks, which follow
// from the config, and which no model reads.
bool IsSkippedTensor(std::string_view name);

// Thread-safe once open.
class ModelFolder {
 public:
  // Opens the weights of a folder. If both layouts are present, takes `model.safetensors`, as
  // transformers does. NotFound: neither layout is present, or a shard is missing. InvalidArgument:
  // a file is malformed, a tensor is absent from its shard, or a tensor is in two shards.
  static absl::StatusOr<std::unique_ptr<ModelFolder>> Open(const std::string& folder);

  const std::string& path() const { return path_; }
  std::vector<std::string> names() const;  // sorted
  // Returns null if the folder has no such tensor.
  const TensorEntry* Find(std::string_view name) const;

  // Reads elements as SafetensorsFile::Read does. NotFound names the folder.
  absl::Status Read(std::string_view name, uint64_t element_offset, std::span<float> out) const;

 private:
  struct Location {
    size_t file = 0;  // index in files_
    const TensorEntry* entry = nullptr;
  };

  explicit ModelFolder(std::string path) : path_(std::move(path)) {}
  absl::Status AddFile(const std::string& path);
  absl::Status AddShards(const std::string& index_path);

  const std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Location, std::less<>> tensors_;
};

}  // namespace spillway::hf

#endif  // SPILLWAY_TOOLS_HF_MODEL_FOLDER_H_
