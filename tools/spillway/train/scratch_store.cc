// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/train/scratch_store.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/store/folder_identity.h"
#include "io/store/store_folder.h"
#include "tools/spillway/command/interrupt.h"

namespace spillway::command {
namespace {

using io::StoreFolder;

bool HasScratchStore(const std::string& path) {
  const absl::StatusOr<StoreFolder> folder = StoreFolder::Open(path, StoreFolder::Mode::kExisting);
  if (!folder.ok()) return false;
  const absl::StatusOr<std::optional<io::FolderIdentity>> identity = folder->ReadIdentity();
  return identity.ok() && identity->has_value() && (*identity)->scratch;
}

}  // namespace

void NameScratchStoreOnSecondInterrupt(const std::vector<std::string>& store) {
  TidyOnSecondInterrupt([store] {
    if (!std::ranges::any_of(store, HasScratchStore)) return;
    const std::string names = absl::StrJoin(store, ",");
    absl::FPrintF(stderr,
                  "spillway: the scratch store in %s may be left; 'spillway remove %s --yes' "
                  "removes it\n",
                  names, names);
  });
}

}  // namespace spillway::command
