// SPDX-License-Identifier: Apache-2.0
//
// The file systems that a store may lie on, and the known drawbacks of some.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_FILE_SYSTEMS_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_FILE_SYSTEMS_H_

#include <linux/magic.h>

#include <cstdint>

namespace spillway::command {

struct KnownFileSystem {
  uint64_t magic;  // statfs::f_type
  const char* name;
  const char* drawback;  // null if none is known
};

inline constexpr char kNotADisk[] = "its bytes are in memory: a store there saves none";
inline constexpr char kNetwork[] =
    "over a network a store is slow, and the catalog's log needs a local file system: put the "
    "first folder on a local disk";
inline constexpr KnownFileSystem kFileSystems[] = {
    {EXT4_SUPER_MAGIC, "ext4", nullptr},
    {XFS_SUPER_MAGIC, "xfs", nullptr},
    {BTRFS_SUPER_MAGIC, "btrfs",
     "it copies on write and checksums once more: slower than ext4 or "
     "xfs; chattr +C on an empty folder helps"},
    {F2FS_SUPER_MAGIC, "f2fs", nullptr},
    {0x2fc12fc1, "zfs", "O_DIRECT may go through its cache: slower than ext4 or xfs"},
    {OVERLAYFS_SUPER_MAGIC, "overlay", "the layers of a container cost time: mount a volume"},
    {TMPFS_MAGIC, "tmpfs", kNotADisk},
    {RAMFS_MAGIC, "ramfs", kNotADisk},
    {NFS_SUPER_MAGIC, "nfs", kNetwork},
    {CIFS_SUPER_MAGIC, "cifs", kNetwork},
    {SMB2_SUPER_MAGIC, "smb", kNetwork},
    {FUSE_SUPER_MAGIC, "fuse", "each request passes through another process: slow"},
    {V9FS_MAGIC, "9p", kNetwork},
};

// Returns null if the file system is not known.
inline const KnownFileSystem* FindFileSystem(uint64_t magic) {
  for (const KnownFileSystem& known : kFileSystems) {
    if (known.magic == magic) return &known;
  }
  return nullptr;
}

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_FILE_SYSTEMS_H_
