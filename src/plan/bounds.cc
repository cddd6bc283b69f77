// SPDX-License-Identifier: Apache-2.0

#include "src/plan/bounds.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/plan/keeping.h"
#include "src/plan/prices.h"
#include "src/plan/uses.h"

namespace spillway::plan {
namespace {

// A sum that does not run over: budgets may be kUnlimited.
uint64_t Both(uint64_t a, uint64_t b) { return a > kUnlimited - b ? kUnlimited : a + b; }

uint64_t Bound(const Keeping& keeping, uint64_t capacity) {
  constexpr uint32_t kPricedTimes = 64;
  const double bytes = FindPrices(keeping, capacity, kPricedTimes).bound_bytes;
  // What is rounded away is larger than the error of the sums.
  return static_cast<uint64_t>(std::max(0.0, std::floor(bytes * (1 - 1e-12))));
}

// As if transfers in the other direction were free.
Keeping ReadsOnly(Keeping keeping) {
  for (Use& use : keeping.uses) use.dirties = use.dirty = use.forced_write = false;
  keeping.Finish();
  return keeping;
}
Keeping WritesOnly(Keeping keeping) {
  for (Use& use : keeping.uses) use.needs = use.forced_write = false;
  keeping.Finish();
  return keeping;
}

// --- Seconds ---

// Bytes that a window of events must move beyond what memory can hold at its ends.
struct WindowBytes {
  uint64_t reads = 0;     // NVMe: first uses that need bytes
  uint64_t writes = 0;    // NVMe: written, and not discarded since
  uint64_t copy_ins = 0;  // first uses on the device that need bytes
};

double WindowSeconds(const WindowBytes& window, const PlanOptions& budgets, const Rates& rates) {
  const uint64_t memory = Both(budgets.device_bytes, budgets.pinned_bytes);
  const auto beyond = [](uint64_t bytes, uint64_t room) {
    return bytes > room ? static_cast<double>(bytes - room) : 0.0;
  };
  const double reads = budgets.has_store ? beyond(window.reads, memory) : 0;
  const double writes = budgets.has_store ? beyond(window.writes, memory) : 0;
  return std::max({reads / rates[Link::kRead], writes / rates[Link::kWrite],
                   (reads + writes) / rates.nvme, (reads + writes) / rates.checksum,
                   beyond(window.copy_ins, budgets.device_bytes) / rates[Link::kCopyIn]});
}

// Goes through a window event by event.
class WindowScan {
 public:
  explicit WindowScan(const Trace& trace)
      : trace_(trace),
        touched_(trace.tiles.size(), kNever),
        on_device_(trace.tiles.size(), kNever),
        written_(trace.tiles.size(), kNever) {}

  void Begin(uint32_t window) {
    window_ = window;
    bytes_ = {};
  }
  void Pass(const TraceEvent& event) {
    const uint64_t size = trace_.tiles[event.tile].size_bytes;
    uint32_t& touched = touched_[event.tile];
    uint32_t& on_device = on_device_[event.tile];
    uint32_t& written = written_[event.tile];
    if (event.kind == TraceEvent::Kind::kDiscard) {
      if (written == window_) bytes_.writes -= size;
      written = kNever;
      touched = on_device = window_;  // zeros from here on
    } else if (event.kind == TraceEvent::Kind::kAcquire) {
      const bool needs = event.access != Access::kDiscard;
      if (touched != window_ && needs) bytes_.reads += size;
      if (event.tier == Tier::kDevice && on_device != window_) {
        if (needs) bytes_.copy_ins += size;
        on_device = window_;
      }
      touched = window_;
      if (!Writes(event.access)) return;
      if (written != window_) bytes_.writes += size;
      written = window_;
    }
  }
  const WindowBytes& bytes() const { return bytes_; }

 private:
  const Trace& trace_;
  uint32_t window_ = 0;
  std::vector<uint32_t> touched_, on_device_, written_;  // by tile: the last window in which
  WindowBytes bytes_;
};

// The best cut of the period into windows, each of which takes its computing or its transfers.
double BestWindows(const Trace& trace, const PlanOptions& budgets, const Rates& rates) {
  const auto num_events = static_cast<uint32_t>(trace.events.size());
  const uint32_t num_cuts =
      std::min(num_events, std::clamp<uint32_t>(100'000'000 / num_events, 4, 64));
  std::vector<double> best(num_cuts + 1, 0);
  WindowScan scan(trace);
  for (uint32_t from = 0; from < num_cuts; ++from) {
    scan.Begin(from);
    double compute = 0;
    uint32_t cut = from + 1;
    for (uint32_t e = static_cast<uint64_t>(num_events) * from / num_cuts; cut <= num_cuts; ++e) {
      const uint32_t end =
          static_cast<uint32_t>(static_cast<uint64_t>(num_events) * cut / num_cuts);
      if (e == end) {
        const double seconds = std::max(compute, WindowSeconds(scan.bytes(), budgets, rates));
        best[cut] = std::max(best[cut], best[from] + seconds);
        if (cut++ == num_cuts) break;
      }
      compute += trace.events[e].seconds_before;
      scan.Pass(trace.events[e]);
    }
  }
  return best[num_cuts];
}

}  // namespace

BytesBound BoundBytes(const Trace& trace, const PlanOptions& budgets) {
  const EventsByTile events(trace);
  BytesBound bound;
  const Keeping device = DeviceUses(trace, events, 1, /*zeros_are_free=*/true);
  bound.device = Bound(device, budgets.device_bytes);
  if (!budgets.has_store) return bound;
  const Keeping pooled = PooledUses(trace, events);
  const uint64_t memory = Both(budgets.device_bytes, budgets.pinned_bytes);
  bound.nvme_read = Bound(ReadsOnly(pooled), memory);
  bound.nvme_written = Bound(WritesOnly(pooled), memory);
  bound.nvme = std::max(Bound(pooled, memory), bound.nvme_read + bound.nvme_written);
  return bound;
}

double BoundSeconds(const Trace& trace, const PlanOptions& budgets, const BytesBound& bytes,
                    const Rates& rates) {
  const auto nvme = static_cast<double>(bytes.nvme);
  const double copies = rates[Link::kCopyIn] + rates[Link::kCopyOut];
  return std::max({BestWindows(trace, budgets, rates),
                   static_cast<double>(bytes.nvme_read) / rates[Link::kRead],
                   static_cast<double>(bytes.nvme_written) / rates[Link::kWrite], nvme / rates.nvme,
                   nvme / rates.checksum, static_cast<double>(bytes.device) / copies});
}

}  // namespace spillway::plan
