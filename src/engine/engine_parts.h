// SPDX-License-Identifier: Apache-2.0
//
// From a caller's options to what the mover works with: device, I/O engine, store, pinned arena.
// What is done with them is the engine's and the mover's.

#ifndef SPILLWAY_ENGINE_ENGINE_PARTS_H_
#define SPILLWAY_ENGINE_ENGINE_PARTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "io/direct_file.h"
#include "io/io_engine.h"
#include "io/make_io_engine.h"
#include "spillway/engine.h"
#include "src/engine/open_engine.h"
#include "src/engine/transfer_thread.h"

namespace spillway::engine {

// InvalidArgument names the option that is out of its limits; else the errors of the part that
// could not be had. `announce` may be called as long as the parts live.
absl::StatusOr<MoverParts> MakeMoverParts(const EngineOptions& options, const MakeIo& make_io,
                                          const io::Announce& announce);

// The page size without a store, whose own counts where there is one.
uint64_t PageBytes(const EngineOptions& options);

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_ENGINE_PARTS_H_
