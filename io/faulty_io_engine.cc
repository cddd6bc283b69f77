// SPDX-License-Identifier: Apache-2.0

#include "io/faulty_io_engine.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr int kAgainAnswers = 3;

void FlipBit(const IoRequest& request, uint64_t random) {
  const uint64_t bit = random % (uint64_t{request.size_bytes} * 8);
  request.buffer[bit / 8] ^= std::byte{1} << (bit % 8);
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
      const bool applies = kind != Fault::Kind::kBitFlip || op == IoOp::kRead;
      if (befalls(random) && applies) script.push_back({.kind = kind, .op = op, .skip = i});
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
  if (paths_.size() <= index) paths_.resize(index + 1);
  paths_[index] = std::move(path);
  return file;
}

std::optional<Fault> FaultyIoEngine::TakeFault(IoOp op) {
  std::optional<Fault> taken;
  for (Fault& fault : script_) {
    if (fault.op != op) continue;
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
      error, absl::StrCat(request.op == IoOp::kRead ? "read of " : "write of ", request.size_bytes,
                          " B at offset ", request.offset, " of ",
                          index < paths_.size() ? paths_[index] : "(unknown file)", " (injected)"));
}

void FaultyIoEngine::Submit(std::span<const IoRequest> requests) {
  std::vector<IoRequest> pass;
  {
    base::MutexLock lock(&mutex_);
    for (const IoRequest& request : requests) {
      const std::optional<Fault> fault = TakeFault(request.op);
      if (fault && (fault->kind == Fault::Kind::kEio || fault->kind == Fault::Kind::kEnospc)) {
        const int error = fault->kind == Fault::Kind::kEio ? EIO : ENOSPC;
        failed_.push_back({request.tag, Failure(request, error)});
        continue;
      }
      pass.push_back(request);
      pass.back().tag = next_tag_++;
      passed_[pass.back().tag] = {.request = request, .fault = fault, .random = random_()};
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
  if (passed.fault && passed.fault->kind == Fault::Kind::kBitFlip && completion.status.ok()) {
    FlipBit(passed.request, passed.random);
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
  for (IoCompletion& failed : std::exchange(failed_, {})) done->push_back(std::move(failed));
  for (;;) {
    ReleaseHeld(done);
    const bool wait = done->size() == before;
    const Deadline until = std::min(deadline, FirstHeld());
    std::vector<IoCompletion> inner_done;
    inner_->Reap(wait ? until.left() : absl::ZeroDuration(), &inner_done);
    // Empty-handed before the time: somebody called Wake.
    const bool woken = wait && inner_done.empty() && !until.passed();
    for (IoCompletion& completion : inner_done) Complete(std::move(completion), done);
    if (done->size() > before || woken || deadline.passed()) return;
  }
}

int FaultyIoEngine::in_flight() const {
  return inner_->in_flight() + static_cast<int>(failed_.size() + held_.size());
}

}  // namespace spillway::io
