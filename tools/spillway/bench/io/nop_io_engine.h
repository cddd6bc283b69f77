// SPDX-License-Identifier: Apache-2.0
//
// An I/O engine that completes each request at once and moves nothing. Each request is a NOP of a
// real io_uring, so that submission to the kernel has its real cost. The engine counts the CPU time
// of that.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_NOP_IO_ENGINE_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_NOP_IO_ENGINE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "io/io_engine.h"
#include "io/ring.h"
#include "src/base/mutex.h"

namespace spillway::bench_io {

class NopIoEngine final : public io::IoEngine {
 public:
  // FailedPrecondition if the kernel provides no io_uring.
  static absl::StatusOr<std::unique_ptr<NopIoEngine>> Create();
  ~NopIoEngine() override;

  std::string_view name() const override { return "nop"; }
  absl::StatusOr<io::FileId> AddFile(int fd, std::string path, uint16_t device) override;
  absl::Status RemoveFile(io::FileId file) override;
  void AddBuffer(std::span<std::byte>) override {}
  void RemoveBuffers() override {}
  int unregistered_buffers() const override { return 0; }
  void SetDepths(uint16_t, const io::QueueDepths&) override {}
  void Submit(std::span<const io::IoRequest> requests) override;
  void Reap(absl::Duration timeout, std::vector<io::IoCompletion>* done) override;
  void Wake() override;
  int in_flight() const override { return in_flight_; }

  // CPU time of the owner's thread in Submit and Reap, not counting waits.
  double submission_cpu_seconds() const { return static_cast<double>(cpu_ns_) / 1e9; }

 private:
  explicit NopIoEngine(std::unique_ptr<io::Ring> ring) : ring_(std::move(ring)) {}
  void Harvest();

  std::unique_ptr<io::Ring> ring_;
  int32_t next_file_ = 0;
  int in_flight_ = 0;
  int64_t cpu_ns_ = 0;
  absl::Status ring_status_;  // the kernel's first error; later requests complete with it
  std::vector<io::IoCompletion> completions_;

  base::Mutex mu_;
  base::CondVar woken_;
  bool wake_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_NOP_IO_ENGINE_H_
