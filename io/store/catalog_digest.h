// SPDX-License-Identifier: Apache-2.0
//
// Hashes of the catalog's rows. Their sum is stored with each commit, so that a check of the store
// finds a row that was changed, lost or added behind the store's back. A page whose row is lost
// would otherwise read as zeros.
//
// One idea: a sum does not depend on order, so a commit updates it only for the rows that it
// changes.

#ifndef SPILLWAY_IO_STORE_CATALOG_DIGEST_H_
#define SPILLWAY_IO_STORE_CATALOG_DIGEST_H_

#include <cstdint>
#include <string_view>

#include "io/store/store.h"

namespace spillway::io {

// io/FORMAT.md defines these hashes.
uint64_t TensorDigest(uint64_t catalog_id, const TensorRecord& tensor);
uint64_t PageDigest(uint64_t catalog_id, uint64_t page, const PageRecord& record);
uint64_t CommitDigest(uint64_t number, uint64_t page_bytes, std::string_view user_state);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_CATALOG_DIGEST_H_
