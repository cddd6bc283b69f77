// SPDX-License-Identifier: Apache-2.0
//
// A stream runs work on the device in the order in which it was launched, asynchronously to the
// caller. On the host device a stream is a thread that runs closures; on a GPU it is a CUDA stream.

#ifndef SPILLWAY_STREAM_H_
#define SPILLWAY_STREAM_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "spillway/export.h"

namespace spillway {

// Created by Engine::CreateStream or Engine::WrapStream. It must be destroyed before its engine.
// The destructor waits for the work that was launched, or at least, for a wrapped stream, for the
// closures given to Launch. Thread-compatible: one caller at a time.
//
//   auto stream = engine->CreateStream();
//   auto lease = engine->Acquire(id, Access::kRead, stream->get());
//   (*stream)->Launch([data = lease->data()] { Compute(data); });
//   lease->Release();                  // the engine keeps the bytes until the closure has run
//   (*stream)->Synchronize();
class SPILLWAY_EXPORT Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Runs `work` on the host after everything that was launched before it. `work` must not call the
  // engine, and must not wait for another stream's closure, because a GPU may run closures one at a
  // time. On a lost GPU it does not run.
  virtual absl::Status Launch(std::function<void()> work) = 0;

  // Waits until everything that was launched has run.
  virtual absl::Status Synchronize() = 0;

  // The device's own handle, to launch kernels on: a cudaStream_t on a GPU, null on the host.
  virtual void* native_handle() = 0;

 protected:
  Stream() = default;
};

}  // namespace spillway

#endif  // SPILLWAY_STREAM_H_
