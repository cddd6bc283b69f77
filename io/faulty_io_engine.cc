// SPDX-License-Identifier: Apache-2.0

#include "io/faulty_io_engine.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr int kAgainAnswers = 3;

void FlipBit(std::byte* bytes, uint32_t size_bytes, uint64_t random) {
  const uint64_t bit = random % (uint64_t{size_bytes} * 8);
  bytes[bit / 8] ^= std::byte{1} << (bit % 8);
}

std::shared_ptr<std::byte> DamagedCopy(const IoRequest& request, uint64_t random) {
  std::shared_ptr<std::byte> copy(
      static_cast<std::byte*>(std::aligned_alloc(kIoAlignment, request.size_bytes)), std::free);
  std::memcpy(copy.get(), request.buffer, request.size_bytes);
  FlipBit(copy.get(), request.size_bytes, random);
  return copy;
}

bool Applies(Fault::Kind kind, IoOp op) {
  switch (kind) {
    case Fault::Kind::kTorn:
    case Fault::Kind::kLost: return op == IoOp::kWrite;
    case Fault::Kind::kBitFlip: return op == IoOp::kRead;
    default: return true;
  }
}

}  // namespace

std::vector<Fault> RandomFaults(uint64_t seed, std::span<const Fault::Kind> kinds,
                                uint64_t num_requests, double probability) {
  std::mt19937_64 random(seed);
  std::bernoulli_distribution befalls(probability);
  std::uniform_int_distribution<size_t> pick(0, kinds.size() - 1);
  std::vector<Fault> script;
  for (const IoOp op : {IoOp::kRead, IoOp::kWrite}) {
    for (uint64_t i = 0; i < num_requests; ++i) {
      const Fault::Kind kind = kinds[pick(random)];
      if (befalls(random) && Applies(kind, op))
        script.push_back({.kind = kind, .op = op, .skip = i});
    }
  }
  return script;
}

absl::StatusOr<std::unique_ptr<FaultyIoEngine>> FaultyIoEngine::Create(
    uint64_t seed, const MakeInner& make_inner) {
  std::unique_ptr<FaultyIoEngine> faulty(new FaultyIoEngine(seed));
  const auto hook = [self = faulty.get()](const IoRequest& request, int64_t result) {
    return self->OnResult(request.tag, result);
  };
  SPILLWAY_ASSIGN_OR_RETURN(faulty->inner_, make_inner(hook));
  return faulty;
}

void FaultyIoEngine::Inject(const Fault& fault) {
  base::MutexLock lock(&mutex_);
  script_.push_back(fault);
}

void FaultyIoEngine::Clear() {
  base::MutexLock lock(&mutex_);
  script_.clear();
}

uint64_t FaultyIoEngine::faults_met() const {
  base::MutexLock lock(&mutex_);
  return faults_met_;
}

absl::StatusOr<FileId> FaultyIoEngine::AddFile(int fd, std::string path, uint16_t device) {
  SPILLWAY_ASSIGN_OR_RETURN(const FileId file, inner_->AddFile(fd, path, device));
  const auto index = static_cast<size_t>(file.value);
  if (files_.size() <= index) files_.resize(index + 1);
  files_[index] = {std::move(path), fd};
  return file;
}

bool FaultyIoEngine::Meets(const IoRequest& request, const Fault& fault) const {
  if (fault.op != request.op) return false;
  if (fault.path.empty()) return true;
  const auto index = static_cast<size_t>(request.file.value);
  return index < files_.size() && files_[index].path == fault.path && request.offset < fault.end &&
         request.offset + request.size_bytes > fault.begin;
}

std::optional<Fault> FaultyIoEngine::TakeFault(const IoRequest& request) {
  std::optional<Fault> taken;
  for (Fault& fault : script_) {
    if (!Meets(request, fault)) continue;
    if (fault.skip > 0) {
      --fault.skip;
    } else if (fault.count > 0 && !taken) {
      --fault.count;
      taken = fault;
    }
  }
  std::erase_if(script_, [](const Fault& fault) { return fault.count == 0; });
  if (taken) ++faults_met_;
  return taken;
}

absl::Status FaultyIoEngine::Failure(const IoRequest& request, int error) const {
  const auto index = static_cast<size_t>(request.file.value);
  return base::ErrnoToStatus(
      error,
      absl::StrCat(request.op == IoOp::kRead ? "read of " : "write of ", request.size_bytes,
                   " B at offset ", request.offset, " of ",
                   index < files_.size() ? files_[index].path : "(unknown file)", " (injected)"));
}

void FaultyIoEngine::TrackWrites() {
  base::MutexLock lock(&mutex_);
  tracks_ = true;
}

void FaultyIoEngine::Synced() {
  base::MutexLock lock(&mutex_);
  unsynced_.Forget();
}

absl::Status FaultyIoEngine::PowerCut() {
  base::MutexLock lock(&mutex_);
  dead_ = absl::UnavailableError("the power is off (injected)");
  return unsynced_.PowerCut(random_);
}

std::optional<absl::Status> FaultyIoEngine::Answer(const IoRequest& request,
                                                   const std::optional<Fault>& fault) {
  if (fault && fault->kind == Fault::Kind::kDeadRing) {
    dead_ = base::ErrnoToStatus(EBADF, "submit to the ring (injected)");
  }
  if (!dead_.ok()) return dead_;
  if (tracks_ && request.op == IoOp::kWrite) {
    // The write is noted even if it fails. The old contents are then still on the disk, and putting
    // them back changes nothing.
    const absl::Status noted = unsynced_.Note(files_[static_cast<size_t>(request.file.value)].fd,
                                              request.offset, {request.buffer, request.size_bytes});
    if (!noted.ok()) return noted;
  }
  if (!fault) return std::nullopt;
  switch (fault->kind) {
    case Fault::Kind::kEio: return Failure(request, EIO);
    case Fault::Kind::kEnospc: return Failure(request, ENOSPC);
    case Fault::Kind::kLost: return absl::OkStatus();
    case Fault::Kind::kTorn: {
      const absl::Status torn =
          WriteTorn(files_[static_cast<size_t>(request.file.value)].fd, request.offset,
                    {request.buffer, request.size_bytes}, random_);
      return torn.ok() ? Failure(request, EIO) : torn;
    }
    default: return std::nullopt;
  }
}

void FaultyIoEngine::Submit(std::span<const IoRequest> requests) {
  std::vector<IoRequest> pass;
  {
    base::MutexLock lock(&mutex_);
    for (const IoRequest& request : requests) {
      const std::optional<Fault> fault = TakeFault(request);
      if (std::optional<absl::Status> answer = Answer(request, fault)) {
        answered_.push_back({request.tag, *std::move(answer)});
        continue;
      }
      pass.push_back(request);
      pass.back().tag = next_tag_++;
      Passed& passed = passed_[pass.back().tag];
      passed = {.request = request, .fault = fault, .random = random_()};
      if (fault && fault->kind == Fault::Kind::kBitFlip && request.op == IoOp::kWrite) {
        passed.damaged = DamagedCopy(request, passed.random);
        pass.back().buffer = passed.damaged.get();
      }
    }
  }
  inner_->Submit(pass);
}

int64_t FaultyIoEngine::OnResult(uint64_t tag, int64_t result) {
  base::MutexLock lock(&mutex_);
  Passed& passed = passed_.at(tag);
  if (!passed.fault) return result;
  const int answer = passed.answers++;
  if (passed.fault->kind == Fault::Kind::kAgain && answer < kAgainAnswers) return -EAGAIN;
  if (passed.fault->kind == Fault::Kind::kShort && answer == 0 && result > 1) {
    return 1 + static_cast<int64_t>(passed.random % static_cast<uint64_t>(result - 1));
  }
  return result;
}

void FaultyIoEngine::Complete(IoCompletion completion, std::vector<IoCompletion>* done) {
  Passed passed;
  {
    base::MutexLock lock(&mutex_);
    const auto found = passed_.find(completion.tag);
    passed = found->second;
    passed_.erase(found);
  }
  completion.tag = passed.request.tag;
  if (passed.fault && passed.fault->kind == Fault::Kind::kBitFlip &&
      passed.request.op == IoOp::kRead && completion.status.ok()) {
    FlipBit(passed.request.buffer, passed.request.size_bytes, passed.random);
  }
  if (passed.fault && passed.fault->kind == Fault::Kind::kDelay) {
    held_.push_back({std::move(completion), Deadline::After(passed.fault->delay)});
  } else {
    done->push_back(std::move(completion));
  }
}

void FaultyIoEngine::ReleaseHeld(std::vector<IoCompletion>* done) {
  std::vector<Held> still;
  for (Held& held : held_) {
    if (held.until.passed()) {
      done->push_back(std::move(held.completion));
    } else {
      still.push_back(std::move(held));
    }
  }
  held_ = std::move(still);
}

Deadline FaultyIoEngine::FirstHeld() const {
  Deadline first = Deadline::Never();
  for (const Held& held : held_) first = std::min(first, held.until);
  return first;
}

void FaultyIoEngine::Reap(absl::Duration timeout, std::vector<IoCompletion>* done) {
  const Deadline deadline = Deadline::After(timeout);
  const size_t before = done->size();
  for (IoCompletion& answered : std::exchange(answered_, {})) done->push_back(std::move(answered));
  for (;;) {
    ReleaseHeld(done);
    const bool wait = done->size() == before;
    const Deadline until = std::min(deadline, FirstHeld());
    std::vector<IoCompletion> inner_done;
    inner_->Reap(wait ? until.left() : absl::ZeroDuration(), &inner_done);
    // A wait that ends early and without completions was ended by Wake.
    const bool woken = wait && inner_done.empty() && !until.passed();
    for (IoCompletion& completion : inner_done) Complete(std::move(completion), done);
    if (done->size() > before || woken || deadline.passed()) return;
  }
}

int FaultyIoEngine::in_flight() const {
  return inner_->in_flight() + static_cast<int>(answered_.size() + held_.size());
}

}  // namespace spillway::io
