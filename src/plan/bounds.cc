// SPDX-License-Identifier: Apache-2.0

#include "src/plan/bounds.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/plan/prices.h"
#include "src/plan/retention.h"
#include "src/plan/uses.h"

namespace spillway::plan {
namespace {

// Adds without overflow: budgets may be kUnlimited.
uint64_t Both(uint64_t a, uint64_t b) { return a > kUnlimited - b ? kUnlimited : a + b; }

uint64_t Bound(const Retention& retention, uint64_t capacity, uint32_t most_times) {
  const double bytes = LeastBytes(retention, capacity, most_times);
  // Rounding down removes more than the error of the sums, so the bound stays valid.
  return static_cast<uint64_t>(std::max(0.0, std::floor(bytes * (1 - 1e-12))));
}

// Returns the uses as if the transfers that `what` (needs or dirties) causes were free.
Retention Without(Retention retention, bool Use::* what) {
  for (Use& use : retention.uses) use.*what = use.forced_write = false;
  retention.Finish();
  return retention;
}

// --- Seconds ---

// Returns the number of parts of a period; a long period has fewer.
uint32_t NumParts(size_t all_events) {
  const auto num_events = static_cast<uint32_t>(all_events);
  if (num_events == 0) return 0;
  return std::min(num_events, std::clamp<uint32_t>(100'000'000 / num_events, 4, 64));
}

// Returns the index of a part's first event. For the part after the last, this is the number of
// events.
size_t PartBegin(size_t num_events, uint32_t part, uint32_t num_parts) {
  return num_events * part / num_parts;
}

// Scans a window event by event.
class WindowScan {
 public:
  explicit WindowScan(const Trace& trace)
      : trace_(trace),
        is_zero_before_(IsZeroBefore(trace)),
        touched_(trace.tiles.size(), kNever),
        on_device_(trace.tiles.size(), kNever),
        written_(trace.tiles.size(), kNever) {}

  // Adds an event to the bytes that a window needs at its start and leaves at its end.
  void Pass(size_t index, uint32_t window, SecondsBound::Window* bytes) {
    const TraceEvent& event = trace_.events[index];
    const uint64_t size = trace_.tiles[event.tile].size_bytes;
    uint32_t& touched = touched_[event.tile];
    uint32_t& on_device = on_device_[event.tile];
    uint32_t& written = written_[event.tile];
    if (event.kind == TraceEvent::Kind::kDiscard) {
      if (written == window) bytes->writes -= size;
      written = kNever;
    } else if (event.kind == TraceEvent::Kind::kAcquire) {
      const bool needs = event.access != Access::kDiscard && !is_zero_before_[index];
      if (touched != window && needs) bytes->reads += size;
      if (event.tier == Tier::kDevice && on_device != window) {
        if (needs) bytes->copy_ins += size;
        on_device = window;
      }
      touched = window;
      if (!Writes(event.access)) return;
      if (written != window) bytes->writes += size;
      written = window;
    }
  }

 private:
  const Trace& trace_;
  const std::vector<bool> is_zero_before_;
  // By tile: the last window that leased it, leased it on the device, or wrote it.
  std::vector<uint32_t> touched_, on_device_, written_;
};

}  // namespace

BytesBound BoundBytes(const Trace& trace, const PlanOptions& budgets, uint32_t most_times) {
  const EventsByTile events(trace);
  BytesBound bound;
  const Retention device = DeviceUses(trace, events, 1, /*zeros_are_free=*/true);
  bound.device = Bound(device, budgets.device_bytes, most_times);
  if (!budgets.has_store) return bound;
  const Retention pooled = PooledUses(trace, events);
  const uint64_t memory = Both(budgets.device_bytes, budgets.pinned_bytes);
  bound.nvme_read = Bound(Without(pooled, &Use::dirties), memory, most_times);
  bound.nvme_written = Bound(Without(pooled, &Use::needs), memory, most_times);
  bound.nvme = std::max(Bound(pooled, memory, most_times), bound.nvme_read + bound.nvme_written);
  return bound;
}

SecondsBound::SecondsBound(const Trace& trace, const PlanOptions& budgets, const BytesBound& bytes)
    : bytes_(bytes), num_parts_(NumParts(trace.events.size())), windows_(num_parts_ * num_parts_) {
  const uint64_t memory = Both(budgets.device_bytes, budgets.pinned_bytes);
  const auto beyond = [](uint64_t size, uint64_t room) { return size > room ? size - room : 0; };
  WindowScan scan(trace);
  for (uint32_t first = 0; first < num_parts_; ++first) {
    Window uses;  // what the window's events need and leave
    for (uint32_t last = first; last < num_parts_; ++last) {
      const size_t end = PartBegin(trace.events.size(), last + 1, num_parts_);
      for (size_t event = PartBegin(trace.events.size(), last, num_parts_); event < end; ++event)
        scan.Pass(event, first, &uses);
      Window& window = windows_[first * num_parts_ + last];
      window.copy_ins = beyond(uses.copy_ins, budgets.device_bytes);
      if (!budgets.has_store) continue;
      window.reads = beyond(uses.reads, memory);
      window.writes = beyond(uses.writes, memory);
    }
  }
}

std::vector<double> SecondsBound::Computing(const EventLog& events) {
  const uint32_t num_parts = NumParts(events.size());
  std::vector<double> computing(num_parts);
  for (uint32_t part = 0; part < num_parts; ++part) {
    const size_t end = PartBegin(events.size(), part + 1, num_parts);
    for (size_t event = PartBegin(events.size(), part, num_parts); event < end; ++event)
      computing[part] += events[event].seconds_before;
  }
  return computing;
}

double SecondsBound::Seconds(const Window& window, const Rates& rates) {
  const auto reads = static_cast<double>(window.reads);
  const auto writes = static_cast<double>(window.writes);
  return std::max({reads / rates[Transfer::kRead], writes / rates[Transfer::kWrite],
                   (reads + writes) / rates.nvme, (reads + writes) / rates.checksum,
                   static_cast<double>(window.copy_ins) / rates[Transfer::kCopyIn]});
}

double SecondsBound::Transfers(const Rates& rates) const {
  const auto nvme = static_cast<double>(bytes_.nvme);
  const double copies = rates[Transfer::kCopyIn] + rates[Transfer::kCopyOut];
  return std::max({static_cast<double>(bytes_.nvme_read) / rates[Transfer::kRead],
                   static_cast<double>(bytes_.nvme_written) / rates[Transfer::kWrite],
                   nvme / rates.nvme, nvme / rates.checksum,
                   static_cast<double>(bytes_.device) / copies});
}

// Finds the cut of the period into windows that gives the largest bound, by dynamic programming. A
// window takes the longer of its computing and its transfers.
double SecondsBound::Seconds(std::span<const double> computing, const Rates& rates) const {
  std::vector<double> best(num_parts_ + 1, 0);  // by part: the best of all parts before it
  for (uint32_t first = 0; first < num_parts_; ++first) {
    double window_computing = 0;
    for (uint32_t last = first; last < num_parts_; ++last) {
      window_computing += computing[last];
      const Window& window = windows_[first * num_parts_ + last];
      const double seconds = std::max(window_computing, Seconds(window, rates));
      best[last + 1] = std::max(best[last + 1], best[first] + seconds);
    }
  }
  return std::max(best[num_parts_], Transfers(rates));
}

}  // namespace spillway::plan
