// SPDX-License-Identifier: Apache-2.0
//
// The walk over a model's description: forward, backward and evaluation, a block at a time. It
// alone knows the order of layers and micro-batches, and it alone takes leases: each weight,
// gradient and saved activation is leased tile by tile as it is used, and at most one lease is held
// at a time, so that a device budget of one tile is enough. What touches elements is the Compute's.
// With an engine that records and a Compute that does nothing, the same walk is a dry run.
//
// Everything here keeps one rule. Tiles and the order of operations follow from the model, the
// sequence and the options only, never from a budget, a page size or timing. Micro-batches add to a
// gradient in their order, and the head adds to a tied embedding before the lookup. So losses,
// gradients and weights are the same bits however the bytes were moved.
//
// In layer order (AccumulationOrder::kLayer) a residual passes from layer to layer as the saved
// input of the next layer. A block is small, so micro-batches pass through it one after the other
// and its tiles stay resident. The embedding and the head may be larger than the budgets, so there
// all micro-batches use a tile before the next tile.

#ifndef SPILLWAY_TOOLS_TRAINER_WALK_H_
#define SPILLWAY_TOOLS_TRAINER_WALK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "tools/trainer/activations.h"
#include "tools/trainer/compute/compute.h"
#include "tools/trainer/description.h"
#include "tools/trainer/model.h"
#include "tools/trainer/table_order.h"
#include "tools/trainer/workspace.h"

namespace spillway::trainer {

// What a walk goes over. All of it must outlive the walk.
struct WalkParts {
  Engine* engine = nullptr;
  Compute* compute = nullptr;
  const Description* model = nullptr;
  const ModelOptions* options = nullptr;
  std::span<const Parameter> parameters;  // as Description::parameters
  const SavedTensors* saved = nullptr;
};

// Thread-compatible. The results of a walk are the Compute's (Compute::Collect). The tokens and
// targets must stay as they are until then.
class Walk {
 public:
  // Reserves the Compute's scratch.
  static absl::StatusOr<std::unique_ptr<Walk>> Create(const WalkParts& parts);

  // Walks forward and backward for the micro-batches of a step. REQUIRES: options.training. In a
  // dry run the step's spans may be empty.
  absl::Status Train(const StepBatch& step);
  // Walks forward, up to the loss, over `windows` windows of options.sequence tokens.
  absl::Status Evaluate(int64_t windows, std::span<const int32_t> inputs,
                        std::span<const int32_t> targets);
  // Walks forward over one window, up to the logits of its last token. Leases only the tiles of
  // embeddings that the window uses.
  absl::Status Predict(std::span<const int32_t> tokens);

 private:
  // Windows of equal length that pass through the model together. Each token is a row.
  struct Batch {
    int64_t windows = 0;
    int64_t length = 0;
    int64_t index = 0;  // of the micro-batch in the step
    std::span<const int32_t> targets;
    TableOrder tokens;
    TableOrder positions;  // empty if the model has none
    int64_t rows() const { return windows * length; }
  };

  // Scratch of a sublayer, [tokens, ...] each.
  struct AttentionScratch {
    std::vector<View> inputs;    // what each linear gives: [outputs]
    View query, key;             // [heads · head_dim]; only if they are normed
    View attention;              // [heads · head_dim]
    std::vector<View> d_inputs;  // training only, like those below
    View d_query, d_key;
    View d_attention;
  };
  struct MlpScratch {
    View gate;    // [width]; its gradient in backward; without columns: none
    View up;      // [width]; its gradient in backward
    View hidden;  // [width]
  };
  // Scratch of a block. Blocks and the head use the same memory, one at a time.
  struct BlockScratch {
    View normed;    // [width]; also a product while it is rounded
    View d_normed;  // [width]; training only
    std::byte* attention_work = nullptr;
    std::vector<AttentionScratch> attentions;  // by sublayer; empty for an MLP
    std::vector<MlpScratch> mlps;              // by sublayer; empty for an attention
    size_t normed_of = kNone;  // the sublayer whose normed input `normed` and `stats_` hold

    // What is saved of a sublayer's inputs. In an MLP's backward these are their gradients.
    std::vector<View> SavedInputs(size_t sublayer) const;
  };
  struct HeadScratch {
    View normed;                     // [tokens, width]
    View d_normed;                   // [tokens, width]; training only
    View logits;                     // [tokens, outputs of a tile]; also their gradients
    std::vector<std::byte*> states;  // by micro-batch of those that pass together
  };

  // How a use of a parameter adds to its gradient.
  struct GradientUse {
    int64_t micro_batch = 0;
    bool is_first = true;  // of the micro-batch's uses of the parameter
    bool is_last = true;
  };

  enum class Passes : uint8_t { kForward, kBackward };
  // Whether a load keeps the saved tensor for another load or discards it.
  enum class After : uint8_t { kKeep, kForget };

  explicit Walk(const WalkParts& parts);

  // --- walk.cc: a step, in its order ---
  Batch BatchOf(int64_t index, int64_t windows, int64_t length, std::span<const int32_t> inputs,
                std::span<const int32_t> targets, bool leases_every_tile) const;
  absl::Status LookUpForward(std::span<Batch> together);
  absl::Status BlocksForward(std::span<Batch> together);
  absl::Status GatherHead(std::span<Batch> together, bool save);
  absl::Status TrainHead(std::span<Batch> together, double scale);
  absl::Status BlocksBackward(std::span<Batch> together);
  absl::Status LookUpBackward();
  absl::Status FetchHeadInput(const Batch& batch, After after, const View& normed);
  View LogitsOf(uint64_t tile, const HeadScratch& scratch) const;
  View ResidualOf(size_t sublayer, const Batch& batch) const {
    return residuals_[sublayer].Rows(0, batch.rows());
  }

  // --- walk_block.cc: a block ---
  absl::Status ForwardBlock(size_t block, const Batch& batch, bool save);
  absl::Status ComputeBranch(const Sublayer& sublayer, size_t index, const Batch& batch,
                             BlockScratch& scratch);
  absl::Status NormInput(const Sublayer& sublayer, size_t index, const Batch& batch,
                         BlockScratch& scratch);
  absl::Status Project(const Attention& attention, const AttentionScratch& scratch,
                       const View& normed);
  absl::Status NormHeads(const Attention& attention, const AttentionScratch& scratch,
                         BlockScratch& block);
  void Turn(const Attention& attention, const Batch& batch, const AttentionScratch& scratch);
  void TurnHeads(const Attention& attention, const Batch& batch, const Heads& heads, bool backward);
  Heads QueriesOf(const Attention& attention, const AttentionScratch& scratch) const;
  Heads KeysOf(const Attention& attention, const AttentionScratch& scratch) const;
  AttentionSizes SizesOf(const Attention& attention, int64_t windows, int64_t length) const;
  AttentionArguments ArgumentsOf(const Attention& attention, const Batch& batch,
                                 const AttentionScratch& scratch, std::byte* work) const;
  ActivationArguments ArgumentsOf(const Mlp& mlp, const MlpScratch& scratch) const;
  absl::Status AddBranch(const Sublayer& sublayer, size_t index, BlockScratch& scratch,
                         const View& residual);
  absl::Status AddProduct(const Linear& linear, const View& x, BlockScratch& scratch,
                          const View& residual);
  absl::Status BackwardBlock(size_t block, const Batch& batch);
  absl::Status Restore(size_t block, const Batch& batch, BlockScratch& scratch);
  absl::Status RestoreHeads(const Attention& attention, const Batch& batch,
                            const AttentionScratch& scratch, BlockScratch& block);
  absl::Status BackwardMlp(const Sublayer& sublayer, size_t index, const Batch& batch,
                           BlockScratch& scratch);
  absl::Status BackwardAttention(const Sublayer& sublayer, size_t index, const Batch& batch,
                                 BlockScratch& scratch);
  absl::Status BackwardHeadNorm(const Norm& norm, const Columns& columns, const Heads& d_heads,
                                int64_t head_dim, const AttentionScratch& scratch,
                                const View& normed, const Batch& batch, BlockScratch& block);
  absl::Status BackwardInputs(std::span<const Linear> linears, std::span<const View> gradients,
                              const Batch& batch, const BlockScratch& scratch);

  // --- walk_leases.cc: what takes leases ---
  const TensorSpec& WeightSpec(size_t parameter) const {
    return parts_.engine->Spec(parts_.parameters[parameter].tensors.weight);
  }
  bool HasGradient(size_t parameter) const {
    return parts_.parameters[parameter].tensors.is_trained();
  }
  absl::StatusOr<std::pair<Lease, View>> AcquireTile(TensorId tensor, uint64_t tile, Access access);
  absl::StatusOr<std::pair<Lease, GradientTile>> AcquireGradient(size_t parameter, uint64_t tile,
                                                                 const GradientUse& use);
  // c = x·Wᵀ + bias, or added to c; and a's gradient c = a·W.
  absl::Status Multiply(const Linear& linear, Passes pass, const View& a, Into into, const View& c);
  absl::Status MultiplyTile(const Linear& linear, uint64_t tile, Passes pass, const View& a,
                            Into into, const View& c);
  absl::Status AddWeightGradient(const Linear& linear, const View& dy, const View& x,
                                 const GradientUse& use);
  absl::Status AddWeightGradientTile(const Linear& linear, uint64_t tile, const View& dy,
                                     const View& x, const GradientUse& use);
  absl::Status FetchVector(size_t parameter, const View& to);
  absl::Status AddVectorGradient(size_t parameter, const View& from, const GradientUse& use);
  absl::Status ForwardNorm(const Norm& norm, const View& x, const View& y);
  absl::Status BackwardNorm(const Norm& norm, const View& dy, const View& x, const View& dx,
                            int64_t micro_batch);
  absl::StatusOr<NormArguments> FetchNorm(const Norm& norm, const View& x);
  absl::Status Save(TensorId tensor, const View& from);
  absl::Status Load(TensorId tensor, After after, const View& to);
  absl::Status LogitsGradient(const Batch& batch, uint64_t tile, std::byte* states, float scale,
                              const View& logits);
  absl::Status LookUpTile(size_t parameter, const TableOrder::Tile& tile, Into into, const View& x);
  absl::Status LookUpGradientTile(size_t parameter, const TableOrder::Tile& tile, const View& dx,
                                  const View& work, const GradientUse& use);

  // --- walk_scratch.cc: where scratch lies ---
  // Lays out what lasts through a step, then blocks and the head over each other. Returns the bytes
  // of everything.
  uint64_t LayOut(std::byte* base);
  BlockScratch ScratchOf(const Block& block, int64_t rows, ScratchLayout& layout) const;
  BlockScratch ScratchOf(const Block& block, int64_t rows) const;
  HeadScratch ScratchOfHead(int64_t rows, ScratchLayout& layout) const;
  HeadScratch ScratchOfHead(int64_t rows) const;
  View Take(ScratchLayout& layout, int64_t rows, int64_t columns, DType rounded) const;
  int64_t WidestSum() const;
  int64_t WidestOperand() const;
  View TakeRows(ScratchLayout& layout, int64_t rows, int64_t columns, DType rounded) const;
  ScratchNeeds Needs() const;

  const WalkParts parts_;
  const Description& model_;
  const ModelOptions& options_;
  Compute& compute_;
  const DType element_;            // of saved activations, and of operands of attention
  const DType product_;            // to which operands and results of products are rounded
  const DType residual_;           // of the residual
  std::vector<size_t> first_sum_;  // by parameter: the slot of its first tile's sum of squares

  // Scratch that lasts through a step. [tokens, width] unless another shape is given.
  std::vector<std::pair<View, View>> ropes_;  // cosines and sines, [sequence, head_dim/2] each
  std::vector<View> residuals_;  // the inputs of a block's sublayers; the first is its input
  View gradient_;                // the residual's; training only
  View vector_;                  // [1, widest]: a norm's scale or a bias, and its gradient
  View second_vector_;           // [1, widest]: a norm's shift, and its gradient
  View sum_;                     // [tokens, widest]: of what is stored in 16 bits once it is whole
  View stats_;                   // [1 or 2, rows]: of the last norm
  std::byte* norm_work_ = nullptr;
  std::byte* base_ = nullptr;
  uint64_t shared_ = 0;  // where the scratch of blocks and of the head begins

  std::vector<Batch> batches_;  // of the last walk
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_WALK_H_
