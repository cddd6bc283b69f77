// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/compute/gpu_compute.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/trainer/compute/gpu/matrix_of.h"
#include "tools/trainer/kernels/rope.h"
#include "tools/trainer/workspace.h"

namespace spillway::trainer {
namespace {

// Of a token in a step: an entry of the token table, one of the position table, and a target.
constexpr int64_t kUploadBytesOfToken = 2 * sizeof(TableRow) + sizeof(int32_t);

struct AddressRange {
  const std::byte* begin;
  const std::byte* end;
};

AddressRange RangeOf(const View& view) {
  const int64_t elements = view.rows == 0 ? 0 : (view.rows - 1) * view.stride + view.columns;
  return {view.data, view.data + static_cast<uint64_t>(elements) * ElementBytes(view.stored)};
}

bool Overlap(const View& a, const View& b) {
  const AddressRange of_a = RangeOf(a), of_b = RangeOf(b);
  return of_a.begin < of_b.end && of_b.begin < of_a.end;
}

bool IsSame(const View& a, const View& b) {
  return a.data == b.data && a.stored == b.stored && a.rows == b.rows && a.columns == b.columns &&
         a.stride == b.stride;
}

gpu::SoftmaxState* StatesAt(std::byte* states) {
  return reinterpret_cast<gpu::SoftmaxState*>(states);
}
const gpu::SoftmaxState* StatesAt(const std::byte* states) {
  return reinterpret_cast<const gpu::SoftmaxState*>(states);
}

// A buffer of fp64 as the kernels of copies see it: its zeros are zeros.
gpu::Matrix WordsOf(void* memory, int64_t bytes) {
  return {memory, simt::Element::kF32, 1, bytes / 4, bytes / 4};
}

}  // namespace

// --- Before an engine opens ---

absl::Status GpuCompute::Prepare(uint64_t scratch_bytes, std::span<const gpu::ProductCall> products,
                                 uint64_t budget_bytes) {
  for (const gpu::ProductCall& product : products)
    SPILLWAY_RETURN_IF_ERROR(device_->Choose(product));
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t free_bytes, device_->FreeBytes());
  if (free_bytes < scratch_bytes || free_bytes - scratch_bytes < budget_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s has %s free, and the run needs %s of scratch there and %s for tiles",
                        device_->computed_by().gpu, base::FormatBytes(free_bytes),
                        base::FormatBytes(scratch_bytes), base::FormatBytes(budget_bytes)));
  }
  SPILLWAY_ASSIGN_OR_RETURN(base_, device_->Allocate(scratch_bytes));
  prepared_bytes_ = scratch_bytes;
  return absl::OkStatus();
}

absl::Status GpuCompute::Begin(Engine* engine) {
  SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, engine->CreateStream());
  device_->Use(std::move(stream));
  return absl::OkStatus();
}

// --- Scratch ---

uint64_t GpuCompute::SoftmaxBytes(int64_t tokens) const {
  return static_cast<uint64_t>(tokens) * sizeof(gpu::SoftmaxState);
}

absl::StatusOr<std::byte*> GpuCompute::Reserve(const ScratchNeeds& needs) {
  num_sums_ = static_cast<int64_t>(needs.num_sums);
  most_logits_ = needs.most_logits;
  converted_bytes_ = static_cast<uint64_t>(needs.largest_operand_elements) * sizeof(float);
  upload_bytes_ = static_cast<uint64_t>(needs.step_tokens * kUploadBytesOfToken);
  const auto bind = [&](ScratchLayout layout) {
    std::byte* const views = layout.Take<std::byte>(static_cast<int64_t>(needs.view_bytes));
    for (Converted& converted : converted_)
      converted.memory = layout.Take<std::byte>(static_cast<int64_t>(converted_bytes_));
    tile_sums_ = layout.Take<double>(
        simt::BlocksOf(needs.largest_gradient_elements, gpu::SumOfSquares::kElements));
    sums_ = layout.Take<double>(num_sums_);
    totals_ = layout.Take<Totals>(1);
    uploads_ = layout.Take<std::byte>(static_cast<int64_t>(upload_bytes_));
    return std::pair(views, layout.peak_bytes());
  };
  scratch_bytes_ = bind(ScratchLayout()).second;
  if (scratch_bytes_ > prepared_bytes_) {
    SPILLWAY_ASSIGN_OR_RETURN(base_, device_->Allocate(scratch_bytes_));
  }
  std::byte* const views = bind(ScratchLayout(base_)).first;

  const auto bind_host = [&](ScratchLayout layout) {
    host_totals_ = layout.Take<Totals>(1);
    logits_ = layout.Take<float>(most_logits_);
    host_uploads_ = layout.Take<std::byte>(static_cast<int64_t>(upload_bytes_));
    return layout.peak_bytes();
  };
  SPILLWAY_ASSIGN_OR_RETURN(std::byte* const host,
                            device_->AllocateHost(bind_host(ScratchLayout())));
  bind_host(ScratchLayout(host));
  Launch(gpu::Zero{{WordsOf(totals_, sizeof(Totals))}});
  Launch(gpu::Zero{{WordsOf(sums_, num_sums_ * int64_t{sizeof(double)})}});
  return views;
}

gpu::Matrix GpuCompute::Read(const View& view) const { return gpu::MatrixOf(view); }

gpu::Matrix GpuCompute::Write(const View& view) {
  for (Converted& converted : converted_) {
    if (Overlap(converted.view, view)) converted.view = View();
  }
  return gpu::MatrixOf(view);
}

// Returns a view of scratch with elements of a type, which is a converted copy if needed.
View GpuCompute::OperandOf(const View& view, DType type, Slot slot) {
  if (view.stored == type) return view;
  Converted& converted = converted_[static_cast<size_t>(slot)];
  const View copy = {.data = converted.memory,
                     .stored = type,
                     .rounded = type,
                     .rows = view.rows,
                     .columns = view.columns,
                     .stride = view.columns};
  if (IsSame(converted.view, view) && converted.type == type) return copy;
  if (static_cast<uint64_t>(view.elements()) * ElementBytes(type) > converted_bytes_) {
    failure_.Update(absl::InternalError(
        absl::StrCat("an operand of ", view.elements(), " elements needs more than the ",
                     converted_bytes_, " bytes that were reserved for its conversion")));
    return copy;
  }
  Launch(gpu::CopyRows{Read(view), gpu::MatrixOf(copy)});
  converted.view = view;
  converted.type = type;
  return copy;
}

// An operand with its alignment, which follows from where it lies in scratch. A leased tile begins
// at a multiple of 4 KiB.
gpu::RowMajor GpuCompute::Placed(const View& view) const {
  const bool is_scratch = view.data >= base_ && view.data < base_ + scratch_bytes_;
  return {.view = view, .offset_bytes = is_scratch ? static_cast<uint64_t>(view.data - base_) : 0};
}

void GpuCompute::Launch(const gpu::RowMajorProduct& product) {
  if (!failure_.ok()) return;
  const absl::StatusOr<gpu::ProductCall> call = gpu::CallOf(product);
  failure_.Update(call.status());
  if (!failure_.ok()) return;
  // The operands change places.
  failure_.Update(
      device_->Multiply(*call, product.b.view.data, product.a.view.data, product.d.view.data));
}

// --- Copies ---

void GpuCompute::CopyFromTile(const View& tile, Lease lease, const View& to) {
  Launch(gpu::Copy{{Read(tile), Write(to)}});
  lease.Release();
}

void GpuCompute::CopyToTile(const View& from, const View& tile, Lease lease) {
  Launch(gpu::Copy{{Read(from), Read(tile)}});
  lease.Release();
}

void GpuCompute::Copy(const View& from, const View& to) {
  Launch(gpu::Copy{{Read(from), Write(to)}});
}

void GpuCompute::Zero(const View& to) { Launch(gpu::Zero{{Write(to)}}); }

void GpuCompute::Add(const View& from, const View& to) {
  Launch(gpu::Add{{Read(from), Write(to)}});
}

// --- Linears ---

// A product of fp32 operands into 16 bits is not the library's: its result is computed in fp32 in
// the other operand's place.
void GpuCompute::Multiply(const Product& product, Lease lease) {
  const View& c = product.c;
  const DType type = product.w.stored;
  const bool is_direct = c.stored == DType::kF32 || c.stored == type;
  Converted& other = converted_[static_cast<size_t>(Slot::kB)];
  View result = c;
  if (!is_direct) {
    result = {.data = other.memory,
              .stored = DType::kF32,
              .rounded = DType::kF32,
              .rows = c.rows,
              .columns = c.columns,
              .stride = c.columns};
    other.view = View();
    if (product.into == Into::kAdd) Launch(gpu::CopyRows{Read(c), Read(result)});
  }
  const View a = OperandOf(product.a, type, Slot::kA);
  Write(result);
  Launch(gpu::RowMajorProduct{.a = Placed(a),
                              .b = Placed(product.w),
                              .d = Placed(result),
                              .transposes_b = product.transposed,
                              .into = product.into});
  lease.Release();
  if (!is_direct) Launch(gpu::CopyRows{Read(result), Write(c)});
}

void GpuCompute::MultiplyGradient(const ProductGradient& product, Lease lease) {
  const View& tile = product.into.tile;
  const DType type = tile.stored == DType::kF32 ? operand_type_ : tile.stored;
  const View a = OperandOf(product.a, type, Slot::kA);
  const View b = OperandOf(product.b, type, Slot::kB);
  Launch(gpu::RowMajorProduct{.a = Placed(a),
                              .b = Placed(b),
                              .d = Placed(tile),
                              .transposes_a = true,
                              .into = product.into.into});
  AddSumOfSquares(product.into);
  lease.Release();
}

void GpuCompute::AddBias(const View& bias, const View& y) {
  Launch(gpu::AddBias{Read(bias), Write(y)});
}

void GpuCompute::BiasGradient(const View& dy, const View& bias_gradient) {
  Launch(gpu::BiasGradient{{Read(dy), Write(bias_gradient)}});
}

void GpuCompute::Accumulate(const View& from, const GradientTile& into, Lease lease) {
  if (into.into == Into::kOverwrite) {
    Launch(gpu::Copy{{Read(from), Read(into.tile)}});
  } else {
    Launch(gpu::Add{{Read(from), Read(into.tile)}});
  }
  AddSumOfSquares(into);
  lease.Release();
}

void GpuCompute::AddSumOfSquares(const GradientTile& gradient) {
  if (gradient.sum == GradientTile::kNoSum) return;
  const gpu::SumOfSquares squares = {Read(gradient.tile), tile_sums_};
  Launch(squares);
  Launch(gpu::AddUp{tile_sums_, squares.blocks(), sums_ + gradient.sum});
}

// --- Embeddings ---

// Returns where the bytes lie on the device. What was copied in this step is not copied again,
// because it stays as it is until Collect.
const std::byte* GpuCompute::UploadBytes(std::span<const std::byte> from) {
  if (from.empty()) return uploads_;
  const auto after = uploaded_.upper_bound(from.data());
  if (after != uploaded_.begin()) {
    const auto& [begin, before] = *std::prev(after);
    if (from.data() + from.size() <= begin + before.size_bytes)
      return before.on_device + (from.data() - begin);
  }
  if (used_uploads_ + from.size() > upload_bytes_) {
    failure_.Update(
        absl::InternalError(absl::StrCat("a step's tokens need more than the ", upload_bytes_,
                                         " bytes that were reserved for them")));
    return uploads_;
  }
  std::byte* const to = uploads_ + used_uploads_;
  std::byte* const on_host = host_uploads_ + used_uploads_;
  std::memcpy(on_host, from.data(), from.size());
  if (failure_.ok()) failure_.Update(device_->CopyToDevice(on_host, from.size(), to));
  used_uploads_ += from.size();
  uploaded_[from.data()] = {.size_bytes = from.size(), .on_device = to};
  return to;
}

template <class T>
const T* GpuCompute::Upload(std::span<const T> from) {
  static_assert(alignof(T) == sizeof(int32_t));
  return reinterpret_cast<const T*>(UploadBytes(std::as_bytes(from)));
}

void GpuCompute::LookUp(const Lookup& lookup, Lease lease) {
  const TableRow* const entries = Upload(lookup.entries);
  Launch(gpu::Lookup{.table = Read(lookup.table),
                     .first_row = lookup.first_row,
                     .entries = entries,
                     .num_entries = static_cast<int64_t>(lookup.entries.size()),
                     .into = lookup.into,
                     .x = Write(lookup.x)});
  lease.Release();
}

void GpuCompute::LookUpGradient(const LookupGradient& lookup, Lease lease) {
  const TableRow* const entries = Upload(lookup.entries);
  const gpu::Matrix tile = Read(lookup.into.tile);
  if (lookup.into.into == Into::kOverwrite) Launch(gpu::Zero{{tile}});
  Launch(gpu::LookupGradient{.dx = Read(lookup.dx),
                             .entries = entries,
                             .num_entries = static_cast<int64_t>(lookup.entries.size()),
                             .first_row = lookup.first_row,
                             .tile = tile});
  AddSumOfSquares(lookup.into);
  lease.Release();
}

// --- Layers ---

void GpuCompute::Norm(const NormArguments& norm, const View& y) {
  const auto launch = [&]<bool kCentered> {
    Launch(gpu::Norm<kCentered>{.epsilon = norm.epsilon,
                                .x = Read(norm.x),
                                .scale = Read(norm.scale),
                                .shift = Read(norm.shift),
                                .stats = Write(norm.stats),
                                .y = Write(y)});
  };
  norm.kind == NormKind::kLayer ? launch.operator()<true>() : launch.operator()<false>();
}

void GpuCompute::NormGradient(const NormGradientArguments& gradient) {
  const NormArguments& norm = gradient.norm;
  const auto launch = [&]<bool kCentered> {
    Launch(gpu::NormGradient<kCentered>{.x = Read(norm.x),
                                        .scale = Read(norm.scale),
                                        .stats = Read(norm.stats),
                                        .dy = Read(gradient.dy),
                                        .dx = Write(gradient.dx)});
    Launch(gpu::ScaleGradient<kCentered>{{.x = Read(norm.x),
                                          .stats = Read(norm.stats),
                                          .dy = Read(gradient.dy),
                                          .scale_gradient = Write(gradient.scale_gradient),
                                          .shift_gradient = Write(gradient.shift_gradient)}});
  };
  norm.kind == NormKind::kLayer ? launch.operator()<true>() : launch.operator()<false>();
}

void GpuCompute::FillRope(std::span<const float> frequencies, const View& cosines,
                          const View& sines) {
  std::vector<float> tables[2];
  for (std::vector<float>& table : tables) table.resize(static_cast<size_t>(cosines.elements()));
  FillRopeTables(frequencies, cosines.rows, tables[0].data(), tables[1].data());
  for (const auto& [table, view] : {std::pair(&tables[0], cosines), std::pair(&tables[1], sines)}) {
    Write(view);
    if (failure_.ok()) {
      failure_.Update(
          device_->CopyToDevice(table->data(), table->size() * sizeof(float), view.data));
    }
  }
  failure_.Update(device_->Synchronize());
}

void GpuCompute::Rope(const RopeArguments& rope) {
  Launch(gpu::Rope{.cosines = Read(rope.cosines),
                   .sines = Read(rope.sines),
                   .length = rope.length,
                   .head_dim = rope.head_dim,
                   .backward = rope.backward,
                   .x = Write(rope.x.rows),
                   .heads = rope.x.heads,
                   .head_stride = rope.x.head_stride});
}

void GpuCompute::Activation(const ActivationArguments& activation) {
  const auto& [function, gate, up, out] = activation;
  if (function == Activate::kGeluTanh) {
    Launch(gpu::Gelu{{Read(up), Write(out)}});
  } else {
    Launch(gpu::Swiglu{{Read(gate), Read(up), Write(out)}});
  }
}

void GpuCompute::ActivationGradient(const ActivationArguments& activation) {
  const auto& [function, gate, up, out] = activation;
  if (function == Activate::kGeluTanh) {
    Launch(gpu::GeluGradient{{Write(up), Write(out)}});
  } else {
    Launch(gpu::SwigluGradient{{Write(gate), Write(up), Write(out)}});
  }
}

// --- Loss ---

void GpuCompute::StartSoftmax(std::byte* states, int64_t tokens) {
  Launch(gpu::StartSoftmax{{StatesAt(states), tokens}});
}

void GpuCompute::GatherSoftmax(const VocabularyTile& tile) {
  const int32_t* const targets = Upload(tile.targets);
  Launch(gpu::GatherSoftmax{.logits = Read(tile.logits),
                            .first_token = tile.first_token,
                            .targets = targets,
                            .states = StatesAt(tile.states)});
}

void GpuCompute::AddLoss(const std::byte* states, int64_t tokens) {
  Launch(gpu::AddLoss{StatesAt(states), tokens, &totals_->loss});
}

void GpuCompute::CrossEntropyGradient(const VocabularyTile& tile, float scale, const View& out,
                                      Lease lease) {
  const int32_t* const targets = Upload(tile.targets);
  Launch(gpu::CrossEntropyGradient{.logits = Read(tile.logits),
                                   .first_token = tile.first_token,
                                   .targets = targets,
                                   .states = StatesAt(tile.states),
                                   .scale = scale,
                                   .out = Write(out)});
  lease.Release();
}

void GpuCompute::TakeLogits(const View& logits) {
  if (num_logits_ + logits.elements() > most_logits_) {
    failure_.Update(absl::InternalError(absl::StrCat("a step gives more than the ", most_logits_,
                                                     " logits that there is room for")));
  }
  if (!failure_.ok()) return;
  failure_.Update(device_->CopyToHost(logits.data,
                                      static_cast<uint64_t>(logits.elements()) * sizeof(float),
                                      logits_ + num_logits_));
  num_logits_ += logits.elements();
}

absl::StatusOr<StepResults> GpuCompute::Collect() {
  Launch(gpu::AddUp{sums_, num_sums_, &totals_->sum_of_squares});
  if (failure_.ok()) {
    failure_.Update(device_->CopyToHost(reinterpret_cast<const std::byte*>(totals_), sizeof(Totals),
                                        host_totals_));
  }
  Launch(gpu::Zero{{WordsOf(totals_, sizeof(Totals))}});
  failure_.Update(device_->Synchronize());
  uploaded_.clear();
  used_uploads_ = 0;
  const auto num_logits = static_cast<size_t>(std::exchange(num_logits_, 0));
  if (!failure_.ok()) return failure_;
  return StepResults{.loss = host_totals_->loss,
                     .sum_of_squares = host_totals_->sum_of_squares,
                     .logits = std::vector<float>(logits_, logits_ + num_logits)};
}

}  // namespace spillway::trainer
