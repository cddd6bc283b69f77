// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/capacity/layout.h"

namespace spillway::capacity {

LayoutTotals Layout::Totals(bool transient) const {
  LayoutTotals totals;
  for (uint32_t tensor = 0; tensor < specs_.size(); ++tensor) {
    if (specs_[tensor].transient != transient) continue;
    ++totals.tensors;
    totals.bytes += specs_[tensor].size_bytes();
    ForEachPage(tensor, [&totals](const LaidPage&) {
      ++totals.pages;
      return true;
    });
  }
  return totals;
}

}  // namespace spillway::capacity
