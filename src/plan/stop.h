// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_PLAN_STOP_H_
#define SPILLWAY_PLAN_STOP_H_

#include <atomic>

#include "absl/status/status.h"

namespace spillway::plan {

// Whether work that takes long is to end soon, with a result that is not used. It looks between its
// phases. Copies share the flag, which must outlive them. Without a flag, the work goes on to its
// end.
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

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_STOP_H_
