// SPDX-License-Identifier: Apache-2.0
//
// The creation and destruction of events and streams come first, then notifications, then closures.

#include "tiers/cuda_stream_cuda.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"

namespace spillway::tiers {

absl::StatusOr<std::shared_ptr<CudaEvent>> CudaEvent::Make(DeviceHealth& health, int device) {
  auto event = std::shared_ptr<CudaEvent>(new CudaEvent(device));
  const DeviceScope scope(device);
  cudaError_t error = scope.status();
  // cudaEventBlockingSync: a waiting thread sleeps. Spinning would take a CPU from the optimizer.
  if (error == cudaSuccess) {
    error =
        cudaEventCreateWithFlags(&event->event_, cudaEventDisableTiming | cudaEventBlockingSync);
  }
  SPILLWAY_RETURN_IF_ERROR(health.Judge(error, "making an event"));
  return event;
}

// If the event has not happened yet, CUDA frees it when it has.
CudaEvent::~CudaEvent() {
  if (event_ == nullptr) return;
  const DeviceScope scope(device_);
  if (cudaEventDestroy(event_) != cudaSuccess) (void)cudaGetLastError();
}

absl::StatusOr<std::shared_ptr<CudaStream>> CudaStream::Make(DeviceHealth* health, int device) {
  auto stream = std::shared_ptr<CudaStream>(new CudaStream(health, device));
  const DeviceScope scope(device);
  cudaError_t error = scope.status();
  if (error == cudaSuccess) {
    error = cudaStreamCreateWithFlags(&stream->stream_, cudaStreamNonBlocking);
  }
  SPILLWAY_RETURN_IF_ERROR(health->Judge(error, "making a stream"));
  stream->is_own_ = true;
  SPILLWAY_RETURN_IF_ERROR(stream->Start());
  return stream;
}

absl::StatusOr<std::shared_ptr<CudaStream>> CudaStream::Wrap(DeviceHealth* health, int device,
                                                             cudaStream_t foreign) {
  auto stream = std::shared_ptr<CudaStream>(new CudaStream(health, device));
  stream->stream_ = foreign;
  SPILLWAY_RETURN_IF_ERROR(stream->Start());
  return stream;
}

absl::Status CudaStream::Start() {
  try {
    thread_ = std::thread(&CudaStream::Run, this);
  } catch (const std::system_error& failure) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a thread for a stream: ", failure.what()));
  }
  return absl::OkStatus();
}

CudaStream::~CudaStream() {
  if (thread_.joinable()) {
    {
      base::MutexLock lock(&mutex_);
      stopping_ = true;
      added_.NotifyOne();
    }
    thread_.join();
  }
  const DeviceScope scope(device_);
  if (is_own_ || HasClosures())
    (void)health_->Judge(cudaStreamSynchronize(stream_), "ending a stream");
  if (is_own_) (void)health_->Judge(cudaStreamDestroy(stream_), "ending a stream");
  // On a lost device CUDA may still be running a closure, and may not have called others. Those are
  // never deleted, because CUDA has their addresses. On any other device each closure has run by
  // now.
  CloseClosures();
}

absl::Status CudaStream::CheckNotCaptured() const {
  const DeviceScope scope(device_);
  auto capture = cudaStreamCaptureStatusNone;
  const cudaError_t error =
      scope.status() != cudaSuccess ? scope.status() : cudaStreamIsCapturing(stream_, &capture);
  // The legacy default stream cannot be used while any blocking stream of the context is captured.
  const bool is_implicit = error == cudaErrorStreamCaptureImplicit;
  if (!is_implicit)
    SPILLWAY_RETURN_IF_ERROR(health_->Judge(error, "asking whether a stream is captured"));
  if (!is_implicit && capture == cudaStreamCaptureStatusNone) return absl::OkStatus();
  (void)cudaGetLastError();  // the caller's next check must not find this one
  return absl::FailedPreconditionError(
      "the stream is being captured into a CUDA graph: take and end leases on it, and wait for it, "
      "before the capture or after it");
}

absl::Status CudaStream::Notify(Notification notification) {
  SPILLWAY_RETURN_IF_ERROR(CheckNotCaptured());
  SPILLWAY_ASSIGN_OR_RETURN(std::shared_ptr<CudaEvent> event, CudaEvent::Make(*health_, device_));
  const DeviceScope scope(device_);
  base::MutexLock lock(&mutex_);  // keeps waiting_ in the order of the stream
  const cudaError_t error =
      scope.status() != cudaSuccess ? scope.status() : cudaEventRecord(event->get(), stream_);
  SPILLWAY_RETURN_IF_ERROR(health_->Judge(error, "marking a stream"));
  waiting_.push_back({std::move(event), std::move(notification)});
  ++num_asked_;
  added_.NotifyOne();
  return absl::OkStatus();
}

bool CudaStream::Next(Waiting* next) {
  base::MutexLock lock(&mutex_);
  while (waiting_.empty() && !stopping_) added_.Wait(&mutex_);
  if (waiting_.empty()) return false;
  *next = std::move(waiting_.front());
  waiting_.pop_front();
  return true;
}

void CudaStream::Run() {
  const DeviceScope scope(device_);
  for (Waiting next; Next(&next);) {
    const cudaError_t error = cudaEventSynchronize(next.event->get());
    next.notification(health_->Judge(error, "waiting for a stream"));
    next = {};
    base::MutexLock lock(&mutex_);
    ++num_told_;
    told_.NotifyAll();
  }
}

absl::Status CudaStream::Synchronize() {
  absl::Status status = CheckNotCaptured();
  if (status.ok()) {
    const DeviceScope scope(device_);
    const cudaError_t error =
        scope.status() != cudaSuccess ? scope.status() : cudaStreamSynchronize(stream_);
    status = health_->Judge(error, "waiting for a stream");
  }
  base::MutexLock lock(&mutex_);
  for (const uint64_t asked = num_asked_; num_told_ < asked;) told_.Wait(&mutex_);
  return status;
}

absl::Status CudaStream::Launch(std::function<void()> work) {
  auto closure = std::make_unique<Closure>(closures_, std::move(work));
  {
    base::MutexLock lock(&closures_->mutex);
    ++closures_->num_launched;
  }
  const DeviceScope scope(device_);
  cudaError_t error = scope.status();
  if (error == cudaSuccess)
    error = cudaLaunchHostFunc(stream_, &CudaStream::RunClosure, closure.get());
  if (error == cudaSuccess) {
    (void)closure.release();  // RunClosure deletes it
  } else {
    base::MutexLock lock(&closures_->mutex);
    --closures_->num_launched;
  }
  return health_->Judge(error, "launching a closure");
}

void CUDART_CB CudaStream::RunClosure(void* argument) {
  const std::unique_ptr<Closure> closure(static_cast<Closure*>(argument));
  Closures& all = *closure->closures;
  {
    base::MutexLock lock(&all.mutex);
    if (all.is_closed) return;
    ++all.num_running;
  }
  closure->work();
  closure->work = nullptr;  // what it refers to need not outlive the stream
  base::MutexLock lock(&all.mutex);
  --all.num_running;
  --all.num_launched;
  all.ended.NotifyAll();
}

bool CudaStream::HasClosures() {
  base::MutexLock lock(&closures_->mutex);
  return closures_->num_launched > 0;
}

void CudaStream::CloseClosures() {
  base::MutexLock lock(&closures_->mutex);
  closures_->is_closed = true;
  while (closures_->num_running > 0) closures_->ended.Wait(&closures_->mutex);
}

}  // namespace spillway::tiers
