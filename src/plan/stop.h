// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_PLAN_STOP_H_
#define SPILLWAY_PLAN_STOP_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <vector>

#include "absl/status/status.h"

namespace spillway::plan {

// Whether work that takes long is to end now, with a result that is not used. Copies share the
// flag, which must outlive them. Without a flag, the work goes on to its end.
class Stop {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a flag's address is a Stop
  constexpr Stop(const std::atomic<bool>* flag = nullptr) : flag_(flag) {}
  explicit operator bool() const { return flag_ != nullptr && *flag_; }

 private:
  const std::atomic<bool>* flag_;
};

// The error of work that was stopped.
inline absl::Status Stopped() { return absl::CancelledError("planning was stopped"); }

// Fills an empty vector with `size` equal values. Long vectors take the kernel milliseconds, so
// this goes piece by piece. Returns false, with fewer values, if it was stopped.
template <typename Value>
bool Fill(std::vector<Value>* values, size_t size, Stop stop, const Value& value = {}) {
  constexpr size_t kPiece = 1 << 15;
  values->reserve(size);
  while (values->size() < size && !stop)
    values->resize(std::min(size, values->size() + kPiece), value);
  return values->size() == size;
}

// Sorts piece by piece. Once `stop` is true, the order is arbitrary.
template <typename Value>
void Sort(std::vector<Value>* values, Stop stop) {
  constexpr size_t kPiece = 1 << 15;
  const auto at = [&](size_t index) {
    return values->begin() + static_cast<std::ptrdiff_t>(std::min(index, values->size()));
  };
  for (size_t begin = 0; begin < values->size(); begin += kPiece) {
    if (stop) return;
    std::sort(at(begin), at(begin + kPiece));
  }
  for (size_t sorted = kPiece; sorted < values->size(); sorted *= 2) {
    for (size_t begin = 0; begin < values->size(); begin += 2 * sorted) {
      if (stop) return;
      std::inplace_merge(at(begin), at(begin + sorted), at(begin + 2 * sorted));
    }
  }
}

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_STOP_H_
