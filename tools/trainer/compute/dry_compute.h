// SPDX-License-Identifier: Apache-2.0
//
// Computes nothing and has no memory: ends each lease that it is given. For dry runs.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_DRY_COMPUTE_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_DRY_COMPUTE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "tools/trainer/compute/compute.h"

namespace spillway::trainer {

// A lease that is passed by value ends at the latest when the call returns; each operation ends its
// own, so that the order of the ends is the host's.
class DryCompute : public Compute {
 public:
  Stream* stream() override { return nullptr; }
  std::optional<ComputedBy> computed_by() const override { return std::nullopt; }
  int64_t waits() const override { return 0; }
  double PeakFlops() override { return 0; }
  double CopyRate() override { return 0; }

  DType StoredAs(DType /*rounded*/) const override { return DType::kF32; }
  uint64_t NormWorkBytes(NormKind /*kind*/, int64_t /*rows*/, int64_t /*width*/) const override {
    return 0;
  }
  uint64_t AttentionWorkBytes(const AttentionSizes& /*sizes*/) const override { return 0; }
  uint64_t SoftmaxBytes(int64_t /*tokens*/) const override { return 0; }
  absl::StatusOr<std::byte*> Reserve(const ScratchNeeds& /*needs*/) override { return nullptr; }
  uint64_t scratch_bytes() const override { return 0; }

  void CopyFromTile(const View& /*tile*/, Lease lease, const View& /*to*/) override {
    lease.Release();
  }
  void CopyToTile(const View& /*from*/, const View& /*tile*/, Lease lease) override {
    lease.Release();
  }
  void Copy(const View& /*from*/, const View& /*to*/) override {}
  void Zero(const View& /*to*/) override {}
  void Add(const View& /*from*/, const View& /*to*/) override {}

  void Multiply(const Product& /*product*/, Lease lease) override { lease.Release(); }
  void MultiplyGradient(const ProductGradient& /*product*/, Lease lease) override {
    lease.Release();
  }
  void AddBias(const View& /*bias*/, const View& /*y*/) override {}
  void BiasGradient(const View& /*dy*/, const View& /*bias_gradient*/) override {}
  void Accumulate(const View& /*from*/, const GradientTile& /*into*/, Lease lease) override {
    lease.Release();
  }

  void LookUp(const Lookup& /*lookup*/, Lease lease) override { lease.Release(); }
  void LookUpGradient(const LookupGradient& /*lookup*/, Lease lease) override { lease.Release(); }

  void Norm(const NormArguments& /*norm*/, const View& /*y*/) override {}
  void NormGradient(const NormGradientArguments& /*norm*/) override {}
  void FillRope(std::span<const float> /*frequencies*/, const View& /*cosines*/,
                const View& /*sines*/) override {}
  void Rope(const RopeArguments& /*rope*/) override {}
  void Attention(const AttentionArguments& /*attention*/) override {}
  void AttentionGradient(const AttentionGradientArguments& /*attention*/) override {}
  void Activation(const ActivationArguments& /*activation*/) override {}
  void ActivationGradient(const ActivationArguments& /*activation*/) override {}

  void StartSoftmax(std::byte* /*states*/, int64_t /*tokens*/) override {}
  void GatherSoftmax(const VocabularyTile& /*tile*/) override {}
  void AddLoss(const std::byte* /*states*/, int64_t /*tokens*/) override {}
  void CrossEntropyGradient(const VocabularyTile& /*tile*/, float /*scale*/, const View& /*out*/,
                            Lease lease) override {
    lease.Release();
  }
  void TakeLogits(const View& /*logits*/) override {}

  absl::StatusOr<StepResults> Collect() override { return StepResults(); }
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_DRY_COMPUTE_H_
