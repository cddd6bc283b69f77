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

inline constexpr int kMaxQueueDepth = 1024;

struct IoEngineOptions {
  int queue_depth = 32;         // requests with the kernel at once, 1 to kMaxQueueDepth
  ResultHook result_hook = {};  // for tests; empty: results as they are
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_IO_ENGINE_OPTIONS_H_
