// SPDX-License-Identifier: Apache-2.0
//
// Computes the permutation of an epoch.

#include "tools/trainer/window_order.h"

#include <array>
#include <bit>

namespace spillway::trainer {
namespace {

constexpr int kRounds = 6;

// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// A permutation of [0, 2^(2·half_bits)).
class Feistel {
 public:
  Feistel(uint64_t key, int half_bits)
      : half_bits_(half_bits), mask_((uint64_t{1} << half_bits) - 1) {
    for (uint64_t& round_key : round_keys_) round_key = key = Mix(key);
  }

  uint64_t operator()(uint64_t x) const {
    uint64_t left = x >> half_bits_;
    uint64_t right = x & mask_;
    for (const uint64_t round_key : round_keys_) {
      const uint64_t next = left ^ (Mix(right ^ round_key) & mask_);
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

 private:
  int half_bits_;
  uint64_t mask_;
  std::array<uint64_t, kRounds> round_keys_{};
};

}  // namespace

uint64_t WindowOrder::WindowAt(uint64_t position) const {
  const uint64_t epoch = position / num_windows_;
  uint64_t window = position % num_windows_;
  if (order_ == Order::kSequential || num_windows_ == 1) return window;
  const int bits = std::bit_width(num_windows_ - 1);
  const Feistel permute(Mix(seed_) ^ Mix(~epoch), (bits + 1) / 2);
  // Applying a permutation of a larger domain until the result is inside the smaller domain gives a
  // permutation of the smaller domain.
  do window = permute(window);
  while (window >= num_windows_);
  return window;
}

}  // namespace spillway::trainer
