// SPDX-License-Identifier: Apache-2.0
//
// Opens an existing store for a command that inspects or changes it. It is a usage error if the
// folders are not those of one store, in its order.

#ifndef SPILLWAY_TOOLS_SPILLWAY_STORE_OPENED_STORE_H_
#define SPILLWAY_TOOLS_SPILLWAY_STORE_OPENED_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "io/io_engine.h"
#include "io/store/store.h"
#include "io/store/store_view.h"

namespace spillway::command {

absl::StatusOr<std::unique_ptr<io::StoreView>> OpenView(const std::vector<std::string>& folders,
                                                        io::StoreView::Wanted wanted);

// What to do about a segment file that is missing: refuse the store, or open it without the file
// and say so (io::StoreOptions::on_lost_file).
enum class LostFiles : uint8_t { kRefused, kAnnounced };

class OpenedStore {
 public:
  // NotFound if there is no store. FailedPrecondition, naming the holder, if another process has
  // it.
  static absl::StatusOr<std::unique_ptr<OpenedStore>> Open(const std::vector<std::string>& folders,
                                                           LostFiles lost_files);
  io::Store& store() { return *store_; }

 private:
  OpenedStore(std::unique_ptr<io::IoEngine> io, std::unique_ptr<io::Store> store)
      : io_(std::move(io)), store_(std::move(store)) {}

  std::unique_ptr<io::IoEngine> io_;  // must outlive the store
  std::unique_ptr<io::Store> store_;
};

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_STORE_OPENED_STORE_H_
