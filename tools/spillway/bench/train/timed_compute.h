// SPDX-License-Identifier: Apache-2.0
//
// Measures what each kind of operation takes: another Compute runs it, and on a stream this one
// waits for its end. What it computes and moves is counted as simulations count it
// (tools/spillway/step/counting_compute.h).

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_TRAIN_TIMED_COMPUTE_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_TRAIN_TIMED_COMPUTE_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/stream.h"
#include "tools/spillway/step/counting_compute.h"
#include "tools/trainer/compute/compute.h"

namespace spillway::bench_train {

enum class Operation : uint8_t { kProducts, kAttention, kNorms, kActivations, kSoftmax, kCopies };
inline constexpr size_t kNumOperations = 6;
// "products", "attention", "norms and rope", "activations", "softmax and loss", "copies and sums".
std::string_view NameOf(Operation operation);

struct OperationTime {
  int64_t calls = 0;
  double seconds = 0;
  double flops = 0;  // of products and attention
  double bytes = 0;  // of operands and results
};
using OperationTimes = std::array<OperationTime, kNumOperations>;

// Thread-compatible.
class TimedCompute final : public trainer::Compute {
 public:
  explicit TimedCompute(std::unique_ptr<trainer::Compute> of) : of_(std::move(of)) {}

  // While it does not measure, it only passes on.
  void set_measures(bool measures) { measures_ = measures; }
  const OperationTimes& times() const { return times_; }
  // Of the stream, since the last Collect.
  const absl::Status& failure() const { return failure_; }

  Stream* stream() override { return of_->stream(); }
  std::optional<trainer::ComputedBy> computed_by() const override { return of_->computed_by(); }
  int64_t waits() const override { return of_->waits(); }
  double PeakFlops() override { return of_->PeakFlops(); }
  double CopyRate() override { return of_->CopyRate(); }
  DType StoredAs(DType rounded) const override { return of_->StoredAs(rounded); }
  uint64_t NormWorkBytes(trainer::NormKind kind, int64_t rows, int64_t width) const override {
    return of_->NormWorkBytes(kind, rows, width);
  }
  uint64_t AttentionWorkBytes(const trainer::AttentionSizes& sizes) const override {
    return of_->AttentionWorkBytes(sizes);
  }
  uint64_t SoftmaxBytes(int64_t tokens) const override { return of_->SoftmaxBytes(tokens); }
  absl::StatusOr<std::byte*> Reserve(const trainer::ScratchNeeds& needs) override {
    return of_->Reserve(needs);
  }
  uint64_t scratch_bytes() const override { return of_->scratch_bytes(); }

  void CopyFromTile(const trainer::View& tile, Lease lease, const trainer::View& to) override {
    Run(
        Operation::kCopies,
        [&](auto& on, Lease held) { on.CopyFromTile(tile, std::move(held), to); },
        std::move(lease));
  }
  void CopyToTile(const trainer::View& from, const trainer::View& tile, Lease lease) override {
    Run(
        Operation::kCopies,
        [&](auto& on, Lease held) { on.CopyToTile(from, tile, std::move(held)); },
        std::move(lease));
  }
  void Copy(const trainer::View& from, const trainer::View& to) override {
    Run(Operation::kCopies, [&](auto& on, Lease) { on.Copy(from, to); });
  }
  void Zero(const trainer::View& to) override {
    Run(Operation::kCopies, [&](auto& on, Lease) { on.Zero(to); });
  }
  void Add(const trainer::View& from, const trainer::View& to) override {
    Run(Operation::kCopies, [&](auto& on, Lease) { on.Add(from, to); });
  }
  void Multiply(const trainer::Product& product, Lease lease) override {
    Run(
        Operation::kProducts, [&](auto& on, Lease held) { on.Multiply(product, std::move(held)); },
        std::move(lease));
  }
  void MultiplyGradient(const trainer::ProductGradient& product, Lease lease) override {
    Run(
        Operation::kProducts,
        [&](auto& on, Lease held) { on.MultiplyGradient(product, std::move(held)); },
        std::move(lease));
  }
  void AddBias(const trainer::View& bias, const trainer::View& y) override {
    Run(Operation::kCopies, [&](auto& on, Lease) { on.AddBias(bias, y); });
  }
  void BiasGradient(const trainer::View& dy, const trainer::View& bias_gradient) override {
    Run(Operation::kCopies, [&](auto& on, Lease) { on.BiasGradient(dy, bias_gradient); });
  }
  void Accumulate(const trainer::View& from, const trainer::GradientTile& into,
                  Lease lease) override {
    Run(
        Operation::kCopies,
        [&](auto& on, Lease held) { on.Accumulate(from, into, std::move(held)); },
        std::move(lease));
  }
  void LookUp(const trainer::Lookup& lookup, Lease lease) override {
    Run(
        Operation::kCopies, [&](auto& on, Lease held) { on.LookUp(lookup, std::move(held)); },
        std::move(lease));
  }
  void LookUpGradient(const trainer::LookupGradient& lookup, Lease lease) override {
    Run(
        Operation::kCopies,
        [&](auto& on, Lease held) { on.LookUpGradient(lookup, std::move(held)); },
        std::move(lease));
  }
  void Norm(const trainer::NormArguments& norm, const trainer::View& y) override {
    Run(Operation::kNorms, [&](auto& on, Lease) { on.Norm(norm, y); });
  }
  void NormGradient(const trainer::NormGradientArguments& norm) override {
    Run(Operation::kNorms, [&](auto& on, Lease) { on.NormGradient(norm); });
  }
  void FillRope(std::span<const float> frequencies, const trainer::View& cosines,
                const trainer::View& sines) override {
    of_->FillRope(frequencies, cosines, sines);
  }
  void Rope(const trainer::RopeArguments& rope) override {
    Run(Operation::kNorms, [&](auto& on, Lease) { on.Rope(rope); });
  }
  void Attention(const trainer::AttentionArguments& attention) override {
    Run(Operation::kAttention, [&](auto& on, Lease) { on.Attention(attention); });
  }
  void AttentionGradient(const trainer::AttentionGradientArguments& attention) override {
    Run(Operation::kAttention, [&](auto& on, Lease) { on.AttentionGradient(attention); });
  }
  void Activation(const trainer::ActivationArguments& activation) override {
    Run(Operation::kActivations, [&](auto& on, Lease) { on.Activation(activation); });
  }
  void ActivationGradient(const trainer::ActivationArguments& activation) override {
    Run(Operation::kActivations, [&](auto& on, Lease) { on.ActivationGradient(activation); });
  }
  void StartSoftmax(std::byte* states, int64_t tokens) override {
    of_->StartSoftmax(states, tokens);
  }
  void GatherSoftmax(const trainer::VocabularyTile& tile) override {
    Run(Operation::kSoftmax, [&](auto& on, Lease) { on.GatherSoftmax(tile); });
  }
  void AddLoss(const std::byte* states, int64_t tokens) override { of_->AddLoss(states, tokens); }
  void CrossEntropyGradient(const trainer::VocabularyTile& tile, float scale,
                            const trainer::View& out, Lease lease) override {
    Run(
        Operation::kSoftmax,
        [&](auto& on, Lease held) { on.CrossEntropyGradient(tile, scale, out, std::move(held)); },
        std::move(lease));
  }
  void TakeLogits(const trainer::View& logits) override { of_->TakeLogits(logits); }
  absl::StatusOr<trainer::StepResults> Collect() override { return of_->Collect(); }

 private:
  void Wait() {
    if (of_->stream() != nullptr) failure_.Update(of_->stream()->Synchronize());
  }

  template <class Call>
  void Run(Operation operation, const Call& call, Lease lease = Lease()) {
    if (!measures_) return call(*of_, std::move(lease));
    OperationTime& time = times_[static_cast<size_t>(operation)];
    const double flops = counter_.flops(), bytes = counter_.bytes();
    call(counter_, Lease());
    time.flops += counter_.flops() - flops;
    time.bytes += counter_.bytes() - bytes;
    Wait();
    const auto begin = std::chrono::steady_clock::now();
    call(*of_, std::move(lease));
    Wait();
    time.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ++time.calls;
  }

  const std::unique_ptr<trainer::Compute> of_;
  command::CountingCompute counter_{command::ComputeRates{1, 1, 1, false}};
  bool measures_ = false;
  OperationTimes times_;
  absl::Status failure_;
};

}  // namespace spillway::bench_train

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_TRAIN_TIMED_COMPUTE_H_
