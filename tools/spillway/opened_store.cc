// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/opened_store.h"

#include "io/make_io_engine.h"
#include "io/posix_io_engine.h"
#include "src/base/status_macros.h"

namespace spillway::command {

absl::StatusOr<std::unique_ptr<OpenedStore>> OpenedStore::Open(
    const std::vector<std::string>& folders) {
  // The store names files through it; nothing is read or written.
  SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<io::IoEngine> io, io::PosixIoEngine::Create({}));
  SPILLWAY_ASSIGN_OR_RETURN(auto store,
                            io::Store::Open({.folders = folders, .create = false}, io.get()));
  return std::unique_ptr<OpenedStore>(new OpenedStore(std::move(io), std::move(store)));
}

}  // namespace spillway::command
