// SPDX-License-Identifier: Apache-2.0
//
// Tests which of CUDA's errors mean that the device is lost. No GPU is needed.

#include <gtest/gtest.h>

#include "tiers/cuda_status_cuda.h"

namespace spillway::tiers {
namespace {

TEST(CudaStatus, ErrorsOfTheDeviceLoseIt) {
  EXPECT_TRUE(IsLostDevice(cudaErrorECCUncorrectable));
  EXPECT_TRUE(IsLostDevice(cudaErrorLaunchFailure));
  EXPECT_FALSE(IsLostDevice(cudaSuccess));
  EXPECT_FALSE(IsLostDevice(cudaErrorMemoryAllocation));
  EXPECT_FALSE(IsLostDevice(cudaErrorNotReady));
}

TEST(CudaStatus, ErrorsThatOldToolkitsDoNotNameLoseIt) {
  EXPECT_TRUE(IsLostDevice(static_cast<cudaError_t>(226)));  // cudaErrorContained
  EXPECT_TRUE(IsLostDevice(static_cast<cudaError_t>(721)));  // cudaErrorTensorMemoryLeak
}

}  // namespace
}  // namespace spillway::tiers
