// SPDX-License-Identifier: Apache-2.0
//
// Formats and parses the text of a folder's identity file (io/FORMAT.md). StoreFolder reads and
// writes the file.

#ifndef SPILLWAY_IO_STORE_FOLDER_IDENTITY_H_
#define SPILLWAY_IO_STORE_FOLDER_IDENTITY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace spillway::io {

// The first line of the file in every version.
inline constexpr char kIdentityTitle[] = "Spillway store";

// The content of the identity file.
struct FolderIdentity {
  std::string store_id;      // 32 hexadecimal digits, the same in all folders of a store
  uint16_t index = 0;        // the index of this folder in its store
  uint16_t num_folders = 0;  // the number of folders of the store
  bool scratch = false;      // scratch store: a process that finds it unlocked may remove it
  bool sparse = false;       // what is not written is a hole; such a store is scratch, too
  friend bool operator==(const FolderIdentity&, const FolderIdentity&) = default;
};

std::string FormatIdentity(const FolderIdentity& identity);
// FailedPrecondition: the text is another program's or another version's. DataLoss: it is none of
// these and not a valid identity. `path` is for the message.
absl::StatusOr<FolderIdentity> ParseIdentity(const std::string& text, const std::string& path);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_FOLDER_IDENTITY_H_
