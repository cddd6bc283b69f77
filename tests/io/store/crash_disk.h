// SPDX-License-Identifier: Apache-2.0
//
// A model of a disk that loses power: it takes the events of a run on its files, and makes the
// files that may be found afterwards. It covers bytes and names only; the test decides what must be
// found.
//
// The model loses more than any one file system would:
//   - A file's content at its last sync is durable. Each sector of 512 bytes that was written since
//     has that content, or the content after any of the later writes. Sectors are independent, so
//     writes are dropped, reordered and torn. The file's size is the synced one or any later one.
//   - The changes of names in a folder are durable in order, up to any point at or after the last
//     sync of the folder. A file's sync does not make its name durable.

#ifndef SPILLWAY_TESTS_IO_STORE_CRASH_DISK_H_
#define SPILLWAY_TESTS_IO_STORE_CRASH_DISK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace spillway::io {

struct DiskEvent {
  enum class Kind : uint8_t {
    kMake,        // a file, named `path`
    kMakeFolder,  // named `path`
    kRename,      // `path` to `to`
    kUnlink,      // `path`
    kWrite,       // `data` at `offset` of `file`
    kResize,      // `file` to `offset` bytes
    kSync,        // `file`
    kSyncFolder,  // `path`
  };
  Kind kind = Kind::kWrite;
  int file = -1;          // a number that is never reused
  std::string path = {};  // relative to the root; for a file's events, its name when it was made
  std::string to = {};
  uint64_t offset = 0;
  std::string data = {};
};

// Files and folders by path; a folder has no content.
using DiskImage = std::map<std::string, std::optional<std::string>>;

// Returns files that may be found if the power fails after the first `num_events` events. The same
// state of `random` gives the same image. Some images lose everything that may be lost, some lose
// nothing, and most lose a part.
DiskImage CutPower(const std::vector<DiskEvent>& events, size_t num_events,
                   std::mt19937_64& random);

// Replaces the content of the folder `root` with the files and folders of the image.
void WriteImage(const DiskImage& image, const std::string& root);

}  // namespace spillway::io

#endif  // SPILLWAY_TESTS_IO_STORE_CRASH_DISK_H_
