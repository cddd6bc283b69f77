// SPDX-License-Identifier: Apache-2.0
//
// A disk that loses power: the record of what a run did to its files, and what may be found of it
// afterwards. Bytes and names only; what must be found is the test's to know.
//
// The model, more unkind than any one file system:
//   - What a file held when it was last synced is there. Each sector of 512 bytes written since
//     holds that, or what it held after any of the writes since; sectors choose independently. So
//     writes are dropped, reordered and torn. Its size is likewise the synced one or any since.
//   - Names in a folder change in order, up to any point at or after the last sync of the folder. A
//     file's sync does not make its name durable.

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
  int file = -1;          // a number that no other file ever has
  std::string path = {};  // relative to the root; of a file's events: its name when it was opened
  std::string to = {};
  uint64_t offset = 0;
  std::string data = {};
};

// Files and folders by path; a folder has no content.
using DiskImage = std::map<std::string, std::optional<std::string>>;

// What may be found if power went after the first `num_events` events: the same for the same state
// of `random`. Some images lose everything that may be lost, some nothing, most mix.
DiskImage CutPower(const std::vector<DiskEvent>& events, size_t num_events,
                   std::mt19937_64& random);

// Makes the files and folders of the image in a folder, in place of what is there.
void WriteImage(const DiskImage& image, const std::string& root);

}  // namespace spillway::io

#endif  // SPILLWAY_TESTS_IO_STORE_CRASH_DISK_H_
