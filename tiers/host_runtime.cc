// SPDX-License-Identifier: Apache-2.0
//
// Streams and events of the host. An event is a pointer to a *mark*, a one-shot flag that the
// recording stream raises when it reaches the recording. Record replaces the event's mark; Wait and
// Synchronize keep the mark that they found. So a mark always belongs to work that was launched
// before the wait on it, and waits cannot form a cycle.

#include "tiers/host_runtime.h"

#include <unistd.h>

#include <cstring>
#include <deque>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/check.h"
#include "src/base/errno_status.h"
#include "src/base/mutex.h"
#include "tiers/address_range.h"

namespace spillway::tiers {
namespace {

// A flag that is raised once and never lowered. Thread-safe.
class Mark {
 public:
  void Raise() {
    base::MutexLock lock(&mutex_);
    raised_ = true;
    changed_.NotifyAll();
  }
  void Wait() {
    base::MutexLock lock(&mutex_);
    while (!raised_) changed_.Wait(&mutex_);
  }
  bool raised() {
    base::MutexLock lock(&mutex_);
    return raised_;
  }

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  bool raised_ ABSL_GUARDED_BY(mutex_) = false;
};

// A thread that runs closures in order. Thread-safe. Destruction runs the closures that are left
// and joins the thread.
class HostStream {
 public:
  HostStream() : thread_([this] { Run(); }) {}

  ~HostStream() {
    {
      base::MutexLock lock(&mutex_);
      stopping_ = true;
      launched_.NotifyOne();
    }
    thread_.join();
  }

  // Notifies without the lock: the thread would preempt this one and wait for the lock.
  void Launch(std::function<void()> work) {
    {
      base::MutexLock lock(&mutex_);
      queue_.push_back(std::move(work));
    }
    launched_.NotifyOne();
  }

  // Returns when the stream has run everything that was launched before the call.
  void Synchronize() {
    auto mark = std::make_shared<Mark>();
    Launch([mark] { mark->Raise(); });
    mark->Wait();
  }

 private:
  // Waits for the next closure and returns it. Returns an empty function if the stream is being
  // destroyed and no closure is left.
  std::function<void()> Next() {
    base::MutexLock lock(&mutex_);
    while (queue_.empty() && !stopping_) launched_.Wait(&mutex_);
    if (queue_.empty()) return nullptr;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    return work;
  }

  void Run() {
    while (std::function<void()> work = Next()) work();
  }

  base::Mutex mutex_;
  base::CondVar launched_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all members above
};

class HostRuntime final : public DeviceRuntime {
 public:
  std::string name() const override { return "host"; }
  absl::Status Check() const override { return absl::OkStatus(); }

  uint64_t usable_bytes() const override {
    return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
           static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }

  absl::StatusOr<std::byte*> AllocateArena(uint64_t size_bytes) override {
    return MapAddressRange(size_bytes, "the host device's arena");
  }
  void FreeArena(std::byte* arena, uint64_t size_bytes) override {
    UnmapAddressRange(arena, size_bytes);
  }

  absl::Status RegisterHostMemory(std::span<std::byte>) override { return absl::OkStatus(); }
  void UnregisterHostMemory(std::span<std::byte>) override {}

  absl::StatusOr<StreamHandle> CreateStream() override {
    std::shared_ptr<HostStream> stream;
    try {
      stream = std::make_shared<HostStream>();
    } catch (const std::system_error& error) {
      return base::ThreadErrorToStatus(error.code().value(), "a thread for a host stream");
    }
    base::MutexLock lock(&mutex_);
    const StreamHandle handle{NextHandle()};
    streams_.emplace(handle.value, std::move(stream));
    return handle;
  }

  absl::StatusOr<StreamHandle> WrapStream(void* /*native*/) override {
    return absl::InvalidArgumentError(
        "the host device has no streams but those that Engine::CreateStream makes");
  }

  absl::Status CheckStream(StreamHandle /*stream*/) override { return absl::OkStatus(); }

  void DestroyStream(StreamHandle stream) override {
    std::shared_ptr<HostStream> owned = Find(stream);
    base::MutexLock lock(&mutex_);
    streams_.erase(stream.value);
  }

  absl::Status Launch(StreamHandle stream, std::function<void()> work) override {
    if (!work) return absl::InvalidArgumentError("an empty closure was launched");
    Find(stream)->Launch(std::move(work));
    return absl::OkStatus();
  }

  absl::Status Notify(StreamHandle stream, Notification notification) override {
    if (!notification) return absl::InvalidArgumentError("an empty notification was asked for");
    Find(stream)->Launch(
        [notification = std::move(notification)] { notification(absl::OkStatus()); });
    return absl::OkStatus();
  }

  absl::Status CopyAsync(StreamHandle stream, CopyDirection, void* destination, const void* source,
                         uint64_t size_bytes) override {
    const std::shared_ptr<HostStream> target = Find(stream);
    if (size_bytes == 0) return absl::OkStatus();
    target->Launch([=] { std::memcpy(destination, source, size_bytes); });
    return absl::OkStatus();
  }

  absl::Status Synchronize(StreamHandle stream) override {
    Find(stream)->Synchronize();
    return absl::OkStatus();
  }

  void* native_handle(StreamHandle stream) override {
    (void)Find(stream);
    return nullptr;
  }

  absl::StatusOr<EventHandle> CreateEvent() override {
    base::MutexLock lock(&mutex_);
    const EventHandle handle{NextHandle()};
    events_.emplace(handle.value, nullptr);
    return handle;
  }

  void DestroyEvent(EventHandle event) override {
    base::MutexLock lock(&mutex_);
    const auto found = events_.find(event.value);
    SPILLWAY_CHECK(found != events_.end());
    events_.erase(found);
  }

  absl::Status Record(EventHandle event, StreamHandle stream) override {
    const std::shared_ptr<HostStream> target = Find(stream);
    auto mark = std::make_shared<Mark>();
    {
      base::MutexLock lock(&mutex_);
      const auto found = events_.find(event.value);
      SPILLWAY_CHECK(found != events_.end());
      found->second = mark;
      // Launched under the lock. If two threads record, the event keeps the mark that was launched
      // later, and no wait can find a mark that is not launched yet.
      target->Launch([mark] { mark->Raise(); });
    }
    return absl::OkStatus();
  }

  absl::Status Wait(StreamHandle stream, EventHandle event) override {
    const std::shared_ptr<HostStream> target = Find(stream);
    std::shared_ptr<Mark> mark = Find(event);
    if (mark != nullptr) target->Launch([mark = std::move(mark)] { mark->Wait(); });
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Query(EventHandle event) override {
    const std::shared_ptr<Mark> mark = Find(event);
    return mark == nullptr || mark->raised();
  }

  absl::Status Synchronize(EventHandle event) override {
    if (const std::shared_ptr<Mark> mark = Find(event)) mark->Wait();
    return absl::OkStatus();
  }

 private:
  // A handle is a number and not an address, so that a destroyed handle never equals a live one.
  void* NextHandle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return reinterpret_cast<void*>(++last_handle_);
  }

  std::shared_ptr<HostStream> Find(StreamHandle stream) {
    base::MutexLock lock(&mutex_);
    const auto found = streams_.find(stream.value);
    SPILLWAY_CHECK(found != streams_.end());
    return found->second;
  }

  // Returns null for an event that was never recorded.
  std::shared_ptr<Mark> Find(EventHandle event) {
    base::MutexLock lock(&mutex_);
    const auto found = events_.find(event.value);
    SPILLWAY_CHECK(found != events_.end());
    return found->second;
  }

  base::Mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<HostStream>> streams_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<void*, std::shared_ptr<Mark>> events_ ABSL_GUARDED_BY(mutex_);
  uintptr_t last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<DeviceRuntime> CreateHostRuntime() { return std::make_unique<HostRuntime>(); }

}  // namespace spillway::tiers
