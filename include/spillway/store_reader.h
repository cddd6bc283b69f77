// SPDX-License-Identifier: Apache-2.0
//
// Reads what the snapshots of a store hold, without an engine. The store's files do not change, and
// a process that has the store open may go on with it.

#ifndef SPILLWAY_STORE_READER_H_
#define SPILLWAY_STORE_READER_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/export.h"
#include "spillway/types.h"

namespace spillway {

// A store that is open for reading.
//
//   auto reader = StoreReader::Open({"nvme0/run"});
//   std::vector<std::byte> bytes(size);
//   if (reader.ok()) status = (*reader)->Read("step-400", spec, bytes);
//
// Externally synchronised. While it is open, no process can open the store, except that the one
// that had it goes on. A snapshot must not be dropped while it is read. A process that has the
// store open must not read it so: it has Engine::Restore.
class SPILLWAY_EXPORT StoreReader {
 public:
  // `store`: all folders of the store, in its order. NotFound: there is no store. InvalidArgument:
  // they are not the folders of one store, in its order. DataLoss: the catalog is damaged.
  static absl::StatusOr<std::unique_ptr<StoreReader>> Open(const std::vector<std::string>& store);
  virtual ~StoreReader() = default;

  // 32 hexadecimal digits, as Engine::StoreId.
  virtual const std::string& StoreId() const = 0;
  // The user state of a snapshot's commit. NotFound: there is no such snapshot.
  virtual absl::StatusOr<std::string> UserState(std::string_view label) = 0;
  // Fills `out` with all bytes that a tensor has in a snapshot; pages that were never written are
  // zeros. NotFound: there is no such snapshot, or it does not hold the tensor. InvalidArgument:
  // the tensor has another spec there, or `out` has another size. DataLoss names tensor, page, file
  // and offset.
  virtual absl::Status Read(std::string_view label, const TensorSpec& spec,
                            std::span<std::byte> out) = 0;
};

}  // namespace spillway

#endif  // SPILLWAY_STORE_READER_H_
