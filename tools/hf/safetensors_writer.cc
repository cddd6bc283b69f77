// SPDX-License-Identifier: Apache-2.0
//
// Each shard is written, in order, to its own temporary file, which is synced when the next one
// begins. All files, the index too, are synced before the first is renamed, so that a full disk is
// detected before that. The file that readers look for is renamed last: the index or the only file.

#include "tools/hf/safetensors_writer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "src/base/status_macros.h"
#include "tools/hf/model_folder.h"
#include "tools/hf/strict_json.h"

namespace spillway::hf {
namespace {

using nlohmann::ordered_json;

constexpr size_t kDataAlignment = 8;

uint64_t SizeBytes(const TensorDeclaration& tensor) {
  uint64_t size_bytes = ElementBytes(tensor.dtype);
  for (int64_t dimension : tensor.shape) size_bytes *= static_cast<uint64_t>(dimension);
  return size_bytes;
}

absl::Status CheckDeclarations(const std::vector<TensorDeclaration>& tensors) {
  std::set<std::string_view> names;
  uint64_t total = 0;
  for (const TensorDeclaration& tensor : tensors) {
    uint64_t size_bytes = ElementBytes(tensor.dtype);
    bool possible = true;
    for (int64_t dimension : tensor.shape) {
      possible = possible && dimension >= 0 &&
                 !__builtin_mul_overflow(size_bytes, static_cast<uint64_t>(dimension), &size_bytes);
    }
    if (!possible || __builtin_add_overflow(total, size_bytes, &total)) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor.name), ": shape ",
                                                     FormatShape(tensor.shape),
                                                     " has no size in 64 bits"));
    }
    if (!names.insert(tensor.name).second || tensor.name == "__metadata__") {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quoted(tensor.name), ": the name is taken; each tensor needs its own"));
    }
  }
  return absl::OkStatus();
}

// Whether a name has the form "model-00002-of-00003.safetensors".
bool IsShardName(std::string_view name) {
  constexpr std::string_view kPattern = "model-#####-of-#####.safetensors";
  return name.size() == kPattern.size() &&
         std::equal(name.begin(), name.end(), kPattern.begin(), [](char have, char want) {
           return want == '#' ? have >= '0' && have <= '9' : have == want;
         });
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string folder, std::vector<TensorDeclaration> tensors,
                                     const SafetensorsWriterOptions& options)
    : folder_(std::move(folder)), tensors_(std::move(tensors)), options_(options) {}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& folder, std::vector<TensorDeclaration> tensors,
    const SafetensorsWriterOptions& options) {
  SPILLWAY_RETURN_IF_ERROR(CheckDeclarations(tensors));
  std::unique_ptr<SafetensorsWriter> writer(
      new SafetensorsWriter(folder, std::move(tensors), options));
  writer->PlanShards();
  SPILLWAY_RETURN_IF_ERROR(writer->CheckFolder());
  SPILLWAY_RETURN_IF_ERROR(writer->OpenShard(0));
  return writer;
}

void SafetensorsWriter::PlanShards() {
  shards_.emplace_back();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const uint64_t size_bytes = SizeBytes(tensors_[i]);
    Shard* shard = &shards_.back();
    const uint64_t room =
        options_.max_shard_bytes - std::min(options_.max_shard_bytes, shard->data_bytes);
    if (!shard->tensors.empty() && size_bytes > room) shard = &shards_.emplace_back();
    shard->tensors.push_back(i);
    shard->data_bytes += size_bytes;
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].file_name = shards_.size() == 1 ? kWeightsFile
                                               : absl::StrFormat("model-%05d-of-%05d.safetensors",
                                                                 i + 1, shards_.size());
  }
}

absl::Status SafetensorsWriter::CheckFolder() const {
  std::error_code error;
  if (!std::filesystem::is_directory(folder_, error)) {
    return absl::NotFoundError(absl::StrCat(folder_, ": is not a folder"));
  }
  if (options_.if_exists == IfExists::kReplace) return absl::OkStatus();
  for (const char* name : {kWeightsFile, kWeightsIndexFile}) {
    const std::string path = absl::StrCat(folder_, "/", name);
    if (std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
      return absl::AlreadyExistsError(absl::StrCat(path, ": exists and is not overwritten"));
    }
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::OpenShard(size_t index) {
  const Shard& shard = shards_[index];
  if (!files_.empty()) SPILLWAY_RETURN_IF_ERROR(files_.back()->Sync());
  SPILLWAY_ASSIGN_OR_RETURN(
      std::unique_ptr<AtomicFile> file,
      AtomicFile::Create(absl::StrCat(folder_, "/", shard.file_name), options_.if_exists));
  files_.push_back(std::move(file));
  left_in_shard_ = shard.data_bytes;
  const std::string header = HeaderJson(shard);
  const uint64_t header_bytes = header.size();
  SPILLWAY_RETURN_IF_ERROR(files_.back()->Append(std::as_bytes(std::span(&header_bytes, 1))));
  return files_.back()->Append(header);
}

std::string SafetensorsWriter::HeaderJson(const Shard& shard) const {
  // "format" says that the tensors are PyTorch's; older transformers refuse a file without it.
  ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t offset = 0;
  for (size_t index : shard.tensors) {
    const TensorDeclaration& tensor = tensors_[index];
    const uint64_t end = offset + SizeBytes(tensor);
    header[tensor.name] = {{"dtype", std::string(Name(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  return text;
}

std::string SafetensorsWriter::IndexJson() const {
  uint64_t total = 0;
  nlohmann::json weight_map = nlohmann::json::object();
  for (const Shard& shard : shards_) {
    total += shard.data_bytes;
    for (size_t index : shard.tensors) weight_map[tensors_[index].name] = shard.file_name;
  }
  const ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

absl::Status SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (left_in_shard_ == 0) {
      if (files_.size() == shards_.size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            folder_, ": ", bytes.size(), " bytes more than the tensors declared have"));
      }
      SPILLWAY_RETURN_IF_ERROR(OpenShard(files_.size()));
      continue;
    }
    const size_t count = static_cast<size_t>(std::min<uint64_t>(bytes.size(), left_in_shard_));
    SPILLWAY_RETURN_IF_ERROR(files_.back()->Append(bytes.first(count)));
    left_in_shard_ -= count;
    bytes = bytes.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  // Append opens a shard only for data, so shards whose tensors are all empty may not be open yet.
  while (left_in_shard_ == 0 && files_.size() < shards_.size()) {
    SPILLWAY_RETURN_IF_ERROR(OpenShard(files_.size()));
  }
  if (left_in_shard_ != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(files_.back()->path(), ": ", left_in_shard_,
                     " bytes of the tensors declared were not written"));
  }
  if (shards_.size() > 1) {
    SPILLWAY_ASSIGN_OR_RETURN(
        std::unique_ptr<AtomicFile> index,
        AtomicFile::Create(absl::StrCat(folder_, "/", kWeightsIndexFile), options_.if_exists));
    SPILLWAY_RETURN_IF_ERROR(index->Append(IndexJson()));
    files_.push_back(std::move(index));
  }
  for (const std::unique_ptr<AtomicFile>& file : files_) SPILLWAY_RETURN_IF_ERROR(file->Sync());
  for (const std::unique_ptr<AtomicFile>& file : files_) SPILLWAY_RETURN_IF_ERROR(file->Commit());
  files_.clear();
  return options_.if_exists == IfExists::kReplace ? RemoveStaleFiles() : absl::OkStatus();
}

absl::Status SafetensorsWriter::RemoveStaleFiles() const {
  std::set<std::string> made;
  for (const Shard& shard : shards_) made.insert(shard.file_name);
  if (shards_.size() > 1) made.insert(kWeightsIndexFile);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    const bool weights = name == kWeightsFile || name == kWeightsIndexFile || IsShardName(name);
    if (weights && !made.contains(name)) std::filesystem::remove(entry.path(), error);
    if (error) break;
  }
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(),
                             absl::StrCat(folder_, ": earlier weights cannot be removed"));
}

}  // namespace spillway::hf
