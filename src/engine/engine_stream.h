// SPDX-License-Identifier: Apache-2.0
//
// The public interface Stream, implemented by a stream of a device runtime.

#ifndef SPILLWAY_ENGINE_ENGINE_STREAM_H_
#define SPILLWAY_ENGINE_ENGINE_STREAM_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/stream.h"
#include "src/base/forks.h"
#include "tiers/device_runtime.h"

namespace spillway::engine {

// A stream of `runtime`, which must outlive it.
class EngineStream final : public Stream {
 public:
  EngineStream(tiers::DeviceRuntime* runtime, tiers::StreamHandle handle)
      : runtime_(runtime), handle_(handle) {}
  ~EngineStream() override;

  absl::Status Launch(std::function<void()> work) override;
  absl::Status Synchronize() override;
  void* native_handle() override { return runtime_->native_handle(handle_); }

  // Returns the handle of `stream`, or null if `stream` is null. InvalidArgument: the stream does
  // not belong to `runtime`.
  static absl::StatusOr<const tiers::StreamHandle*> HandleOf(const Stream* stream,
                                                             const tiers::DeviceRuntime& runtime);

 private:
  absl::Status CheckProcess() const;

  tiers::DeviceRuntime* runtime_;
  tiers::StreamHandle handle_;
  base::ForkGuard process_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_ENGINE_STREAM_H_
