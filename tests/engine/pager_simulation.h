// SPDX-License-Identifier: Apache-2.0
//
// Runs a pager under random callers, with transfers that end in random order and sometimes fail,
// against memory that holds real values. Every granted lease must find the last value written,
// whatever moved in between. If callers wait and nothing can happen any more, there is a deadlock,
// and the run fails.

#ifndef SPILLWAY_TESTS_ENGINE_PAGER_SIMULATION_H_
#define SPILLWAY_TESTS_ENGINE_PAGER_SIMULATION_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/engine/pager/pager.h"

namespace spillway::engine {

// The addresses of the elements identify streams.
inline const std::array<int, 2> kStreams = {};

constexpr uint64_t kUnit = kFrameAlignment;

struct SimulationSetup {
  bool has_store = true;
  uint64_t device_units = 12;
  uint64_t pinned_units = 20;
  int num_tiles = 16;
  uint64_t max_tile_units = 4;
  int max_held = 1;  // leases that a caller holds at once
  double failure_rate = 0;
  bool restores = false;  // restores the last flush now and then
  size_t most_weighed = 512;
  Placement placement = {};
  PumpLimits pump = {};
  bool declares = true;
  bool withdraws = false;   // callers withdraw requests now and then
  bool adds_tiles = false;  // now and then, also while others are leased
  // Reserved frames may split the room beside them, so a lease or a commit may fail though nothing
  // is held.
  bool splits = false;
};

class PagerSimulation {
 public:
  PagerSimulation(SimulationSetup setup, uint64_t seed)
      : setup_(setup), random_(seed), pager_(Options(setup)) {
    device_.resize(setup.device_units);
    pinned_.resize(setup.pinned_units);
    for (int i = 0; i < setup.num_tiles; ++i) {
      const uint64_t units = 1 + random_() % setup.max_tile_units;
      const auto role = static_cast<Role>(random_() % kNumRoles);
      Register(units * kUnit - random_() % kUnit, role);
      Pump();
    }
  }

  virtual ~PagerSimulation() = default;
  PagerSimulation(const PagerSimulation&) = delete;
  PagerSimulation& operator=(const PagerSimulation&) = delete;

  void Run(int steps) {
    for (int step = 0; step < steps && !testing::Test::HasFatalFailure(); ++step) {
      Act();
      Pump();
    }
    Drain();
  }

  const EngineStats& stats() const { return pager_.pages().stats(); }
  int failures() const { return failures_; }
  int grants() const { return grants_; }
  int restores() const { return restores_; }
  int num_withdrawn() const { return num_withdrawn_; }
  // How often a run of the pump stopped at its limits while nothing was in flight.
  int num_runs_again() const { return num_runs_again_; }

 protected:
  struct Held {
    TileIndex tile;
    Tier tier;
    Access access;
    StreamId stream = kNoStream;
    bool draining = false;  // released on a stream that has not reached the release
    bool arriving = false;  // granted to a stream before its copy ended
  };
  struct Request {
    TileIndex tile;
    Tier tier;
    Access access;
    StreamId stream;
  };
  struct NewTile {
    uint64_t units;
    Role role;
  };

  static PagerOptions Options(const SimulationSetup& setup) {
    PagerOptions options;
    options.device_bytes = setup.device_units * kUnit;
    options.pinned_bytes = setup.pinned_units * kUnit;
    options.has_store = setup.has_store;
    options.max_prefetches = 3;
    options.small_bytes = kUnit;
    options.placement = setup.placement;
    options.pump = setup.pump;
    options.most_weighed = setup.most_weighed;
    options.describe = [](TileIndex tile) { return "tile " + std::to_string(tile); };
    return options;
  }

  bool Chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }

  void Act() {
    const auto tile = static_cast<TileIndex>(random_() % truth_.size());
    const Tier tier = Chance(0.5) ? Tier::kDevice : Tier::kPinned;
    const auto access = static_cast<Access>(random_() % 4);
    if (setup_.restores && saved_truth_ && Chance(0.02)) Restore();
    if (setup_.withdraws && Chance(0.05)) WithdrawSome();
    if (setup_.adds_tiles && Chance(0.02) && !flushing_) AddTile();
    if (gone_.count(tile) > 0) return;
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
        if (!flushing_ && requests_.size() + held_.size() < static_cast<size_t>(setup_.max_held)) {
          const bool on_stream = tier == Tier::kDevice && Chance(0.5);
          const StreamId stream = on_stream ? &kStreams[random_() % kStreams.size()] : kNoStream;
          pager_.Acquire(++ticket_, tile, tier, access, stream);
          requests_[ticket_] = {tile, tier, access, stream};
        }
        break;
      case 3: EndSomeLease(); break;
      case 4:
        if (setup_.declares) pager_.Declare(tile, tier, access);
        break;
      case 5:
        if (Chance(0.1)) pager_.ClearDeclared();
        if (Chance(0.3)) (void)pager_.Evict(tile);
        if (tile % 4 == 3 && Chance(0.2) && !Requested(tile) && pager_.Discard(tile).ok()) {
          discarded_.insert(tile);
          TakeDiscard(tile);
        }
        break;
      case 6:
        if (setup_.has_store && held_.empty() && requests_.empty() && !flushing_ && !registering_ &&
            Chance(0.2)) {
          flushing_ = flushed_ = true;
          pager_.Commit(flush_ticket_);
        }
        break;
      default: EndSomeTransfer();
    }
  }

  static bool IsTransient(TileIndex tile) { return tile % 4 == 3; }

  // Registers a tile, unless it may not rest where its role does, another is being registered, or
  // there are many.
  void AddTile() {
    if (truth_.size() > 40 || registering_) return;
    const uint64_t units = 1 + random_() % setup_.max_tile_units;
    const auto role = static_cast<Role>(random_() % kNumRoles);
    if (HasRestingRoom(role, units)) Register(units * kUnit, role);
  }

  // A tile that rests in memory is not used before it has its frame there.
  void Register(uint64_t size_bytes, Role role) {
    const auto tile = static_cast<TileIndex>(truth_.size());
    registering_ = {.units = (size_bytes + kUnit - 1) / kUnit, .role = role};
    ASSERT_EQ(pager_.AddTile(size_bytes, role, IsTransient(tile), false), tile);
    if (!pager_.pages()[tile].tile->has_reserved_frame()) return Registered();
    pager_.Reserve(register_ticket_, tile);
  }

  void Registered() {
    roles_.push_back(registering_->role);
    units_.push_back(registering_->units);
    truth_.push_back(0);
    nvme_.push_back(std::nullopt);
    registering_.reset();
  }

  // Whether a tile of the role may be registered: beside all tiles that rest where it would, the
  // largest tile that does not must have room.
  bool HasRestingRoom(Role role, uint64_t units) const {
    const auto rest = setup_.placement[static_cast<size_t>(role)];
    if (!rest || *rest == Tier::kNvme) return true;
    uint64_t resting = units + setup_.max_tile_units;
    for (TileIndex tile = 0; tile < truth_.size(); ++tile) {
      const bool rests_too = setup_.placement[static_cast<size_t>(roles_[tile])] == rest;
      if (rests_too && gone_.count(tile) == 0) resting += units_[tile];
    }
    return resting <= (*rest == Tier::kDevice ? setup_.device_units : setup_.pinned_units);
  }

  // Withdraws requests of callers that give up. A lease request fails at once, a commit when its
  // writes have ended.
  void WithdrawSome() {
    if (flushing_ && Chance(0.5)) {
      withdrawn_.insert(flush_ticket_);
      pager_.Withdraw(flush_ticket_);
    }
    if (requests_.empty()) return;
    const auto some = std::next(requests_.begin(), static_cast<long>(random_() % requests_.size()));
    const Ticket ticket = some->first;
    withdrawn_.insert(ticket);
    pager_.Withdraw(ticket);
    Pump();
    EXPECT_EQ(requests_.count(ticket), 0u);
    pager_.Withdraw(ticket);  // the pager no longer has this ticket
  }

  // Applies a pending discard of the tile once no lease of the tile is left.
  void TakeDiscard(TileIndex tile) {
    for (const Held& lease : held_) {
      if (lease.tile == tile) return;
    }
    if (discarded_.erase(tile) > 0) truth_[tile] = 0;
  }

  // Ends all transfers, then restores the last flush or resumes without a restore. Does nothing
  // while the pager is in use.
  void Restore() {
    if (pager_.in_use()) return;
    pager_.Pause();
    Pump();
    while (!transfers_.empty()) {
      EndSomeTransfer();
      Pump();
    }
    if (Chance(0.3)) return pager_.Resume();
    ++restores_;
    for (TileIndex tile = 0; tile < truth_.size(); ++tile) {
      const bool transient = tile % 4 == 3;
      truth_[tile] = transient ? 0 : (*saved_truth_)[tile];
      if (!transient) nvme_[tile] = saved_nvme_[tile];
    }
    pager_.Reset([this](TileIndex tile) { return saved_nvme_[tile].has_value(); });
    for (int role = 0; role < kNumRoles; ++role) {
      for (const Tier tier : {Tier::kDevice, Tier::kPinned}) {
        if (setup_.placement[role] != tier) {
          EXPECT_EQ(NowBytes(static_cast<Role>(role), tier), 0u);
        }
      }
    }
  }

  uint64_t NowBytes(Role role, Tier tier) const {
    return pager_.pages()
        .stats()
        .role_tiers[static_cast<size_t>(role)][static_cast<size_t>(tier)]
        .now_bytes;
  }

  // A tile that rests in memory is not read from NVMe, and is written to NVMe at most for a commit.
  void CheckPlacement(const Action& action) {
    const auto rest = setup_.placement[static_cast<size_t>(roles_[action.tile])];
    if (!rest || *rest == Tier::kNvme || setup_.restores) return;
    ASSERT_FALSE(action.Is(Transfer::kRead)) << action.tile;
    if (!flushing_) {
      ASSERT_FALSE(action.Is(Transfer::kWrite)) << action.tile;
    }
  }

  // Checks that every tile is where it rests. REQUIRES: nothing is leased or moves.
  void CheckRest() {
    if (setup_.declares || setup_.failure_rate > 0) return;
    for (int i = 0; i < kNumRoles; ++i) {
      const auto role = static_cast<Role>(i);
      if (!setup_.placement[i]) continue;
      if (*setup_.placement[i] != Tier::kDevice) {
        EXPECT_EQ(NowBytes(role, Tier::kDevice), 0u) << Name(role);
      }
      if (*setup_.placement[i] != Tier::kPinned && setup_.has_store && !flushed_) {
        EXPECT_EQ(NowBytes(role, Tier::kPinned), 0u) << Name(role);
      }
    }
  }

  bool Requested(TileIndex tile) const {
    for (const auto& [ticket, request] : requests_) {
      if (request.tile == tile) return true;
    }
    return false;
  }

  // Ends a lease, or only begins its drain on a stream.
  void EndSomeLease() {
    if (held_.empty()) return;
    const auto lease = held_.begin() + static_cast<long>(random_() % held_.size());
    if (!lease->draining && Chance(lease->arriving ? 0.7 : 0.3)) {
      LetGo(*lease);
    } else {
      End(lease);
    }
  }

  void LetGo(Held& lease) {
    lease.draining = true;
    if (lease.stream == kNoStream) lease.stream = &kStreams[0];
    pager_.BeginDrain(lease.tile, lease.tier, lease.access, lease.stream);
  }

  void End(std::vector<Held>::iterator lease) {
    // A stream ends its leases in order.
    if (lease->draining) {
      lease = std::find_if(held_.begin(), held_.end(), [&](const Held& other) {
        return other.draining && other.tile == lease->tile && other.stream == lease->stream;
      });
    }
    if (lease->arriving) {
      if (Chance(0.5)) return;
      // The stream has come so far, but the end of the copy is reported later.
      const auto copy =
          std::find_if(transfers_.begin(), transfers_.end(),
                       [&](const Action& action) { return action.tile == lease->tile; });
      ASSERT_NE(copy, transfers_.end());
      CarryOut(*copy);
    }
    const Held ended = *lease;
    held_.erase(lease);
    CheckBytes(ended.tile, ended.tier);
    TakeDiscard(ended.tile);
    pager_.EndLease(ended.tile, ended.tier, ended.access, ended.draining);
  }

  // Or calls the pager again, if it has asked for that.
  void EndSomeTransfer() {
    if (runs_again_ && (transfers_.empty() || Chance(0.5))) {
      runs_again_ = false;
      ++num_runs_again_;
      return;
    }
    if (transfers_.empty()) return;
    const size_t i = random_() % transfers_.size();
    const Action action = transfers_[i];
    transfers_.erase(transfers_.begin() + static_cast<long>(i));
    const bool awaited_by_stream = Arriving(action.tile) != nullptr;
    const bool may_fail =
        !action.Is(Transfer::kZero) && !awaited_by_stream && carried_out_.count(action.tile) == 0;
    if (may_fail && Chance(setup_.failure_rate)) {
      pager_.TransferDone(action.tile, absl::UnavailableError("injected"));
      return;
    }
    CarryOut(action);
    carried_out_.erase(action.tile);
    pager_.TransferDone(action.tile, absl::OkStatus());
  }

  // Moves the bytes. Holders whose stream waits for them use them at once.
  void CarryOut(const Action& action) {
    if (carried_out_.insert(action.tile).second) MoveBytes(action);
    while (Held* const lease = Arriving(action.tile)) Use(*lease);
  }

  void MoveBytes(const Action& action) {
    for (uint64_t u = 0; u < units_[action.tile]; ++u) {
      uint64_t& pinned = pinned_[(action.pinned_offset / kUnit) + u];
      uint64_t* device = action.Is(Transfer::kCopyIn) || action.Is(Transfer::kCopyOut)
                             ? &device_[(action.device_offset / kUnit) + u]
                             : nullptr;
      switch (action.transfer) {
        case Transfer::kRead: pinned = *nvme_[action.tile]; break;
        case Transfer::kWrite: nvme_[action.tile] = pinned; break;
        case Transfer::kZero: pinned = 0; break;
        case Transfer::kCopyIn: *device = pinned; break;
        case Transfer::kCopyOut: pinned = *device; break;
        default: FAIL();
      }
    }
  }

  Held* Arriving(TileIndex tile) {
    for (Held& lease : held_) {
      if (lease.tile == tile && lease.arriving) return &lease;
    }
    return nullptr;
  }

  // Does what a holder does once the bytes are there: checks them, and writes if the access does.
  void Use(Held& lease) {
    lease.arriving = false;
    if (lease.access != Access::kDiscard) CheckBytes(lease.tile, lease.tier);
    if (!Writes(lease.access)) return;
    truth_[lease.tile] = ++value_;
    for (uint64_t u = 0; u < units_[lease.tile]; ++u) Cell(lease.tile, lease.tier, u) = value_;
  }

  void Pump() {
    for (const Action& action : pager_.TakeActions()) {
      switch (action.kind) {
        case Action::Kind::kGrant: OnGrant(action); break;
        case Action::Kind::kFail: OnFail(action); break;
        case Action::Kind::kForget: nvme_[action.tile].reset(); break;
        case Action::Kind::kRunAgain: runs_again_ = true; break;
        case Action::Kind::kTransfer: CheckPlacement(action); transfers_.push_back(action);
      }
    }
  }

  void OnGrant(const Action& action) {
    if (action.ticket == register_ticket_) return Registered();
    if (action.ticket == flush_ticket_) {
      flushing_ = false;
      for (TileIndex tile = 0; tile < truth_.size(); ++tile) {
        if (tile % 4 == 3 || truth_[tile] == 0) continue;
        ASSERT_TRUE(nvme_[tile].has_value());
        ASSERT_EQ(*nvme_[tile], truth_[tile]) << "a commit would hold an old value";
      }
      saved_truth_ = truth_;
      saved_nvme_ = nvme_;
      return;
    }
    ++grants_;
    const Request request = requests_.at(action.ticket);
    requests_.erase(action.ticket);
    Held lease{request.tile, request.tier, request.access, request.stream};
    lease.arriving = action.after_copy;
    Hold(lease);
  }

  void Hold(Held lease) {
    for (const Held& other : held_) {
      // The stream orders a later lease behind a writer that drains on it.
      if (other.draining && Writes(other.access) && other.stream == lease.stream) continue;
      ASSERT_FALSE(other.tile == lease.tile && (Writes(other.access) || Writes(lease.access)))
          << "a writer is not alone";
    }
    if (!lease.arriving) Use(lease);
    held_.push_back(lease);
  }

  virtual void Failed(Ticket) {}

  void OnFail(const Action& action) {
    const bool was_withdrawn = withdrawn_.erase(action.ticket) > 0;
    if (action.ticket == register_ticket_) {
      ASSERT_TRUE(setup_.failure_rate > 0 || absl::IsResourceExhausted(action.status))
          << action.status;
      gone_.insert(action.tile);
      ASSERT_TRUE(pager_.Forget(action.tile, 1).ok());
      return Registered();
    }
    if (action.ticket == flush_ticket_) {
      flushing_ = false;
      const bool is_split = setup_.splits && absl::IsResourceExhausted(action.status);
      ASSERT_TRUE(setup_.failure_rate > 0 || was_withdrawn || is_split) << action.status;
      return;
    }
    requests_.erase(action.ticket);
    Failed(action.ticket);
    if (was_withdrawn) {
      ++num_withdrawn_;
      ASSERT_EQ(action.status.code(), absl::StatusCode::kCancelled) << action.status;
      return;
    }
    ++failures_;
    if (setup_.failure_rate > 0) return;
    ASSERT_EQ(action.status.code(), absl::StatusCode::kResourceExhausted) << action.status;
    ASSERT_TRUE(!held_.empty() || !setup_.has_store || setup_.splits) << action.status;
  }

  uint64_t& Cell(TileIndex tile, Tier tier, uint64_t unit) {
    return tier == Tier::kDevice
               ? device_.at(pager_.pages()[tile].copy(Tier::kDevice).offset / kUnit + unit)
               : pinned_.at(pager_.pages()[tile].copy(Tier::kPinned).offset / kUnit + unit);
  }

  void CheckBytes(TileIndex tile, Tier tier) {
    for (uint64_t u = 0; u < units_[tile]; ++u) {
      ASSERT_EQ(Cell(tile, tier, u), truth_[tile])
          << "tile " << tile << " in " << Name(tier) << " unit " << u;
    }
  }

  // Ends all leases and transfers. No request may be left.
  void Drain() {
    for (int round = 0; round < 10000 && !testing::Test::HasFatalFailure(); ++round) {
      if (requests_.empty() && transfers_.empty() && held_.empty() && !flushing_ && !registering_)
        return CheckRest();
      const bool stuck = transfers_.empty() && held_.empty() && !runs_again_;
      ASSERT_FALSE(stuck) << requests_.size() << " requests"
                          << (registering_ ? " and a new tile" : "")
                          << " wait for nothing: deadlock";
      EndSomeTransfer();
      Pump();
      EndSomeLease();
      Pump();
    }
    if (!testing::Test::HasFatalFailure()) FAIL() << "did not come to rest";
  }

  SimulationSetup setup_;
  std::mt19937_64 random_;
  Pager pager_;
  std::vector<uint64_t> device_, pinned_;  // one value per unit
  std::vector<uint64_t> units_, truth_;
  std::vector<Role> roles_;
  std::set<TileIndex> gone_;  // unregistered
  std::vector<std::optional<uint64_t>> nvme_;
  std::optional<std::vector<uint64_t>> saved_truth_;  // as of the last flush
  std::vector<std::optional<uint64_t>> saved_nvme_;
  std::set<Ticket> withdrawn_;
  int num_withdrawn_ = 0;
  bool runs_again_ = false;  // the pager has asked for another run of the pump
  int num_runs_again_ = 0;
  std::vector<Action> transfers_;
  std::set<TileIndex> carried_out_;  // tiles whose transfer has moved the bytes, but is in flight
  std::vector<Held> held_;
  std::set<TileIndex> discarded_;  // discards that wait until leases have ended
  std::optional<NewTile> registering_;
  std::map<Ticket, Request> requests_;
  Ticket ticket_ = 100;
  static constexpr Ticket flush_ticket_ = 1, register_ticket_ = 2;
  bool flushing_ = false;
  bool flushed_ = false;  // ever; a tile that a commit wrote may have a copy in pinned memory
  uint64_t value_ = 0;
  int failures_ = 0;
  int grants_ = 0;
  int restores_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_TESTS_ENGINE_PAGER_SIMULATION_H_
