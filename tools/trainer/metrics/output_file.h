// SPDX-License-Identifier: Apache-2.0
//
// An output file that the user named. Its contents are checked before it is written or replaced, so
// that a mistyped name or a symbolic link destroys nothing. Links are resolved once, when the file
// is opened.

#ifndef SPILLWAY_TOOLS_TRAINER_METRICS_OUTPUT_FILE_H_
#define SPILLWAY_TOOLS_TRAINER_METRICS_OUTPUT_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spillway::trainer {

// Thread-compatible; movable. Writes go to the end of the file.
class OutputFile {
 public:
  // How files of one kind are recognized.
  struct Kind {
    const char* name;    // "a step log"
    const char* begins;  // text that each file begins with
    const char* holds;   // text that each has in its first 4 KiB; "": no further check
    bool grows = false;  // written by Append; others are replaced whole
  };
  // What to do with a file that holds something else.
  enum class IfOther : uint8_t { kRefuse, kReplace };

  // Opens or creates the file, and changes nothing in it. Pipes, terminals and other devices are
  // accepted without a check. The destructor removes a file that was created here and was not
  // written, cut or replaced. AlreadyExists: the file holds something other than `kind`, or the
  // path is a symbolic link to nothing. Unavailable: the file cannot be written or replaced, it is
  // a pipe that nobody reads, or it grows and another process writes it.
  static absl::StatusOr<OutputFile> Open(const std::string& path, const Kind& kind,
                                         IfOther if_other = IfOther::kRefuse);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();

  const std::string& path() const { return path_; }
  int fd() const { return fd_; }
  bool is_regular() const { return is_regular_; }
  // Whether the file was created here and was not written, cut or replaced since.
  bool is_unused() const { return was_made_; }

  // Truncates a regular file to `size_bytes`; does nothing to other files.
  absl::Status Cut(int64_t size_bytes);
  // Appends all of `text` or nothing: after an error, a regular file is truncated to its previous
  // size. Errors are Unavailable.
  absl::Status Append(std::string_view text);

  // Beside creates an empty file in the same folder, with this file's owner and permissions as far
  // as the user may set them. The caller writes it and passes it to ReplaceWith, which renames it
  // to this file's name; until then this file stays as it is. A file that is not passed on is
  // removed with its object. If renaming is not possible, as for a file that a container mounts,
  // ReplaceWith overwrites this file in place. If this is no regular file, Beside returns the same
  // device again and ReplaceWith does nothing. Unavailable: no file can be created in the folder.
  absl::StatusOr<OutputFile> Beside() const;
  absl::Status ReplaceWith(OutputFile beside);
  // Replaces the file's contents with `text`, through Beside and ReplaceWith.
  absl::Status Replace(std::string_view text);

 private:
  OutputFile(std::string path, int fd, bool is_regular, bool was_made)
      : path_(std::move(path)), fd_(fd), is_regular_(is_regular), was_made_(was_made) {}

  absl::Status CopyFrom(const OutputFile& other);

  std::string path_;    // as the user named it
  std::string target_;  // the path with its links resolved
  int fd_;
  bool is_regular_;
  bool was_made_;           // created by this object, and not used yet
  bool is_beside_ = false;  // the destructor removes it even if it was used
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_METRICS_OUTPUT_FILE_H_
