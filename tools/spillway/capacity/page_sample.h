// SPDX-License-Identifier: Apache-2.0
//
// Which pages of a layout are written. The others are holes, of which as many are verified.

#ifndef SPILLWAY_TOOLS_SPILLWAY_CAPACITY_PAGE_SAMPLE_H_
#define SPILLWAY_TOOLS_SPILLWAY_CAPACITY_PAGE_SAMPLE_H_

#include <cstdint>

namespace spillway::capacity {

// One in so many pages is written: 0.1%.
inline constexpr uint64_t kSampleShare = 1000;

enum class PageUse : uint8_t {
  kHole,          // is not written
  kVerifiedHole,  // is not written, and read back
  kWritten,       // is written, and read back
};

// Decides about one page after the other, in the order in which they are laid out. Of each
// kSampleShare pages it takes a seeded one, so that no period of the layout is missed; besides the
// first of each file and the last of all. A hole that follows a written page is verified: a write
// that went too far would show there. There is at least one such hole for each written page,
// unless the layout has fewer holes.
class PageSample {
 public:
  PageSample(uint64_t seed, uint64_t num_pages) : seed_(seed), num_pages_(num_pages) {}

  PageUse Next(bool is_first_of_file) {
    const uint64_t place = next_ % kSampleShare;
    if (place == 0) drawn_ = Mix(seed_ + next_) % kSampleShare;
    ++next_;
    if (place == drawn_ || is_first_of_file || next_ == num_pages_) {
      ++owed_;
      return PageUse::kWritten;
    }
    if (owed_ == 0) return PageUse::kHole;
    --owed_;
    return PageUse::kVerifiedHole;
  }

 private:
  // The finalizer of SplitMix64.
  static uint64_t Mix(uint64_t value) {
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
    value = (value ^ value >> 27) * 0x94d049bb133111eb;
    return value ^ value >> 31;
  }

  const uint64_t seed_;
  const uint64_t num_pages_;
  uint64_t next_ = 0;
  uint64_t drawn_ = 0;
  uint64_t owed_ = 4;  // holes to verify; some ahead, as no hole may follow the last written pages
};

}  // namespace spillway::capacity

#endif  // SPILLWAY_TOOLS_SPILLWAY_CAPACITY_PAGE_SAMPLE_H_
