// SPDX-License-Identifier: Apache-2.0

#include "src/engine/engine_stream.h"

#include <utility>

#include "src/base/status_macros.h"

namespace spillway::engine {

EngineStream::~EngineStream() {
  if (!process_.is_forked()) runtime_->DestroyStream(handle_);
}

absl::Status EngineStream::Launch(std::function<void()> work) {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  return runtime_->Launch(handle_, std::move(work));
}

absl::Status EngineStream::Synchronize() {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  return runtime_->Synchronize(handle_);
}

absl::StatusOr<const tiers::StreamHandle*> EngineStream::HandleOf(
    const Stream* stream, const tiers::DeviceRuntime& runtime) {
  if (stream == nullptr) return nullptr;
  const auto* const known = dynamic_cast<const EngineStream*>(stream);
  if (known != nullptr && known->runtime_ == &runtime) return &known->handle_;
  return absl::InvalidArgumentError(
      "the stream is not this engine's: make it with its CreateStream or WrapStream");
}

absl::Status EngineStream::CheckProcess() const {
  if (!process_.is_forked()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process was forked from the one that made the stream: only that one can use it");
}

}  // namespace spillway::engine
