// SPDX-License-Identifier: Apache-2.0
//
// Which mutant of tools/checks/seeded_faults is active: SPILLWAY_MUTANT names its number, and the file that
// SPILLWAY_MUTANTS_REACHED names gets a 1 at the number of each mutant that was reached. The file is mapped, so that
// nothing is written through the system calls that tests count, fail or forbid, and child processes mark it too.

#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <type_traits>

namespace spillway_mutants {

struct Switch {
  long active = -1;
  unsigned char* reached = nullptr;
  long num_mutants = 0;

  Switch() {
    if (const char* number = std::getenv("SPILLWAY_MUTANT")) active = std::atol(number);
    const char* path = std::getenv("SPILLWAY_MUTANTS_REACHED");
    if (path == nullptr) return;
    const long file = ::syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    num_mutants = ::syscall(SYS_lseek, file, 0L, SEEK_END);
    const long address = ::syscall(SYS_mmap, nullptr, num_mutants, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0L);
    if (address != -1) reached = reinterpret_cast<unsigned char*>(address);
    ::syscall(SYS_close, file);
  }
};

inline bool IsActive(long number) {
  static const Switch one;
  if (one.reached != nullptr && number < one.num_mutants) {
    __atomic_store_n(&one.reached[number], static_cast<unsigned char>(1), __ATOMIC_RELAXED);
  }
  return number == one.active;
}

// What is computed when the code is compiled stays as it was.
constexpr bool Mutant(long number) { return !std::is_constant_evaluated() && IsActive(number); }

}  // namespace spillway_mutants

#define SPILLWAY_MUTANT(number) ::spillway_mutants::Mutant(number)
