// SPDX-License-Identifier: Apache-2.0
//
// The update of a training step. A Rule defines how an element is updated and which state it needs.
// A StateFormat defines how that state is stored. An Optimizer streams the tiles of parameters and
// state through pinned memory while the CPU updates them, or leases them on the device if their
// state rests there, so its memory does not grow with the model.
//
// The rules follow. Their order of operations is that of torch.optim, or of the paper if PyTorch
// does not have the rule. Below, g is the gradient times Update::gradient_scale, negated with
// maximize, λ the weight decay and t the step:
//
//   AdamW    p ← p·(1 − lr·λ);  m ← β₁m + (1−β₁)g;  v ← β₂v + (1−β₂)g²;
//            p ← p − (lr/(1−β₁ᵗ)) · m / (√v/√(1−β₂ᵗ) + ε)         (arXiv:1711.05101)
//            with amsgrad: w ← max(w, v), and w takes the place of v in p's update
//                                                                   (arXiv:1904.09237)
//   Adam     g ← g + λp;  then as AdamW without its decay           (arXiv:1412.6980)
//   SGD      g ← g + λp;  p ← p − lr·g;  with momentum μ and dampening τ: m ← μm + (1−τ)g, in
//            step 1 m ← μm + g;  p ← p − lr·m, or with nesterov p ← p − lr·(g + μm)
//   RMSprop  g ← g + λp;  v ← αv + (1−α)g²;  d = g/(√v + ε);
//            with momentum μ: m ← μm + d;  p ← p − lr·m, or p ← p − lr·d;
//            centered: v ← αv + α(1−α)(g − a)²;  a ← αa + (1−α)g, where v is the variance of the
//            gradient, which torch.optim computes as a difference: its square_avg − a²
//   Lion     p ← p·(1 − lr·λ);  p ← p − lr·sign(β₁m + (1−β₁)g);  m ← β₂m + (1−β₂)g
//                                                                   (arXiv:2302.06675)
//   LAMB     m and v as AdamW's;  u = (m/(1−β₁ᵗ)) / (√v/√(1−β₂ᵗ) + ε) + λp;
//            p ← p − lr·(‖p‖/‖u‖)·u                                  (arXiv:1904.00962)
//   LARS     r = η‖p‖/(‖g‖ + λ‖p‖);  with momentum μ: m ← μm + lr·r·(g + λp);  p ← p − m,
//            or p ← p − lr·r·(g + λp)                                (arXiv:1708.03888)
//   Adafactor  ρ = min(lr, 1/√t);  α = ρ·max(ε₂, RMS(p));  β = 1 − t^−c;  p ← p·(1 − lr·λ);
//            v ← βv + (1−β)g²; for a matrix only the means over rows and columns are stored:
//            R ← βR + (1−β)·mean(g² of a row),  C ← βC + (1−β)·mean(g² of a column),
//            v = RC / max(mean R, ε₁);  u = g/√max(v, ε₁²);  p ← p − α·u/max(1, RMS(u)/d)
//                                             (arXiv:1804.04235, as torch.optim.Adafactor has it)
//
// The last three rules need norms of a whole parameter before any of its elements may change, so
// they pass over its tiles two or three times. The norms are those of the parameter before the
// update. In LAMB and LARS the factor of the norms is left out for a parameter of fewer than two
// dimensions (a bias, a norm's weight), as is usual with both rules, and for a parameter of which a
// norm is zero: LAMB then steps by lr, LARS by lr without η. In Adafactor a tensor of more than two
// dimensions is a stack of matrices, which have its last two dimensions; each RMS is that of the
// whole tensor.
//
// Every element is computed by the same sequence of correctly rounded fp32 operations. Every norm
// and mean is computed in fp64, in an order that depends on the shape alone. So the bits do not
// depend on threads, tiles, budgets or the instruction set. Of an element that is NaN, only that it
// is NaN does not depend on them: its sign and payload may. src/optim/FORMATS.md describes the
// bytes of each format.

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

// A rule with its constants. A rule ignores those that it does not have, whatever their values.
struct Rule {
  RuleKind kind = RuleKind::kAdamW;
  double beta1 = 0.9;     // AdamW, Adam, Lion, LAMB: in [0, 1)
  double beta2 = 0.95;    // AdamW, Adam, Lion, LAMB: in [0, 1)
  double epsilon = 1e-8;  // AdamW, Adam, RMSprop, LAMB: above 0 in single precision. Adafactor: ε₁,
                          // whose square is above 0 in single precision
  double alpha = 0.99;    // RMSprop: in [0, 1)
  double momentum = 0;    // SGD, RMSprop, LARS: in [0, 1]; 0: none, and no state for it
  double dampening = 0;   // SGD with momentum: finite, and 0 with nesterov
  bool nesterov = false;  // SGD with momentum
  bool centered = false;  // RMSprop
  bool amsgrad = false;   // AdamW, Adam
  bool maximize = false;  // all rules: negates the gradient
  double trust_coefficient = 1e-3;  // LARS: η, at least 0
  double beta2_decay = 0.8;         // Adafactor: c, at least 0
  double epsilon2 = 1e-3;           // Adafactor: ε₂, at least 0
  double clipping_threshold = 1;    // Adafactor: d, above 0

  friend bool operator==(const Rule&, const Rule&) = default;
};

// Returns the usual constants of a rule: PyTorch's; for Lion, LAMB and LARS those of their papers;
// for AdamW those of language models (β₂ = 0.95).
SPILLWAY_EXPORT Rule UsualRule(RuleKind kind);

// How state is stored.
//   kF32   Moments and the master weight in fp32.
//   kBf16  Moments in bf16, rounded without bias; the master weight in fp32.
//   k8Bit  Moments as 8-bit codes, rounded to nearest, in blocks of 256 elements of a row; each
//          block has a scale (arXiv:2110.02861). The master weight in fp32.
//   kCompact  For weights of 16 bits. 8 more bits for each weight, which make it the master weight,
//          and moments as companded 8-bit codes in groups of 64 elements of a row; each group has a
//          scale. All are rounded without bias (after arXiv:2602.23349).
enum class StateFormat : uint8_t { kF32, kBf16, k8Bit, kCompact };
inline constexpr int kNumStateFormats = 4;

// "fp32", "bf16", "8bit", "compact".
SPILLWAY_EXPORT std::string_view Name(StateFormat format);

// Whether an optimizer of the rule can store its state in the format. A rule without moments has
// only kF32 and kCompact. Adafactor has only kF32, because its state of matrices is small and
// vectors are few.
SPILLWAY_EXPORT bool Exists(const Rule& rule, StateFormat format);

// Returns the specs of the state tensors that a parameter needs, in the order of
// ParameterTensors::state: a master weight if the weight has 16 bits, then the rule's moments. Each
// moment is a tensor; under k8Bit one tensor of bytes holds all moments. Under kCompact there is
// one tensor of bytes and no master weight. A rule without moments has them in no format, also in
// those that an optimizer of that rule alone cannot have.
//
// `weight` is the weight's spec. Names begin with its name and "/". Rows and tiles are the
// weight's, with two exceptions: under k8Bit and kCompact a vector is one row; and Adafactor's
// means over a matrix have a dimension of 1, and those over its columns are in one tile.
// FirstValues reads what the tensors hold before the first update.
//
// InvalidArgument: the rule cannot rest in the format, or the weight has a dimension below 1, a
// negative tile_rows, more than 2^57 - 1 elements, or a dtype that is not f32, f16 or bf16, or that
// is f32 under kCompact.
SPILLWAY_EXPORT absl::StatusOr<std::vector<TensorSpec>> StateSpecs(const Rule& rule,
                                                                   StateFormat format,
                                                                   const TensorSpec& weight);

// Returns a Reader of what `tensor` holds before the first update. `tensor` is the weight itself,
// or one of the tensors that StateSpecs lists for it. `weights` reads the weight in fp32; it is
// called for whole elements, in ascending order. A master weight holds these values unchanged, and
// a 16-bit weight holds them rounded to nearest. Under kCompact, weight and state together hold
// them to within a 496th of the weight's last place, if both are registered with FirstValues.
// Moments are zeros, so their Reader is empty.
SPILLWAY_EXPORT Reader FirstValues(StateFormat format, const TensorSpec& weight,
                                   const TensorSpec& tensor, Reader weights);

// Computes the master weights of some whole rows under kCompact (a vector is one row).
// `weight_rows` has the bytes of these rows in the weight, and `state_rows` their bytes in the
// state tensor. `masters` gets one element for each element of the weight's rows. `weight` and
// `state` are the specs of both tensors. InvalidArgument: they are not a weight and its kCompact
// state, or the bytes are not those of the same number of rows.
SPILLWAY_EXPORT absl::Status JoinMasterWeights(const TensorSpec& weight, const TensorSpec& state,
                                               std::span<const std::byte> weight_rows,
                                               std::span<const std::byte> state_rows,
                                               std::span<float> masters);

// Where a weight or a gradient lies: in a tensor of the engine, or in the caller's memory, whole
// and row-major. The memory is accessed only during updates. It must stay valid until an update
// gives another address for it.
struct Values {
  Values() = default;
  Values(TensorId id) : tensor(id) {}  // NOLINT(google-explicit-constructor)
  Values(void* address, DType type) : memory(address), dtype(type) {}

  TensorId tensor;
  void* memory = nullptr;     // the caller's memory; null: the values are in `tensor`
  DType dtype = DType::kF32;  // of `memory`
};

// The tensors of one parameter.
struct ParameterTensors {
  // The weight that the forward pass reads: F32, F16 or BF16. Each update writes a 16-bit weight
  // whole, from its master weight, and does not read it unless Update::take_changed_weight is set.
  // Under kCompact the weight holds most bits of its master weight, and every update reads it.
  Values weight;
  // The gradient: F32, F16 or BF16, with the weight's shape. The update discards a gradient in a
  // transient tensor during the last pass over it. None: the parameter is never updated.
  std::optional<Values> gradient;
  // The tensors that StateSpecs lists; their tiles may differ from the weight's, and from each
  // other's. ConvertState, spw_optimizer_read_state and spw_optimizer_write_state need those that
  // StateSpecs lists, and refuse others. If the parameter is a vector, the tiles of weight,
  // gradient and master weight must be multiples of 256 elements under k8Bit, and of 64 under
  // kCompact.
  std::vector<TensorId> state;
  // The shape of a weight in the caller's memory. Not used for a weight in a tensor.
  std::vector<int64_t> shape;
  // The rule whose state the parameter has, if that is not the optimizer's. It must have the same
  // kind. Updates without a rule of their own use its constants.
  std::optional<Rule> rule = std::nullopt;
};

// The arguments of one update of one parameter.
struct Update {
  size_t parameter = 0;  // as Add returned it
  int64_t step = 1;      // t, from 1, counting this parameter's updates
  double learning_rate = 0;
  double weight_decay = 0;
  double gradient_scale = 1.0;  // every gradient element is multiplied by this first
  // Constants to use instead of the parameter's. The rule must have the same kind, and need no
  // state that the parameter does not have. State that it does not need stays as it is: a momentum
  // of 0 for some steps keeps m. If m begins in a later step than the first, dampening must be 0 in
  // that step's rule, as in step 1.
  std::optional<Rule> rule = std::nullopt;
  // The new address of a weight or a gradient in the caller's memory, from now on; null: unchanged.
  // It holds after a step that failed, too, unless Check refuses the step.
  void* weight_memory = nullptr;
  void* gradient_memory = nullptr;
  // Set if the caller may have written a 16-bit weight in its own memory since the last update.
  // Before this update, each element that differs from its rounded master weight becomes the new
  // value of the master weight. No effect for other weights.
  bool take_changed_weight = false;
};

// Updates parameters whose state is in any tier.
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
// With a stream, a parameter is updated on the device if its rule is AdamW without amsgrad, its
// weight and gradient are tensors, and the roles of its state tensors rest on the device
// (EngineOptions::placement). On a GPU this needs compute capability 8.0 or newer. Such an update
// is work on the stream: it runs after what was launched there before, and Step does not wait for
// it. The CPU updates all other parameters before Step returns. The bits are the same.
//
// Owns no tensor; the engine, the pool and the stream must outlive it. Thread-compatible. Add, Uses
// and Step check their arguments before they do anything. If the engine fails during Step, Step
// returns the engine's error unchanged. Then the parameters earlier in the list are updated, and
// the current parameter is updated in some of its tiles. The current tile may be updated in part;
// if it is a tile of a 16-bit weight that has a separate master weight, the elements that were not
// written are NaN. So the caller must go back to the last commit.
class SPILLWAY_EXPORT Optimizer {
 public:
  // `stream` is one of the engine's, and only Step uses it; null: the CPU updates all parameters.
  // InvalidArgument if a constant of the rule is out of range, or the pair of rule and format does
  // not exist.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(Engine* engine, ThreadPool* pool,
                                                           const Rule& rule, StateFormat format,
                                                           Stream* stream = nullptr);
  virtual ~Optimizer() = default;

  // Adds a parameter and returns its number, counted from 0. May be called at any time.
  // InvalidArgument if dtypes, shapes or tiles do not match StateSpecs, the parameter's rule is not
  // one of the optimizer's kind, or a tensor was given before.
  virtual absl::StatusOr<size_t> Add(const ParameterTensors& tensors) = 0;

  // Removes a parameter: its tensors may be unregistered, or given to Add again. Its number is not
  // used for another one. NotFound: there is no such parameter.
  virtual absl::Status Remove(size_t parameter) = 0;

  // Returns the error with which Add would refuse a parameter whose state tensors are not
  // registered yet. `state` has the specs that they will have; `tensors.state` is not used.
  virtual absl::Status CheckAdd(const ParameterTensors& tensors,
                                std::span<const TensorSpec> state) const = 0;

  // Returns the uses that Step makes for these parameters, in order. A caller can pass them to
  // Engine::Prefetch, so that the first tiles are moved before Step. NotFound: a parameter was not
  // added.
  virtual absl::StatusOr<std::vector<Use>> Uses(std::span<const size_t> parameters) const = 0;

  // Returns the error with which Step would refuse the list before it changes anything. Step
  // checks, too.
  virtual absl::Status Check(std::span<const Update> updates) const = 0;

  // Sets where the weights and gradients of the list lie from now on, as Step does before it
  // updates any. For a caller that can fail between Check and Step. REQUIRES: Check accepts the
  // list.
  virtual void MoveMemory(std::span<const Update> updates) = 0;

  // Updates the parameters of the list, in its order. A parameter that has no gradient, or is not
  // in the list, does not change. Does not declare its uses. NotFound: a parameter was not added.
  // InvalidArgument: a parameter is in the list twice, or a value is out of range.
  virtual absl::Status Step(std::span<const Update> updates) = 0;

  // The bytes of pinned memory with which Step always finds room: the tiles that it leases
  // together, and what fragmentation can take.
  virtual uint64_t min_pinned_bytes() const = 0;

  // The same for device memory, beside the frames of tiles that rest there. Tiles that are leased
  // on the device pass through pinned memory one by one.
  virtual uint64_t min_device_bytes() const = 0;
};

}  // namespace spillway

#endif  // SPILLWAY_OPTIMIZER_H_
