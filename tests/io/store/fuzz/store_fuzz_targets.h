// SPDX-License-Identifier: Apache-2.0
//
// What a fuzzer calls for the files of a store: each target takes `bytes` for (a change of) one of
// them and reads what comes of it, as a store does. That nothing aborts, loops or reads beyond its
// memory is the test; an accepted file must keep what its reader promises. The unit suite drives
// the same targets with seeded mutations.

#ifndef SPILLWAY_TESTS_IO_STORE_FUZZ_STORE_FUZZ_TARGETS_H_
#define SPILLWAY_TESTS_IO_STORE_FUZZ_STORE_FUZZ_TARGETS_H_

#include <string_view>

namespace spillway::io {

// Each returns whether the bytes were accepted.

// The file spillway-store.
bool FuzzIdentity(std::string_view bytes);
// The file spillway-commit.
bool FuzzWitness(std::string_view bytes);
// The column `runs` of free_space.
bool FuzzRuns(std::string_view bytes);
// Bytes of a good catalog that are changed, five for each: where (little-endian, modulo the file's
// size), and what is put there. The pages' seals are made right again: what SQLite, and what the
// store's own rules, let through is what is tried. The store is opened, read to the end, written to
// and trimmed.
bool FuzzCatalog(std::string_view bytes);
// The same changes in the log beside a catalog, as a crash leaves it; nothing is made right.
bool FuzzLog(std::string_view bytes);

}  // namespace spillway::io

#endif  // SPILLWAY_TESTS_IO_STORE_FUZZ_STORE_FUZZ_TARGETS_H_
