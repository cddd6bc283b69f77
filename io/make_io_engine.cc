// SPDX-License-Identifier: Apache-2.0

#include "io/make_io_engine.h"

#include <unistd.h>

#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/nameless_file.h"
#include "io/posix_io_engine.h"
#include "io/uring_io_engine.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

// One block that is written, and two blocks that it is read into: one registered, one not.
struct alignas(kIoAlignment) ProbeMemory {
  std::array<std::byte, kIoAlignment> written;
  std::array<std::byte, kIoAlignment> plain;
  std::array<std::byte, kIoAlignment> registered;
};

absl::Status Transact(IoEngine& engine, const IoRequest& request) {
  engine.Submit({&request, 1});
  std::vector<IoCompletion> done;
  while (done.empty()) engine.Reap(absl::InfiniteDuration(), &done);
  return done.front().status;
}

absl::Status Probe(IoEngine& engine, const DirectFile& file, const std::string& folder) {
  const auto memory = std::make_unique<ProbeMemory>();
  memory->written.fill(std::byte{0x5a});
  memory->plain.fill(std::byte{0xa5});
  memory->registered.fill(std::byte{0xa5});
  SPILLWAY_ASSIGN_OR_RETURN(const FileId id,
                            engine.AddFile(file.fd(), absl::StrCat(folder, " (probe)"), 0));
  engine.AddBuffer(memory->registered);

  std::byte* const buffers[] = {memory->written.data(), memory->plain.data(),
                                memory->registered.data()};
  for (std::byte* buffer : buffers) {
    const IoOp op = buffer == memory->written.data() ? IoOp::kWrite : IoOp::kRead;
    const absl::Status status = Transact(engine, {op, id, 0, buffer, kIoAlignment, 0});
    const bool is_full = op == IoOp::kWrite && absl::IsResourceExhausted(status);
    // A full disk does not mean that the engine fails, and a caller that only reads needs no disk
    // space. The probe then reads a hole instead.
    if (is_full && ::ftruncate(file.fd(), kIoAlignment) == 0) {
      memory->written.fill(std::byte{0});
      continue;
    }
    SPILLWAY_RETURN_IF_ERROR(status);
  }
  engine.RemoveBuffers();
  SPILLWAY_RETURN_IF_ERROR(engine.RemoveFile(id));
  if (memory->plain != memory->written || memory->registered != memory->written) {
    return absl::DataLossError(
        absl::StrCat(folder, ": bytes written to a probe file came back changed"));
  }
  return absl::OkStatus();
}

template <typename Engine>
absl::StatusOr<std::unique_ptr<IoEngine>> MakeProbed(const IoEngineOptions& options,
                                                     const DirectFile& file,
                                                     const std::string& folder) {
  // The probe uses a separate engine: the result hook must not see the probe's transfers, and a
  // ring serves only the first thread that uses it.
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> probed, Engine::Create({}));
  SPILLWAY_RETURN_IF_ERROR(Probe(*probed, file, folder));
  return Engine::Create(options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<IoEngine>> MakeIoEngine(IoKind kind, IoEngineOptions options,
                                                       const std::string& folder,
                                                       const Announce& announce) {
  if (options.queue_depth < 1 || options.queue_depth > kMaxQueueDepth) {
    return absl::InvalidArgumentError(absl::StrCat("the I/O queue depth must be 1 to ",
                                                   kMaxQueueDepth, ", not ", options.queue_depth));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const DirectFile file, OpenNamelessFile(folder));
  if (kind == IoKind::kPosix) return MakeProbed<PosixIoEngine>(options, file, folder);

  absl::StatusOr<std::unique_ptr<IoEngine>> uring =
      MakeProbed<UringIoEngine>(options, file, folder);
  if (uring.ok()) return uring;
  if (kind == IoKind::kUring) {
    return absl::UnimplementedError(absl::StrCat(
        "io_uring does not work here (", uring.status().message(),
        "); allow it (sysctl kernel.io_uring_disabled=0, the container's seccomp profile) or "
        "choose posix or auto"));
  }
  // If no engine can use the folder, the folder is at fault: that is an error and no fallback.
  SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<IoEngine> posix,
                            MakeProbed<PosixIoEngine>(options, file, folder));
  if (announce) {
    announce(absl::StrCat("io_uring does not work here (", uring.status().message(),
                          "): using threads, at a higher cost of CPU"));
  }
  return posix;
}

}  // namespace spillway::io
