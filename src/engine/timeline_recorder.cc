// SPDX-License-Identifier: Apache-2.0

#include "src/engine/timeline_recorder.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

namespace spillway::engine {

using Kind = TimelineEvent::Kind;

TimelineRecorder::TimelineRecorder(uint64_t max_events, int64_t now_ns)
    : max_events_(max_events), begin_ns_(now_ns) {
  events_ = RoomFor(max_events);
}

// Reserves room for all events at once: memory is used only as events are written, and the mover
// never waits for events to be copied.
std::vector<TimelineEvent> TimelineRecorder::RoomFor(uint64_t max_events) {
  std::vector<TimelineEvent> room;
  room.reserve(max_events + kNumTiers);
  return room;
}

// --- Transfers ---

void TimelineRecorder::BeginTransfer(const Action& action, int64_t now_ns) {
  moving_[action.tile] = {action.transfer, action.reason, now_ns};
}

void TimelineRecorder::EndTransfer(TileIndex tile, uint64_t size_bytes, bool ok, int64_t now_ns) {
  const Moving moving = moving_.extract(tile).mapped();
  TimelineEvent event{.reason = moving.reason,
                      .failed = !ok,
                      .tile = tile,
                      .begin_ns = moving.since_ns,
                      .end_ns = now_ns,
                      .size_bytes = size_bytes};
  switch (moving.transfer) {
    case Transfer::kRead: event.kind = Kind::kRead; break;
    case Transfer::kWrite: event.kind = Kind::kWrite; break;
    case Transfer::kCopyIn:
      event.kind = Kind::kCopyIn;
      event.begin_ns = std::max(event.begin_ns, std::exchange(copied_in_ns_, now_ns));
      break;
    case Transfer::kCopyOut:
      event.kind = Kind::kCopyOut;
      event.begin_ns = std::max(event.begin_ns, std::exchange(copied_out_ns_, now_ns));
      break;
    default: return;  // zeros cross no link
  }
  Push(event);
}

// --- Callers ---

uint64_t TimelineRecorder::ThisSerial() {
  static std::atomic<uint64_t> last = 0;
  thread_local const uint64_t serial = ++last;
  return serial;
}

TimelineRecorder::Caller& TimelineRecorder::CallerOf(std::thread::id thread, uint64_t serial) {
  const auto [found, is_new] = callers_.try_emplace(thread);
  if (is_new) {
    found->second.number = static_cast<uint16_t>(
        std::min<size_t>(callers_.size() - 1, std::numeric_limits<uint16_t>::max()));
  }
  Caller& caller = found->second;
  if (caller.serial != serial) caller = {.number = caller.number, .serial = serial};
  return caller;
}

void TimelineRecorder::EndCompute(Caller& caller, int64_t now_ns) {
  if (caller.tile == TimelineEvent::kNoTile || now_ns == caller.since_ns) return;
  Push({.kind = Kind::kCompute,
        .thread = caller.number,
        .tile = caller.tile,
        .begin_ns = caller.since_ns,
        .end_ns = now_ns});
  caller.since_ns = now_ns;
}

void TimelineRecorder::Grant(TileIndex tile, int64_t now_ns, std::thread::id thread,
                             uint64_t serial) {
  Caller& caller = CallerOf(thread, serial);
  if (caller.tile == TimelineEvent::kNoTile) caller.since_ns = now_ns;
  if (now_ns - caller.since_ns >= kShortestNs) EndCompute(caller, now_ns);
  caller.tile = tile;
}

void TimelineRecorder::BeginWait(Ticket ticket, TileIndex tile, const Stall& stall,
                                 int64_t now_ns) {
  Caller& caller = ThisCaller();
  EndCompute(caller, now_ns);
  waits_[ticket] = {.caller = caller.number, .tile = tile, .stall = stall, .since_ns = now_ns};
}

void TimelineRecorder::Explain(Ticket ticket, const Stall& stall, int64_t now_ns) {
  Wait& wait = waits_.at(ticket);
  if (stall == wait.stall) return;
  PushStall(wait, now_ns);
  wait.stall = stall;
  wait.since_ns = now_ns;
}

void TimelineRecorder::EndWait(Ticket ticket, int64_t now_ns) {
  const Wait wait = waits_.extract(ticket).mapped();
  PushStall(wait, now_ns);
  Caller& caller = ThisCaller();
  caller.tile = wait.tile;
  caller.since_ns = now_ns;
}

void TimelineRecorder::PushStall(const Wait& wait, int64_t now_ns) {
  if (now_ns == wait.since_ns) return;
  Push({.kind = Kind::kStall,
        .cause = wait.stall.cause,
        .tier = wait.stall.tier,
        .thread = wait.caller,
        .tile = wait.tile,
        .other = wait.stall.tile,
        .begin_ns = wait.since_ns,
        .end_ns = now_ns});
}

std::vector<Ticket> TimelineRecorder::Waiting() const {
  std::vector<Ticket> tickets;
  for (const auto& [ticket, wait] : waits_) tickets.push_back(ticket);
  return tickets;
}

// --- Commits ---

void TimelineRecorder::BeginCommit(int64_t now_ns) {
  Caller& caller = ThisCaller();
  EndCompute(caller, now_ns);
  caller.commit_ns = now_ns;
}

void TimelineRecorder::EndFlush(int64_t now_ns) {
  const Caller& caller = ThisCaller();
  Push({.kind = Kind::kFlush,
        .thread = caller.number,
        .begin_ns = caller.commit_ns,
        .end_ns = now_ns});
}

void TimelineRecorder::EndCommit(int64_t now_ns) {
  Caller& caller = ThisCaller();
  Push({.kind = Kind::kCommit,
        .thread = caller.number,
        .begin_ns = caller.commit_ns,
        .end_ns = now_ns});
  caller.since_ns = now_ns;
}

// --- The mover and the tiers ---

void TimelineRecorder::Work(int64_t begin_ns, int64_t end_ns) {
  if (begin_ns - work_end_ns_ >= kShortestNs) {
    EndWork();
    work_begin_ns_ = begin_ns;
  }
  work_end_ns_ = end_ns;
}

void TimelineRecorder::EndWork() {
  if (work_end_ns_ > work_begin_ns_) {
    Push({.kind = Kind::kMover, .begin_ns = work_begin_ns_, .end_ns = work_end_ns_});
  }
  work_begin_ns_ = work_end_ns_;
}

void TimelineRecorder::Occupied(Tier tier, uint64_t size_bytes, int64_t now_ns) {
  uint64_t& before = occupied_bytes_[static_cast<size_t>(tier)];
  if (std::exchange(before, size_bytes) == size_bytes) return;
  Push({.kind = Kind::kOccupancy,
        .tier = tier,
        .begin_ns = now_ns,
        .end_ns = now_ns,
        .size_bytes = size_bytes});
}

// --- The events ---

void TimelineRecorder::Push(const TimelineEvent& event) {
  if (events_.size() < max_events_) {
    events_.push_back(event);
    return;
  }
  TimelineEvent& oldest = events_[next_];
  if (oldest.kind == Kind::kOccupancy)
    first_bytes_[static_cast<size_t>(oldest.tier)] = oldest.size_bytes;
  oldest = event;
  next_ = (next_ + 1) % max_events_;
  ++dropped_;
}

// The timeline dropped all events that ended before the oldest one left.
void TimelineRecorder::PutFirstLevels() {
  const int64_t known_ns = dropped_ == 0 ? begin_ns_ : std::max(begin_ns_, events_.front().end_ns);
  std::vector<TimelineEvent> levels;
  for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kNvme}) {
    const uint64_t size_bytes = first_bytes_[static_cast<size_t>(tier)];
    if (size_bytes == 0) continue;
    levels.push_back({.kind = Kind::kOccupancy,
                      .tier = tier,
                      .begin_ns = known_ns,
                      .end_ns = known_ns,
                      .size_bytes = size_bytes});
  }
  events_.insert(events_.begin(), levels.begin(), levels.end());
  first_bytes_ = occupied_bytes_;
}

Timeline TimelineRecorder::Take(int64_t now_ns, std::vector<TimelineEvent> room) {
  EndWork();
  EndCompute(ThisCaller(), now_ns);
  std::rotate(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(next_), events_.end());
  PutFirstLevels();
  Timeline timeline;
  timeline.events = std::exchange(events_, std::move(room));
  timeline.dropped = std::exchange(dropped_, 0);
  timeline.begin_ns = std::exchange(begin_ns_, now_ns);
  timeline.end_ns = now_ns;
  next_ = 0;
  return timeline;
}

}  // namespace spillway::engine
