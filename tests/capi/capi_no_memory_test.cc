// SPDX-License-Identifier: Apache-2.0
//
// Tests that a call of the C ABI returns a status when no memory is left, not even for the status.
// Replaces operator new to fail, so it is a separate program.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>

#include "absl/status/status.h"
#include "spillway/spillway.h"
#include "src/capi/calls.h"

namespace {

thread_local bool is_out_of_memory = false;

// Not inlined: the compiler would see memory of operator new go to free.
[[gnu::noinline]] void Free(void* memory) { std::free(memory); }

}  // namespace

// The other forms of new call this.
void* operator new(size_t bytes) {
  void* const memory = is_out_of_memory ? nullptr : std::malloc(std::max<size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }

namespace spillway::capi {
namespace {

// Runs out of memory, and throws `exception`.
template <class Exception>
int CodeOf(const Exception& exception) {
  spw_status* const status = Run([&]() -> absl::Status {
    is_out_of_memory = true;
    throw exception;
  });
  is_out_of_memory = false;
  const int code = spw_status_code(status);
  EXPECT_STREQ(spw_status_message(status), "no memory");
  spw_status_free(status);
  return code;
}

TEST(CapiNoMemory, IsReturnedAsAStatus) {
  EXPECT_EQ(CodeOf(std::bad_alloc()), SPW_RESOURCE_EXHAUSTED);
  EXPECT_EQ(CodeOf(std::runtime_error("a message that is longer than a string holds inline")),
            SPW_RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace spillway::capi
