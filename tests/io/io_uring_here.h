// SPDX-License-Identifier: Apache-2.0
//
// The only reason to skip a test of io_uring is that the kernel provides no ring. The check calls
// the kernel and not the engine, so that an engine that does not work fails its tests.

#ifndef SPILLWAY_TESTS_IO_IO_URING_HERE_H_
#define SPILLWAY_TESTS_IO_IO_URING_HERE_H_

#include <liburing.h>

#include "io/make_io_engine.h"

namespace spillway::io {

inline constexpr char kNoIoUring[] = "the kernel gives no ring: io_uring is absent or forbidden";

inline bool CanRun(IoKind kind) {
  if (kind != IoKind::kUring) return true;
  io_uring ring;
  if (io_uring_queue_init(4, &ring, 0) != 0) return false;
  io_uring_queue_exit(&ring);
  return true;
}

}  // namespace spillway::io

#endif  // SPILLWAY_TESTS_IO_IO_URING_HERE_H_
