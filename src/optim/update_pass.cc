// SPDX-License-Identifier: Apache-2.0

#include "src/optim/update_pass.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/optim/device_update.h"
#include "src/optim/element_codecs.h"
#include "src/optim/factored_update.h"
#include "src/optim/fused_update.h"
#include "src/optim/rule_kernels.h"
#include "src/optim/rule_passes.h"
#include "src/optim/state_specs.h"
#include "src/optim/tensor_sums.h"

namespace spillway::optim {
namespace {

constexpr uint64_t kFrameBytes = 4096;
// The least work that is worth handing to another thread: 16 Ki elements take about 10 µs.
constexpr uint64_t kGrainElements = 16384;

TileRef TileAt(const Operand& operand, uint64_t element) {
  return {operand.tensor, element / operand.tile_elements};
}

bool IsLeased(const Pass& pass, const Operand& operand) {
  return operand.is_leased() && pass.AccessTo(operand.kind).has_value();
}

// The leases of a parameter's operands while a pass visits its segments.
class HeldTiles {
 public:
  HeldTiles(Engine* engine, Stream* stream, const CheckedParameter& parameter, const Pass& pass,
            bool is_last_pass)
      : engine_(engine),
        stream_(stream),
        parameter_(parameter),
        pass_(pass),
        is_last_pass_(is_last_pass),
        leases_(parameter.operands.size()) {}

  // Leases the tiles that begin with the segment.
  absl::Status Acquire(const Segment& segment) {
    for (size_t i = 0; i < leases_.size(); ++i) {
      const Operand& operand = parameter_.operands[i];
      if (!IsLeased(pass_, operand) || !BeginsTile(operand, segment)) continue;
      SPILLWAY_ASSIGN_OR_RETURN(
          leases_[i], Take(TileAt(operand, segment.begin), *pass_.AccessTo(operand.kind)));
    }
    return absl::OkStatus();
  }

  // Releases the tiles that end with the segment, also after an error. In the last pass, also
  // discards a transient gradient's tile, which is not needed any more.
  absl::Status Release(const Segment& segment) {
    absl::Status first;
    for (size_t i = 0; i < leases_.size(); ++i) {
      const Operand& operand = parameter_.operands[i];
      if (!IsLeased(pass_, operand) || !EndsTile(parameter_, operand, segment)) continue;
      leases_[i].Release();
      if (i != CheckedParameter::kGradient || !operand.transient || !is_last_pass_) continue;
      first.Update(engine_->Discard(TileAt(operand, segment.begin)));
    }
    return first;
  }

  // Whether there is anything to compute on: in a dry run, leases have no bytes.
  bool have_bytes() const {
    return std::none_of(leases_.begin(), leases_.end(),
                        [](const Lease& lease) { return lease && lease.size_bytes() == 0; });
  }

  // After an error, fills the tiles that are leased with kDiscard with NaN from element `begin` on,
  // where nothing was written.
  void Spoil(uint64_t begin) {
    for (size_t i = 0; i < leases_.size(); ++i) {
      const Operand& operand = parameter_.operands[i];
      if (!leases_[i] || pass_.AccessTo(operand.kind) != Access::kDiscard) continue;
      std::byte* const from = At(i, begin);
      const uint64_t bytes =
          leases_[i].size_bytes() - static_cast<uint64_t>(from - leases_[i].data());
      if (parameter_.tier == Tier::kPinned) {
        std::memset(from, 0xFF, bytes);
      } else {
        // If this fails too, the device is lost, and with it what it holds.
        LaunchNan(engine_->options().device, stream_, from, bytes).IgnoreError();
      }
    }
  }

  // Returns the address of element `element` in an operand that has one element for each of the
  // parameter's.
  std::byte* At(size_t i, uint64_t element) const {
    const Operand& operand = parameter_.operands[i];
    const uint64_t element_bytes = ElementBytes(operand.dtype);
    if (!operand.is_leased()) return operand.memory + element * element_bytes;
    return leases_[i].data() + element % operand.tile_elements * element_bytes;
  }

  // Returns the address of the number for `element` in an operand that has one number for every
  // `elements` elements of the parameter.
  float* MeanAt(size_t i, uint64_t element, uint64_t elements) const {
    const uint64_t in_tile = element % parameter_.operands[i].tile_elements;
    return reinterpret_cast<float*>(leases_[i].data()) + in_tile / elements;
  }

  // Returns the row of the encoded moments in which `element` lies.
  std::byte* RowAt(uint64_t element) const {
    const Operand& operand = parameter_.operands[CheckedParameter::kFirstMoment];
    const uint64_t row = element % operand.tile_elements / parameter_.row.num_elements;
    return leases_[CheckedParameter::kFirstMoment].data() + row * parameter_.row.size_bytes();
  }

 private:
  absl::StatusOr<Lease> Take(TileRef tile, Access access) {
    return parameter_.tier == Tier::kDevice ? engine_->Acquire(tile, access, stream_)
                                            : engine_->AcquireHost(tile, access);
  }

  Engine* const engine_;
  Stream* const stream_;
  const CheckedParameter& parameter_;
  const Pass& pass_;
  const bool is_last_pass_;
  std::vector<Lease> leases_;
};

// The moments that an update uses, without where they lie, and the key of a split master weight.
struct UsedMoments {
  std::vector<FusedMoment> moments;
  uint64_t residual_key = 0;
};

// A moment of the parameter that the rule does not have is not used.
UsedMoments MomentsOf(const CheckedParameter& parameter, const Rule& rule, int64_t step) {
  UsedMoments used = {.moments = {},
                      .residual_key = RoundingKey(parameter.residual_keying_name, step)};
  const std::vector<std::string_view> needed = MomentNames(rule, parameter.matrix.num_rows > 0);
  for (size_t m = 0; m < parameter.moments.size(); ++m) {
    const Moment& moment = parameter.moments[m];
    if (std::find(needed.begin(), needed.end(), moment.name) == needed.end()) continue;
    used.moments.push_back({.slot = moment.slot,
                            .index = m,
                            .map = moment.map,
                            .rounding_key = RoundingKey(moment.keying_name, step)});
  }
  return used;
}

// Returns the run of the parameter's elements [begin, end), which lie within one row if moments are
// encoded.
FusedRun RunOf(const CheckedParameter& parameter, const Pass& pass, const HeldTiles& held,
               uint64_t begin, uint64_t end, const UsedMoments& used, bool takes_given) {
  const std::vector<Operand>& operands = parameter.operands;
  FusedRun run = {.num_elements = static_cast<int64_t>(end - begin),
                  .first_element = begin,
                  .gradient = held.At(CheckedParameter::kGradient, begin),
                  .gradient_dtype = operands[CheckedParameter::kGradient].dtype,
                  .format = parameter.format};
  std::byte* const master = held.At(CheckedParameter::kMaster, begin);
  if (IsSplit(parameter.format)) {
    run.weight = master;
    run.weight_dtype = operands[CheckedParameter::kMaster].dtype;
    run.residual_key = used.residual_key;
  } else {
    run.master = reinterpret_cast<float*>(master);
  }
  if (pass.AccessTo(OperandKind::kMoment)) {
    run.num_moments = used.moments.size();
    std::copy(used.moments.begin(), used.moments.end(), run.moments);
    if (IsEncoded(parameter.format)) {
      run.encoded = {
          .row = held.RowAt(begin),
          .layout = parameter.row,
          .first_block = begin % parameter.row.num_elements / parameter.row.block_elements};
    } else {
      for (FusedMoment& moment : std::span(run.moments).first(run.num_moments))
        moment.data = held.At(CheckedParameter::kFirstMoment + moment.index, begin);
    }
  }
  if (parameter.has_weight_beside_master) {
    run.weight_dtype = operands.back().dtype;
    if (pass.AccessTo(OperandKind::kWeight)) run.weight = held.At(operands.size() - 1, begin);
    if (takes_given && !operands.back().is_leased())
      run.given_weight = held.At(operands.size() - 1, begin);
  }
  return run;
}

// Blocks of encoded moments are counted through all rows of a parameter. BlocksBefore returns how
// many begin before `element`, and FirstOfBlock returns a block's first element.
uint64_t BlocksBefore(const EncodedRow& row, uint64_t element) {
  const uint64_t in_row = element % row.num_elements;
  return element / row.num_elements * row.num_blocks() +
         (in_row + row.block_elements - 1) / row.block_elements;
}
uint64_t FirstOfBlock(const EncodedRow& row, uint64_t block) {
  return block / row.num_blocks() * row.num_elements +
         block % row.num_blocks() * row.block_elements;
}

// One update of one parameter. It keeps what a pass computes for the passes after it.
class ParameterUpdate {
 public:
  ParameterUpdate(ThreadPool* pool, Device device, Stream* stream,
                  const CheckedParameter& parameter, const Rule& rule, const Update& update)
      : pool_(pool),
        device_(device),
        stream_(stream),
        parameter_(parameter),
        rule_(rule),
        update_(update),
        factors_(MakeFactors(rule, update)),
        used_(MomentsOf(parameter, rule, update.step)),
        blocks_(parameter.row_elements) {
    if (parameter.matrix.num_rows > 0) {
      factored_.emplace(pool, parameter.matrix, parameter.num_elements, ToFloat(rule.epsilon));
    }
  }

  // Computes the step size from the sums. Called before the last pass, if there are several.
  void TakeUpSums() {
    factors_.step_size =
        StepSizeOf(rule_, update_, factored_ ? factored_->sums() : sums_, parameter_.num_elements);
  }

  absl::Status Visit(const Pass& pass, const HeldTiles& held, const Segment& segment) {
    if (parameter_.tier == Tier::kDevice) return LaunchSegment(pass, held, segment);
    VisitOnCpu(pass, held, segment);
    return absl::OkStatus();
  }

 private:
  void VisitOnCpu(const Pass& pass, const HeldTiles& held, const Segment& segment) {
    switch (pass.kind) {
      case PassKind::kUpdate: return UpdateSegment(pass, held, segment);
      case PassKind::kNorms: return SumSegment(pass, held, segment);
      case PassKind::kFactors:
        return factored_->UpdateMeans(factors_, FactoredOf(pass, held, segment));
      case PassKind::kFactoredNorm:
        return factored_->SumSteps(factors_, FactoredOf(pass, held, segment));
      case PassKind::kFactoredUpdate:
        return factored_->Update(factors_, FactoredOf(pass, held, segment));
    }
  }

  // Launches the update of the segment, whose pass is the only one. A segment of encoded state has
  // whole rows, or lies in the one row of a vector.
  absl::Status LaunchSegment(const Pass& pass, const HeldTiles& held, const Segment& segment) {
    const uint64_t elements = segment.end - segment.begin;
    const uint64_t width =
        IsEncoded(parameter_.format) ? std::min(elements, parameter_.row.num_elements) : elements;
    return LaunchUpdate(device_, stream_, factors_,
                        RunOf(parameter_, pass, held, segment.begin, segment.begin + width, used_,
                              /*takes_given=*/false),
                        static_cast<int64_t>(elements / width));
  }

  // Updates the segment on all threads, cut at multiples of a grain, or of blocks of encoded
  // moments. There are more portions than threads, so that a thread that falls behind takes fewer.
  void UpdateSegment(const Pass& pass, const HeldTiles& held, const Segment& segment) {
    const EncodedRow& row = parameter_.row;
    if (!IsEncoded(parameter_.format)) {
      pool_->ParallelPortions(static_cast<int64_t>(segment.end - segment.begin), kGrainElements,
                              [&](int64_t begin, int64_t end) {
                                UpdateRange(pass, held,
                                            segment.begin + static_cast<uint64_t>(begin),
                                            segment.begin + static_cast<uint64_t>(end));
                              });
    } else {
      const uint64_t first = BlocksBefore(row, segment.begin);
      const uint64_t last = BlocksBefore(row, segment.end);
      const uint64_t blocks = kGrainElements / std::min(row.num_elements, row.block_elements);
      pool_->ParallelPortions(
          static_cast<int64_t>(last - first), static_cast<int64_t>(blocks),
          [&](int64_t begin, int64_t end) {
            UpdateRange(
                pass, held, FirstOfBlock(row, first + static_cast<uint64_t>(begin)),
                std::min(segment.end, FirstOfBlock(row, first + static_cast<uint64_t>(end))));
          });
    }
  }

  void UpdateRange(const Pass& pass, const HeldTiles& held, uint64_t begin, uint64_t end) {
    while (begin < end) {
      const uint64_t row = parameter_.row.num_elements;
      const uint64_t run_end =
          IsEncoded(parameter_.format) ? std::min(end, (begin / row + 1) * row) : end;
      UpdateFused(factors_, RunOf(parameter_, pass, held, begin, run_end, used_,
                                  update_.take_changed_weight));
      begin = run_end;
    }
  }

  void SumSegment(const Pass& pass, const HeldTiles& held, const Segment& segment) {
    const auto add_to = [&](uint64_t begin, uint64_t end, uint64_t first, SumLanes* sums) {
      const FusedRun run =
          RunOf(parameter_, pass, held, begin, end, used_, update_.take_changed_weight);
      AddSquaresFused(factors_, run, first, sums);
    };
    blocks_.Sum(pool_, segment.begin, segment.end, add_to, [this](uint64_t, const double* sums) {
      sums_.weight += sums[0];
      sums_.direction += sums[1];
    });
  }

  FactoredSegment FactoredOf(const Pass& pass, const HeldTiles& held,
                             const Segment& segment) const {
    const std::vector<Operand>& operands = parameter_.operands;
    const MatrixShape& matrix = parameter_.matrix;
    const uint64_t begin = segment.begin;
    constexpr size_t kRows = CheckedParameter::kFirstMoment, kColumns = kRows + 1;
    FactoredSegment of = {.begin = begin,
                          .end = segment.end,
                          .gradient = held.At(CheckedParameter::kGradient, begin),
                          .gradient_dtype = operands[CheckedParameter::kGradient].dtype,
                          .rows = held.MeanAt(kRows, begin, matrix.num_columns)};
    // Points to the column means of the segment's first matrix.
    const uint64_t matrix_elements = matrix.num_rows * matrix.num_columns;
    of.columns = held.MeanAt(kColumns, begin / matrix_elements * matrix_elements, matrix.num_rows);
    if (pass.AccessTo(OperandKind::kMaster))
      of.master = reinterpret_cast<float*>(held.At(CheckedParameter::kMaster, begin));
    if (parameter_.has_weight_beside_master) {
      of.weight_dtype = operands.back().dtype;
      if (pass.AccessTo(OperandKind::kWeight)) of.weight = held.At(operands.size() - 1, begin);
      if (update_.take_changed_weight && !operands.back().is_leased())
        of.given_weight = held.At(operands.size() - 1, begin);
    }
    return of;
  }

  ThreadPool* const pool_;
  const Device device_;
  Stream* const stream_;
  const CheckedParameter& parameter_;
  const Rule& rule_;
  const Update& update_;
  RuleFactors factors_;
  const UsedMoments used_;
  TensorBlocks blocks_;
  TensorSums sums_;
  std::optional<FactoredUpdate> factored_;
};

}  // namespace

bool BeginsTile(const Operand& operand, const Segment& segment) {
  return segment.begin % operand.tile_elements == 0;
}

bool EndsTile(const CheckedParameter& parameter, const Operand& operand, const Segment& segment) {
  return segment.end % operand.tile_elements == 0 || segment.end == parameter.num_elements;
}

bool RestsOnDevice(const Engine& engine, TensorId tensor) {
  const auto role = static_cast<size_t>(engine.Spec(tensor).role);
  return engine.options().placement[role] == Tier::kDevice;
}

absl::Status ForEachSegment(const CheckedParameter& parameter,
                            const std::function<absl::Status(const Segment&)>& visit) {
  if (parameter.operands.empty()) return absl::OkStatus();
  for (uint64_t begin = 0; begin < parameter.num_elements;) {
    uint64_t end = parameter.num_elements;
    for (const Operand& operand : parameter.operands)
      end = std::min(end, (begin / operand.tile_elements + 1) * operand.tile_elements);
    SPILLWAY_RETURN_IF_ERROR(visit({begin, end}));
    begin = end;
  }
  return absl::OkStatus();
}

void AppendUses(const CheckedParameter& parameter, std::vector<Use>* uses) {
  for (const Pass& pass : parameter.passes) {
    const auto append = [&](const Segment& segment) {
      for (const Operand& operand : parameter.operands) {
        if (!IsLeased(pass, operand) || !BeginsTile(operand, segment)) continue;
        uses->push_back(
            {TileAt(operand, segment.begin), parameter.tier, *pass.AccessTo(operand.kind)});
      }
      return absl::OkStatus();
    };
    ForEachSegment(parameter, append).IgnoreError();  // it cannot fail
  }
}

uint64_t BytesForNext(std::span<const uint64_t> held_bytes, uint64_t next_bytes) {
  uint64_t sum = 0;
  for (const uint64_t bytes : held_bytes) sum += base::RoundUp(bytes, kFrameBytes);
  return sum + (held_bytes.size() + 1) * base::RoundUp(next_bytes, kFrameBytes);
}

namespace {

uint64_t BytesForLeases(const Engine& engine, const CheckedParameter& parameter, const Pass& pass) {
  uint64_t most = 0;
  std::vector<uint64_t> bytes(parameter.operands.size());  // of the tile held; 0: no tile is held
  const auto count = [&](const Segment& segment) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const Operand& operand = parameter.operands[i];
      if (!IsLeased(pass, operand) || !BeginsTile(operand, segment)) continue;
      if (parameter.tier == Tier::kDevice && RestsOnDevice(engine, operand.tensor)) continue;
      std::vector<uint64_t> held = bytes;
      std::erase(held, 0);
      const TileRef tile = TileAt(operand, segment.begin);
      bytes[i] = engine.Spec(tile.tensor).tile_bytes(tile.tile);
      most = std::max(most, BytesForNext(held, bytes[i]));
    }
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (EndsTile(parameter, parameter.operands[i], segment)) bytes[i] = 0;
    }
    return absl::OkStatus();
  };
  ForEachSegment(parameter, count).IgnoreError();  // it cannot fail
  return most;
}

uint64_t BytesForLeases(const Engine& engine, const CheckedParameter& parameter) {
  uint64_t most = 0;
  for (const Pass& pass : parameter.passes)
    most = std::max(most, BytesForLeases(engine, parameter, pass));
  return most;
}

}  // namespace

uint64_t PinnedBytesFor(const Engine& engine, const CheckedParameter& parameter) {
  if (parameter.tier == Tier::kPinned) return BytesForLeases(engine, parameter);
  uint64_t most = 0;
  for (const Operand& operand : parameter.operands)
    most = std::max(most, BytesForNext({}, engine.Spec(operand.tensor).tile_bytes(0)));
  return most;
}

uint64_t DeviceBytesFor(const Engine& engine, const CheckedParameter& parameter) {
  return parameter.tier == Tier::kDevice ? BytesForLeases(engine, parameter) : 0;
}

absl::Status UpdateParameter(Engine* engine, ThreadPool* pool, Stream* stream,
                             const CheckedParameter& parameter, const Rule& rule,
                             const Update& update) {
  if (parameter.operands.empty()) return absl::OkStatus();
  ParameterUpdate under_way(pool, engine->options().device, stream, parameter, rule, update);
  for (const Pass& pass : parameter.passes) {
    const bool is_last = &pass == &parameter.passes.back();
    if (is_last && parameter.passes.size() > 1) under_way.TakeUpSums();
    HeldTiles held(engine, stream, parameter, pass, is_last);
    const auto visit = [&](const Segment& segment) {
      absl::Status status = held.Acquire(segment);
      if (status.ok() && held.have_bytes()) status = under_way.Visit(pass, held, segment);
      if (!status.ok()) {
        held.Spoil(segment.begin);
        return status;
      }
      const absl::Status released = held.Release(segment);
      if (!released.ok()) held.Spoil(segment.end);  // of the tiles that go on
      return released;
    };
    SPILLWAY_RETURN_IF_ERROR(ForEachSegment(parameter, visit));
  }
  return absl::OkStatus();
}

}  // namespace spillway::optim
