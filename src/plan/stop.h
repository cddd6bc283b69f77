// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_PLAN_STOP_H_
#define SPILLWAY_PLAN_STOP_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <vector>

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

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_STOP_H_
