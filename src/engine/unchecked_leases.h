// SPDX-License-Identifier: Apache-2.0
//
// Leases of bytes that nobody has compared with their checksums yet, for whoever computes these
// while the bytes pass through its caches: the update (src/optim/hashed_lease.h), and nobody else.
// All other leases are of bytes that were compared.

#ifndef SPILLWAY_ENGINE_UNCHECKED_LEASES_H_
#define SPILLWAY_ENGINE_UNCHECKED_LEASES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"

namespace spillway::engine {

// Thread-safe. The engine of Engine::Open is one of these.
//
// Checksums are io::Checksum of each of the tile's pages: of Engine::page_bytes(), the last one
// shorter.
class UncheckedLeases {
 public:
  virtual ~UncheckedLeases() = default;

  // As Engine::AcquireHost. `checksums`: what the pages must have before any of their bytes is
  // used; empty: there is nothing to compare. With some, a writer that could not compare all pages
  // ends with GiveUp, and a reader that has compared them calls SetChecked.
  virtual absl::StatusOr<Lease> AcquireUnchecked(TileRef tile, Access access,
                                                 std::vector<uint64_t>* checksums) = 0;
  // A page does not have its checksum: its bytes come from the device once more. DataLoss, naming
  // page, file and offset, if they still are not those that were written.
  virtual absl::Status ReadAgain(const Lease& lease, uint64_t page, uint64_t checksum) = 0;
  // All pages have their checksums.
  virtual void SetChecked(const Lease& lease) = 0;
  // The end of a writer's lease, with the checksums of all pages as it leaves them.
  virtual void Release(Lease lease, std::vector<uint64_t> checksums) = 0;
  // The end of a writer's lease whose pages do not all have their checksums. What it wrote is lost:
  // the tile is what NVMe has.
  virtual void GiveUp(Lease lease) = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_UNCHECKED_LEASES_H_
