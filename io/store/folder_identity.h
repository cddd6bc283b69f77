// SPDX-License-Identifier: Apache-2.0
//
// The text of a folder's identity file (io/FORMAT.md). Who writes it and where is StoreFolder's.

#ifndef SPILLWAY_IO_STORE_FOLDER_IDENTITY_H_
#define SPILLWAY_IO_STORE_FOLDER_IDENTITY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace spillway::io {

// The first line of every version.
inline constexpr char kIdentityTitle[] = "Spillway store";

// The content of the identity file.
struct FolderIdentity {
  std::string store_id;      // 32 hexadecimal digits, the same in all folders of a store
  uint16_t index = 0;        // of this folder in its store
  uint16_t num_folders = 0;  // of the store
  bool scratch = false;      // made to be removed: whoever finds it unlocked may remove it
  friend bool operator==(const FolderIdentity&, const FolderIdentity&) = default;
};

std::string FormatIdentity(const FolderIdentity& identity);
// FailedPrecondition: another program's text, or another version's. DataLoss: neither that nor an
// identity. `path` is for the message.
absl::StatusOr<FolderIdentity> ParseIdentity(const std::string& text, const std::string& path);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_FOLDER_IDENTITY_H_
