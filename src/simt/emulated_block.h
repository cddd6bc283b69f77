// SPDX-License-Identifier: Apache-2.0
//
// Runs a kernel (block.h) on the host. Each thread of a block is a fiber. Between two barriers the
// threads run one after another in random order, and so do the blocks of the grid; the seed
// decides. So a result that depends on an order differs from seed to seed.
//
// The threads' shared arrays start as NaN in each block, and what would be undefined on a GPU is
// reported:
//
//   overrun        an index outside of an array
//   unwritten      a read of an element that no thread has written
//   race           two threads access an element between two barriers, and one of them writes it
//   lost barrier   a thread waits at a barrier, and another one has ended or waits at another
//   barrier
//
// A race is found whatever the order is. Global memory is not watched: the address sanitizer finds
// overruns there, and the random orders find most races.

#ifndef SPILLWAY_SIMT_EMULATED_BLOCK_H_
#define SPILLWAY_SIMT_EMULATED_BLOCK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/simt/fiber.h"

namespace spillway::simt {

// Where a block is: which of its threads runs, between which barriers, and what was reported.
class EmulatedRun {
 public:
  static constexpr size_t kMostReports = 8;  // of a launch; after an error most accesses are wrong

  // Of the calling thread's emulator.
  static EmulatedRun*& Current() {
    static thread_local EmulatedRun* run = nullptr;
    return run;
  }

  void Report(const std::string& what) {
    if (!is_muted_ && reports_.size() < kMostReports)
      reports_.push_back("block " + std::to_string(block_) + ": " + what);
  }

  int thread() const { return thread_; }
  int64_t interval() const { return interval_; }

 private:
  friend class Emulator;

  int64_t block_ = 0;
  int thread_ = 0;
  int64_t interval_ = 0;   // the number of barriers passed
  bool is_muted_ = false;  // after a lost barrier all that the block does is wrong
  std::vector<std::string> reports_;
};

// Memory that the threads of a block share.
template <class T, int kSize>
class EmulatedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // All bits are set: of a floating-point number, that is NaN.
  EmulatedArray() { std::memset(static_cast<void*>(values_), 0xff, sizeof(values_)); }

  T Read(int64_t index) const {
    if (!IsInside(index)) return Undefined();
    Uses& uses = uses_[index];
    const EmulatedRun& run = *EmulatedRun::Current();
    if (uses.writer == kNobody) {
      Report("unwritten: thread " + std::to_string(run.thread()) + " reads " + Named(index) +
             ", which no thread has written");
    } else if (uses.written_in == run.interval() && uses.writer != run.thread()) {
      ReportRace(index, uses.writer, run.thread(), "reads");
    }
    const bool is_first = uses.read_in != run.interval();
    uses.reader = is_first || uses.reader == run.thread() ? run.thread() : kSeveral;
    uses.read_in = run.interval();
    return values_[index];
  }

  void Write(int64_t index, T value) {
    if (!IsInside(index)) return;
    Uses& uses = uses_[index];
    const EmulatedRun& run = *EmulatedRun::Current();
    if (uses.written_in == run.interval() && uses.writer != run.thread()) {
      ReportRace(index, uses.writer, run.thread(), "writes");
    } else if (uses.read_in == run.interval() && uses.reader != run.thread()) {
      Report("race: thread " + std::to_string(run.thread()) + " writes " + Named(index) +
             ", which " +
             (uses.reader == kSeveral ? "others read" : ThreadName(uses.reader) + " reads") +
             " with no barrier between");
    }
    uses.writer = run.thread();
    uses.written_in = run.interval();
    values_[index] = value;
  }

 private:
  static constexpr int kNobody = -1;
  static constexpr int kSeveral = -2;

  // The last accesses of an element.
  struct Uses {
    int writer = kNobody;
    int reader = kNobody;
    int64_t written_in = -1;  // the interval
    int64_t read_in = -1;
  };

  static T Undefined() {
    T value;
    std::memset(static_cast<void*>(&value), 0xff, sizeof(value));
    return value;
  }

  static void Report(const std::string& what) { EmulatedRun::Current()->Report(what); }
  static std::string ThreadName(int thread) { return "thread " + std::to_string(thread); }
  static std::string Named(int64_t index) {
    return "element " + std::to_string(index) + " of an array of " + std::to_string(kSize);
  }

  static bool IsInside(int64_t index) {
    if (index >= 0 && index < kSize) return true;
    Report("overrun: thread " + std::to_string(EmulatedRun::Current()->thread()) + " accesses " +
           Named(index));
    return false;
  }

  static void ReportRace(int64_t index, int writer, int thread, const char* does) {
    Report("race: thread " + std::to_string(thread) + " " + does + " " + Named(index) + ", which " +
           ThreadName(writer) + " writes with no barrier between");
  }

  T values_[kSize];
  mutable Uses uses_[kSize];
};

class Emulator;

// One thread's view of its block.
class EmulatedBlock {
 public:
  template <class T, int kSize>
  using Array = EmulatedArray<T, kSize>;

  EmulatedBlock(Emulator* emulator, int thread, int64_t index)
      : emulator_(emulator), thread_(thread), index_(index) {}

  int thread() const { return thread_; }
  int64_t index() const { return index_; }
  // The place of the call is the barrier's name.
  inline void Sync(const char* file = __builtin_FILE(), int line = __builtin_LINE());

 private:
  Emulator* const emulator_;
  const int thread_;
  const int64_t index_;
};

// Launches kernels. It keeps its fibers from launch to launch. Thread-compatible; must stay on the
// thread that made it.
//
//   simt::Emulator emulator(seed);
//   for (const std::string& report : emulator.Launch(kernel)) ADD_FAILURE() << report;
class Emulator {
 public:
  explicit Emulator(uint64_t seed) : random_(seed) {}

  // Runs all blocks of a kernel. Returns what was wrong, at most EmulatedRun::kMostReports; a
  // kernel with reports has run to its end, with an undefined result.
  template <class Kernel>
  std::vector<std::string> Launch(const Kernel& kernel) {
    EmulatedRun* const outer = std::exchange(EmulatedRun::Current(), &run_);
    run_.reports_.clear();
    std::vector<int64_t> blocks(static_cast<size_t>(kernel.blocks()));
    std::iota(blocks.begin(), blocks.end(), int64_t{0});
    std::shuffle(blocks.begin(), blocks.end(), random_);
    for (const int64_t block : blocks) RunBlock(kernel, block);
    EmulatedRun::Current() = outer;
    return std::move(run_.reports_);
  }

 private:
  friend class EmulatedBlock;

  struct Thread {
    Fiber* fiber = nullptr;      // null: it has ended
    const char* file = nullptr;  // of the barrier at which it waits
    int line = 0;
  };

  template <class Kernel>
  void RunBlock(const Kernel& kernel, int64_t index) {
    using Shared = typename Kernel::template Shared<EmulatedBlock>;
    const auto shared = std::make_unique<Shared>();
    run_.block_ = index;
    run_.interval_ = 0;
    run_.is_muted_ = false;
    threads_.assign(static_cast<size_t>(Kernel::kThreads), {});
    std::vector<int> order(threads_.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    for (const int thread : order) {
      Switch(thread, TakeFiber(), [this, &kernel, &shared, thread, index] {
        EmulatedBlock block(this, thread, index);
        kernel.Run(block, *shared);
      });
    }
    while (AllWait(&order)) {
      ++run_.interval_;
      std::shuffle(order.begin(), order.end(), random_);
      for (const int thread : order) Switch(thread, At(thread).fiber, nullptr);
    }
  }

  // Whether threads wait at a barrier, which are returned in any order. Reports it if not all do.
  // The waiting ones then run to their end without barriers.
  bool AllWait(std::vector<int>* waiting) {
    waiting->clear();
    int ended = -1;
    for (int thread = 0; thread < static_cast<int>(threads_.size()); ++thread) {
      if (At(thread).fiber == nullptr) {
        ended = thread;
      } else {
        waiting->push_back(thread);
      }
    }
    if (waiting->empty()) return false;
    const int first = waiting->front();
    const auto other = std::find_if(waiting->begin(), waiting->end(), [&](int thread) {
      return At(thread).line != At(first).line || std::strcmp(At(thread).file, At(first).file) != 0;
    });
    if (ended < 0 && other == waiting->end()) return true;
    run_.Report("lost barrier: thread " + std::to_string(first) + " waits at " + PlaceOf(first) +
                ", and thread " +
                (ended >= 0 ? std::to_string(ended) + " has ended"
                            : std::to_string(*other) + " waits at " + PlaceOf(*other)));
    run_.is_muted_ = true;
    return true;
  }

  // Runs a thread until it waits or ends: it starts with `body`, or goes on.
  void Switch(int thread, Fiber* fiber, std::function<void()> body) {
    run_.thread_ = thread;
    At(thread).fiber = fiber;
    body != nullptr ? fiber->Start(std::move(body)) : fiber->Resume();
    if (!fiber->is_idle()) return;
    At(thread).fiber = nullptr;
    idle_.push_back(fiber);
  }

  void Wait(int thread, const char* file, int line) {
    if (run_.is_muted_) return;
    At(thread).file = file;
    At(thread).line = line;
    At(thread).fiber->Suspend();
  }

  // Returns an idle fiber. A kernel without barriers needs one.
  Fiber* TakeFiber() {
    if (idle_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>());
      idle_.push_back(fibers_.back().get());
    }
    Fiber* const fiber = idle_.back();
    idle_.pop_back();
    return fiber;
  }

  Thread& At(int thread) { return threads_[static_cast<size_t>(thread)]; }
  std::string PlaceOf(int thread) {
    return std::string(At(thread).file) + ":" + std::to_string(At(thread).line);
  }

  std::mt19937_64 random_;
  EmulatedRun run_;
  std::vector<Thread> threads_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
};

inline void EmulatedBlock::Sync(const char* file, int line) {
  emulator_->Wait(thread_, file, line);
}

}  // namespace spillway::simt

#endif  // SPILLWAY_SIMT_EMULATED_BLOCK_H_
