// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_TESTS_ENGINE_PAGER_OPTIONS_H_
#define SPILLWAY_TESTS_ENGINE_PAGER_OPTIONS_H_

#include <cstdint>
#include <string>

#include "src/engine/pager/page_table.h"

namespace spillway::engine {

// Returns the options of a pager over a store.
inline PagerOptions WithStore(uint64_t device_bytes, uint64_t pinned_bytes) {
  PagerOptions options;
  options.device_bytes = device_bytes;
  options.pinned_bytes = pinned_bytes;
  options.has_store = true;
  options.describe = [](TileIndex tile) { return "tile " + std::to_string(tile); };
  return options;
}

}  // namespace spillway::engine

#endif  // SPILLWAY_TESTS_ENGINE_PAGER_OPTIONS_H_
