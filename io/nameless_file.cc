// SPDX-License-Identifier: Apache-2.0

#include "io/nameless_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "src/base/errno_status.h"

namespace spillway::io {

absl::StatusOr<DirectFile> OpenNamelessFile(const std::string& folder) {
  absl::StatusOr<DirectFile> file = OpenDirect(folder, O_TMPFILE | O_RDWR, {}, 0600);
  if (file.ok()) return file;
  std::string path = absl::StrCat(folder, "/.spillway-probe-XXXXXX");
  const int made = ::mkstemp(path.data());
  if (made < 0)
    return base::ErrnoToStatus(
        errno, absl::StrCat("making a file in ", folder,
                            errno == ENOSPC ? "" : " (give a folder that can be written)"));
  ::close(made);
  file = OpenDirect(path, O_RDWR);
  ::unlink(path.c_str());
  return file;
}

}  // namespace spillway::io
