// SPDX-License-Identifier: Apache-2.0
//
// Writes a Hugging Face folder in five steps:
//   1. create `folder`.partial-<n> beside the target, with a marker file that this process locks;
//      a partial folder whose marker is not locked was left by a killed process and is removed
//      first (if the file system's locks hold within one machine only, two machines must not export
//      to the same place at the same time);
//   2. stream the weights into it through the safetensors writer, tile by tile;
//   3. write config.json and copy the tokenizer's files, each synced;
//   4. sync the folder, remove the marker and rename the folder to its final name (the rename
//      replaces an empty folder, never one that holds files);
//   5. sync the folder again, and its parent.

#include "tools/trainer/export.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "src/base/status_macros.h"
#include "tools/hf/file.h"
#include "tools/hf/safetensors_writer.h"
#include "tools/trainer/master_weights.h"

namespace spillway::trainer {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxTokenizerFileBytes = uint64_t{1} << 30;

// The files that transformers and tokenizers read beside the weights, and a folder of further chat
// templates. spillway-import copies the same (spillway_tools/hugging_face_folder.py).
constexpr const char* kCopiedFiles[] = {
    "tokenizer.json",     "tokenizer_config.json",  "special_tokens_map.json",
    "added_tokens.json",  "tokenizer.model",        "vocab.json",
    "merges.txt",         "generation_config.json", "chat_template.jinja",
    "chat_template.json",
};
constexpr char kTemplatesFolder[] = "/additional_chat_templates";

absl::Status SystemError(int error, const std::string& operation, const std::string& path) {
  const std::string message = absl::StrFormat("%s %s: %s", operation, path, std::strerror(error));
  return absl::UnavailableError(message);
}

absl::Status CannotMake(const std::string& folder, int error) {
  return absl::UnavailableError(
      absl::StrFormat("the folder %s cannot be made: %s; name one in a folder that takes files",
                      folder, std::strerror(error)));
}

// Whether something is mounted at the folder, even if it is of the same file system. False where
// the kernel cannot tell (before 5.8).
bool IsMountPoint(const std::string& folder) {
  struct statx info{};
  return statx(AT_FDCWD, folder.c_str(), AT_SYMLINK_NOFOLLOW, 0, &info) == 0 &&
         (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

absl::Status CannotReplace(const std::string& folder, const char* what) {
  return absl::AlreadyExistsError(absl::StrFormat(
      "%s %s, which an export cannot replace; name a folder inside it", folder, what));
}

// Checks whether an export may use this name, and can rename a folder to it.
absl::Status CheckFree(const std::string& folder) {
  const fs::path last = fs::path(folder).filename();
  if (last == "." || last == "..") return CannotReplace(folder, "ends in . or ..");
  std::error_code error;
  const fs::file_status status = fs::symlink_status(folder, error);
  if (!fs::exists(status)) return absl::OkStatus();
  if (fs::is_symlink(status)) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "%s is a symbolic link, which an export cannot replace; name the folder itself", folder));
  }
  if (fs::is_directory(status) && IsMountPoint(folder)) {
    return CannotReplace(folder, "is a mount point");
  }
  if (fs::is_directory(status) && fs::is_empty(folder, error) && !error) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrFormat(
      "%s exists already and nothing is overwritten; remove it or give another name", folder));
}

// The marker file in a partial folder, locked while the process that fills the folder lives.
constexpr char kMarkerName[] = "spillway-partial";
constexpr std::string_view kMarkerText =
    "spillway makes an export here; once its process is gone, so may this folder.\n";

// Whether the folder has the marker and no process holds its lock.
bool IsLeftOver(const fs::path& folder) {
  const int fd = open((folder / kMarkerName).c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return false;
  std::string text(kMarkerText.size() + 1, '\0');
  const ssize_t got = read(fd, text.data(), text.size());
  const bool is_left = got == static_cast<ssize_t>(kMarkerText.size()) &&
                       text.starts_with(kMarkerText) && flock(fd, LOCK_EX | LOCK_NB) == 0;
  close(fd);
  return is_left;
}

// Removes the partial folders of exports to `target` whose process was killed.
void RemoveLeftOvers(const std::string& target) {
  const fs::path parent = fs::path(target).parent_path();
  const std::string prefix = fs::path(target).filename().string() + ".partial-";
  std::error_code error;
  std::vector<fs::path> left;
  for (fs::directory_iterator entry(parent.empty() ? "." : parent, error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(prefix) && entry->is_directory(error) && IsLeftOver(entry->path())) {
      left.push_back(entry->path());
    }
  }
  for (const fs::path& folder : left) fs::remove_all(folder, error);
}

// Creates a folder beside `target` under a free name, and returns its path.
absl::StatusOr<std::string> MakeBeside(const std::string& target) {
  for (int number = getpid();; ++number) {
    std::string path = absl::StrFormat("%s.partial-%d", target, number);
    if (mkdir(path.c_str(), 0755) == 0) return path;
    if (errno != EEXIST) return CannotMake(target, errno);
  }
}

// A folder under a temporary name. It is removed on destruction unless Publish renamed it.
class PartialFolder {
 public:
  explicit PartialFolder(const std::string& target) : target_(target) {}
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
    if (marker_ >= 0) close(marker_);
  }

  const std::string& path() const { return path_; }

  absl::Status Make() {
    std::error_code error;
    const fs::path parent = fs::path(target_).parent_path();
    if (!parent.empty()) fs::create_directories(parent, error);
    if (error) return CannotMake(target_, error.value());
    SPILLWAY_ASSIGN_OR_RETURN(path_, MakeBeside(target_));
    // Other exports remove a folder only if its marker has the text. The text is written after the
    // marker is locked, so a folder whose marker cannot be locked is never removed.
    marker_ = open(Marker().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (marker_ >= 0 && flock(marker_, LOCK_EX | LOCK_NB) == 0) {
      [[maybe_unused]] const ssize_t written =
          write(marker_, kMarkerText.data(), kMarkerText.size());
    }
    return absl::OkStatus();
  }

  absl::Status Publish() {
    SPILLWAY_RETURN_IF_ERROR(SyncFolder(path_));
    unlink(Marker().c_str());
    if (std::rename(path_.c_str(), target_.c_str()) != 0) {
      const int error = errno;
      SPILLWAY_RETURN_IF_ERROR(CheckFree(target_));
      return SystemError(error, "rename to", target_);
    }
    path_.clear();
    SPILLWAY_RETURN_IF_ERROR(SyncFolder(target_));  // makes the marker's removal durable
    const fs::path parent = fs::path(target_).parent_path();
    return SyncFolder(parent.empty() ? "." : parent.string());
  }

 private:
  static absl::Status SyncFolder(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return SystemError(errno, "open", path);
    const int error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    // Some file systems cannot sync a folder. The durability of a rename depends on them.
    return error == 0 || error == EINVAL ? absl::OkStatus() : SystemError(error, "sync", path);
  }

  std::string Marker() const { return absl::StrFormat("%s/%s", path_, kMarkerName); }

  std::string target_;
  std::string path_;  // empty if there is no folder to remove
  int marker_ = -1;
};

absl::Status WriteWeights(const std::vector<ParameterShape>& parameters,
                          const WeightStream& weights, const std::string& folder) {
  std::vector<hf::TensorDeclaration> tensors;
  for (const ParameterShape& parameter : parameters) {
    tensors.push_back({parameter.name, hf::TensorDType::kF32, parameter.shape});
  }
  SPILLWAY_ASSIGN_OR_RETURN(const auto writer,
                            hf::SafetensorsWriter::Create(folder, std::move(tensors), {}));
  const auto append = [&](std::span<const std::byte> bytes) { return writer->Append(bytes); };
  for (const ParameterShape& parameter : parameters) {
    SPILLWAY_RETURN_IF_ERROR(weights(parameter, append));
  }
  return writer->Finish();
}

// Returns the configuration with the element type of the exported weights, under the keys that it
// already uses. Older versions of transformers write torch_dtype, newer ones dtype.
std::string ConfigForFp32(const std::string& config_json) {
  using Json = nlohmann::ordered_json;
  Json config = Json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return config_json;
  if (config.contains("dtype")) config["dtype"] = "float32";
  if (config.contains("torch_dtype") || !config.contains("dtype"))
    config["torch_dtype"] = "float32";
  return config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Copies a file if there is one.
absl::Status CopyFile(const std::string& from, const std::string& to) {
  const absl::StatusOr<std::string> text = hf::ReadTextFile(from, kMaxTokenizerFileBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  SPILLWAY_RETURN_IF_ERROR(text.status());
  return hf::WriteTextFile(to, *text, hf::IfExists::kFail);
}

absl::Status CopyTemplates(const std::string& from, const std::string& to) {
  std::error_code error;
  if (!fs::is_directory(from, error)) return absl::OkStatus();
  if (!fs::create_directory(to, error)) return CannotMake(to, error.value());
  for (fs::directory_iterator entry(from, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() != ".jinja") continue;
    const std::string file = entry->path().string();
    SPILLWAY_RETURN_IF_ERROR(CopyFile(file, to + file.substr(from.size())));
  }
  return error ? SystemError(error.value(), "list", from) : absl::OkStatus();
}

absl::Status CopyTokenizer(const std::string& from, const std::string& to) {
  for (const char* name : kCopiedFiles) {
    SPILLWAY_RETURN_IF_ERROR(CopyFile(from + "/" + name, to + "/" + name));
  }
  return CopyTemplates(from + kTemplatesFolder, to + kTemplatesFolder);
}

absl::Status Fill(const std::vector<ParameterShape>& parameters, const WeightStream& weights,
                  const std::string& config_json, const std::string& model_folder,
                  const std::string& folder) {
  SPILLWAY_RETURN_IF_ERROR(WriteWeights(parameters, weights, folder));
  SPILLWAY_RETURN_IF_ERROR(
      hf::WriteTextFile(folder + "/config.json", ConfigForFp32(config_json), hf::IfExists::kFail));
  return model_folder.empty() ? absl::OkStatus() : CopyTokenizer(model_folder, folder);
}

// "out/" names the folder "out".
std::string WithoutTrailingSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

uint64_t ExportedBytes(const std::vector<ParameterShape>& parameters) {
  uint64_t bytes = 0;
  for (const ParameterShape& parameter : parameters) {
    bytes += sizeof(float) * static_cast<uint64_t>(parameter.elements());
  }
  return bytes;
}

absl::Status CheckExportFolder(const std::string& folder, uint64_t weight_bytes) {
  const std::string target = WithoutTrailingSlashes(folder);
  SPILLWAY_RETURN_IF_ERROR(CheckFree(target));
  RemoveLeftOvers(target);
  // Finds the topmost missing folder: it must be possible to create it in its parent, which exists.
  fs::path missing = target;
  std::error_code error;
  while (missing.has_parent_path() && missing.parent_path() != missing &&
         !fs::exists(fs::symlink_status(missing.parent_path(), error))) {
    missing = missing.parent_path();
  }
  const fs::path parent = missing.has_parent_path() ? missing.parent_path() : fs::path(".");
  const absl::StatusOr<std::string> probe = MakeBeside(missing.string());
  if (!probe.ok()) return probe.status();
  rmdir(probe->c_str());
  const uint64_t file_bytes =
      std::min(weight_bytes, hf::SafetensorsWriterOptions().max_shard_bytes);
  rlimit largest{};
  if (getrlimit(RLIMIT_FSIZE, &largest) == 0 && largest.rlim_cur < file_bytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s: %s: a file of the weights takes %d bytes, and the limit of a file's size is %d "
        "(ulimit -f); raise it",
        folder, std::strerror(EFBIG), file_bytes, largest.rlim_cur));
  }
  struct statvfs space{};
  if (statvfs(parent.c_str(), &space) != 0) return absl::OkStatus();
  const uint64_t available = uint64_t{space.f_bavail} * space.f_frsize;
  if (available >= weight_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s: %s: the weights take %d bytes and %d are free; free %d more, or name a folder elsewhere",
      folder, std::strerror(ENOSPC), weight_bytes, available, weight_bytes - available));
}

absl::Status ExportWeights(const std::vector<ParameterShape>& parameters,
                           const WeightStream& weights, const std::string& config_json,
                           const std::string& model_folder, const std::string& folder) {
  const std::string target = WithoutTrailingSlashes(folder);
  SPILLWAY_RETURN_IF_ERROR(CheckExportFolder(target, ExportedBytes(parameters)));
  std::error_code error;
  if (!model_folder.empty() && !fs::is_directory(model_folder, error)) {
    return absl::NotFoundError(absl::StrFormat(
        "%s is no folder: name the model's, for its tokenizer, or none", model_folder));
  }
  PartialFolder partial(target);
  SPILLWAY_RETURN_IF_ERROR(partial.Make());
  const absl::Status filled = Fill(parameters, weights, config_json, model_folder, partial.path());
  if (filled.ok()) return partial.Publish();
  // The message names the target: the caller does not know the partial folder, which is removed on
  // return.
  return absl::Status(filled.code(),
                      absl::StrReplaceAll(filled.message(), {{partial.path(), target}}));
}

WeightStream MasterWeights(Engine* engine, const std::vector<Parameter>& parameters) {
  return [engine, &parameters](const ParameterShape& wanted, const ConsumeBytes& consume) {
    const auto found =
        std::find_if(parameters.begin(), parameters.end(),
                     [&](const Parameter& parameter) { return parameter.name == wanted.name; });
    if (found != parameters.end()) return ReadMasterWeight(engine, *found, consume);
    return absl::InternalError(absl::StrFormat("the engine has no parameter %s", wanted.name));
  };
}

}  // namespace spillway::trainer
