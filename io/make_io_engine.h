// SPDX-License-Identifier: Apache-2.0
//
// Chooses the IoEngine for a machine by a probe transfer. io_uring may be absent or forbidden, or
// its set-up may succeed and the first transfer fail, so only a transfer shows whether it works.

#ifndef SPILLWAY_IO_MAKE_IO_ENGINE_H_
#define SPILLWAY_IO_MAKE_IO_ENGINE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/direct_file.h"
#include "io/io_engine.h"
#include "io/io_engine_options.h"
#include "spillway/engine.h"

namespace spillway::io {

// Makes the engine of that kind. kAuto makes the io_uring engine if it works, and otherwise the
// engine on threads; it then calls `announce` (may be empty) once. An engine works if it writes to
// a nameless file in `folder`, with O_DIRECT if the file system supports it, and reads the same
// bytes back into a registered and an unregistered buffer. kPosix is probed the same way. Errors:
// InvalidArgument for queue_depth; Unimplemented if kUring does not work here, with the cause; the
// errno's status if no file can be made in the folder.
absl::StatusOr<std::unique_ptr<IoEngine>> MakeIoEngine(IoKind kind, IoEngineOptions options,
                                                       const std::string& folder,
                                                       const Announce& announce = {});

}  // namespace spillway::io

#endif  // SPILLWAY_IO_MAKE_IO_ENGINE_H_
