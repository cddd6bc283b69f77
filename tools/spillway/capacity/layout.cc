// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/capacity/layout.h"

namespace spillway::capacity {

LayoutTotals Layout::Totals(bool transient) const {
  LayoutTotals totals;
  for (const TensorSpec& spec : specs_) {
    if (spec.transient != transient) continue;
    const uint64_t last_tile = spec.num_tiles() - 1;
    ++totals.tensors;
    totals.bytes += spec.size_bytes();
    totals.pages += last_tile * PagesPerTile(spec) + PagesOf(spec.tile_bytes(last_tile));
  }
  return totals;
}

}  // namespace spillway::capacity
