// SPDX-License-Identifier: Apache-2.0
//
// Plain files for the Hugging Face formats: a file that is open for reading at offsets, and a file
// that appears under its name only when it is complete. Errors name the operation and the file.

#ifndef SPILLWAY_TOOLS_HF_FILE_H_
#define SPILLWAY_TOOLS_HF_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spillway::hf {

// A regular file opened for reading. Thread-safe; owns its descriptor.
class File {
 public:
  // NotFound: no such file; FailedPrecondition: not a regular file.
  static absl::StatusOr<File> Open(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();

  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }

  // Fills `out` from `offset`, resuming short reads. FailedPrecondition if the file ends first,
  // because it has shrunk since Open. (DataLoss is an error of a store.)
  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const;

 private:
  File(std::string path, int descriptor, uint64_t size_bytes);

  std::string path_;
  int descriptor_;
  uint64_t size_bytes_;
};

// Reads a whole text file. InvalidArgument if it is longer than `max_bytes`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t max_bytes);

enum class IfExists { kFail, kReplace };

// A file written under a temporary name beside `path`. Commit syncs it and gives it its name. If it
// was not committed, the destructor removes it. Thread-compatible.
//
//   auto file = AtomicFile::Create("out/config.json", IfExists::kFail);
//   (*file)->Append(text); (*file)->Commit();
class AtomicFile {
 public:
  // AlreadyExists under kFail if `path` exists now. Commit checks again: without a race, unless the
  // file system has neither hard links nor renameat2().
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path,
                                                            IfExists if_exists);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  const std::string& path() const { return path_; }
  // ResourceExhausted: the file system or a quota is full.
  absl::Status Append(std::span<const std::byte> bytes);
  absl::Status Append(std::string_view text);
  // Syncs the file. May be called before Commit, which then writes nothing that can fill the disk.
  absl::Status Sync();
  // Syncs the file, gives it its name and syncs the folder. Must be the last call, made once.
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary_path, int descriptor, IfExists if_exists);
  absl::Status GiveName();

  const std::string path_;
  const std::string temporary_path_;
  const IfExists if_exists_;
  int descriptor_;
  bool committed_ = false;
};

// Writes `text` to a file with Create, Append and Commit.
absl::Status WriteTextFile(const std::string& path, std::string_view text, IfExists if_exists);

}  // namespace spillway::hf

#endif  // SPILLWAY_TOOLS_HF_FILE_H_
