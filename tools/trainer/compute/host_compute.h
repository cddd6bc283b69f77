// SPDX-License-Identifier: Apache-2.0
//
// Computes on the calling thread and a thread pool, in fp32: scratch is fp32, and a tile of another
// type is converted before its product. The cut between threads follows from shapes and the thread
// count only, so the results are the same bits in every run.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_HOST_COMPUTE_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_HOST_COMPUTE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "spillway/thread_pool.h"
#include "tools/trainer/compute/compute.h"
#include "tools/trainer/workspace.h"

namespace spillway::trainer {

class HostCompute : public Compute {
 public:
  // Loads BLAS for the pool's threads; returns its error. The pool must outlive the Compute.
  static absl::StatusOr<std::unique_ptr<HostCompute>> Create(ThreadPool* pool);

  Stream* stream() override { return nullptr; }
  std::optional<ComputedBy> computed_by() const override { return std::nullopt; }
  int64_t waits() const override { return 0; }
  double PeakFlops() override;  // as MeasurePeakFlops
  double CopyRate() override;

  DType StoredAs(DType /*rounded*/) const override { return DType::kF32; }
  uint64_t NormWorkBytes(NormKind kind, int64_t rows, int64_t width) const override;
  uint64_t AttentionWorkBytes(const AttentionSizes& sizes) const override;
  uint64_t SoftmaxBytes(int64_t tokens) const override;
  absl::StatusOr<std::byte*> Reserve(const ScratchNeeds& needs) override;
  uint64_t scratch_bytes() const override { return workspace_->size_bytes(); }

  void CopyFromTile(const View& tile, Lease lease, const View& to) override;
  void CopyToTile(const View& from, const View& tile, Lease lease) override;
  void Copy(const View& from, const View& to) override;
  void Zero(const View& to) override;
  void Add(const View& from, const View& to) override;

  void Multiply(const Product& product, Lease lease) override;
  void MultiplyGradient(const ProductGradient& product, Lease lease) override;
  void AddBias(const View& bias, const View& y) override;
  void BiasGradient(const View& dy, const View& bias_gradient) override;
  void Accumulate(const View& from, const GradientTile& into, Lease lease) override;

  void LookUp(const Lookup& lookup, Lease lease) override;
  void LookUpGradient(const LookupGradient& lookup, Lease lease) override;

  void Norm(const NormArguments& norm, const View& y) override;
  void NormGradient(const NormGradientArguments& norm) override;
  void FillRope(std::span<const float> frequencies, const View& cosines,
                const View& sines) override;
  void Rope(const RopeArguments& rope) override;
  void Attention(const AttentionArguments& attention) override;
  void AttentionGradient(const AttentionGradientArguments& attention) override;
  void Activation(const ActivationArguments& activation) override;
  void ActivationGradient(const ActivationArguments& activation) override;

  void StartSoftmax(std::byte* states, int64_t tokens) override;
  void GatherSoftmax(const VocabularyTile& tile) override;
  void AddLoss(const std::byte* states, int64_t tokens) override;
  void CrossEntropyGradient(const VocabularyTile& tile, float scale, const View& out,
                            Lease lease) override;
  void TakeLogits(const View& logits) override;

  absl::StatusOr<StepResults> Collect() override;

 private:
  explicit HostCompute(ThreadPool* pool) : pool_(pool) {}

  void Round(const View& view);
  void Accumulate(const float* from, const GradientTile& into);

  ThreadPool* const pool_;
  std::unique_ptr<Workspace> workspace_;
  float* weight_tile_ = nullptr;    // a narrow tile in fp32
  float* gradient_tile_ = nullptr;  // a gradient in fp32 before it is added to its tile
  double* block_sums_ = nullptr;    // of the squares of a gradient's tile
  std::vector<double> sums_;        // by slot
  double loss_ = 0;
  std::vector<float> logits_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_HOST_COMPUTE_H_
