// SPDX-License-Identifier: Apache-2.0
//
// A model's weights out of a store, at a snapshot or at the last commit, as a Hugging Face folder.

#ifndef SPILLWAY_TOOLS_SPILLWAY_STORE_SNAPSHOT_EXPORT_H_
#define SPILLWAY_TOOLS_SPILLWAY_STORE_SNAPSHOT_EXPORT_H_

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace spillway::command {

struct ExportRequest {
  std::vector<std::string> store;
  std::string label;  // empty: the last commit
  std::string save;   // the folder to write
  std::string model;  // folder with the tokenizer's files; empty: they are left out
};

// Changes nothing in the store. NotFound: the label. FailedPrecondition: the commit is not a
// trainer's, or another process has the store and the last commit is wanted, which may go while it
// is read. DataLoss names tensor, page, file and offset. Cancelled: `stop` became true, and nothing
// is left behind.
absl::Status ExportFromStore(const ExportRequest& request, const std::atomic<bool>& stop);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_STORE_SNAPSHOT_EXPORT_H_
