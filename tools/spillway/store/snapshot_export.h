// SPDX-License-Identifier: Apache-2.0
//
// Exports a model's weights from a store, at a snapshot or at the last commit, as a Hugging Face
// folder.

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

// Exports the weights and changes nothing in the store. NotFound if there is no such snapshot.
// FailedPrecondition if the commit is not a trainer's, or if the last commit is requested while
// another process has the store, because that commit may go while it is read. DataLoss names
// tensor, page, file and offset. Cancelled if `stop` became true; nothing is left behind then.
absl::Status ExportFromStore(const ExportRequest& request, const std::atomic<bool>& stop);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_STORE_SNAPSHOT_EXPORT_H_
