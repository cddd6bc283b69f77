// SPDX-License-Identifier: Apache-2.0
//
// The options that every IoEngine implementation is created with.

#ifndef SPILLWAY_IO_IO_ENGINE_OPTIONS_H_
#define SPILLWAY_IO_IO_ENGINE_OPTIONS_H_

#include <cstdint>
#include <functional>

#include "io/io_engine.h"

namespace spillway::io {

// Takes the kernel's result of one read or write for `request` (bytes moved, or a negative errno)
// and returns the result that the engine uses instead. It is called from any thread, before short
// transfers are resumed: FaultyIoEngine injects short transfers and EAGAIN here.
using ResultHook = std::function<int64_t(const IoRequest& request, int64_t result)>;

// Returns the initial depths of each device's queues. They are used where no depths were measured:
// while there are reads, write-back keeps an eighth of its depth.
inline QueueDepths DefaultDepths(int queue_depth) {
  return {.read = queue_depth, .write = queue_depth, .mixed_write = (queue_depth + 7) / 8};
}

struct IoEngineOptions {
  // The depth of each device's read queue and of its write queue until SetDepths, 1 to
  // kMaxQueueDepth.
  int queue_depth = 32;
  ResultHook result_hook = {};  // for tests; empty: results are not changed
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_IO_ENGINE_OPTIONS_H_
