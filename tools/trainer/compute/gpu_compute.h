// SPDX-License-Identifier: Apache-2.0
//
// Computes on a GPU, or on what stands in for one (gpu/device.h). Each operation launches kernels
// and products on the device's one stream, in the order of the calls, and returns; only Collect
// waits.
//
// A view of scratch is stored in the type to which it is rounded, so a value is rounded whenever it
// is written. Operands of products have 16 bits under fp16-amp and bf16: those of weights' type,
// and of the precision's for an fp32 gradient; what is stored in another type is converted first.
// Sums, norms, softmax and the loss are fp32 or fp64. A gradient's product goes straight into the
// leased tile, with one rounding.
//
// Tokens, targets and entries of lookups are copied to the device once a step. Nothing here depends
// on an address, a budget or timing, so the same device gives the same bits in every run.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_COMPUTE_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_COMPUTE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/types.h"
#include "tools/trainer/compute/compute.h"
#include "tools/trainer/compute/gpu/device.h"
#include "tools/trainer/compute/gpu/matrix.h"
#include "tools/trainer/compute/gpu/product_call.h"

namespace spillway::trainer {

class GpuCompute : public Compute {
 public:
  // `operands`: the type of a precision's elements (ElementType). Attention takes queries, keys and
  // values of this type.
  GpuCompute(std::unique_ptr<gpu::Device> device, DType operands)
      : device_(std::move(device)), operand_type_(operands) {}

  // Measures the rates, which are 0 before; PeakFlops and CopyRate return two of them.
  void MeasureRates() { rates_ = device_->MeasureRates(operand_type_); }
  const gpu::DeviceRates& rates() const { return rates_; }
  // The device's memory that nothing has taken yet.
  absl::StatusOr<uint64_t> FreeBytes() { return device_->FreeBytes(); }
  // Takes what a run needs before an engine takes the device's memory: this much scratch, beside
  // which `budget_bytes` must be free for the engine, and an algorithm for each product.
  // ResourceExhausted if there is not as much; Unimplemented if a product has no algorithm.
  absl::Status Prepare(uint64_t scratch_bytes, std::span<const gpu::ProductCall> products,
                       uint64_t budget_bytes);
  // Where the engine's device tier must lie.
  Device tier() const { return device_->tier(); }
  // Begins to compute over an engine, on a stream of it. Called once.
  absl::Status Begin(Engine* engine);

  Stream* stream() override { return device_->stream(); }
  std::optional<ComputedBy> computed_by() const override { return device_->computed_by(); }
  int64_t waits() const override { return device_->waits(); }
  double PeakFlops() override { return rates_.flops; }
  double CopyRate() override { return rates_.copy; }

  DType StoredAs(DType rounded) const override { return rounded; }
  uint64_t NormWorkBytes(NormKind /*kind*/, int64_t /*rows*/, int64_t /*width*/) const override {
    return 0;
  }
  uint64_t AttentionWorkBytes(const AttentionSizes& sizes) const override;
  uint64_t SoftmaxBytes(int64_t tokens) const override;
  absl::StatusOr<std::byte*> Reserve(const ScratchNeeds& needs) override;
  uint64_t scratch_bytes() const override { return scratch_bytes_; }

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
  // Waits for the device.
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
  // What the device sums up in a step.
  struct Totals {
    double loss;
    double sum_of_squares;
  };

  // A view of scratch that was converted to be an operand. It serves again until the view is
  // written.
  struct Converted {
    View view;  // what was converted; without rows: nothing
    DType type = DType::kF32;
    std::byte* memory = nullptr;
  };
  enum class Slot : uint8_t { kA, kB };

  // Host memory that was copied to the device in this step.
  struct Uploaded {
    uint64_t size_bytes = 0;
    const std::byte* on_device = nullptr;
  };

  // --- gpu_compute.cc ---
  template <class Kernel>
  void Launch(const Kernel& kernel) {
    if (failure_.ok()) failure_.Update(device_->Launch(kernel));
  }
  void Launch(const gpu::RowMajorProduct& product);
  // The views that a kernel reads and writes.
  gpu::Matrix Read(const View& view) const;
  gpu::Matrix Write(const View& view);
  View OperandOf(const View& view, DType type, Slot slot);
  gpu::RowMajor Placed(const View& view) const;
  void AddSumOfSquares(const GradientTile& gradient);
  template <class T>
  const T* Upload(std::span<const T> from);
  const std::byte* UploadBytes(std::span<const std::byte> from);

  // --- gpu_attention.cc ---
  struct HeadMatrices;
  struct ScoreMatrices;
  struct AttentionBlock;
  template <class Each>
  void ForEachAttentionBlock(const AttentionArguments& attention, const Each& each);
  void MultiplyHeads(const HeadMatrices& a, const HeadMatrices& b, Into into, const HeadMatrices& d,
                     int64_t key_heads);
  void ComputeProbabilities(const AttentionArguments& attention, const AttentionBlock& block);

  const std::unique_ptr<gpu::Device> device_;
  const DType operand_type_;
  absl::Status failure_;  // the first
  uint64_t scratch_bytes_ = 0;
  uint64_t prepared_bytes_ = 0;
  gpu::DeviceRates rates_;

  // On the device.
  std::byte* base_ = nullptr;  // of everything
  std::array<Converted, 2> converted_;
  uint64_t converted_bytes_ = 0;  // room of each
  double* tile_sums_ = nullptr;   // of the squares of a gradient's tile, by block
  double* sums_ = nullptr;        // by slot
  int64_t num_sums_ = 0;
  Totals* totals_ = nullptr;
  std::byte* uploads_ = nullptr;

  // In host memory.
  Totals* host_totals_ = nullptr;
  float* logits_ = nullptr;
  int64_t num_logits_ = 0, most_logits_ = 0;
  std::byte* host_uploads_ = nullptr;
  uint64_t used_uploads_ = 0, upload_bytes_ = 0;
  std::map<const std::byte*, Uploaded> uploaded_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_COMPUTE_H_
