// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/store/opened_store.h"

#include <cstdio>
#include <string_view>

#include "absl/strings/str_format.h"
#include "io/posix_io_engine.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/exit_code.h"

namespace spillway::command {

namespace {

template <typename T>
absl::StatusOr<T> AsUsage(absl::StatusOr<T> opened) {
  if (!absl::IsInvalidArgument(opened.status())) return opened;
  return WithExitCode(opened.status(), ExitCode::kUsage);
}

}  // namespace

absl::StatusOr<std::unique_ptr<io::StoreView>> OpenView(const std::vector<std::string>& folders,
                                                        io::StoreView::Wanted wanted) {
  SPILLWAY_ASSIGN_OR_RETURN(auto view, AsUsage(io::StoreView::Open(folders, wanted)));
  for (const io::StoreFolder& folder : view->folders()) {
    if (folder.is_there()) continue;
    absl::FPrintF(stderr, "note: %s is not there, or cannot be read: what lies in it is lost\n",
                  folder.path());
  }
  return view;
}

absl::StatusOr<std::unique_ptr<OpenedStore>> OpenedStore::Open(
    const std::vector<std::string>& folders, LostFiles lost_files) {
  // The store only adds its files to the engine. Nothing is read or written through it.
  SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<io::IoEngine> io, io::PosixIoEngine::Create({}));
  io::StoreOptions options{.folders = folders, .create = false, .when_full = true};
  if (lost_files == LostFiles::kAnnounced) {
    options.on_lost_file = [](std::string_view what) { absl::FPrintF(stderr, "note: %s\n", what); };
  }
  SPILLWAY_ASSIGN_OR_RETURN(auto store, AsUsage(io::Store::Open(options, io.get())));
  return std::unique_ptr<OpenedStore>(new OpenedStore(std::move(io), std::move(store)));
}

}  // namespace spillway::command
