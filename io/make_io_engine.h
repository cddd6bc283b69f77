// SPDX-License-Identifier: Apache-2.0
//
// Chooses the IoEngine for a machine by trying it: io_uring may be absent, forbidden, or set up and
// then fail at the first transfer, and only a transfer tells.

#ifndef SPILLWAY_IO_MAKE_IO_ENGINE_H_
#define SPILLWAY_IO_MAKE_IO_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/direct_file.h"
#include "io/io_engine.h"
#include "io/io_engine_options.h"

namespace spillway::io {

enum class IoEngineKind : uint8_t { kAuto, kUring, kPosix };

// Makes the engine of that kind; kAuto takes io_uring if it works and threads if not, which
// `announce` (may be empty) is told once. "Works" means: O_DIRECT writes and reads of a nameless
// file in `folder`, with registered and plain buffers, gave the same bytes back. kPosix probes the
// same way. Errors: InvalidArgument (queue_depth), Unimplemented (kUring does not work here: the
// cause is named), the errno's status if the folder takes no file.
absl::StatusOr<std::unique_ptr<IoEngine>> MakeIoEngine(IoEngineKind kind, IoEngineOptions options,
                                                       const std::string& folder,
                                                       const Announce& announce = {});

}  // namespace spillway::io

#endif  // SPILLWAY_IO_MAKE_IO_ENGINE_H_
