// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU, GELU and their gradients, against double precision.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "tests/simt/machine.h"
#include "tools/trainer/compute/gpu/activations.h"

namespace spillway::trainer::gpu {
namespace {

class ComputeActivations : public EachMachine {
 protected:
  // Also values at which a sigmoid is 0 or 1.
  Values Inputs(DType type, int64_t n) {
    Values values = Random(n, 3);
    for (size_t i = 0; i < values.size(); i += 13)
      values[i] *= std::fabs(values[i]) < 6 ? 15.0f : 1.0f;
    return Rounded(type, values);
  }
};

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }

TEST_P(ComputeActivations, SwigluAndItsGradient) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t n : {1, 1023, 2053}) {
      const Values gate = Inputs(type, n), up = Inputs(type, n);
      const Values gradient = Rounded(type, Random(n));
      Exact out, of_gate, of_up;
      for (size_t i = 0; i < gate.size(); ++i) {
        const double g = gate[i], s = SigmoidOf(g);
        out.push_back(g * s * up[i]);
        of_gate.push_back(static_cast<double>(gradient[i]) * up[i] * (s + g * s * (1 - s)));
        of_up.push_back(gradient[i] * g * s);
      }
      const View gates = Put(type, 1, n, gate), ups = Put(type, 1, n, up);
      const View result = Undefined(type, 1, n);
      Launch(Swiglu{{MatrixOf(gates), MatrixOf(ups), MatrixOf(result)}});
      ExpectNear(result, out, 1e-6);
      const View both = Put(type, 1, n, gradient);
      Launch(SwigluGradient{{MatrixOf(gates), MatrixOf(ups), MatrixOf(both)}});
      ExpectNear(gates, of_gate, 1e-6);
      ExpectNear(ups, of_up, 2e-6);
      ExpectSame(both, Get(result));
    }
  }
}

TEST_P(ComputeActivations, GeluAndItsGradient) {
  const double root = std::sqrt(2 / M_PI), cube = 0.044715;
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t n : {1, 1023, 2053}) {
      const Values up = Inputs(type, n);
      const Values gradient = Rounded(type, Random(n));
      Exact out, of_up;
      for (size_t i = 0; i < up.size(); ++i) {
        const double x = up[i], t = std::tanh(root * (x + cube * x * x * x));
        out.push_back(x * (1 + t) / 2);
        of_up.push_back(gradient[i] *
                        ((1 + t) / 2 + x / 2 * (1 - t * t) * root * (1 + 3 * cube * x * x)));
      }
      const View ups = Put(type, 1, n, up);
      const View result = Undefined(type, 1, n);
      Launch(Gelu{{MatrixOf(ups), MatrixOf(result)}});
      ExpectNear(result, out, 1e-6);
      const View both = Put(type, 1, n, gradient);
      Launch(GeluGradient{{MatrixOf(ups), MatrixOf(both)}});
      ExpectNear(ups, of_up, 2e-6);
      ExpectSame(both, Get(result));
    }
  }
}

// Whose cubes and squares are not.
TEST_P(ComputeActivations, GeluOfLargeNumbersIsFinite) {
  const View up = Put(DType::kF32, 1, 4, {1e25f, -1e25f, 31, -31});
  const View out = Put(DType::kF32, 1, 4, {2, 2, 2, 2});
  Launch(GeluGradient{{MatrixOf(up), MatrixOf(out)}});
  EXPECT_EQ(Get(out), Values({1e25f, 0, 31, 0}));
  EXPECT_EQ(Get(up), Values({2, 0, 2, 0}));
}

// An overflow must reach the loss scaler.
TEST_P(ComputeActivations, NaNAndInfinityShow) {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, infinity, -infinity}) {
    const auto bad_and_one = [&] { return Put(DType::kBF16, 1, 2, {bad, 1}); };
    const auto ones = [&] { return Put(DType::kBF16, 1, 2, {1, 1}); };
    const auto check = [&](const View& view) {
      EXPECT_FALSE(std::isfinite(Get(view)[0])) << bad;
      EXPECT_TRUE(std::isfinite(Get(view)[1]));
    };
    View gate = bad_and_one(), up = ones(), out = ones();
    Launch(SwigluGradient{{MatrixOf(gate), MatrixOf(up), MatrixOf(out)}});
    check(out);
    check(up);
    gate = ones(), up = bad_and_one(), out = ones();
    Launch(SwigluGradient{{MatrixOf(gate), MatrixOf(up), MatrixOf(out)}});
    check(out);
    check(gate);
    gate = ones(), up = ones(), out = bad_and_one();
    Launch(SwigluGradient{{MatrixOf(gate), MatrixOf(up), MatrixOf(out)}});
    check(gate);
    check(up);
    up = bad_and_one(), out = ones();
    Launch(GeluGradient{{MatrixOf(up), MatrixOf(out)}});
    check(out);
    up = ones(), out = bad_and_one();
    Launch(GeluGradient{{MatrixOf(up), MatrixOf(out)}});
    check(up);
  }
}

SPILLWAY_ON_EACH_MACHINE(ComputeActivations);

}  // namespace
}  // namespace spillway::trainer::gpu
