// SPDX-License-Identifier: Apache-2.0
//
// Counts the bytes that crossed a link and the link's busy time. A link is busy while at least one
// transfer is in flight. The caller passes the time in, so that it can be virtual.
//
// After a pause, many links move more for a moment than they can sustain: a throttled disk catches
// up on its unused quota, and a drive fills its cache. A period of uninterrupted use is called a
// spell. What crosses after the beginning of a spell is also counted separately, and so is the most
// that crossed in any second, pauses included.

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
  Busy sustained;  // excludes the beginning of each spell
  uint64_t most_bytes_in_a_second = 0;
};

// The most bytes in any second, at a resolution of a tenth of a second. Times must not be negative.
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
  int64_t slot_ = 0;  // latest slot, counted from the clock's zero
  std::array<uint64_t, kSlots> bytes_ = {};
  uint64_t most_ = 0;
};

// Counts the use of a link, spell by spell.
class BusySpells {
 public:
  // Length of the beginning of a spell. Linux's throttle lets a device catch up on at most one time
  // slice of this length.
  static constexpr double kBeginningSeconds = 0.1;

  void Begin(double now) { begin_ = last_ = now; }
  // Counts bytes that have crossed the link, and the time since Begin or the last Pass.
  void Pass(double now, uint64_t bytes) {
    const Busy more = {bytes, std::max(0.0, now - last_)};
    all_ += more;
    if (now - begin_ > kBeginningSeconds) sustained_ += more;
    last_ = now;
  }
  LinkBusy With(const BestSecond& second) const { return {all_, sustained_, second.most_bytes()}; }

 private:
  double begin_ = 0;  // start of the spell
  double last_ = 0;   // time up to which the spell is counted
  Busy all_, sustained_;
};

// Measures a link with one direction. Externally synchronised. Times are seconds of any monotonic
// clock.
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
  // The use of the link up to the last call of End.
  LinkBusy busy() const { return spells_.With(second_); }

 private:
  int64_t in_flight_ = 0;
  BusySpells spells_;
  BestSecond second_;
};

// Measures a link with two directions. busy() is the use of one direction. both() counts the time
// with both directions busy and the bytes of transfers that ended in it; its most bytes in a second
// are those of all transfers.
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
