// SPDX-License-Identifier: Apache-2.0
//
// The context that a measured figure needs: processor, kernel, file systems, and how fast one
// thread copies and hashes on this machine.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_MACHINE_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_MACHINE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/direct_file.h"

namespace spillway::bench_io {

struct Volume {
  std::string folder;
  std::string file_system;  // "ext4"
  std::string device;       // "/dev/nvme0n1p1"
  std::string model;        // of the disk; empty if the system does not report it
};

struct Machine {
  std::string cpu;
  int num_cpus = 0;
  std::string kernel;
  double load = 0;  // one-minute average
  std::vector<Volume> volumes;
  double copy_bytes_per_second = 0;     // by one thread
  double checksum_seconds_per_gib = 0;  // XXH3 over memory that no cache holds
};

// Describes the machine, and measures nothing.
Machine Describe(std::span<const std::string> folders);
// Describes the machine and measures copying and hashing. Reads `memory` (hundreds of MiB), and
// overwrites its first half with its second.
Machine Look(std::span<const std::string> folders, std::span<std::byte> memory);

// Whether transfers of the file move bytes in memory alone: the file system refused O_DIRECT, or it
// is in memory. Linux 6.6 and later accept O_DIRECT on tmpfs.
bool IsCached(const io::DirectFile& file);

uint64_t FreeHugePageBytes();

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_MACHINE_H_
