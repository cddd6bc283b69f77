// SPDX-License-Identifier: Apache-2.0
//
// Forbids a system call in the calling thread, as container run times forbid io_uring in a
// process.

#ifndef SPILLWAY_TESTS_IO_SECCOMP_H_
#define SPILLWAY_TESTS_IO_SECCOMP_H_

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>

namespace spillway::io {

// Makes `syscall` fail with `error` in this thread and in the threads that it starts from now on.
// This cannot be undone. Returns false if the kernel accepts no filter.
inline bool ForbidInThisThread(long syscall, uint32_t error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(syscall), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {4, program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace spillway::io

#endif  // SPILLWAY_TESTS_IO_SECCOMP_H_
