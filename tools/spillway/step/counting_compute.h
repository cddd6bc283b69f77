// SPDX-License-Identifier: Apache-2.0
//
// Computes nothing, and counts what a device would: each operation takes the time of its
// arithmetic at the device's rate, or of its bytes at its memory's rate, whichever is longer. An
// operation on a tile that is larger than the model's own passes over its operands as often as
// those of the model's tiles would.

#ifndef SPILLWAY_TOOLS_SPILLWAY_STEP_COUNTING_COMPUTE_H_
#define SPILLWAY_TOOLS_SPILLWAY_STEP_COUNTING_COMPUTE_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "spillway/types.h"
#include "tools/spillway/step/timed_step.h"
#include "tools/trainer/compute/dry_compute.h"
#include "tools/trainer/parameters.h"

namespace spillway::command {

class CountingCompute final : public trainer::DryCompute {
 public:
  // `tile_elements`: the most elements of the model's own tiles.
  explicit CountingCompute(const ComputeRates& rates, int64_t tile_elements = INT64_MAX)
      : rates_(rates), tile_elements_(tile_elements) {}

  double seconds() const { return forward_seconds_ + backward_seconds_; }
  double forward_seconds() const { return forward_seconds_; }
  double backward_seconds() const { return backward_seconds_; }
  double flops() const { return flops_; }  // of products and attention
  double bytes() const { return bytes_; }  // of operands and results
  uint64_t scratch_bytes() const override { return scratch_bytes_; }

  // A device keeps what is rounded in its own type.
  DType StoredAs(DType rounded) const override { return rates_.is_host ? DType::kF32 : rounded; }
  uint64_t NormWorkBytes(trainer::NormKind /*kind*/, int64_t /*rows*/,
                         int64_t width) const override {
    return kNormBlocks * static_cast<uint64_t>(width) * 2 * sizeof(float);
  }
  // Scores of a block of queries of all heads, in fp32, twice: before and after the softmax.
  uint64_t AttentionWorkBytes(const trainer::AttentionSizes& sizes) const override {
    const int64_t queries = std::min<int64_t>(kQueries, sizes.length);
    return 2 * sizeof(float) * static_cast<uint64_t>(sizes.heads * queries * sizes.length);
  }
  uint64_t SoftmaxBytes(int64_t tokens) const override {
    return 2 * sizeof(double) * static_cast<uint64_t>(tokens);
  }
  absl::StatusOr<std::byte*> Reserve(const trainer::ScratchNeeds& needs) override {
    scratch_bytes_ = needs.view_bytes + needs.num_sums * sizeof(double);
    return nullptr;
  }

  void CopyFromTile(const trainer::View& tile, Lease lease, const trainer::View& to) override {
    Move(2 * Bytes(tile));
    DryCompute::CopyFromTile(tile, std::move(lease), to);
  }
  void CopyToTile(const trainer::View& from, const trainer::View& tile, Lease lease) override {
    Move(2 * Bytes(tile));
    DryCompute::CopyToTile(from, tile, std::move(lease));
  }
  void Copy(const trainer::View& from, const trainer::View& /*to*/) override {
    Move(2 * Bytes(from));
  }
  void Zero(const trainer::View& to) override { Move(Bytes(to)); }
  void Add(const trainer::View& from, const trainer::View& to) override {
    Move(Bytes(from) + 2 * Bytes(to));
  }
  void Multiply(const trainer::Product& product, Lease lease) override {
    // A tile's rows are the result's columns, or parts of its sums.
    const double passes = Passes(product.w);
    Compute(2.0 * static_cast<double>(product.a.rows) * static_cast<double>(product.w.elements()),
            product.w.rounded,
            (product.transposed ? passes : 1) * Bytes(product.a) + Bytes(product.w) +
                (product.transposed ? 1 : passes) * Bytes(product.c));
    DryCompute::Multiply(product, std::move(lease));
  }
  void MultiplyGradient(const trainer::ProductGradient& product, Lease lease) override {
    Compute(
        2.0 * static_cast<double>(product.a.rows) *
            static_cast<double>(product.into.tile.elements()),
        product.a.rounded,
        Bytes(product.a) + Passes(product.into.tile) * Bytes(product.b) + Bytes(product.into.tile));
    DryCompute::MultiplyGradient(product, std::move(lease));
  }
  void AddBias(const trainer::View& /*bias*/, const trainer::View& y) override {
    Move(2 * Bytes(y));
  }
  void BiasGradient(const trainer::View& dy, const trainer::View& /*gradient*/) override {
    Move(Bytes(dy));
  }
  void Accumulate(const trainer::View& from, const trainer::GradientTile& into,
                  Lease lease) override {
    Move(Bytes(from) + 2 * Bytes(into.tile));
    DryCompute::Accumulate(from, into, std::move(lease));
  }
  void LookUp(const trainer::Lookup& lookup, Lease lease) override {
    is_backward_ = false;  // a micro-batch begins
    Move(2 * Bytes(lookup.x));
    DryCompute::LookUp(lookup, std::move(lease));
  }
  void LookUpGradient(const trainer::LookupGradient& lookup, Lease lease) override {
    Move(Bytes(lookup.dx) + 2 * Bytes(lookup.into.tile));
    DryCompute::LookUpGradient(lookup, std::move(lease));
  }
  void Norm(const trainer::NormArguments& norm, const trainer::View& y) override {
    Move(Bytes(norm.x) + Bytes(y));
  }
  void NormGradient(const trainer::NormGradientArguments& norm) override {
    Move(Bytes(norm.norm.x) + Bytes(norm.dy) + 2 * Bytes(norm.dx));
  }
  void Rope(const trainer::RopeArguments& rope) override { Move(2 * Bytes(rope.x.rows)); }
  // Half of the scores are masked, and are not computed.
  void Attention(const trainer::AttentionArguments& attention) override {
    Compute(AttentionFlops(attention.sizes), attention.out.rounded, 4 * Bytes(attention.out));
  }
  void AttentionGradient(const trainer::AttentionGradientArguments& attention) override {
    // Five products beside the forward's two, one of which repeats a forward's.
    Compute(2.5 * AttentionFlops(attention.forward.sizes), attention.out_gradient.rounded,
            8 * Bytes(attention.out_gradient));
  }
  void Activation(const trainer::ActivationArguments& activation) override {
    Move(Bytes(activation.gate) + Bytes(activation.up) + Bytes(activation.out));
  }
  void ActivationGradient(const trainer::ActivationArguments& activation) override {
    Move(2 * (Bytes(activation.gate) + Bytes(activation.up) + Bytes(activation.out)));
  }
  void GatherSoftmax(const trainer::VocabularyTile& tile) override { Move(Bytes(tile.logits)); }
  void CrossEntropyGradient(const trainer::VocabularyTile& tile, float scale,
                            const trainer::View& out, Lease lease) override {
    is_backward_ = true;  // what is computed again is of the backward pass, too
    Move(Bytes(tile.logits) + Bytes(out));
    DryCompute::CrossEntropyGradient(tile, scale, out, std::move(lease));
  }

 private:
  static constexpr uint64_t kNormBlocks = 128;
  static constexpr int64_t kQueries = 128;

  static double Bytes(const trainer::View& view) {
    return static_cast<double>(view.elements()) * static_cast<double>(ElementBytes(view.stored));
  }
  static double AttentionFlops(const trainer::AttentionSizes& sizes) {
    const auto length = static_cast<double>(sizes.length);
    const double keys =
        sizes.window == 0 ? length / 2 : std::min(length / 2, static_cast<double>(sizes.window));
    return 4.0 * static_cast<double>(sizes.windows * sizes.heads * sizes.head_dim) * length * keys;
  }
  // How many of the model's tiles a tile stands for.
  double Passes(const trainer::View& tile) const {
    const int64_t rows = trainer::TileRows(tile.rows, tile.columns, tile_elements_);
    const int64_t passes = (tile.rows + rows - 1) / rows;
    return static_cast<double>(passes);
  }
  void Take(double seconds) { (is_backward_ ? backward_seconds_ : forward_seconds_) += seconds; }
  void Move(double bytes) {
    bytes_ += bytes;
    Take(bytes / rates_.bytes_per_second);
  }
  void Compute(double flops, DType operands, double bytes) {
    flops_ += flops;
    bytes_ += bytes;
    const double rate = operands == DType::kF32 ? rates_.flops_fp32 : rates_.flops_16bit;
    Take(std::max(flops / rate, bytes / rates_.bytes_per_second));
  }

  const ComputeRates rates_;
  const int64_t tile_elements_;
  bool is_backward_ = false;
  double forward_seconds_ = 0, backward_seconds_ = 0, flops_ = 0, bytes_ = 0;
  uint64_t scratch_bytes_ = 0;
};

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_STEP_COUNTING_COMPUTE_H_
