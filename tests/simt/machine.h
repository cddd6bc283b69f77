// SPDX-License-Identifier: Apache-2.0
//
// Where tests of kernels run them: emulated on the host, or on a GPU. A test has memory from here,
// writes inputs, launches kernels, and compares what they wrote. On the emulator each launch runs
// in 20 random orders, from the same memory, which must leave the same bits, and must report
// nothing.

#ifndef SPILLWAY_TESTS_SIMT_MACHINE_H_
#define SPILLWAY_TESTS_SIMT_MACHINE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "spillway/types.h"
#include "src/base/half_floats.h"
#include "src/simt/emulated_block.h"
#include "tests/exhaustive.h"
#include "tests/seed.h"
#include "tools/trainer/compute/gpu/matrix_of.h"
#include "tools/trainer/compute/view.h"
#if SPILLWAY_HAS_CUDA
#include "tests/simt/launch_cuda.h"
#endif

namespace spillway::trainer::gpu {

using Values = std::vector<float>;
using Exact = std::vector<double>;

enum class Kind : uint8_t { kEmulator, kCuda };
inline void PrintTo(Kind kind, std::ostream* out) {
  *out << (kind == Kind::kEmulator ? "emulator" : "cuda");
}

inline uint16_t Narrow(DType type, float value) {
  return type == DType::kF16 ? base::FloatToHalf(value) : base::FloatToBf16(value);
}
inline float Widen(DType type, uint16_t bits) {
  return type == DType::kF16 ? base::HalfToFloat(bits) : base::Bf16ToFloat(bits);
}
inline float Rounded(DType type, float value) {
  return type == DType::kF32 ? value : Widen(type, Narrow(type, value));
}
inline Values Rounded(DType type, Values values) {
  for (float& value : values) value = Rounded(type, value);
  return values;
}

class EachMachine : public testing::TestWithParam<Kind> {
 protected:
  // A change of stacks is slow under the sanitizers.
  static constexpr int kOrders = SPILLWAY_IS_SANITIZED ? 3 : 20;

  EachMachine() : random_(test::Seed()) {}

  void SetUp() override {
#if SPILLWAY_HAS_CUDA
    if (GetParam() == Kind::kCuda && !test::HasGpu()) GTEST_SKIP() << "there is no GPU";
#else
    if (GetParam() == Kind::kCuda) GTEST_SKIP() << "this build has no CUDA";
#endif
  }

  // --- Values ---

  Values Random(int64_t n, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    Values values(static_cast<size_t>(n));
    for (float& value : values) value = normal(random_);
    return values;
  }
  int64_t Draw(int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random_);
  }

  // --- Memory ---

  // Takes memory for n elements, whose bits are all set.
  template <class T>
  T* Take(int64_t n) {
    memory_.push_back(std::make_unique<Memory>(static_cast<size_t>(n) * sizeof(T), GetParam()));
    return reinterpret_cast<T*>(memory_.back()->data());
  }
  template <class T>
  T* Put(const std::vector<T>& values) {
    T* const taken = Take<T>(static_cast<int64_t>(values.size()));
    std::copy(values.begin(), values.end(), taken);
    return taken;
  }

  // Gives back all memory.
  void GiveBack() { memory_.clear(); }

  // Takes a matrix with `padding` elements after each row, which no kernel may write.
  View Undefined(DType type, int64_t rows, int64_t columns, int64_t padding = 0) {
    const int64_t stride = columns + padding;
    const auto bytes = static_cast<int64_t>(ElementBytes(type));
    std::byte* const data = Take<std::byte>(rows * stride * bytes);
    memory_.back()->Pad(columns * bytes, stride * bytes);
    return {.data = data,
            .stored = type,
            .rounded = type,
            .rows = rows,
            .columns = columns,
            .stride = stride};
  }
  // Values are rounded to the type.
  View Put(DType type, int64_t rows, int64_t columns, const Values& values, int64_t padding = 0) {
    const View view = Undefined(type, rows, columns, padding);
    for (int64_t i = 0; i < rows * columns; ++i) {
      std::byte* const at = AddressOf(view, i / columns, i % columns);
      const float value = values[static_cast<size_t>(i)];
      const uint16_t narrow = type == DType::kF32 ? 0 : Narrow(type, value);
      type == DType::kF32 ? std::memcpy(at, &value, 4) : std::memcpy(at, &narrow, 2);
    }
    return view;
  }
  static Values Get(const View& view) {
    Values values;
    for (int64_t i = 0; i < view.elements(); ++i) {
      const std::byte* const at = AddressOf(view, i / view.columns, i % view.columns);
      float value = 0;
      uint16_t narrow = 0;
      view.stored == DType::kF32 ? std::memcpy(&value, at, 4) : std::memcpy(&narrow, at, 2);
      values.push_back(view.stored == DType::kF32 ? value : Widen(view.stored, narrow));
    }
    return values;
  }

  // --- Launches ---

  // Runs a kernel, on the emulator in each order. Memory has the result.
  template <class Kernel>
  void Launch(const Kernel& kernel, int orders = kOrders) {
    if (GetParam() == Kind::kCuda) {
#if SPILLWAY_HAS_CUDA
      ASSERT_EQ(test::LaunchAndWait(kernel), "");
#endif
    } else {
      LaunchInEachOrder(kernel, orders);
    }
    for (const auto& memory : memory_) EXPECT_TRUE(memory->IsPaddingKept());
  }

  // --- Comparisons ---

  // Compares what a view holds with exact values: within a share of the largest one, or of the
  // largest of the terms whose sums they are, which may cancel, and within the rounding of the
  // view's type.
  static void ExpectNear(const View& view, const Exact& expected, double tolerance = 2e-6,
                         double largest_term = 0) {
    const Values got = Get(view);
    ASSERT_EQ(got.size(), expected.size());
    double largest = largest_term;
    for (const double value : expected) {
      if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
    }
    const double rounding = view.stored == DType::kF32   ? 0
                            : view.stored == DType::kF16 ? 0x1p-11
                                                         : 0x1p-8;
    for (size_t i = 0; i < got.size(); ++i) {
      const double limit = tolerance * largest + rounding * std::fabs(expected[i]) + 1e-7;
      ASSERT_NEAR(got[i], expected[i], limit) << "element " << i << " of " << got.size();
    }
  }

  // Compares bits, except those of NaN.
  static void ExpectSame(const View& view, const Values& expected) {
    const Values got = Get(view);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::isnan(expected[i])) {
        ASSERT_TRUE(std::isnan(got[i])) << "element " << i << ": " << got[i];
      } else {
        ASSERT_EQ(simt::BitsOf(got[i]), simt::BitsOf(expected[i]))
            << "element " << i << ": " << got[i] << ", and not " << expected[i];
      }
    }
  }

 private:
  // Between guards, so that a write outside is found, and a read outside is NaN.
  class Memory {
   public:
    Memory(size_t bytes, Kind kind) : bytes_(bytes), kind_(kind) {
#if SPILLWAY_HAS_CUDA
      if (kind_ == Kind::kCuda) base_ = test::TakeManaged(bytes + 2 * kGuardBytes);
#endif
      if (kind_ == Kind::kEmulator) base_ = new std::byte[bytes + 2 * kGuardBytes];
      std::memset(base_, 0xff, bytes + 2 * kGuardBytes);
    }
    ~Memory() {
#if SPILLWAY_HAS_CUDA
      if (kind_ == Kind::kCuda) test::GiveBack(base_);
#endif
      if (kind_ == Kind::kEmulator) delete[] base_;
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    std::byte* data() { return base_ + kGuardBytes; }
    size_t size_bytes() const { return bytes_; }
    // The bytes of a matrix: of each row of `stride` bytes the first `row`.
    void Pad(int64_t row, int64_t stride) {
      row_ = static_cast<size_t>(row);
      stride_ = static_cast<size_t>(stride);
    }
    bool IsPaddingKept() const {
      for (size_t i = 0; i < kGuardBytes; ++i) {
        if (base_[i] != kSet || base_[kGuardBytes + bytes_ + i] != kSet) return false;
      }
      for (size_t i = 0; i < bytes_ && stride_ != 0; ++i) {
        if (i % stride_ >= row_ && base_[kGuardBytes + i] != kSet) return false;
      }
      return true;
    }

   private:
    static constexpr size_t kGuardBytes = 256;
    static constexpr std::byte kSet = std::byte{0xff};

    const size_t bytes_;
    const Kind kind_;
    std::byte* base_ = nullptr;
    size_t row_ = 0, stride_ = 0;
  };

  static std::byte* AddressOf(const View& view, int64_t row, int64_t column) {
    return view.data +
           static_cast<uint64_t>(row * view.stride + column) * ElementBytes(view.stored);
  }

  std::vector<std::vector<std::byte>> Contents() {
    std::vector<std::vector<std::byte>> contents;
    for (const auto& memory : memory_)
      contents.emplace_back(memory->data(), memory->data() + memory->size_bytes());
    return contents;
  }

  template <class Kernel>
  void LaunchInEachOrder(const Kernel& kernel, int orders) {
    if (orders == 1) {
      for (const std::string& report : emulator_.Launch(kernel)) FAIL() << report;
      return;
    }
    const auto before = Contents();
    std::vector<std::vector<std::byte>> first;
    for (int order = 0; order < orders; ++order) {
      for (size_t i = 0; i < memory_.size(); ++i)
        std::copy(before[i].begin(), before[i].end(), memory_[i]->data());
      for (const std::string& report : emulator_.Launch(kernel)) FAIL() << report;
      if (order == 0) first = Contents();
      ASSERT_TRUE(first == Contents()) << "order " << order << " gives other bits than order 0";
    }
  }

  std::mt19937_64 random_;
  simt::Emulator emulator_{random_()};
  std::vector<std::unique_ptr<Memory>> memory_;
};

#define SPILLWAY_ON_EACH_MACHINE(suite)                                                    \
  INSTANTIATE_TEST_SUITE_P(Machines, suite, testing::Values(Kind::kEmulator, Kind::kCuda), \
                           testing::PrintToStringParamName())

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TESTS_SIMT_MACHINE_H_
