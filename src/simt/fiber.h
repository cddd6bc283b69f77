// SPDX-License-Identifier: Apache-2.0
//
// A fiber: a function with a stack of its own, which gives up the processor at a call of Suspend
// and goes on there when it is resumed. All fibers of a thread run on that thread, one at a time.
// The address and thread sanitizers are told of each change of stacks.

#ifndef SPILLWAY_SIMT_FIBER_H_
#define SPILLWAY_SIMT_FIBER_H_

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define SPILLWAY_FIBER_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define SPILLWAY_FIBER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SPILLWAY_FIBER_ASAN 1
#elif __has_feature(thread_sanitizer)
#define SPILLWAY_FIBER_TSAN 1
#endif
#endif

#ifdef SPILLWAY_FIBER_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef SPILLWAY_FIBER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace spillway::simt {

// The C library's _longjmp, by another name: where _FORTIFY_SOURCE is set, its header replaces
// _longjmp by a function that takes a change of stacks for an error.
extern "C" [[noreturn]] void SpillwayLongjmp(jmp_buf, int) __asm__("_longjmp");

// Runs one function after another. Thread-compatible; stays on the thread that made it.
class Fiber {
 public:
  Fiber() : stack_(new std::byte[kStackBytes]) {
#ifdef SPILLWAY_FIBER_TSAN
    tsan_fiber_ = __tsan_create_fiber(0);
#endif
    getcontext(&entry_);
    entry_.uc_stack.ss_sp = stack_.get();
    entry_.uc_stack.ss_size = kStackBytes;
    makecontext(&entry_, &Fiber::Enter, 0);
  }
  // REQUIRES: is_idle().
  ~Fiber() {
    is_over_ = true;
    if (is_entered_) Continue();  // so that the stack is left
#ifdef SPILLWAY_FIBER_TSAN
    __tsan_destroy_fiber(tsan_fiber_);
#endif
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Whether no function is under way.
  bool is_idle() const { return body_ == nullptr; }

  // Runs a function until it returns, or until it suspends. REQUIRES: is_idle().
  void Start(std::function<void()> body) {
    body_ = std::move(body);
    Continue();
  }
  // Goes on after Suspend. REQUIRES: !is_idle().
  void Resume() { Continue(); }
  // Returns to the caller of Start or Resume. Called by the fiber's function.
  void Suspend() {
    if (_setjmp(own_) == 0) Leave(/*is_last=*/false);
    Arrive();
  }

 private:
  static constexpr size_t kStackBytes = size_t{256} << 10;

  // The fiber that is entered: a context's function takes no pointer.
  static Fiber*& Entered() {
    static thread_local Fiber* fiber = nullptr;
    return fiber;
  }

  static void Enter() { Entered()->RunBodies(); }

  void RunBodies() {
    Arrive();
    while (!is_over_) {
      body_();
      body_ = nullptr;
      Suspend();
    }
    Leave(/*is_last=*/true);
  }

  // On the caller's stack: goes to the fiber's, and returns when that one leaves. The frame that
  // the fiber returns to is the one that it was entered from: the address sanitizer would not learn
  // that frames between the two are gone.
  void Continue() {
    if (_setjmp(caller_) == 0) {
#ifdef SPILLWAY_FIBER_ASAN
      __sanitizer_start_switch_fiber(&caller_frames_, stack_.get(), kStackBytes);
#endif
#ifdef SPILLWAY_FIBER_TSAN
      tsan_caller_ = __tsan_get_current_fiber();
      __tsan_switch_to_fiber(tsan_fiber_, 0);
#endif
      if (is_entered_) SpillwayLongjmp(own_, 1);
      is_entered_ = true;
      Entered() = this;
      swapcontext(&left_, &entry_);
    }
#ifdef SPILLWAY_FIBER_ASAN
    __sanitizer_finish_switch_fiber(caller_frames_, nullptr, nullptr);
#endif
  }

  // On the fiber's stack: goes to the caller's.
  [[noreturn]] void Leave([[maybe_unused]] bool is_last) {
#ifdef SPILLWAY_FIBER_ASAN
    __sanitizer_start_switch_fiber(is_last ? nullptr : &own_frames_, caller_stack_,
                                   caller_stack_bytes_);
#endif
#ifdef SPILLWAY_FIBER_TSAN
    __tsan_switch_to_fiber(tsan_caller_, 0);
#endif
    SpillwayLongjmp(caller_, 1);
  }

  // On the fiber's stack, after each change to it.
  void Arrive() {
#ifdef SPILLWAY_FIBER_ASAN
    __sanitizer_finish_switch_fiber(own_frames_, &caller_stack_, &caller_stack_bytes_);
#endif
  }

  std::unique_ptr<std::byte[]> stack_;
  std::function<void()> body_;
  bool is_entered_ = false;
  bool is_over_ = false;
  ucontext_t entry_ = {};
  ucontext_t left_ = {};  // not used
  jmp_buf own_ = {};
  jmp_buf caller_ = {};
#ifdef SPILLWAY_FIBER_ASAN
  void* own_frames_ = nullptr;  // the sanitizer's, of each stack while it is left
  void* caller_frames_ = nullptr;
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
#endif
#ifdef SPILLWAY_FIBER_TSAN
  void* tsan_fiber_ = nullptr;
  void* tsan_caller_ = nullptr;
#endif
};

}  // namespace spillway::simt

#endif  // SPILLWAY_SIMT_FIBER_H_
