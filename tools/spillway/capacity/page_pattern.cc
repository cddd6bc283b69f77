// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/capacity/page_pattern.h"

#include <cstring>

namespace spillway::capacity {
namespace {

constexpr size_t kWordBytes = sizeof(uint64_t);
constexpr uint64_t kWeyl = 0x9e3779b97f4a7c15;

// SplitMix64 (Steele, Lea and Flood, 2014): a counter and a finalizer, so words are independent.
uint64_t Word(uint64_t start, uint64_t index) {
  uint64_t value = start + (index + 1) * kWeyl;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

uint64_t StartOf(const PagePattern& pattern) {
  uint64_t start = Word(pattern.seed, pattern.tensor);
  start = Word(start, pattern.page);
  return Word(start, pattern.version);
}

}  // namespace

void PagePattern::Fill(std::span<std::byte> bytes) const {
  if (version == 0) {
    std::memset(bytes.data(), 0, bytes.size());
    return;
  }
  const uint64_t start = StartOf(*this);
  size_t at = 0;
  for (; at + kWordBytes <= bytes.size(); at += kWordBytes) {
    const uint64_t word = Word(start, at / kWordBytes);
    std::memcpy(bytes.data() + at, &word, kWordBytes);
  }
  const uint64_t last = Word(start, at / kWordBytes);
  std::memcpy(bytes.data() + at, &last, bytes.size() - at);
}

std::optional<size_t> PagePattern::FirstDifference(std::span<const std::byte> bytes) const {
  const uint64_t start = StartOf(*this);
  const auto wanted = [&](size_t at) { return version == 0 ? 0 : Word(start, at / kWordBytes); };
  size_t at = 0;
  for (; at + kWordBytes <= bytes.size(); at += kWordBytes) {
    uint64_t found = 0;
    std::memcpy(&found, bytes.data() + at, kWordBytes);
    if (found != wanted(at)) return at;
  }
  const uint64_t last = wanted(at);
  const bool is_same = std::memcmp(bytes.data() + at, &last, bytes.size() - at) == 0;
  return is_same ? std::nullopt : std::optional(at);
}

}  // namespace spillway::capacity
