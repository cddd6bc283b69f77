// SPDX-License-Identifier: Apache-2.0
//
// A file for output that the user named. It is looked at before it is written or replaced, so that
// a mistyped name or a symbolic link destroys nothing. Links are followed once, when it is opened.

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
  // How a file of one kind is told from all others.
  struct Kind {
    const char* name;    // "a step log"
    const char* begins;  // how each begins
    const char* holds;   // what each holds in its first 4 KiB; "": nothing more
    bool grows = false;  // by Append; others are replaced whole
  };
  // What happens to a file that holds something else.
  enum class IfOther : uint8_t { kRefuse, kReplace };

  // Opens the file or makes it, and changes nothing in it. AlreadyExists: it holds something else
  // than `kind`. Unavailable: it cannot be written or replaced, or is a pipe that nobody reads. A
  // pipe, a terminal and another device are taken as they are. A file that was made goes again with
  // this object, unless something was done with it.
  static absl::StatusOr<OutputFile> Open(const std::string& path, const Kind& kind,
                                         IfOther if_other = IfOther::kRefuse);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();

  const std::string& path() const { return path_; }
  int fd() const { return fd_; }
  bool is_regular() const { return is_regular_; }

  // A regular file is cut off after so many bytes.
  absl::Status Cut(int64_t size_bytes);
  // Whole or not at all: of a regular file, what was written of `text` before an error is cut off
  // again. Unavailable.
  absl::Status Append(std::string_view text);

  // To replace a file whole: an empty file beside it with its owner and rights, as far as this user
  // may give them, to be written and given to ReplaceWith; until then the old one stays as it is.
  // One that is not given goes with its object. Of what is no regular file: the same device again.
  // Unavailable: no file can be made in the folder. A file whose name cannot be given to another,
  // as one that a container mounts, is written over.
  absl::StatusOr<OutputFile> Beside() const;
  absl::Status ReplaceWith(OutputFile beside);
  // Both, with `text` in between.
  absl::Status Replace(std::string_view text);

 private:
  OutputFile(std::string path, int fd, bool is_regular, bool was_made)
      : path_(std::move(path)), fd_(fd), is_regular_(is_regular), was_made_(was_made) {}

  absl::Status CopyFrom(const OutputFile& other);

  std::string path_;    // as the user named it
  std::string target_;  // the file itself, where that is a link
  int fd_;
  bool is_regular_;
  bool was_made_;           // by this object, and nothing was done with it yet
  bool is_beside_ = false;  // and goes whatever was done with it
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_METRICS_OUTPUT_FILE_H_
