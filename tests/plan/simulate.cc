// SPDX-License-Identifier: Apache-2.0
//
// Simulates a period in one pass in the plan's order. Everything that an operation waits for comes
// before it in that order, so its start time is known when the pass reaches it.

#include "tests/plan/simulate.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "src/plan/range_map.h"
#include "src/plan/rates.h"

namespace spillway::plan {
namespace {

constexpr int kNumPeriods = 4;
constexpr uint64_t kNoCopy = ~uint64_t{0};
constexpr double kTaken = std::numeric_limits<double>::infinity();  // a range is never free

// A tile's copies, and the version of the bytes that each holds.
struct TileState {
  uint64_t newest = 0;  // the newest version; counts writers and discards
  bool zero = false;    // the tile has no bytes and reads as zeros
  bool stored = false;  // NVMe has the newest bytes
  std::array<uint64_t, 2> offset = {kNoCopy, kNoCopy};
  std::array<uint64_t, 2> version = {0, 0};
  std::array<int, 2> leases = {0, 0};
  double idle_at = 0;  // when its last operation ends
  std::array<double, 2> ready_at = {0, 0};
  double let_go_at = 0;  // time of the last discard or end of a lease
};

class Simulation {
 public:
  Simulation(const Trace& trace, const Plan& plan)
      : trace_(trace), plan_(plan), tiles_(trace.tiles.size()) {
    for (size_t i = 0; i < tiles_.size(); ++i) {
      tiles_[i].stored = trace.tiles[i].stored;
      tiles_[i].zero = !trace.tiles[i].stored;
    }
    op_end_.resize(plan.ops.size());
    last_op_end_.resize(plan.ops.size());
    event_end_.resize(trace.events.size());
    last_event_end_.resize(trace.events.size());
  }

  absl::StatusOr<SimulatedStep> Run() {
    SPILLWAY_RETURN_IF_ERROR(BeginAtSeam());
    for (int period = 0; period < kNumPeriods; ++period) {
      SPILLWAY_RETURN_IF_ERROR(CheckSeam());
      step_ = {};
      const double begin = now_;
      SPILLWAY_RETURN_IF_ERROR(Period());
      step_.seconds = now_ - begin;
      last_op_end_.swap(op_end_);
      last_event_end_.swap(event_end_);
    }
    SPILLWAY_RETURN_IF_ERROR(CheckSeam());
    return step_;
  }

 private:
  uint64_t BudgetOf(size_t tier) const {
    return tier == 0 ? plan_.options.device_bytes : plan_.options.pinned_bytes;
  }

  // Places the copies that the plan has in memory between two periods.
  absl::Status BeginAtSeam() {
    for (const Place& place : plan_.seam) {
      const size_t tier = place.tier == Tier::kDevice ? 0 : 1;
      if (const char* wrong = TakeFrame(place.tile, tier, place.offset, /*now=*/0))
        return absl::InternalError(absl::StrCat("tile ", place.tile, " at the seam: ", wrong));
    }
    return absl::OkStatus();
  }

  // Gives the tile a frame. Returns what is wrong with it, or null.
  const char* TakeFrame(TileIndex tile, size_t tier, uint64_t offset, double now) {
    const uint64_t end = offset + trace_.tiles[tile].size_bytes;
    if (end > BudgetOf(tier)) return "its frame is beyond the budget";
    if (tiles_[tile].offset[tier] != kNoCopy) return "the tile is there already";
    const double free_since = FreeSince(tier, offset, end);
    if (free_since == kTaken) return "its frame is taken";
    if (free_since > now) return "it starts before its frame is free";
    free_since_[tier].Set(offset, end, kTaken);
    tiles_[tile].offset[tier] = offset;
    return nullptr;
  }

  // Returns since when a range is free; kTaken if a tile lies in it.
  double FreeSince(size_t tier, uint64_t begin, uint64_t end) const {
    double since = 0;
    free_since_[tier].ForRange(begin, end, [&](double at) { since = std::max(since, at); });
    return since;
  }

  absl::Status Period() {
    size_t op = 0;
    for (uint32_t e = 0; e < trace_.events.size(); ++e) {
      SPILLWAY_RETURN_IF_ERROR(OpsUntil(AtEvent(e), &op));
      SPILLWAY_RETURN_IF_ERROR(Happen(e));
    }
    return OpsUntil(kNever, &op);
  }

  absl::Status OpsUntil(uint32_t position, size_t* next) {
    for (; *next < plan_.ops.size() && plan_.ops[*next].position < position; ++*next) {
      const Op& op = plan_.ops[*next];
      double start = 0;
      if (op.after != kNever) {
        start = (op.after & kPeriodBefore) != 0 ? last_event_end_[op.after & ~kPeriodBefore]
                                                : event_end_[op.after];
      }
      for (const uint32_t wait : plan_.WaitsOf(*next)) {
        start = std::max(start, (wait & kPeriodBefore) != 0 ? last_op_end_[wait & ~kPeriodBefore]
                                                            : op_end_[wait]);
      }
      SPILLWAY_RETURN_IF_ERROR(Carry(*next, start));
      op_end_[*next] = tiles_[op.tile].idle_at;
    }
    return absl::OkStatus();
  }

  // --- Operations ---

  absl::Status Carry(size_t index, double start) {
    const Op& op = plan_.ops[index];
    TileState& tile = tiles_[op.tile];
    const auto wrong = [&](const char* what) {
      return absl::InternalError(absl::StrCat("operation ", index, " (kind ",
                                              static_cast<int>(op.kind), ") of tile ", op.tile,
                                              ": ", what));
    };
    start = std::max(start, tile.idle_at);
    if (start < tile.let_go_at) return wrong("it starts before the tile is let go");
    const size_t to = op.tier == Tier::kDevice ? 0 : 1;
    const uint64_t bytes = trace_.tiles[op.tile].size_bytes;
    if (op.kind == Transfer::kDrop) {
      if (tile.offset[to] != op.offset) return wrong("it drops what is not there");
      if (tile.leases[to] > 0) return wrong("it drops what is leased");
      const bool is_newest = tile.version[to] == tile.newest && !tile.zero;
      const bool elsewhere = tile.stored || HasNewest(tile, 1 - to);
      if (is_newest && !elsewhere) return wrong("it loses the newest bytes");
      free_since_[to].Set(op.offset, op.offset + bytes, start);
      tile.offset[to] = kNoCopy;
      tile.idle_at = start;
      return absl::OkStatus();
    }
    if (op.kind != Transfer::kWrite) {
      if (const char* what = TakeFrame(op.tile, to, op.offset, start)) return wrong(what);
    }
    switch (op.kind) {
      case Transfer::kRead:
        if (!tile.stored && !tile.zero) return wrong("NVMe has not the newest bytes");
        break;
      case Transfer::kWrite:
        if (tile.offset[1] != op.offset) return wrong("it writes what is not there");
        if (!HasNewest(tile, 1)) return wrong("it writes stale bytes");
        tile.stored = !tile.zero;
        break;
      case Transfer::kCopyIn:
        if (!HasNewest(tile, 1)) return wrong("pinned memory has not the newest bytes");
        break;
      case Transfer::kCopyOut:
        if (!HasNewest(tile, 0)) return wrong("the device has not the newest bytes");
        break;
      case Transfer::kZero:
        if (!tile.zero) return wrong("it zeroes a tile that has bytes");
        break;
      default: break;
    }
    if (op.kind != Transfer::kWrite) tile.version[to] = tile.newest;
    if (op.kind == Transfer::kTake) tile.version[to] = kNoCopy;  // no bytes yet
    tile.idle_at = HasLink(op.kind) ? Move(op.kind, bytes, start) : start;
    if (op.kind != Transfer::kWrite) tile.ready_at[to] = tile.idle_at;
    return absl::OkStatus();
  }

  bool HasNewest(const TileState& tile, size_t tier) const {
    return tile.offset[tier] != kNoCopy && tile.version[tier] == tile.newest;
  }

  // Returns when the transfer ends. NVMe's links share the device and the thread that hashes.
  double Move(Transfer link, uint64_t bytes, double start) {
    const auto size = static_cast<double>(bytes);
    double& free_at = link_free_[static_cast<size_t>(link)];
    start = std::max(start, free_at);
    double end = start + size / rates_[link];
    free_at = end;
    if (link == Transfer::kRead || link == Transfer::kWrite) {
      device_busy_ = std::max(device_busy_, start) + size / rates_.nvme;
      hashed_ = std::max(hashed_, start) + size / rates_.checksum;
      end = std::max({end, device_busy_, hashed_});
    }
    step_.bytes[link] += bytes;
    return end;
  }

  // --- Events ---

  absl::Status Happen(uint32_t index) {
    const TraceEvent& event = trace_.events[index];
    TileState& tile = tiles_[event.tile];
    const size_t tier = event.tier == Tier::kDevice ? 0 : 1;
    now_ += event.seconds_before;
    const auto wrong = [&](const char* what) {
      return absl::InternalError(
          absl::StrCat("event ", index, " of tile ", event.tile, ": ", what));
    };
    switch (event.kind) {
      case TraceEvent::Kind::kAcquire: {
        if (tile.offset[tier] == kNoCopy) return wrong("the tile is not there");
        now_ = std::max(now_, tile.ready_at[tier]);
        if (event.access != Access::kDiscard && !HasNewest(tile, tier))
          return wrong("the lease finds stale bytes");
        ++tile.leases[tier];
        if (Writes(event.access)) {
          tile.version[tier] = ++tile.newest;
          tile.zero = tile.stored = false;
        }
        break;
      }
      case TraceEvent::Kind::kRelease:
        --tile.leases[tier];
        tile.let_go_at = now_;
        break;
      case TraceEvent::Kind::kDiscard:
        tile.let_go_at = now_;
        ++tile.newest;
        tile.zero = true;
        tile.stored = false;
        break;
    }
    event_end_[index] = now_;
    return absl::OkStatus();
  }

  // Checks that the copies in memory are those of the plan's seam.
  absl::Status CheckSeam() const {
    std::vector<Place> places;
    for (TileIndex i = 0; i < tiles_.size(); ++i) {
      for (size_t tier = 0; tier < 2; ++tier) {
        if (tiles_[i].offset[tier] != kNoCopy)
          places.push_back({i, tier == 0 ? Tier::kDevice : Tier::kPinned, tiles_[i].offset[tier]});
      }
    }
    if (places == plan_.seam) return absl::OkStatus();
    return absl::InternalError("what is in memory at the seam is not what the plan says");
  }

  const Trace& trace_;
  const Plan& plan_;
  const Rates rates_;
  std::vector<TileState> tiles_;
  std::array<RangeMap<double>, 2> free_since_;  // by byte of an arena; kTaken: a tile lies there
  std::vector<double> op_end_, last_op_end_;    // by op; of this period and the one before
  std::vector<double> event_end_, last_event_end_;  // by event; of this period and the one before
  std::array<double, kNumLinks> link_free_ = {};
  double device_busy_ = 0, hashed_ = 0;
  double now_ = 0;
  SimulatedStep step_;
};

}  // namespace

absl::StatusOr<SimulatedStep> Simulate(const Trace& trace, const Plan& plan) {
  return Simulation(trace, plan).Run();
}

}  // namespace spillway::plan
