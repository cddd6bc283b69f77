// SPDX-License-Identifier: Apache-2.0

#include "spillway/stream.h"

#include <memory>
#include <utility>

#include "src/base/status_macros.h"
#include "src/capi/calls.h"
#include "src/capi/handles.h"

namespace spillway::capi {
namespace {

spw_stream* ToHandle(const spw_engine& engine, std::unique_ptr<Stream> stream) {
  auto handle = std::make_unique<spw_stream>();
  handle->engine = engine.engine;
  handle->stream = std::move(stream);
  return handle.release();
}

}  // namespace
}  // namespace spillway::capi

using namespace spillway;        // NOLINT(google-build-using-namespace): for the calls below
using namespace spillway::capi;  // NOLINT(google-build-using-namespace)

extern "C" {

spw_status* spw_stream_create(spw_engine* engine, spw_stream** stream) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(stream, "stream"));
    SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<Stream> made, in.CreateStream());
    *stream = ToHandle(*engine, std::move(made));
    return absl::OkStatus();
  });
}

spw_status* spw_stream_wrap(spw_engine* engine, void* native, spw_stream** stream) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(stream, "stream"));
    SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<Stream> made, in.WrapStream(native));
    *stream = ToHandle(*engine, std::move(made));
    return absl::OkStatus();
  });
}

spw_status* spw_stream_launch(spw_stream* stream, void (*work)(void* user), void* user) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(stream, "stream"));
    SPILLWAY_RETURN_IF_ERROR(stream->engine->CheckProcess());
    if (work == nullptr) return absl::InvalidArgumentError("work is NULL");
    return stream->stream->Launch([work, user] { work(user); });
  });
}

spw_status* spw_stream_synchronize(spw_stream* stream) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(stream, "stream"));
    SPILLWAY_RETURN_IF_ERROR(stream->engine->CheckProcess());
    return stream->stream->Synchronize();
  });
}

void* spw_stream_native(spw_stream* stream) {
  return stream != nullptr ? stream->stream->native_handle() : nullptr;
}

void spw_stream_release(spw_stream* stream) { delete stream; }

}  // extern "C"
