// SPDX-License-Identifier: Apache-2.0
//
// What has crossed a link, and for how long it was at it: the time with at least one transfer in
// flight. Time is given, not read, so that it can be virtual.
//
// Many links let more through after a pause than they can keep up: a throttled disk what it was
// owed meanwhile, a drive what its cache takes. So what comes after the beginning of a spell of use
// is counted apart, and the most that went through in any second, pauses and all.

#ifndef SPILLWAY_BASE_BUSY_METER_H_
#define SPILLWAY_BASE_BUSY_METER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace spillway::base {

struct Busy {
  uint64_t bytes = 0;
  double seconds = 0;

  Busy& operator+=(const Busy& more) {
    bytes += more.bytes;
    seconds += more.seconds;
    return *this;
  }
  Busy operator-(const Busy& less) const { return {bytes - less.bytes, seconds - less.seconds}; }
};

struct LinkBusy {
  Busy all;
  Busy sustained;  // without the beginning of each spell
  uint64_t most_bytes_in_a_second = 0;
};

// The most bytes in any second, to a tenth of it. Times are not negative.
class BestSecond {
 public:
  void Pass(double now, uint64_t bytes) {
    const auto slot = static_cast<int64_t>(now * kSlots);
    for (int64_t next = std::max(slot_, slot - kSlots) + 1; next <= slot; ++next)
      bytes_[static_cast<size_t>(next % kSlots)] = 0;
    slot_ = slot;
    bytes_[static_cast<size_t>(slot % kSlots)] += bytes;
    most_ = std::max(most_, std::accumulate(bytes_.begin(), bytes_.end(), uint64_t{0}));
  }
  uint64_t most_bytes() const { return most_; }

 private:
  static constexpr int64_t kSlots = 10;
  int64_t slot_ = 0;  // the last, counted since the clock's beginning
  std::array<uint64_t, kSlots> bytes_ = {};
  uint64_t most_ = 0;
};

// Spells of use, one after another.
class BusySpells {
 public:
  // The beginning of a spell: Linux's throttle owes at most a slice of this length.
  static constexpr double kBeginningSeconds = 0.1;

  void Begin(double now) { begin_ = last_ = now; }
  // Some bytes are through.
  void Pass(double now, uint64_t bytes) {
    const Busy more = {bytes, std::max(0.0, now - last_)};
    all_ += more;
    if (now - begin_ > kBeginningSeconds) sustained_ += more;
    last_ = now;
  }
  LinkBusy With(const BestSecond& second) const { return {all_, sustained_, second.most_bytes()}; }

 private:
  double begin_ = 0;  // of the spell
  double last_ = 0;   // up to when it is counted
  Busy all_, sustained_;
};

// Externally synchronised. Seconds are on any clock that does not go back.
class BusyMeter {
 public:
  void Begin(double now) {
    if (in_flight_++ == 0) spells_.Begin(now);
  }
  void End(double now, uint64_t bytes) {
    spells_.Pass(now, bytes);
    second_.Pass(now, bytes);
    --in_flight_;
  }
  bool is_busy() const { return in_flight_ > 0; }
  // Up to the last end.
  LinkBusy busy() const { return spells_.With(second_); }

 private:
  int64_t in_flight_ = 0;
  BusySpells spells_;
  BestSecond second_;
};

// A link with two directions: each of them, and what ended, in which time, while both were busy;
// the most in a second is of all that ended.
class DuplexMeter {
 public:
  void Begin(size_t way, double now) {
    const bool were_both = are_both();
    ways_[way].Begin(now);
    if (!were_both && are_both()) both_.Begin(now);
  }
  void End(size_t way, double now, uint64_t bytes) {
    if (are_both()) both_.Pass(now, bytes);
    second_.Pass(now, bytes);
    ways_[way].End(now, bytes);
  }
  LinkBusy busy(size_t way) const { return ways_[way].busy(); }
  LinkBusy both() const { return both_.With(second_); }

 private:
  bool are_both() const { return ways_[0].is_busy() && ways_[1].is_busy(); }

  std::array<BusyMeter, 2> ways_;
  BusySpells both_;
  BestSecond second_;
};

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_BUSY_METER_H_
