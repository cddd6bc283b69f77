// SPDX-License-Identifier: Apache-2.0
//
// Keeps the newest events of a timeline in bounded memory, and knows what is under way: transfers
// that have begun, callers that wait, callers that compute. What they are is decided elsewhere; the
// mover tells it here. A wait is cut where its cause changes (stall.h).
//
// It costs 0.1 µs a lease and 0.7 µs a lease that moves bytes (of 0.3 and 12 µs); without a
// timeline there is one branch at each place.

#ifndef SPILLWAY_ENGINE_TIMELINE_RECORDER_H_
#define SPILLWAY_ENGINE_TIMELINE_RECORDER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "spillway/timeline.h"
#include "src/engine/pager/action.h"

namespace spillway::engine {

// Externally synchronised. Time is given, not read, so that it can be virtual; it never goes back,
// but that a lease may be told late, before its caller does anything else. Callers are told apart
// by their threads.
class TimelineRecorder {
 public:
  // Keeps the newest `max_events`, at least 1.
  TimelineRecorder(uint64_t max_events, int64_t now_ns);

  void BeginTransfer(const Action& action, int64_t now_ns);
  void EndTransfer(TileIndex tile, uint64_t size_bytes, bool ok, int64_t now_ns);

  // A lease was given at once, to a caller of that thread.
  void Grant(TileIndex tile, int64_t now_ns, std::thread::id thread = std::this_thread::get_id());
  // A caller blocks; `stall` says why as far as is known, and Explain when that has changed.
  void BeginWait(Ticket ticket, TileIndex tile, const Stall& stall, int64_t now_ns);
  void Explain(Ticket ticket, const Stall& stall, int64_t now_ns);
  void EndWait(Ticket ticket, int64_t now_ns);
  std::vector<Ticket> Waiting() const;

  // The caller makes a commit; then its bytes are all on NVMe; then it is over, however it ended.
  void BeginCommit(int64_t now_ns);
  void EndFlush(int64_t now_ns);
  void EndCommit(int64_t now_ns);

  // The transfer thread worked.
  void Work(int64_t begin_ns, int64_t end_ns);
  void Occupied(Tier tier, uint64_t size_bytes, int64_t now_ns);

  // Moves the events out, the caller's unfinished time between leases included, and begins anew.
  // Fills events, dropped, begin_ns and end_ns.
  Timeline Take(int64_t now_ns);

 private:
  // Time between two leases that is shorter than this counts with what follows.
  static constexpr int64_t kShortestNs = 10'000;

  struct Caller {
    uint16_t number = 0;
    TileIndex tile = TimelineEvent::kNoTile;  // leased last; kNoTile: it has not computed yet
    int64_t since_ns = 0;
    int64_t commit_ns = 0;
  };
  struct Wait {
    uint16_t caller = 0;
    TileIndex tile = 0;
    Stall stall;
    int64_t since_ns = 0;
  };
  struct Moving {
    Transfer transfer;
    MoveReason reason;
    int64_t since_ns;
  };

  Caller& CallerOf(std::thread::id thread);
  Caller& ThisCaller() { return CallerOf(std::this_thread::get_id()); }
  void EndCompute(Caller& caller, int64_t now_ns);
  void PushStall(const Wait& wait, int64_t now_ns);
  void EndWork();
  void Push(const TimelineEvent& event);

  uint64_t max_events_;
  std::vector<TimelineEvent> events_;  // a ring once it is full
  uint64_t next_ = 0;                  // the ring's oldest
  uint64_t dropped_ = 0;
  int64_t begin_ns_;
  std::map<std::thread::id, Caller> callers_;
  absl::flat_hash_map<Ticket, Wait> waits_;
  absl::flat_hash_map<TileIndex, Moving> moving_;
  // One stream a direction: a copy begins when the one before it has ended.
  int64_t copied_in_ns_ = 0, copied_out_ns_ = 0;
  int64_t work_begin_ns_ = 0, work_end_ns_ = 0;  // not pushed yet, as it may go on
  std::array<uint64_t, kNumTiers> occupied_bytes_{};
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_TIMELINE_RECORDER_H_
