// SPDX-License-Identifier: Apache-2.0
//
// Makes the parts that the mover works with from a caller's options: device runtime, I/O engine,
// store and pinned arena. The engine and the mover use them.

#ifndef SPILLWAY_ENGINE_ENGINE_PARTS_H_
#define SPILLWAY_ENGINE_ENGINE_PARTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "io/direct_file.h"
#include "io/io_engine.h"
#include "io/make_io_engine.h"
#include "io/store/store.h"
#include "spillway/engine.h"
#include "src/engine/open_engine.h"
#include "src/engine/transfer_thread.h"

namespace spillway::engine {

// Makes the parts. InvalidArgument: an option is out of its limits; the message names it. Other
// errors are those of the part that could not be made. `announce` may be called as long as the
// parts live.
absl::StatusOr<MoverParts> MakeMoverParts(const EngineOptions& options, const MakeIo& make_io,
                                          const io::Announce& announce);

// The folders of the store, with the rates that were measured.
std::vector<DriveStats> DrivesOf(const EngineOptions& options, const io::Store& store);

// The page size if there is no store. With a store, the store's own page size is used instead.
uint64_t PageBytes(const EngineOptions& options);

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_ENGINE_PARTS_H_
