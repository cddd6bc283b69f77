// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_PLAN_STOP_H_
#define SPILLWAY_PLAN_STOP_H_

#include <atomic>

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

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_STOP_H_
