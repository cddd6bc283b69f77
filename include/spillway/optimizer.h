// SPDX-License-Identifier: Apache-2.0
//
// The update of a training step: a Rule says what happens to an element and which state it needs, a
// StateFormat how that state rests, and an Optimizer streams the tiles of both through pinned
// memory while the CPU updates them, so that its memory does not grow with the model.
//
// The rules, with the order of operations of torch.optim, or of the paper where PyTorch has none.
// Below, g is the gradient times Update::gradient_scale, λ the weight decay and t the step:
//
//   AdamW    p ← p·(1 − lr·λ);  m ← β₁m + (1−β₁)g;  v ← β₂v + (1−β₂)g²;
//            p ← p − (lr/(1−β₁ᵗ)) · m / (√v/√(1−β₂ᵗ) + ε)         (arXiv:1711.05101)
//   Adam     g ← g + λp;  then as AdamW without its decay           (arXiv:1412.6980)
//   SGD      g ← g + λp;  with momentum μ: m ← μm + g;  p ← p − lr·m, or p ← p − lr·g
//   RMSprop  g ← g + λp;  v ← αv + (1−α)g²;  d = g/(√v + ε);
//            with momentum μ: m ← μm + d;  p ← p − lr·m, or p ← p − lr·d
//   Lion     p ← p·(1 − lr·λ);  p ← p − lr·sign(β₁m + (1−β₁)g);  m ← β₂m + (1−β₂)g
//                                                                   (arXiv:2302.06675)
//   LAMB     m and v as AdamW's;  u = (m/(1−β₁ᵗ)) / (√v/√(1−β₂ᵗ) + ε) + λp;
//            p ← p − lr·(‖p‖/‖u‖)·u                                  (arXiv:1904.00962)
//   LARS     r = η‖p‖/(‖g‖ + λ‖p‖);  with momentum μ: m ← μm + lr·r·(g + λp);  p ← p − m,
//            or p ← p − lr·r·(g + λp)                                (arXiv:1708.03888)
//   Adafactor  ρ = min(lr, 1/√t);  α = ρ·max(ε₂, RMS(p));  β = 1 − t^−c;  p ← p·(1 − lr·λ);
//            v ← βv + (1−β)g², of a matrix its means over rows and columns alone:
//            R ← βR + (1−β)·mean(g² of a row),  C ← βC + (1−β)·mean(g² of a column),
//            v = RC / max(mean R, ε₁);  u = g/√max(v, ε₁²);  p ← p − α·u/max(1, RMS(u)/d)
//                                             (arXiv:1804.04235, as torch.optim.Adafactor has it)
//
// The last three need norms of a whole parameter before an element of it may change, so they pass
// over its tiles two or three times. Norms are of the parameter before the update. In LAMB and LARS
// a parameter of fewer than two dimensions (a bias, a norm's weight) is updated with the factor of
// the norms left out, as is usual with both, and so is one of which a norm is zero: LAMB steps by
// lr, LARS by lr without η. In Adafactor a tensor of more than two dimensions is a stack of
// matrices, of the last two; RMS are of the whole tensor.
//
// Every element is computed by the same sequence of correctly rounded fp32 operations, and every
// norm and mean in fp64 in an order that follows from the shape alone, so that bits depend on
// neither threads, tiles, budgets nor the instruction set. src/optim/FORMATS.md has the bytes of
// each format.

#ifndef SPILLWAY_OPTIMIZER_H_
#define SPILLWAY_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/export.h"
#include "spillway/thread_pool.h"
#include "spillway/types.h"

namespace spillway {

enum class RuleKind : uint8_t { kAdamW, kAdam, kSgd, kRmsProp, kLion, kLamb, kLars, kAdafactor };
inline constexpr int kNumRuleKinds = 8;

// "adamw", "adam", "sgd", "rmsprop", "lion", "lamb", "lars", "adafactor".
SPILLWAY_EXPORT std::string_view Name(RuleKind kind);

// A rule with its constants. A rule ignores those that it does not have.
struct Rule {
  RuleKind kind = RuleKind::kAdamW;
  double beta1 = 0.9;     // AdamW, Adam, Lion, LAMB: in [0, 1)
  double beta2 = 0.95;    // AdamW, Adam, Lion, LAMB: in [0, 1)
  double epsilon = 1e-8;  // AdamW, Adam, RMSprop, LAMB: above 0 in single precision. Adafactor: ε₁,
                          // whose square is above 0 in single precision
  double alpha = 0.99;    // RMSprop: in [0, 1)
  double momentum = 0;    // SGD, RMSprop, LARS: in [0, 1]; 0: none, and no state for it
  double trust_coefficient = 1e-3;  // LARS: η, at least 0
  double beta2_decay = 0.8;         // Adafactor: c, at least 0
  double epsilon2 = 1e-3;           // Adafactor: ε₂, at least 0
  double clipping_threshold = 1;    // Adafactor: d, above 0

  friend bool operator==(const Rule&, const Rule&) = default;
};

// The constants that are usual: PyTorch's, of Lion, LAMB and LARS their papers', and for AdamW
// those of language models (β₂ = 0.95).
SPILLWAY_EXPORT Rule UsualRule(RuleKind kind);

// How state rests.
//   kF32   Moments and the master weight in fp32.
//   kBf16  Moments in bf16, rounded without bias; the master weight in fp32.
//   k8Bit  Moments as 8-bit codes, rounded to nearest, in blocks of 256 elements of a row with a
//          scale each (arXiv:2110.02861); the master weight in fp32.
//   kCompact  For weights of 16 bits. 8 more bits of each weight, which make it the master weight,
//          and moments as companded 8-bit codes in groups of 64 elements of a row with a scale
//          each; all rounded without bias (after arXiv:2602.23349).
enum class StateFormat : uint8_t { kF32, kBf16, k8Bit, kCompact };
inline constexpr int kNumStateFormats = 4;

// "fp32", "bf16", "8bit", "compact".
SPILLWAY_EXPORT std::string_view Name(StateFormat format);

// Whether the rule's state can rest in the format. A rule without moments has kF32 and kCompact,
// and Adafactor kF32 alone: its state of matrices is small, and its vectors are few.
SPILLWAY_EXPORT bool Exists(const Rule& rule, StateFormat format);

// The state tensors that a parameter needs, in the order of ParameterTensors::state: a master
// weight if the weight has 16 bits, then the rule's moments: a tensor each, or under k8Bit one
// tensor of bytes for all. Under kCompact there is one tensor of bytes and no master weight.
// `weight` is the weight's spec; names begin with its name and "/", and rows and tiles are the
// weight's, but that under k8Bit and kCompact a vector is one row, and that Adafactor's means over
// a matrix have a dimension of 1, those over its columns in one tile. What the tensors hold before
// the first update, FirstValues reads. InvalidArgument: the pair of rule and format does not exist,
// or the weight has no shape, a dimension below 1, more elements than memory can hold, or a dtype
// that is not f32, f16 or bf16, or under kCompact is f32.
SPILLWAY_EXPORT absl::StatusOr<std::vector<TensorSpec>> StateSpecs(const Rule& rule,
                                                                   StateFormat format,
                                                                   const TensorSpec& weight);

// Reads what `tensor` holds before the first update: the weight itself, or one of those that
// StateSpecs lists for it. `weights` reads the weight in fp32, and is asked for whole elements in
// ascending order. A master weight holds them as they are, and a 16-bit weight rounds them to
// nearest. Under kCompact the two together are within a 496th of the weight's last place; this
// holds if both are registered with FirstValues. Moments are zeros: the Reader is empty.
SPILLWAY_EXPORT Reader FirstValues(StateFormat format, const TensorSpec& weight,
                                   const TensorSpec& tensor, Reader weights);

// The master weights under kCompact of some whole rows (a vector is one row): `weight_rows` has
// their bytes in the weight, `state_rows` those in the state's tensor, and `masters` gets an
// element for each of the weight's. `weight` and `state` are the specs of both tensors.
// InvalidArgument: they are no such pair, or the bytes are not those of the same number of rows.
SPILLWAY_EXPORT absl::Status JoinMasterWeights(const TensorSpec& weight, const TensorSpec& state,
                                               std::span<const std::byte> weight_rows,
                                               std::span<const std::byte> state_rows,
                                               std::span<float> masters);

// Where a weight or a gradient lies: in a tensor of the engine, or in memory of the caller's, whole
// and row-major, which is looked at in updates alone. It must stay until an update says where it
// lies instead.
struct Values {
  Values() = default;
  Values(TensorId id) : tensor(id) {}  // NOLINT(google-explicit-constructor)
  Values(void* address, DType type) : memory(address), dtype(type) {}

  TensorId tensor;
  void* memory = nullptr;     // not null: the caller's
  DType dtype = DType::kF32;  // of `memory`
};

// The tensors of one parameter.
struct ParameterTensors {
  // What the forward pass reads: F32, F16 or BF16. One of 16 bits is written whole by each update,
  // from its master weight, and never read unless Update::take_changed_weight says so. Under
  // kCompact it is most of its master weight, and always read.
  Values weight;
  // F32, F16 or BF16, of the weight's shape. A transient tensor is discarded by the update that
  // used it, in the last pass over it. None: the parameter is never updated.
  std::optional<Values> gradient;
  // As StateSpecs lists them; their tiles may be others than the weight's. The tiles of a vector
  // (weight, gradient, master weight) must be multiples of 256 elements under k8Bit, and of 64
  // under kCompact.
  std::vector<TensorId> state;
  // Of a weight in the caller's memory; of a tensor it is the tensor's.
  std::vector<int64_t> shape;
};

// What one update of one parameter takes.
struct Update {
  size_t parameter = 0;  // as Add returned it
  int64_t step = 1;      // t, from 1, counting this parameter's updates
  double learning_rate = 0;
  double weight_decay = 0;
  double gradient_scale = 1.0;  // every gradient element is multiplied by this first
  // Other constants than the optimizer's. Its state must be the same: the kind, and whether there
  // is a momentum.
  std::optional<Rule> rule = std::nullopt;
  // Where a weight or a gradient in the caller's memory lies from now on; null: where it lay.
  void* weight_memory = nullptr;
  void* gradient_memory = nullptr;
  // Of a weight of 16 bits in the caller's memory: somebody may have written it since the last
  // update. An element that is not what its master weight rounds to is the master weight's new
  // value before this update. Nothing of other weights.
  bool take_changed_weight = false;
};

// Updates parameters whose state rests wherever the engine put it.
//
//   auto specs = StateSpecs(rule, StateFormat::kF32, engine->Spec(weight));
//   ParameterTensors tensors = {.weight = weight, .gradient = gradient};
//   for (const TensorSpec& spec : *specs) {
//     const Reader first = FirstValues(StateFormat::kF32, engine->Spec(weight), spec, read_weight);
//     tensors.state.push_back(*engine->Register(spec, first));
//   }
//   auto optimizer = Optimizer::Create(engine, &pool, rule, StateFormat::kF32);
//   const size_t parameter = *(*optimizer)->Add(tensors);
//   for (int64_t step = 1;; ++step) {
//     ... forward and backward ...
//     engine->Prefetch(*(*optimizer)->Uses({&parameter, 1}));
//     const Update update = {.parameter = parameter, .step = step, .learning_rate = 1e-3};
//     absl::Status status = (*optimizer)->Step({&update, 1});
//   }
//
// Owns no tensor; the engine and the pool must outlive it. Thread-compatible. Add, Uses and Step
// check their arguments before they do anything. An error of the engine in Step is returned as it
// came. Then the parameters before it in the list are updated, and of the one at hand some tiles
// are: the tile at hand may be updated in part, and of a 16-bit weight's what was not written is
// NaN. So the caller must go back to the last commit.
class SPILLWAY_EXPORT Optimizer {
 public:
  // InvalidArgument if a constant of the rule is out of range, or the pair of rule and format does
  // not exist.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(Engine* engine, ThreadPool* pool,
                                                           const Rule& rule, StateFormat format);
  virtual ~Optimizer() = default;

  // Takes a parameter up, at any time; returns its number, counted from 0. InvalidArgument if
  // dtypes, shapes or tiles disagree with what StateSpecs says, or a tensor was given before.
  virtual absl::StatusOr<size_t> Add(const ParameterTensors& tensors) = 0;

  // The uses, in order, that Step makes for these parameters: for Engine::Prefetch by a caller that
  // wants the first tiles under way before. NotFound: a parameter that was not added.
  virtual absl::StatusOr<std::vector<Use>> Uses(std::span<const size_t> parameters) const = 0;

  // Updates the parameters of the list, in its order; one that has no gradient stays as it is, and
  // so do those that are not in the list. Does not declare its uses. NotFound: a parameter that was
  // not added. InvalidArgument: one is named twice, or a value is out of range.
  virtual absl::Status Step(std::span<const Update> updates) = 0;

  // Pinned bytes within which Step always finds room: the tiles that it leases together, with what
  // fragmentation can take.
  virtual uint64_t min_pinned_bytes() const = 0;
};

}  // namespace spillway

#endif  // SPILLWAY_OPTIMIZER_H_
