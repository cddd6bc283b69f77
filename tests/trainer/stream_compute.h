// SPDX-License-Identifier: Apache-2.0
//
// A Compute for tests that runs the host's operations as closures on a stream of the engine, as a
// device would run kernels. The caller runs ahead: it waits for the stream only in Collect.

#ifndef SPILLWAY_TESTS_TRAINER_STREAM_COMPUTE_H_
#define SPILLWAY_TESTS_TRAINER_STREAM_COMPUTE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/stream.h"
#include "tools/trainer/compute/compute.h"

namespace spillway::trainer {

// Thread-compatible.
class StreamCompute final : public Compute {
 public:
  StreamCompute(std::unique_ptr<Stream> stream, std::unique_ptr<Compute> host)
      : stream_(std::move(stream)), host_(std::move(host)) {}

  Stream* stream() override { return stream_.get(); }
  std::optional<ComputedBy> computed_by() const override { return std::nullopt; }
  int64_t waits() const override { return waits_; }
  double PeakFlops() override { return 0; }
  double CopyRate() override { return 0; }
  DType StoredAs(DType rounded) const override { return host_->StoredAs(rounded); }
  uint64_t NormWorkBytes(NormKind kind, int64_t rows, int64_t width) const override {
    return host_->NormWorkBytes(kind, rows, width);
  }
  uint64_t AttentionWorkBytes(const AttentionSizes& sizes) const override {
    return host_->AttentionWorkBytes(sizes);
  }
  uint64_t SoftmaxBytes(int64_t tokens) const override { return host_->SoftmaxBytes(tokens); }
  absl::StatusOr<std::byte*> Reserve(const ScratchNeeds& needs) override {
    return host_->Reserve(needs);
  }
  uint64_t scratch_bytes() const override { return host_->scratch_bytes(); }

  void CopyFromTile(const View& tile, Lease lease, const View& to) override {
    Launch([=](Compute& host) { host.CopyFromTile(tile, Lease(), to); }, std::move(lease));
  }
  void CopyToTile(const View& from, const View& tile, Lease lease) override {
    Launch([=](Compute& host) { host.CopyToTile(from, tile, Lease()); }, std::move(lease));
  }
  void Copy(const View& from, const View& to) override {
    Launch([=](Compute& host) { host.Copy(from, to); });
  }
  void Zero(const View& to) override {
    Launch([=](Compute& host) { host.Zero(to); });
  }
  void Add(const View& from, const View& to) override {
    Launch([=](Compute& host) { host.Add(from, to); });
  }

  void Multiply(const Product& product, Lease lease) override {
    Launch([=](Compute& host) { host.Multiply(product, Lease()); }, std::move(lease));
  }
  void MultiplyGradient(const ProductGradient& product, Lease lease) override {
    Launch([=](Compute& host) { host.MultiplyGradient(product, Lease()); }, std::move(lease));
  }
  void AddBias(const View& bias, const View& y) override {
    Launch([=](Compute& host) { host.AddBias(bias, y); });
  }
  void BiasGradient(const View& dy, const View& bias_gradient) override {
    Launch([=](Compute& host) { host.BiasGradient(dy, bias_gradient); });
  }
  void Accumulate(const View& from, const GradientTile& into, Lease lease) override {
    Launch([=](Compute& host) { host.Accumulate(from, into, Lease()); }, std::move(lease));
  }

  void LookUp(const Lookup& lookup, Lease lease) override {
    Launch([=](Compute& host) { host.LookUp(lookup, Lease()); }, std::move(lease));
  }
  void LookUpGradient(const LookupGradient& lookup, Lease lease) override {
    Launch([=](Compute& host) { host.LookUpGradient(lookup, Lease()); }, std::move(lease));
  }

  void Norm(const NormArguments& norm, const View& y) override {
    Launch([=](Compute& host) { host.Norm(norm, y); });
  }
  void NormGradient(const NormGradientArguments& norm) override {
    Launch([=](Compute& host) { host.NormGradient(norm); });
  }
  void FillRope(std::span<const float> frequencies, const View& cosines,
                const View& sines) override {
    Launch([=](Compute& host) { host.FillRope(frequencies, cosines, sines); });
  }
  void Rope(const RopeArguments& rope) override {
    Launch([=](Compute& host) { host.Rope(rope); });
  }
  void Attention(const AttentionArguments& attention) override {
    Launch([=](Compute& host) { host.Attention(attention); });
  }
  void AttentionGradient(const AttentionGradientArguments& attention) override {
    Launch([=](Compute& host) { host.AttentionGradient(attention); });
  }
  void Activation(const ActivationArguments& activation) override {
    Launch([=](Compute& host) { host.Activation(activation); });
  }
  void ActivationGradient(const ActivationArguments& activation) override {
    Launch([=](Compute& host) { host.ActivationGradient(activation); });
  }

  void StartSoftmax(std::byte* states, int64_t tokens) override {
    Launch([=](Compute& host) { host.StartSoftmax(states, tokens); });
  }
  void GatherSoftmax(const VocabularyTile& tile) override {
    Launch([=](Compute& host) { host.GatherSoftmax(tile); });
  }
  void AddLoss(const std::byte* states, int64_t tokens) override {
    Launch([=](Compute& host) { host.AddLoss(states, tokens); });
  }
  void CrossEntropyGradient(const VocabularyTile& tile, float scale, const View& out,
                            Lease lease) override {
    Launch([=](Compute& host) { host.CrossEntropyGradient(tile, scale, out, Lease()); },
           std::move(lease));
  }
  void TakeLogits(const View& logits) override {
    Launch([=](Compute& host) { host.TakeLogits(logits); });
  }

  absl::StatusOr<StepResults> Collect() override {
    ++waits_;
    failure_.Update(stream_->Synchronize());
    if (!failure_.ok()) return failure_;
    return host_->Collect();
  }

 private:
  // The lease ends at once; the engine keeps the bytes until the closure has run.
  void Launch(std::function<void(Compute&)> operation, Lease lease = Lease()) {
    failure_.Update(
        stream_->Launch([this, operation = std::move(operation)] { operation(*host_); }));
    lease.Release();
  }

  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Compute> host_;  // used on the stream only, except by Reserve and Collect
  absl::Status failure_;
  int waits_ = 0;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TESTS_TRAINER_STREAM_COMPUTE_H_
