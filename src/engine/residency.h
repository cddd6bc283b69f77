// SPDX-License-Identifier: Apache-2.0
//
// Which tile is where, and what moves next: the residency state machine. Events go in as calls,
// actions come out of TakeActions; there is no thread, clock, file or memory in it, so that tests
// and a simulator drive it as the mover does.
//
// The state of a tile: a copy in any of the three tiers (every copy that is ready holds the newest
// bytes), the leases on it, and at most one transfer in flight. A writer is alone on its tile, and
// its lease makes the copies of other tiers void. A tile that was never written reads as zeros and
// rests nowhere.
//
// Leases are counted in a table that readers enter without asking (lease_table.h), wherever a tile
// is at rest with its bytes: LetIn opens its count, and whatever a reader must not meet closes it
// first. So the machine may be told of a lease after it was taken, never after its end.
//
// How room is made: a tile that needs a frame takes a free run; else it claims the cheapest
// contiguous window of unleased tiles, each of which leaves (forgotten if a lower tier has its
// bytes, moved there if not) and hands its room to the claim. Room is always taken in the order
// device, then pinned, then NVMe, and nothing in pinned memory ever waits for device room, so
// claims cannot wait for each other in a circle.
//
// While a step's plan is followed, its operations move tiles ahead of their leases, each to the
// frame that the plan has for it, and a lease waits for those of its tile as long as only transfers
// are between it and them. Any other lease is pulled: it is served as above, and so is what had to
// leave for it. residency_plan.cc has that.

#ifndef SPILLWAY_ENGINE_RESIDENCY_H_
#define SPILLWAY_ENGINE_RESIDENCY_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "spillway/stats.h"
#include "spillway/timeline.h"
#include "spillway/types.h"
#include "src/engine/arena_map.h"
#include "src/engine/lease_table.h"
#include "src/engine/plan_follower.h"
#include "src/engine/use_queue.h"

namespace spillway::engine {

using Ticket = uint64_t;  // names a caller's request; chosen by the caller
inline constexpr Ticket kNoTicket = 0;
// Names a stream; chosen by the caller. Work on one stream runs in order.
using StreamId = const void*;
inline constexpr StreamId kNoStream = nullptr;

// What to do next. Transfers end with Residency::TransferDone for their tile.
struct Action {
  enum class Kind : uint8_t {
    kRead,     // NVMe → pinned frame
    kWrite,    // pinned frame → NVMe
    kZero,     // fill the pinned frame with zeros
    kCopyIn,   // pinned → device frame
    kCopyOut,  // device → pinned frame
    kForget,   // the NVMe copy is void: its extents may be freed
    kGrant,    // the ticket's lease is held; with `after_copy`, its bytes arrive with the tile's
               // kCopyIn
    kFail,     // the ticket ends with `status`
  };
  Kind kind;
  TileIndex tile = 0;
  uint64_t pinned_offset = 0;
  uint64_t device_offset = 0;
  Ticket ticket = kNoTicket;
  bool after_copy = false;
  absl::Status status = absl::OkStatus();
  MoveReason reason = MoveReason::kLease;  // of a transfer
};

// Why a caller waits: for `tile`, its own or the one in the way, in a tier.
struct Stall {
  StallCause cause = StallCause::kCopy;
  Tier tier = Tier::kDevice;
  TileIndex tile = TimelineEvent::kNoTile;
  friend bool operator==(const Stall&, const Stall&) = default;
};

struct ResidencyOptions {
  uint64_t device_bytes = 0;  // budgets of the arenas
  uint64_t pinned_bytes = 0;
  bool has_store = false;    // without one, pinned memory is the last tier
  int max_prefetches = 8;    // tiles on their way ahead of use
  int max_flushes = 16;      // tiles on their way to a commit
  uint64_t small_bytes = 0;  // tiles of at most this size are written together
  Placement placement = {};
  // Frames and free runs weighed for one claim, as long as one of them will do: what a claim costs
  // must not grow with the arena.
  size_t most_weighed = 512;
  std::function<std::string(TileIndex)> describe;  // for messages: "tensor 'a' tile 3"
};

// Externally synchronised.
class Residency {
 public:
  explicit Residency(ResidencyOptions options);

  // A new tile; `stored`: its bytes are on NVMe already.
  TileIndex AddTile(uint64_t size_bytes, Role role, bool transient, bool stored);

  // --- Events from callers ---
  // Ends with kGrant or kFail. With a stream, the lease may be granted before its bytes have come,
  // and while a writer that was let go is still at work on that stream.
  void Acquire(Ticket ticket, TileIndex tile, Tier tier, Access access, StreamId stream);
  // The holder let go but work on a stream still uses the bytes; EndLease follows.
  void BeginDrain(TileIndex tile, Tier tier, Access access, StreamId stream);
  struct Ended {
    TileIndex tile = 0;
    Tier tier = Tier::kDevice;
  };
  Ended EndLease(TileIndex tile, Tier tier, Access access, bool drained);
  // To be called after a lease's end and what followed from it (TakeActions): where the bytes are
  // there to stay for now, readers may take the next lease by themselves.
  void LetIn(const Ended& ended);
  // A reader did, in the order in which they did. To be called before any other event that comes
  // later.
  void Shared(TileIndex tile, Tier tier);
  void Declare(TileIndex tile, Tier tier, Access access) { uses_.Declare(tile, tier, access); }
  void ClearDeclared() { uses_.Clear(); }
  absl::Status Evict(TileIndex tile);
  // The bytes are not wanted any more: the tile reads as zeros, every copy is void. If streams
  // still use the bytes, that is so when they let go, and leases wait for it. FailedPrecondition if
  // leased by a holder who has not let go.
  absl::Status Discard(TileIndex tile);
  // Writes every tile that a commit holds and NVMe has not; ends with kGrant or kFail.
  void Flush(Ticket ticket);
  // The bytes are about to become others, behind this machine's back (another commit's). Pause ends
  // everything that nobody asked for now: declared uses are forgotten, and no prefetch or unasked
  // write begins. Once no transfer is in flight, either Resume, which changes nothing, or Reset:
  // every copy in memory is void, a tile's bytes are on NVMe if `is_stored` says so and it was
  // never written if not, and a transient tile was never written either. REQUIRES for all three: no
  // lease, and no request of a caller's. Pause returns false, and does nothing, if a reader has
  // just come.
  bool Pause();
  void Resume() { paused_ = false; }
  void Reset(const std::function<bool(TileIndex)>& is_stored);

  // --- Following a plan (residency_plan.cc) ---
  // The step that begins now is, as far as anyone knows, the one that `step` plans. It is followed,
  // over and over, until a step ends that was another, or something fails. REQUIRES: a store, or
  // room for all tiles in pinned memory; no lease, and no request of a caller's.
  void FollowPlan(std::shared_ptr<const StepPlan> step);
  // What is under way ends as usual. `deviated`: because something was not as planned.
  void LeavePlan(bool deviated);
  // A step is over: a plan that had another step is left.
  void EndStep() {
    if (following_ && !following_->follower.EndStep()) LeavePlan(/*deviated=*/true);
  }
  // The step whose plan is followed; null: none is.
  std::shared_ptr<const StepPlan> followed() const {
    return following_ ? following_->follower.step() : nullptr;
  }
  // What a plan must know of a tile: whether it was written before, and the frame that it keeps
  // where it rests (plan::kNoHome: none).
  plan::TileNow Now(TileIndex tile) const;
  // Of what Now says of all tiles: another if something of it is.
  uint64_t tiles_hash() const { return tiles_hash_ + (AllFit() ? 1 : 0); }

  // --- Events from the mover ---
  void TransferDone(TileIndex tile, const absl::Status& status);

  // Goes as far as it can and hands out what there is to do. To be called after events.
  std::vector<Action> TakeActions();

  // --- What is true now ---
  uint64_t device_offset(TileIndex tile) const { return tiles_[tile].copies[0].offset; }
  uint64_t pinned_offset(TileIndex tile) const { return tiles_[tile].copies[1].offset; }
  uint64_t size_bytes(TileIndex tile) const { return tiles_[tile].size_bytes; }
  bool transient(TileIndex tile) const { return tiles_[tile].transient; }
  int transfers_in_flight() const { return transfers_; }
  int64_t num_leases() const { return num_leases_; }
  LeaseTable& leases() { return leases_; }
  // A lease is held, or a caller waits.
  bool in_use() const { return has_callers() || num_draining_ > 0; }
  // The same, but for leases that wait for a stream only.
  bool has_callers() const {
    return num_leases_ > num_draining_ || !acquires_.empty() || flush_ticket_ != kNoTicket;
  }
  std::vector<std::string> LeaseNames(size_t limit) const;
  // A write failed and nobody was told: the failure, once.
  absl::Status TakeWriteError() { return std::exchange(write_error_, absl::OkStatus()); }
  // Occupancies, prefetch counts and the bytes moved.
  const EngineStats& stats() const { return stats_; }
  // Why the request has not been granted yet; none: it has.
  std::optional<Stall> WhyWaits(Ticket ticket) const;

 private:
  enum class Transfer : uint8_t { kNone, kRead, kWrite, kZero, kCopyIn, kCopyOut };

  struct Job;

  // An operation of the plan that was followed when it began.
  struct Planned {
    uint64_t following = 0;
    std::optional<PlanFollower::Count> op;  // none: it brings what the plan begins with
  };

  // A tile's room in the device or pinned tier.
  struct Copy {
    enum class State : uint8_t { kNone, kClaiming, kHeld, kReady } state = State::kNone;
    uint64_t offset = 0;
    uint32_t draining = 0;        // of the leases, those that wait for a stream only
    bool leaving = false;         // an eviction job is on it
    bool prefetched = false;      // came ahead of use and was not used yet
    const Job* holder = nullptr;  // kHeld: who waits with it; none: it is idle
  };

  struct Tile {
    uint64_t size_bytes = 0;
    std::array<Copy, 2> copies;  // kDevice, kPinned
    Role role = Role::kParameter;
    std::optional<Tier> rest;  // see Placement
    uint64_t own_place = 0;    // see HasOwnPlace
    bool transient = false;
    bool stored = false;  // NVMe has the newest bytes
    bool zero = true;     // never written
    bool writer = false;
    bool queued = false;              // in written_ or small_written_
    bool discard = false;             // once the transfer in flight ends
    bool leased_before_copy = false;  // a stream waits for the copy in flight, or did
    Transfer transfer = Transfer::kNone;
    std::optional<Planned> planned;  // what the transfer in flight is of a plan
    uint64_t last_use = 0;
    Job* transfer_job = nullptr;  // the job that started the transfer in flight
  };

  // A window being emptied for a tile.
  struct Claim {
    uint64_t offset = 0;
    uint64_t size_bytes = 0;
    int leaving = 0;
    const Job* holder = nullptr;
  };
  using ClaimKey = std::pair<Tier, TileIndex>;

  struct Job {
    enum class Kind : uint8_t { kAcquire, kPrefetch, kEvict, kFlush } kind;
    TileIndex tile = 0;
    Tier tier = Tier::kDevice;
    Access access = Access::kRead;
    Ticket ticket = kNoTicket;
    StreamId stream = kNoStream;
    uint64_t position = UseQueue::kNever;    // kPrefetch: of its use
    std::optional<ClaimKey> claim;           // kEvict: who gets the room
    bool sinks = false;                      // kEvict: goes on to the lowest tier
    std::optional<ClaimKey> awaits;          // the claim whose end it waits for
    absl::Status failure;                    // of its transfer, or of the claim it awaited
    std::optional<PlanFollower::Count> use;  // kAcquire: of the plan that is followed
    bool pulled = false;                     // kAcquire: it does not wait for the plan
  };
  using Jobs = std::list<Job>;
  enum class Outcome : uint8_t { kWaiting, kProgress, kDone };

  // Phases of a pump (residency.cc).
  bool AdvanceAll(Jobs& jobs);
  Job& AddJob(Jobs& jobs, Job::Kind kind, TileIndex tile, Tier tier);
  Outcome Advance(Job& job);
  Outcome AdvanceAcquire(Job& job);
  Outcome AdvancePrefetch(Job& job);
  Outcome AdvanceEvict(Job& job);
  void Sink(TileIndex index);
  void GoToRest(TileIndex index);
  void StartEvict(TileIndex index, Tier tier);
  Outcome AdvanceFlush(Job& job);
  bool StartPrefetches();
  void StartWriteBehind();
  void TakeWritten(std::deque<TileIndex>& written, size_t max_flushes);
  void StartFlushes();
  void AddFlushes();
  bool FinishFlush();

  // Following a plan (residency_plan.cc).
  struct Following {
    uint64_t number = 0;  // tells it from those before
    PlanFollower follower;
    std::array<int, plan::kNumLinks> in_flight = {};
    std::vector<PlanFollower::Count> running;  // operations
    // The next event of the first period whose tile may have to be brought to where the plan
    // begins.
    uint32_t next_entry = 0;
    // Tiles whose lease has ended: their copies may not lie where the plan has them.
    std::vector<TileIndex> unsettled;
    bool is_blocked_by_lease = false;  // a frame of the plan's is leased to another tile
    // Tiles that found no room to leave to; they are tried again when a lease has ended.
    absl::flat_hash_set<TileIndex> stuck;
    // Discards that were asked for and wait for a stream or a transfer.
    absl::flat_hash_map<TileIndex, uint32_t> discards;
  };
  enum class Step : uint8_t { kStarted, kDone, kWaiting };
  std::optional<PlanFollower::Count> Ask(plan::TraceEvent::Kind kind, TileIndex tile, Tier tier,
                                         Access access);
  bool FollowsUsesOf(TileIndex tile) const {
    return following_ && !following_->follower.has_strayed(tile);
  }
  void Happened(TileIndex tile) {
    if (FollowsUsesOf(tile)) following_->follower.Happened(tile);
  }
  // A commit's flush goes first, unless someone leases meanwhile.
  bool IsPlanPaused() const {
    return following_ && flush_ticket_ != kNoTicket && num_leases_ == 0 && acquires_.empty();
  }
  bool AdvancePlan();
  bool AdvanceLink(plan::Link link);
  bool AdvanceFree();
  bool HasMoved(const plan::Op& op) const;
  bool AdvanceEntry();
  bool Settle();
  bool SettleCopy(TileIndex index, Tier tier);
  bool PullIfNothingMoves();
  void PlannedTransferDone(const Planned& planned);
  Outcome AdvancePlannedAcquire(Job& job);
  void Pull(Job& job);
  Step TryOp(const plan::Op& op, const Planned& planned);
  bool TakeFrameAt(TileIndex tile, Tier tier, uint64_t offset);
  bool MakeWay(Tier tier, uint64_t offset, uint64_t size_bytes);
  bool IsPlannedFrameComing(TileIndex index, Tier tier);
  bool LiesAsPlanned(TileIndex index, Tier tier) const;
  bool IsRoomComing(Tier tier) const;
  std::optional<uint64_t> AllocateAsPlanned(TileIndex tile, Tier tier, uint64_t frame_bytes);

  // Moving bytes towards a copy: starts the next transfer that brings the tile nearer to `tier`.
  Outcome Fill(Job& job);
  static plan::Link LinkOf(Transfer transfer);
  void Start(Job& job, Transfer transfer);
  void StartTransfer(TileIndex index, Transfer transfer, MoveReason reason);
  static MoveReason ReasonOf(const Job& job);
  // No lease, and none that comes by itself.
  bool Shut(TileIndex index) { return leases_.Close(index); }
  bool IsLeased(TileIndex index) const {
    return leases_.leases(index, Tier::kDevice) + leases_.leases(index, Tier::kPinned) > 0;
  }
  // No lease but those whose holders have let go.
  bool IsDraining(TileIndex index) const {
    const std::array<Copy, 2>& copies = tiles_[index].copies;
    return leases_.leases(index, Tier::kDevice) + leases_.leases(index, Tier::kPinned) ==
           copies[0].draining + copies[1].draining;
  }
  // A writer holds the tile, or was let go and is still at work on its stream.
  bool IsWritten(TileIndex index) const {
    return tiles_[index].writer || draining_writers_.count(index) > 0;
  }
  bool CanLease(const Job& job);
  void Grant(Job& job, bool after_copy);
  void CountLease(TileIndex index, Tier tier);
  void VoidOtherCopies(TileIndex index, Tier keep);
  Outcome Fail(Job& job, absl::Status status);
  void MarkWritten(TileIndex index);
  void DropIfDiscarded(TileIndex index);
  void ForgetCopies(TileIndex index);

  // Room (residency_room.cc).
  enum class Room : uint8_t { kReady, kWaiting, kImpossible };
  Room EnsureFrame(Job& job, Tier tier, uint64_t position, absl::Status* why);
  Room EnsureHome(Job& job, absl::Status* why);
  void ShutWhereHomesWillBe(uint64_t from);
  bool IsWhereHomesWillBe(const Tile& tile) const;
  struct Window {
    uint64_t offset = 0;
    double cost = 0;
    bool found = false;
    bool possible = false;  // some window would do once transfers end
  };
  Window FindWindow(Tier tier, uint64_t size_bytes, uint64_t position) const;
  Window FindWindowFrom(uint64_t from, Tier tier, uint64_t size_bytes, uint64_t position) const;
  Window FindLowestWindow(Tier tier, uint64_t size_bytes);
  enum class Leave : uint8_t { kNow, kLater, kNever };
  Leave CanLeave(const ArenaMap::Segment& segment, Tier tier, uint64_t position,
                 double* cost) const;
  bool MakeClaim(Job& job, Tier tier, uint64_t offset, uint64_t size_bytes);
  void FinishClaim(ClaimKey key);
  void CancelClaim(ClaimKey key, const absl::Status& why);
  void DropFrame(TileIndex index, Tier tier, std::optional<ClaimKey> claim = std::nullopt);
  void ReleaseHeld(const Job& job);
  void ForgetHolder(const Job& job);
  absl::Status NoRoom(TileIndex index, Tier tier) const;
  void Count(TileIndex index, Tier tier, bool held);

  // Reasons (residency_stall.cc).
  Stall WhyClaiming(ClaimKey key) const;
  Stall WhyLeaving(TileIndex index, Tier tier) const;
  TileIndex InTheWay(Tier tier) const;

  static size_t At(Tier tier) { return tier == Tier::kDevice ? 0 : 1; }
  static Tier Other(Tier tier) { return tier == Tier::kDevice ? Tier::kPinned : Tier::kDevice; }
  Copy& copy(Tile& tile, Tier tier) { return tile.copies[At(tier)]; }
  const Copy& copy(const Tile& tile, Tier tier) const { return tile.copies[At(tier)]; }
  bool IsSmall(const Tile& tile) const { return tile.size_bytes <= options_.small_bytes; }
  // Whether the tile's frame in the tier, once it has one, is its own for good.
  static bool IsHome(const Tile& tile, Tier tier) { return tile.rest == tier; }
  // Pinned memory has room for all tiles at once, until more are added.
  bool AllFit() const { return frames_bytes_ <= options_.pinned_bytes; }
  // Whether the tile has a place in pinned memory that no other takes; those that rest there lie
  // below.
  bool HasOwnPlace(const Tile& tile) const { return AllFit() && !IsHome(tile, Tier::kPinned); }
  bool Ready(const Tile& tile, Tier tier) const {
    return copy(tile, tier).state == Copy::State::kReady;
  }
  uint64_t FrameBytes(const Tile& tile) const {
    return (tile.size_bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
  }
  static void SetReady(Copy& copy) {
    copy.state = Copy::State::kReady;
    copy.holder = nullptr;
  }
  void SetStored(TileIndex index, bool stored);
  // Whether it was written and not discarded since.
  static bool HasBytes(const Tile& tile) { return !tile.zero && !tile.discard; }
  void SetZero(TileIndex index, bool zero);
  void NoteBytes(TileIndex index, bool had_bytes);
  // Whoever leases next is told, so nobody may without asking.
  void SetWriteError(const absl::Status& status) {
    write_error_ = status;
    leases_.CloseAll();
  }

  ResidencyOptions options_;
  std::deque<Tile> tiles_;
  LeaseTable leases_;
  // Leases for writing that were let go while their stream was at work.
  struct DrainingWriters {
    StreamId stream = kNoStream;
    Tier tier = Tier::kDevice;
    uint32_t leases = 0;
  };
  absl::flat_hash_map<TileIndex, DrainingWriters> draining_writers_;
  std::array<ArenaMap, 2> arenas_;
  uint64_t frames_bytes_ = 0;  // what all tiles would take in one tier
  uint64_t tiles_hash_ = 0;    // a sum over tiles with bytes, and over frames that stay
  uint64_t places_begin_ = 0;  // of own places, from the top of pinned memory
  // The bottom of each arena, which is left to the frames that stay.
  std::array<uint64_t, 2> homes_bytes_ = {};
  std::array<uint64_t, 2> homes_until_ = {};  // from the bottom on, frames that stay, without a gap
  std::array<uint64_t, 2> claimed_until_ = {};  // where the last claim ends: the next search begins
  std::map<ClaimKey, Claim> claims_;
  UseQueue uses_;
  Jobs acquires_, evictions_, flushes_, prefetches_;
  bool new_jobs_ = false;  // since the pump last looked
  bool paused_ = false;    // between Pause and Resume or Reset
  // Tiles written since they were last stored, oldest first.
  std::deque<TileIndex> written_;
  std::deque<TileIndex> small_written_;
  bool small_leaves_ = false;  // a small tile's write has begun: others may go along
  Ticket flush_ticket_ = kNoTicket;
  TileIndex flush_cursor_ = 0;
  bool flush_gathers_ = false;  // small tiles are only brought to pinned memory yet
  absl::Status flush_status_;
  uint64_t clock_ = 0;  // counts leases, for recency
  std::optional<Following> following_;
  uint64_t num_followings_ = 0;
  int transfers_ = 0;
  int64_t num_leases_ = 0;
  int64_t num_draining_ = 0;  // of the leases, those that wait for a stream only
  absl::Status write_error_;
  bool writes_failing_ = false;  // no unasked writes until one has succeeded
  std::vector<Action> actions_;
  EngineStats stats_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_RESIDENCY_H_
