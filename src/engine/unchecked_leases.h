// SPDX-License-Identifier: Apache-2.0
//
// Leases of bytes that have not been compared with their checksums yet. They are for the optimizer
// update alone (src/optim/hashed_lease.h), which computes the checksums while the bytes pass
// through its caches. All other leases are of bytes that were compared.

#ifndef SPILLWAY_ENGINE_UNCHECKED_LEASES_H_
#define SPILLWAY_ENGINE_UNCHECKED_LEASES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"

namespace spillway::engine {

// Thread-safe. The engine that Engine::Open returns implements this interface.
//
// Checksums are io::Checksum of each of the tile's pages. Pages have Engine::page_bytes() bytes;
// the last one may be shorter.
class UncheckedLeases {
 public:
  virtual ~UncheckedLeases() = default;

  // Like Engine::AcquireHost. Sets `checksums` to those that the pages must have before any of
  // their bytes is used, or empties it if there is nothing to compare. If it is not empty, a writer
  // that could not compare all pages ends its lease with GiveUp, and a reader that has compared
  // them calls SetChecked.
  virtual absl::StatusOr<Lease> AcquireUnchecked(TileRef tile, Access access,
                                                 std::vector<uint64_t>* checksums) = 0;
  // Reads a page that does not match its checksum from NVMe again. DataLoss, naming page, file and
  // offset, if the bytes still are not those that were written.
  virtual absl::Status ReadAgain(const Lease& lease, uint64_t page, uint64_t checksum) = 0;
  // Records that all pages match their checksums.
  virtual void SetChecked(const Lease& lease) = 0;
  // Ends a writer's lease. `checksums` are those of all pages as the writer leaves them.
  virtual void Release(Lease lease, std::vector<uint64_t> checksums) = 0;
  // Ends a writer's lease whose pages were not all found to match their checksums. What it wrote is
  // lost: the tile has the bytes of its copy on NVMe.
  virtual void GiveUp(Lease lease) = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_UNCHECKED_LEASES_H_
