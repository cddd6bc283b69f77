// SPDX-License-Identifier: Apache-2.0
//
// The fuzz targets for the files of a store. Each target takes `bytes` as the content of a file, or
// as changes of it, and reads the result as a store does. Nothing may abort, loop or read beyond
// its memory, and an accepted file must satisfy what its reader promises. The unit suite runs the
// same targets with seeded mutations.

#ifndef SPILLWAY_TESTS_IO_STORE_FUZZ_STORE_FUZZ_TARGETS_H_
#define SPILLWAY_TESTS_IO_STORE_FUZZ_STORE_FUZZ_TARGETS_H_

#include <string_view>

namespace spillway::io {

// Each target returns whether it accepted the bytes.

// The file spillway-store.
bool FuzzIdentity(std::string_view bytes);
// The file spillway-commit.
bool FuzzWitness(std::string_view bytes);
// The column `runs` of free_space.
bool FuzzRuns(std::string_view bytes);
// Changes of a valid catalog's bytes, five bytes for each: the offset (little-endian, modulo the
// file's size), and the new byte. The pages' seals are recomputed, so that the changes reach the
// checks of SQLite and of the store's own rules. The store is opened, read to the end, written to
// and trimmed.
bool FuzzCatalog(std::string_view bytes);
// The same changes in the log beside a catalog, as a crash leaves it. No checksum is recomputed.
bool FuzzLog(std::string_view bytes);

}  // namespace spillway::io

#endif  // SPILLWAY_TESTS_IO_STORE_FUZZ_STORE_FUZZ_TARGETS_H_
