// SPDX-License-Identifier: Apache-2.0
//
// The seam between the walk of a model and what computes on elements. The walk decides which
// operation runs on which views, in which order, and it alone takes leases. A Compute runs the
// operations in the order of the calls: on the host at once, on a device on one stream, in a dry
// run not at all.
//
// A view of scratch lies in memory that Reserve gave; its elements have the type that StoredAs
// names. A view of a leased tile has the type of its tensor, and comes with its lease. The
// operation ends the lease as soon as it does not need the tile any more: after its work has been
// launched, if the lease was taken on a stream, because then the engine keeps the bytes until that
// work has run.
//
// Host memory that an operation names (tokens, targets) must stay as it is until Collect. An
// operation that fails changes nothing else; Collect returns the first failure.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_COMPUTE_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_COMPUTE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/stream.h"
#include "spillway/types.h"
#include "tools/trainer/compute/computed_by.h"
#include "tools/trainer/compute/into.h"
#include "tools/trainer/compute/table_row.h"
#include "tools/trainer/compute/view.h"
#include "tools/trainer/description.h"

namespace spillway::trainer {

// --- Arguments of operations ---

// c[rows, columns] = a·w, or a·wᵀ if `transposed`; or added to c.
struct Product {
  View a;  // [rows, inner]
  View w;  // a leased tile: [inner, columns]; if transposed [columns, inner]
  bool transposed = false;
  Into into = Into::kOverwrite;
  View c;  // [rows, columns]
};

// Adds to a tile of a gradient, or overwrites it, with one rounding to the tile's type. Elements
// are computed in fp32.
struct GradientTile {
  View tile;  // leased
  Into into = Into::kOverwrite;
  // If it is not kNoSum, the squares of the tile's elements are summed afterwards, into this slot.
  size_t sum = kNoSum;

  static constexpr size_t kNoSum = std::numeric_limits<size_t>::max();
};

// The gradient of a weight's tile: aᵀ·b.
struct ProductGradient {
  View a;             // [tokens, rows]
  View b;             // [tokens, columns]
  GradientTile into;  // [rows, columns]
};

// x[position] = table[row], or added to it, for each entry.
struct Lookup {
  View table;  // a leased tile: rows [first_row, first_row + rows) of the table
  int64_t first_row = 0;
  std::span<const TableRow> entries;  // with rows in this tile
  Into into = Into::kOverwrite;
  View x;  // [tokens, width]
};

// Adds dx[position] to the gradient of the table's row, for each entry. Entries are sorted by row,
// then position. The gradients of a row are summed in fp32, in this order, and added to the tile
// with one rounding.
struct LookupGradient {
  View dx;  // [tokens, width]
  std::span<const TableRow> entries;
  int64_t first_row = 0;
  GradientTile into;  // kOverwrite: rows without an entry become zero
  View work;          // [1, width], overwritten
};

struct NormArguments {
  NormKind kind = NormKind::kRms;
  float epsilon = 0;
  View x;      // [rows, width]
  View scale;  // [1, width]
  View shift;  // [1, width]; without columns: none
  View stats;  // [2, rows]: inverse deviations, then means; Norm writes them for NormGradient
};

struct NormGradientArguments {
  NormArguments norm;  // with the stats of a Norm of the same x
  View dy;             // [rows, width]
  View dx;             // [rows, width], to which the gradient of x is added
  // The gradients of scale and shift, [1, width] each. They may be the views of scale and shift.
  View scale_gradient;
  View shift_gradient;
  std::byte* work = nullptr;  // NormWorkBytes
};

// Heads of rows of tokens: head h of a token begins at column h · head_stride of its row.
struct Heads {
  View rows;  // [tokens, ...], from the first head's first column on
  int64_t heads = 0;
  int64_t head_stride = 0;
};

// Rotates pairs of elements of each head, in place. Token t has position t mod length.
struct RopeArguments {
  View cosines;  // [positions, head_dim/2]
  View sines;
  int64_t length = 0;
  int64_t head_dim = 0;
  bool backward = false;  // by the opposite angle
  Heads x;
};

// Windows of `length` tokens, one after another. A query sees the keys of its window up to its own
// position, of these the last `window` (0: all).
struct AttentionSizes {
  int64_t windows = 0;
  int64_t length = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;
  int64_t window = 0;
  float scale = 0;  // of query·key
};

struct AttentionArguments {
  AttentionSizes sizes;
  Heads query, key, value;
  View out;                   // [tokens, heads · head_dim]
  std::byte* work = nullptr;  // AttentionWorkBytes
};

struct AttentionGradientArguments {
  AttentionArguments forward;                          // with its result
  View out_gradient;                                   // [tokens, heads · head_dim]
  Heads query_gradient, key_gradient, value_gradient;  // overwritten
};

// out = f(gate) · up; without a gate f(up). All are [tokens, width] and contiguous. There are SiLU
// with a gate and GELU without.
struct ActivationArguments {
  Activate function = Activate::kSilu;
  View gate;  // without columns: none
  View up;
  View out;
};

// The logits of a tile of the vocabulary, [tokens, columns], contiguous.
struct VocabularyTile {
  View logits;
  int64_t first_token = 0;  // of the vocabulary
  std::span<const int32_t> targets;
  std::byte* states = nullptr;  // SoftmaxBytes
};

// --- What a step gives ---

struct StepResults {
  double loss = 0;  // the sum of the mean cross-entropies of AddLoss since the last Collect
  // Over all slots: the sum of squares of all gradients as they are stored, in fp64.
  double sum_of_squares = 0;
  std::vector<float> logits;  // of TakeLogits since the last Collect
};

// What a Compute must have room for.
struct ScratchNeeds {
  uint64_t view_bytes = 0;                   // for views of scratch, in one piece
  int64_t largest_narrow_tile_elements = 0;  // of weights' tiles that are not fp32
  int64_t largest_gradient_elements = 0;     // of gradients' tiles
  int64_t largest_operand_elements = 0;      // of products' operands in scratch; 0 in fp32
  size_t num_sums = 0;                       // slots
  int64_t step_tokens = 0;                   // whose entries and targets a step names
  int64_t most_logits = 0;                   // of TakeLogits before a Collect
};

// Thread-compatible. Must be destroyed before the engine whose leases it was given.
class Compute {
 public:
  virtual ~Compute() = default;

  // The stream to take leases on; null on the host.
  virtual Stream* stream() = 0;
  // The GPU that computes; none on the host.
  virtual std::optional<ComputedBy> computed_by() const = 0;
  // How often it has waited for a device.
  virtual int64_t waits() const = 0;
  // Operations a second of a product alone. The host measures them for some hundredths of a second;
  // a GPU's were measured before. 0: that says nothing here. Called before Reserve.
  virtual double PeakFlops() = 0;
  // Likewise the bytes a second that a copy from device memory to device memory reads and writes.
  virtual double CopyRate() = 0;

  // --- Scratch ---

  // The type of the elements of a view of scratch that is rounded to `rounded`. Sums that are not
  // rounded are fp32.
  virtual DType StoredAs(DType rounded) const = 0;
  // The bytes of memory that operations need beside their views.
  virtual uint64_t NormWorkBytes(NormKind kind, int64_t rows, int64_t width) const = 0;
  virtual uint64_t AttentionWorkBytes(const AttentionSizes& sizes) const = 0;
  virtual uint64_t SoftmaxBytes(int64_t tokens) const = 0;
  // Allocates, and returns the memory for views, aligned to 128 bytes. Called once, before all
  // operations.
  virtual absl::StatusOr<std::byte*> Reserve(const ScratchNeeds& needs) = 0;
  // All bytes that Reserve allocated.
  virtual uint64_t scratch_bytes() const = 0;

  // --- Copies ---

  // Copy a tile to scratch, scratch to a tile, or scratch to scratch, with conversion. Both are
  // contiguous.
  virtual void CopyFromTile(const View& tile, Lease lease, const View& to) = 0;
  virtual void CopyToTile(const View& from, const View& tile, Lease lease) = 0;
  virtual void Copy(const View& from, const View& to) = 0;
  virtual void Zero(const View& to) = 0;
  // to += from.
  virtual void Add(const View& from, const View& to) = 0;

  // --- Linears ---

  virtual void Multiply(const Product& product, Lease lease) = 0;
  virtual void MultiplyGradient(const ProductGradient& product, Lease lease) = 0;
  // y[rows, columns] += bias[1, columns].
  virtual void AddBias(const View& bias, const View& y) = 0;
  // bias_gradient[1, columns] = the sum of dy's rows.
  virtual void BiasGradient(const View& dy, const View& bias_gradient) = 0;
  // Adds scratch to a gradient's tile, which has the same elements.
  virtual void Accumulate(const View& from, const GradientTile& into, Lease lease) = 0;

  // --- Embeddings ---

  virtual void LookUp(const Lookup& lookup, Lease lease) = 0;
  virtual void LookUpGradient(const LookupGradient& lookup, Lease lease) = 0;

  // --- Layers ---

  virtual void Norm(const NormArguments& norm, const View& y) = 0;
  virtual void NormGradient(const NormGradientArguments& norm) = 0;
  // Fills cosines and sines, [positions, frequencies] each, for `frequencies` in radians a
  // position. Called before all other operations.
  virtual void FillRope(std::span<const float> frequencies, const View& cosines,
                        const View& sines) = 0;
  virtual void Rope(const RopeArguments& rope) = 0;
  virtual void Attention(const AttentionArguments& attention) = 0;
  virtual void AttentionGradient(const AttentionGradientArguments& attention) = 0;
  virtual void Activation(const ActivationArguments& activation) = 0;
  // On entry `out` has the gradient of the forward's result. On return `gate` and `up` have their
  // gradients, and `out` the forward's result again.
  virtual void ActivationGradient(const ActivationArguments& activation) = 0;

  // --- Loss ---

  virtual void StartSoftmax(std::byte* states, int64_t tokens) = 0;
  // Takes a tile's logits into each token's softmax.
  virtual void GatherSoftmax(const VocabularyTile& tile) = 0;
  // Adds the mean cross-entropy of the tokens to the step's loss, after all tiles.
  virtual void AddLoss(const std::byte* states, int64_t tokens) = 0;
  // out[tokens, columns] = (p − [column is the target]) · scale. The logits are in scratch, or in a
  // leased tile. `out` may be the logits.
  virtual void CrossEntropyGradient(const VocabularyTile& tile, float scale, const View& out,
                                    Lease lease) = 0;
  // Appends a row of logits to the step's results.
  virtual void TakeLogits(const View& logits) = 0;

  // Waits until everything has run, and returns what there is since the last Collect.
  virtual absl::StatusOr<StepResults> Collect() = 0;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_COMPUTE_H_
