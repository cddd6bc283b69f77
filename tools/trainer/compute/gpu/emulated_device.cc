// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/compute/gpu/emulated_device.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "src/simt/elements.h"
#include "tools/trainer/compute/gpu/matrix_of.h"

namespace spillway::trainer::gpu {
namespace {

constexpr std::align_val_t kMemoryAlignment = std::align_val_t{256};

// Reads op(matrix)[rows, columns] from memory, in column-major order.
void ReadOperand(const StoredMatrix& matrix, bool transposes, int64_t rows, int64_t columns,
                 const void* from, int64_t first, std::vector<float>* to) {
  const simt::Element type = ElementOf(matrix.type);
  to->resize(static_cast<size_t>(rows * columns));
  float* next = to->data();
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = transposes ? row * matrix.ld + column : column * matrix.ld + row;
      *next++ = simt::Load(type, from, first + at);
    }
  }
}

}  // namespace

void EvaluateProduct(const ProductCall& call, const void* a, const void* b, void* d) {
  const simt::Element type = ElementOf(call.d.type);
  const auto m = static_cast<size_t>(call.m);
  std::vector<float> of_a, of_b, sums(m);
  for (int64_t batch = 0; batch < call.batch; ++batch) {
    ReadOperand(call.a, call.transposes_a, call.m, call.k, a, batch * call.a.batch_elements, &of_a);
    ReadOperand(call.b, call.transposes_b, call.k, call.n, b, batch * call.b.batch_elements, &of_b);
    for (int64_t column = 0; column < call.n; ++column) {
      const float* const factors = of_b.data() + column * call.k;
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (int64_t i = 0; i < call.k; ++i) {
        const float factor = factors[i];
        const float* const values = of_a.data() + i * call.m;
        for (size_t row = 0; row < m; ++row) sums[row] += values[row] * factor;
      }
      const int64_t first = batch * call.d.batch_elements + column * call.d.ld;
      for (int64_t row = 0; row < call.m; ++row) {
        const float before = call.adds ? simt::Load(type, d, first + row) : 0.0f;
        simt::Store(type, sums[static_cast<size_t>(row)] + before, d, first + row);
      }
    }
  }
}

// The emulator ends on the thread that made it.
EmulatedDevice::~EmulatedDevice() {
  if (stream_ == nullptr) return;
  (void)stream_->Launch([this] { emulator_.reset(); });
  (void)stream_->Synchronize();
}

void EmulatedDevice::Freed::operator()(std::byte* memory) const {
  ::operator delete(memory, kMemoryAlignment);
}

ComputedBy EmulatedDevice::computed_by() const {
  ComputedBy by = {.gpu = limits_.name, .library = "products as they are defined"};
  for (const ProductCall& call : chosen_)
    by.algorithms.push_back(absl::StrCat(Name(call), ": in the order of k"));
  return by;
}

absl::StatusOr<uint64_t> EmulatedDevice::FreeBytes() {
  return limits_.free_bytes == kUnlimited
             ? kUnlimited
             : limits_.free_bytes - std::min(limits_.free_bytes, taken_bytes_);
}

absl::Status EmulatedDevice::Choose(const ProductCall& call) {
  chosen_.insert(call);
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> EmulatedDevice::Allocate(uint64_t size_bytes) {
  SPILLWAY_ASSIGN_OR_RETURN(std::byte* const taken, AllocateHost(size_bytes));
  taken_bytes_ += size_bytes;
  return taken;
}

absl::StatusOr<std::byte*> EmulatedDevice::AllocateHost(uint64_t size_bytes) {
  void* const taken = ::operator new(size_bytes, kMemoryAlignment, std::nothrow);
  if (taken == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no room for ", size_bytes, " bytes of an emulated device"));
  }
  std::memset(taken, 0xff, size_bytes);
  memory_.emplace_back(static_cast<std::byte*>(taken));
  return memory_.back().get();
}

// A lost device runs nothing any more.
absl::Status EmulatedDevice::LaunchWork(std::function<void()> work) {
  if (launches_ >= limits_.launches) return absl::AbortedError("the emulated GPU was lost");
  ++launches_;
  return stream_->Launch(std::move(work));
}

absl::Status EmulatedDevice::CopyToDevice(const void* from, uint64_t size_bytes, std::byte* to) {
  return LaunchWork([=] { std::memcpy(to, from, size_bytes); });
}

absl::Status EmulatedDevice::CopyToHost(const std::byte* from, uint64_t size_bytes, void* to) {
  return LaunchWork([=] { std::memcpy(to, from, size_bytes); });
}

template <class Kernel>
absl::Status EmulatedDevice::Run(const char* name, const Kernel& kernel) {
  return LaunchWork([this, name, kernel] {
    if (emulator_ == nullptr) emulator_ = std::make_unique<simt::Emulator>(seed_);
    const std::vector<std::string> reports = emulator_->Launch(kernel);
    if (report_.empty() && !reports.empty()) report_ = absl::StrCat(name, ", ", reports.front());
  });
}

#define SPILLWAY_DEFINE_LAUNCH(kernel) \
  absl::Status EmulatedDevice::Launch(const kernel& arguments) { return Run(#kernel, arguments); }
SPILLWAY_TRAINER_KERNELS(SPILLWAY_DEFINE_LAUNCH)
#undef SPILLWAY_DEFINE_LAUNCH

absl::Status EmulatedDevice::Multiply(const ProductCall& call, const void* a, const void* b,
                                      void* d) {
  products_.insert(call);
  chosen_.insert(call);
  return LaunchWork([=] { EvaluateProduct(call, a, b, d); });
}

absl::Status EmulatedDevice::Synchronize() {
  ++waits_;
  SPILLWAY_RETURN_IF_ERROR(stream_->Synchronize());
  if (report_.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the emulator reports of kernel ", report_));
}

}  // namespace spillway::trainer::gpu
