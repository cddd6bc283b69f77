// SPDX-License-Identifier: Apache-2.0
//
// What an IoEngine is made with, whichever it is.

#ifndef SPILLWAY_IO_IO_ENGINE_OPTIONS_H_
#define SPILLWAY_IO_IO_ENGINE_OPTIONS_H_

#include <cstdint>
#include <functional>

#include "io/io_engine.h"

namespace spillway::io {

// Takes the result of one read or write by the kernel (bytes moved, or a negative errno) on behalf
// of `request`, and gives the result to go on with. Called from any thread, below the resuming of
// short transfers: FaultyIoEngine injects short transfers and EAGAIN here.
using ResultHook = std::function<int64_t(const IoRequest& request, int64_t result)>;

// What each device's queues start with: where nothing was measured, write-back that meets a read
// keeps an eighth of its depth.
inline QueueDepths DefaultDepths(int queue_depth) {
  return {.read = queue_depth, .write = queue_depth, .mixed_write = (queue_depth + 7) / 8};
}

struct IoEngineOptions {
  int queue_depth =
      32;  // of reads and of writes on each device, until SetDepths: 1 to kMaxQueueDepth
  ResultHook result_hook = {};  // for tests; empty: results as they are
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_IO_ENGINE_OPTIONS_H_
