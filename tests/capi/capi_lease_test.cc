// SPDX-License-Identifier: Apache-2.0
//
// Tests leases and streams through the C ABI, and the export of a lease as a DLPack tensor.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "src/capi/dlpack.h"
#include "tests/capi/capi_testing.h"

namespace spillway::test {
namespace {

class CapiLeaseTest : public CapiTest {};

TEST_F(CapiLeaseTest, BytesStayWhereTheyAreUntilItEnds) {
  const uint32_t id = Register("w", SPW_F32, 3, 100);
  spw_lease* lease = nullptr;
  SPW_ASSERT_OK(spw_acquire(engine_, id, 2, SPW_DISCARD, nullptr, &lease));
  EXPECT_EQ(spw_lease_size_bytes(lease), 400u);
  for (int i = 0; i < 100; ++i) static_cast<float*>(spw_lease_data(lease))[i] = float(i);
  SPW_EXPECT_ERROR(spw_commit(engine_, nullptr, 0), SPW_FAILED_PRECONDITION, "tensor 'w' tile 2");
  spw_lease_release(lease, nullptr);
  SPW_ASSERT_OK(spw_acquire_host(engine_, id, 2, SPW_READ, nullptr, &lease));
  EXPECT_EQ(static_cast<const float*>(spw_lease_data(lease))[99], 99.0f);
  spw_lease_release(lease, nullptr);
  SPW_EXPECT_ERROR(spw_acquire(engine_, id, 3, SPW_READ, nullptr, &lease), SPW_INVALID_ARGUMENT,
                   "has 3 tiles");
  SPW_EXPECT_ERROR(spw_acquire(engine_, id, 0, 4, nullptr, &lease), SPW_INVALID_ARGUMENT,
                   "access is 4");
}

TEST_F(CapiLeaseTest, AnInterruptEndsItsThreadsWait) {
  const uint32_t id = Register("w", SPW_F32, 1, 100);
  spw_lease* held = nullptr;
  SPW_ASSERT_OK(spw_acquire(engine_, id, 0, SPW_READ_WRITE, nullptr, &held));
  int asked = 0;
  spw_set_interrupt([](void* user) -> int32_t { return ++*static_cast<int*>(user) == 2 ? 7 : 0; },
                    nullptr, &asked);
  spw_lease* lease = nullptr;
  SPW_EXPECT_ERROR(spw_acquire(engine_, id, 0, SPW_READ, nullptr, &lease), SPW_CANCELLED,
                   "tensor 'w' tile 0");
  EXPECT_EQ(lease, nullptr);
  EXPECT_EQ(asked, 2);
  spw_set_interrupt(nullptr, nullptr, nullptr);
  spw_lease_release(held, nullptr);
  SPW_EXPECT_OK(spw_commit(engine_, nullptr, 0));
}

struct Shared {
  std::atomic<bool> may_run = false;
  float* values = nullptr;
};

TEST_F(CapiLeaseTest, OnAStreamItLastsAsLongAsTheStreamsWork) {
  const uint32_t id = Register("w", SPW_F32, 1, 100);
  spw_stream* stream = nullptr;
  SPW_ASSERT_OK(spw_stream_create(engine_, &stream));
  EXPECT_EQ(spw_stream_native(stream), nullptr);
  for (int way = 0; way < 4; ++way) {
    const bool on_host = way % 2 == 1;
    spw_stream* const named = way < 2 ? stream : nullptr;  // null: the one it was acquired with
    spw_lease* lease = nullptr;
    SPW_ASSERT_OK(on_host ? spw_acquire_host(engine_, id, 0, SPW_READ_WRITE, stream, &lease)
                          : spw_acquire(engine_, id, 0, SPW_READ_WRITE, stream, &lease));
    Shared shared;
    shared.values = static_cast<float*>(spw_lease_data(lease));
    const auto add = [](void* user) {
      auto& with = *static_cast<Shared*>(user);
      while (!with.may_run) {
      }
      for (int i = 0; i < 100; ++i) with.values[i] += 1;
    };
    SPW_ASSERT_OK(spw_stream_launch(stream, add, &shared));
    spw_lease_release(lease, named);
    SPW_EXPECT_ERROR(spw_evict(engine_, id, 0), SPW_FAILED_PRECONDITION, "still used by a stream");
    shared.may_run = true;
    SPW_ASSERT_OK(spw_stream_synchronize(stream));
    SPW_EXPECT_OK(spw_evict(engine_, id, 0));
  }
  EXPECT_EQ(Read<float>(id, 100)[50], 4.0f);
  spw_stream_release(stream);
}

TEST_F(CapiLeaseTest, AnotherEnginesStreamIsRefused) {
  const uint32_t id = Register("w", SPW_F32, 1, 100);
  spw_engine_options options;
  spw_engine_options_init(&options, sizeof options);
  options.pinned_bytes = options.device_bytes = 1 << 20;
  spw_engine* other = nullptr;
  SPW_ASSERT_OK(spw_engine_open(&options, &other));
  spw_stream* stream = nullptr;
  SPW_ASSERT_OK(spw_stream_create(other, &stream));
  spw_lease* lease = nullptr;
  SPW_EXPECT_ERROR(spw_acquire(engine_, id, 0, SPW_READ, stream, &lease), SPW_INVALID_ARGUMENT,
                   "another engine's");
  SPW_ASSERT_OK(spw_acquire(engine_, id, 0, SPW_READ, nullptr, &lease));
  DLManagedTensor* tensor = nullptr;
  SPW_EXPECT_ERROR(spw_lease_dlpack_on(lease, stream, &tensor), SPW_INVALID_ARGUMENT,
                   "another engine's");
  spw_lease_release(lease, nullptr);
  SPW_EXPECT_ERROR(spw_stream_wrap(engine_, stream, &stream), SPW_INVALID_ARGUMENT, "host");
  spw_stream_release(stream);
  spw_engine_release(other);
}

TEST_F(CapiLeaseTest, AsATensorItEndsWithTheTensor) {
  const uint32_t id = Register("w", SPW_BF16, 5, 64);
  spw_lease* lease = nullptr;
  SPW_ASSERT_OK(spw_acquire(engine_, id, 4, SPW_READ_WRITE, nullptr, &lease));
  void* const data = spw_lease_data(lease);
  DLManagedTensor* tensor = nullptr;
  SPW_ASSERT_OK(spw_lease_dlpack(lease, &tensor));
  const DLTensor& as = tensor->dl_tensor;
  EXPECT_EQ(as.data, data);
  EXPECT_EQ(as.device.device_type, kDLCPU);
  ASSERT_EQ(as.ndim, 2);
  EXPECT_EQ(as.shape[0], 1);
  EXPECT_EQ(as.shape[1], 64);
  EXPECT_EQ(as.strides, nullptr);
  EXPECT_EQ(as.dtype.code, kDLBfloat);
  EXPECT_EQ(as.dtype.bits, 16);
  SPW_EXPECT_ERROR(spw_unregister(engine_, id), SPW_FAILED_PRECONDITION, "is leased");
  tensor->deleter(tensor);
  SPW_EXPECT_OK(spw_unregister(engine_, id));
}

TEST_F(CapiLeaseTest, AForkedProcessGetsNoTensorAndRunsNothingOnAStream) {
  const uint32_t id = Register("w", SPW_F32, 1, 100);
  spw_lease* lease = nullptr;
  spw_stream* stream = nullptr;
  SPW_ASSERT_OK(spw_stream_create(engine_, &stream));
  SPW_ASSERT_OK(spw_acquire(engine_, id, 0, SPW_READ_WRITE, stream, &lease));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    const auto nothing = [](void*) {};
    DLManagedTensor* tensor = nullptr;
    const bool is_told =
        spw_status_code(spw_lease_dlpack(lease, &tensor)) == SPW_FAILED_PRECONDITION &&
        spw_status_code(spw_lease_dlpack_on(lease, nullptr, &tensor)) == SPW_FAILED_PRECONDITION &&
        spw_status_code(spw_stream_launch(stream, nothing, nullptr)) == SPW_FAILED_PRECONDITION &&
        spw_status_code(spw_stream_synchronize(stream)) == SPW_FAILED_PRECONDITION;
    ::_exit(is_told && tensor == nullptr ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  spw_lease_release(lease, nullptr);
  spw_stream_release(stream);
  SPW_EXPECT_OK(spw_commit(engine_, nullptr, 0));
}

TEST_F(CapiLeaseTest, AsATensorItsBytesHaveArrived) {
  const uint32_t id = Register("w", SPW_F32, 1, 100);
  spw_stream* stream = nullptr;
  SPW_ASSERT_OK(spw_stream_create(engine_, &stream));
  spw_lease* lease = nullptr;
  SPW_ASSERT_OK(spw_acquire(engine_, id, 0, SPW_READ_WRITE, stream, &lease));
  const auto set = [](void* values) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    static_cast<float*>(values)[0] = 7;
  };
  SPW_ASSERT_OK(spw_stream_launch(stream, set, spw_lease_data(lease)));
  DLManagedTensor* tensor = nullptr;
  SPW_ASSERT_OK(spw_lease_dlpack(lease, &tensor));
  EXPECT_EQ(static_cast<const float*>(tensor->dl_tensor.data)[0], 7.0f);
  tensor->deleter(tensor);
  spw_stream_release(stream);
}

TEST_F(CapiLeaseTest, AsATensorItEndsOnTheStreamOfTheConsumer) {
  const uint32_t id = Register("w", SPW_F32, 1, 100);
  spw_stream *own = nullptr, *other = nullptr;
  SPW_ASSERT_OK(spw_stream_create(engine_, &own));
  SPW_ASSERT_OK(spw_stream_create(engine_, &other));
  for (spw_stream* const acquired : {static_cast<spw_stream*>(nullptr), own, other}) {
    spw_lease* lease = nullptr;
    SPW_ASSERT_OK(spw_acquire(engine_, id, 0, SPW_READ, acquired, &lease));
    std::atomic<bool> may_run = false;
    const auto wait = [](void* open) {
      while (!*static_cast<std::atomic<bool>*>(open)) std::this_thread::yield();
    };
    SPW_ASSERT_OK(spw_stream_launch(other, wait, &may_run));
    DLManagedTensor* tensor = nullptr;
    SPW_ASSERT_OK(spw_lease_dlpack_on(lease, other, &tensor));  // does not wait for `other`
    tensor->deleter(tensor);
    SPW_EXPECT_ERROR(spw_evict(engine_, id, 0), SPW_FAILED_PRECONDITION, "still used by a stream");
    may_run = true;
    SPW_ASSERT_OK(spw_stream_synchronize(other));
    SPW_EXPECT_OK(spw_evict(engine_, id, 0));
  }
  spw_stream_release(own);
  spw_stream_release(other);
}

TEST_F(CapiLeaseTest, DeclaredUsesAreTaken) {
  const uint32_t id = Register("w", SPW_F32, 3, 100, /*transient=*/1);
  const spw_use uses[] = {{id, SPW_DEVICE, SPW_READ, 0}, {id, SPW_PINNED, SPW_READ, 1}};
  SPW_EXPECT_OK(spw_prefetch(engine_, uses, 2));
  spw_clear_prefetch(engine_);
  SPW_EXPECT_OK(spw_evict(engine_, id, 0));
  SPW_EXPECT_OK(spw_discard(engine_, id, 0));
  const spw_use wrong[] = {{id, SPW_NVME, SPW_READ, 0}};
  SPW_EXPECT_ERROR(spw_prefetch(engine_, wrong, 1), SPW_INVALID_ARGUMENT,
                   "nothing is used on NVMe");
  SPW_EXPECT_ERROR(spw_prefetch(engine_, nullptr, 1), SPW_INVALID_ARGUMENT, "uses is NULL");
}

}  // namespace
}  // namespace spillway::test
