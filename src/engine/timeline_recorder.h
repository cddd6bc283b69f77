// SPDX-License-Identifier: Apache-2.0
//
// Keeps the newest events of a timeline in bounded memory, and tracks what is under way: transfers
// that have begun, callers that wait and callers that compute. It decides nothing: the mover
// reports everything. A wait is split where its cause changes (pager_stall.cc).
//
// Recording costs 0.1 µs of the 0.3 µs of a lease, and 0.7 µs of the 12 µs of a lease that moves
// bytes. If no timeline is recorded, there is one branch at each place.

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

// Externally synchronised. Times are arguments, so that they can be virtual. They never go back.
// Callers are identified by their threads: by the thread's id, which a later thread may have again,
// and by its serial number, which is never used again.
class TimelineRecorder {
 public:
  // Keeps the newest `max_events` events. Throws std::bad_alloc if there are no addresses for them.
  // REQUIRES: `max_events` is at least 1.
  TimelineRecorder(uint64_t max_events, int64_t now_ns);

  void BeginTransfer(const Action& action, int64_t now_ns);
  void EndTransfer(TileIndex tile, uint64_t size_bytes, bool ok, int64_t now_ns);

  // Records a lease that was granted at once to the caller on `thread`.
  void Grant(TileIndex tile, int64_t now_ns, std::thread::id thread, uint64_t serial);
  void Grant(TileIndex tile, int64_t now_ns) {
    Grant(tile, now_ns, std::this_thread::get_id(), ThisSerial());
  }
  // Records that a caller blocks. `stall` is the cause as far as it is known; Explain records a
  // change of it.
  void BeginWait(Ticket ticket, TileIndex tile, const Stall& stall, int64_t now_ns);
  void Explain(Ticket ticket, const Stall& stall, int64_t now_ns);
  void EndWait(Ticket ticket, int64_t now_ns);
  std::vector<Ticket> Waiting() const;

  // The caller begins a commit; the commit's bytes are all on NVMe; the commit ends, in success or
  // failure.
  void BeginCommit(int64_t now_ns);
  void EndFlush(int64_t now_ns);
  void EndCommit(int64_t now_ns);

  // Records that the transfer thread worked.
  void Work(int64_t begin_ns, int64_t end_ns);
  void Occupied(Tier tier, uint64_t size_bytes, int64_t now_ns);

  // Returns this thread's serial number. Thread-safe.
  static uint64_t ThisSerial();

  // Returns an empty vector with room for so many events, and for the events that Take adds. Throws
  // as the constructor.
  static std::vector<TimelineEvent> RoomFor(uint64_t max_events);
  // Moves the events out, including the caller's unfinished time between leases, and starts anew in
  // `room`, which RoomFor returned for as many events. Fills events, dropped, begin_ns and end_ns.
  // Besides `max_events` events, there is one for each tier that held bytes when they begin.
  Timeline Take(int64_t now_ns, std::vector<TimelineEvent> room);
  Timeline Take(int64_t now_ns) { return Take(now_ns, RoomFor(max_events_)); }

 private:
  // Time between two leases that is shorter than this is counted with the time that follows.
  static constexpr int64_t kShortestNs = 10'000;

  struct Caller {
    uint16_t number = 0;
    uint64_t serial = 0;                      // of the newest thread with the id
    TileIndex tile = TimelineEvent::kNoTile;  // the tile leased last; kNoTile: none yet
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

  Caller& CallerOf(std::thread::id thread, uint64_t serial);
  Caller& ThisCaller() { return CallerOf(std::this_thread::get_id(), ThisSerial()); }
  void EndCompute(Caller& caller, int64_t now_ns);
  void PushStall(const Wait& wait, int64_t now_ns);
  void EndWork();
  void Push(const TimelineEvent& event);
  void PutFirstLevels();

  uint64_t max_events_;
  std::vector<TimelineEvent> events_;  // a ring once it is full
  uint64_t next_ = 0;                  // index of the ring's oldest event
  uint64_t dropped_ = 0;
  int64_t begin_ns_;
  std::map<std::thread::id, Caller> callers_;
  absl::flat_hash_map<Ticket, Wait> waits_;
  absl::flat_hash_map<TileIndex, Moving> moving_;
  // When the last copy in each direction ended. Each direction has one stream, so a copy begins
  // when the one before it has ended.
  int64_t copied_in_ns_ = 0, copied_out_ns_ = 0;
  int64_t work_begin_ns_ = 0, work_end_ns_ = 0;  // not recorded yet, as it may go on
  std::array<uint64_t, kNumTiers> occupied_bytes_{};
  std::array<uint64_t, kNumTiers> first_bytes_{};  // held before the oldest event in `events_`
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_TIMELINE_RECORDER_H_
