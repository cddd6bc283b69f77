// SPDX-License-Identifier: Apache-2.0

#include "src/optim/resting_state.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "src/optim/element_codecs.h"
#include "src/optim/group_codec.h"
#include "src/optim/split_master.h"
#include "src/optim/state_specs.h"
#include "src/optim/tensor_bytes.h"

namespace spillway::optim {
namespace {

constexpr int64_t kStep = 0;  // keys random rounding; no update has this step

absl::Status CheckTensors(const Engine& engine, const std::vector<TensorSpec>& expected,
                          const std::vector<TensorId>& tensors, const TensorSpec& weight) {
  if (tensors.size() != expected.size()) {
    return absl::InvalidArgumentError(absl::StrCat("state of weight '", weight.name, "' has ",
                                                   tensors.size(), " tensors; its format needs ",
                                                   expected.size()));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    SPILLWAY_RETURN_IF_ERROR(engine.CheckTile(tensors[i]));
    const TensorSpec& spec = engine.Spec(tensors[i]);
    if (spec.dtype == expected[i].dtype && spec.shape == expected[i].shape &&
        spec.tile_rows == expected[i].tile_rows)
      continue;
    return absl::InvalidArgumentError(
        absl::StrCat("'", spec.name, "' is no '", expected[i].name,
                     "' as StateSpecs lists it: dtype, shape or tile_rows differ"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RestingState> RestingState::Create(Engine* engine, const Rule& rule,
                                                  StateFormat format, const TensorSpec& spec,
                                                  const Values& values,
                                                  const std::vector<TensorId>& tensors) {
  if (rule.kind == RuleKind::kAdafactor) {
    return absl::InvalidArgumentError(
        absl::StrCat("state of weight '", spec.name,
                     "': adafactor's rests as fp32 alone, and cannot be converted"));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const auto expected, StateSpecs(rule, format, spec));
  SPILLWAY_RETURN_IF_ERROR(CheckTensors(*engine, expected, tensors, spec));
  const std::vector<std::string_view> moments = MomentNames(rule);
  RestingState state;
  state.engine_ = engine;
  state.format_ = RestingFormat(format, moments.size());
  state.spec_ = spec;
  state.values_ = values;
  state.tensors_ = tensors;
  state.num_moments_ = moments.size();
  state.first_moment_ = spec.dtype != DType::kF32 && !IsSplit(format) ? 1 : 0;
  for (size_t m = 0; m < moments.size(); ++m) {
    state.maps_[m] = MapOf(moments[m]);
    state.keying_names_[m] = KeyingNameOf(moments, m, engine->Spec(tensors.back()).name);
  }
  if (IsEncoded(state.format_)) state.row_ = RowOf(format, spec.shape, moments.size());
  const auto tile_rows = static_cast<uint64_t>(spec.tile_rows);
  if (IsEncoded(state.format_) && spec.shape.size() == 1 && spec.num_tiles() > 1 &&
      tile_rows % state.row_.block_elements != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("vector '", spec.name, "' is cut every ", tile_rows,
                     " elements; its state needs a multiple of ", state.row_.block_elements));
  }
  return state;
}

uint64_t RestingState::FirstElement(uint64_t tile) const {
  return spec_.tile_offset_bytes(tile) / ElementBytes(spec_.dtype);
}

uint64_t RestingState::NumElements(uint64_t tile) const {
  return spec_.tile_bytes(tile) / ElementBytes(spec_.dtype);
}

// --- The weight ---

absl::StatusOr<std::vector<std::byte>> RestingState::ReadWeight(uint64_t tile) const {
  std::vector<std::byte> bytes(spec_.tile_bytes(tile));
  const uint64_t offset = spec_.tile_offset_bytes(tile);
  if (values_.memory == nullptr) {
    SPILLWAY_RETURN_IF_ERROR(ReadBytes(*engine_, values_.tensor, offset, bytes));
  } else {
    std::memcpy(bytes.data(), static_cast<const std::byte*>(values_.memory) + offset, bytes.size());
  }
  return bytes;
}

absl::Status RestingState::WriteWeight(uint64_t tile, std::span<const std::byte> bytes) const {
  const uint64_t offset = spec_.tile_offset_bytes(tile);
  if (values_.memory == nullptr) return WriteBytes(*engine_, values_.tensor, offset, bytes);
  std::memcpy(static_cast<std::byte*>(values_.memory) + offset, bytes.data(), bytes.size());
  return absl::OkStatus();
}

// --- Encoded tiles ---

// A vector's state is one row in one tile, whatever the weight's tiles are.
bool RestingState::IsOneTile() const {
  return engine_->Spec(tensors_[first_moment_]).num_tiles() < num_tiles();
}

absl::StatusOr<Lease> RestingState::LeaseEncoded(uint64_t tile, Access access) const {
  if (IsOneTile() && access == Access::kDiscard) access = Access::kReadWrite;
  return engine_->AcquireHost({tensors_[first_moment_], IsOneTile() ? 0 : tile}, access);
}

void RestingState::ForEachPart(uint64_t tile, const Lease& encoded,
                               const std::function<void(const RowPart&)>& visit) const {
  const uint64_t first = FirstElement(tile), count = NumElements(tile), width = row_.num_elements;
  const uint64_t first_row = IsOneTile() ? 0 : first / width;
  for (uint64_t done = 0; done < count;) {
    const uint64_t in_row = (first + done) % width;
    const uint64_t n = std::min(width - in_row, count - done);
    visit({.row = encoded.data() + ((first + done) / width - first_row) * row_.size_bytes(),
           .first_in_row = in_row,
           .num_elements = static_cast<int64_t>(n),
           .at = done});
    done += n;
  }
}

void RestingState::DecodePart(const RowPart& part, size_t moment, float* to) const {
  const auto* codes =
      reinterpret_cast<uint8_t*>(part.row + row_.code_offset(moment, part.first_in_row));
  const std::byte* scales =
      part.row + row_.scale_offset(moment, part.first_in_row / row_.block_elements);
  if (format_ == StateFormat::kCompact)
    return DecodeGroups(maps_[moment], scales, codes, part.num_elements, to);
  const auto block = static_cast<int64_t>(row_.block_elements);
  for (int64_t done = 0; done < part.num_elements; done += block, scales += row_.scale_bytes) {
    DecodeBlock(maps_[moment], scales, codes + done, std::min(block, part.num_elements - done),
                to + done);
  }
}

void RestingState::EncodePart(const RowPart& part, size_t moment, uint64_t first_element,
                              const float* from) const {
  auto* codes = reinterpret_cast<uint8_t*>(part.row + row_.code_offset(moment, part.first_in_row));
  std::byte* scales = part.row + row_.scale_offset(moment, part.first_in_row / row_.block_elements);
  if (format_ == StateFormat::kCompact) {
    std::vector<uint32_t> words(static_cast<size_t>(part.num_elements));
    FillRandomWords(RoundingKey(keying_names_[moment], kStep), first_element, part.num_elements,
                    words.data());
    return EncodeGroups(maps_[moment], from, words.data(), part.num_elements, scales, codes);
  }
  const auto block = static_cast<int64_t>(row_.block_elements);
  for (int64_t done = 0; done < part.num_elements; done += block, scales += row_.scale_bytes) {
    EncodeBlock(maps_[moment], from + done, std::min(block, part.num_elements - done), scales,
                codes + done);
  }
}

// --- Reading ---

absl::Status RestingState::ReadMaster(uint64_t tile, std::vector<float>* to) const {
  to->resize(NumElements(tile));
  if (!IsSplit(format_) && spec_.dtype != DType::kF32) {
    SPILLWAY_ASSIGN_OR_RETURN(const Lease lease,
                              engine_->AcquireHost({tensors_[0], tile}, Access::kRead));
    std::copy_n(reinterpret_cast<const float*>(lease.data()), to->size(), to->data());
    return absl::OkStatus();
  }
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<std::byte> weight, ReadWeight(tile));
  if (!IsSplit(format_)) {
    std::memcpy(to->data(), weight.data(), weight.size());
    return absl::OkStatus();
  }
  SPILLWAY_ASSIGN_OR_RETURN(const Lease encoded, LeaseEncoded(tile, Access::kRead));
  const auto* halves = reinterpret_cast<const uint16_t*>(weight.data());
  ForEachPart(tile, encoded, [&](const RowPart& part) {
    const auto* residuals =
        reinterpret_cast<uint8_t*>(part.row + row_.residual_offset(part.first_in_row));
    DecodeMasters(spec_.dtype, halves + part.at, residuals, part.num_elements,
                  to->data() + part.at);
  });
  return absl::OkStatus();
}

absl::Status RestingState::Read(uint64_t tile, DecodedTile* to) const {
  SPILLWAY_RETURN_IF_ERROR(ReadMaster(tile, &to->master));
  return ReadMoments(tile, to);
}

absl::Status RestingState::ReadMoments(uint64_t tile, DecodedTile* to) const {
  for (size_t m = 0; m < num_moments_; ++m) to->moments[m].resize(NumElements(tile));
  if (num_moments_ == 0) return absl::OkStatus();
  if (IsEncoded(format_)) {
    SPILLWAY_ASSIGN_OR_RETURN(const Lease encoded, LeaseEncoded(tile, Access::kRead));
    ForEachPart(tile, encoded, [&](const RowPart& part) {
      for (size_t m = 0; m < num_moments_; ++m)
        DecodePart(part, m, to->moments[m].data() + part.at);
    });
    return absl::OkStatus();
  }
  for (size_t m = 0; m < num_moments_; ++m) {
    const TensorId tensor = tensors_[first_moment_ + m];
    SPILLWAY_ASSIGN_OR_RETURN(const Lease lease,
                              engine_->AcquireHost({tensor, tile}, Access::kRead));
    CodecOf(engine_->Spec(tensor).dtype)
        .decode(lease.data(), static_cast<int64_t>(to->moments[m].size()), to->moments[m].data());
  }
  return absl::OkStatus();
}

// --- Writing ---

absl::Status RestingState::WriteRounded(uint64_t tile, const std::vector<float>& from) const {
  std::vector<std::byte> weight(spec_.tile_bytes(tile));
  CodecOf(spec_.dtype).encode(from.data(), static_cast<int64_t>(from.size()), weight.data());
  return WriteWeight(tile, weight);
}

absl::Status RestingState::WriteSplitMaster(uint64_t tile, const std::vector<float>& from) const {
  std::vector<std::byte> weight(spec_.tile_bytes(tile));
  auto* const halves = reinterpret_cast<uint16_t*>(weight.data());
  {
    // Read-write access keeps the moments in the same rows.
    SPILLWAY_ASSIGN_OR_RETURN(const Lease encoded, LeaseEncoded(tile, Access::kReadWrite));
    ForEachPart(tile, encoded, [&](const RowPart& part) {
      auto* residuals =
          reinterpret_cast<uint8_t*>(part.row + row_.residual_offset(part.first_in_row));
      const std::vector<uint32_t> words(static_cast<size_t>(part.num_elements), kNearestWord);
      EncodeMasters(spec_.dtype, from.data() + part.at, words.data(), part.num_elements,
                    halves + part.at, residuals);
    });
  }
  return WriteWeight(tile, weight);
}

absl::Status RestingState::WriteMaster(uint64_t tile, const std::vector<float>& from,
                                       Masters masters) const {
  if (masters == Masters::kKeep) return absl::OkStatus();
  if (IsSplit(format_)) return WriteSplitMaster(tile, from);
  const bool is_own = spec_.dtype == DType::kF32;
  if (is_own || masters == Masters::kWithWeight) SPILLWAY_RETURN_IF_ERROR(WriteRounded(tile, from));
  if (is_own) return absl::OkStatus();
  SPILLWAY_ASSIGN_OR_RETURN(const Lease lease,
                            engine_->AcquireHost({tensors_[0], tile}, Access::kDiscard));
  std::copy(from.begin(), from.end(), reinterpret_cast<float*>(lease.data()));
  return absl::OkStatus();
}

absl::Status RestingState::Write(uint64_t tile, const DecodedTile& from, Masters masters) const {
  SPILLWAY_RETURN_IF_ERROR(WriteMaster(tile, from.master, masters));
  const uint64_t first = FirstElement(tile);
  if (IsEncoded(format_)) {
    // With split master weights, read-write access keeps the residuals in the same rows.
    const Access access = IsSplit(format_) ? Access::kReadWrite : Access::kDiscard;
    SPILLWAY_ASSIGN_OR_RETURN(const Lease encoded, LeaseEncoded(tile, access));
    ForEachPart(tile, encoded, [&](const RowPart& part) {
      for (size_t m = 0; m < num_moments_; ++m)
        EncodePart(part, m, first + part.at, from.moments[m].data() + part.at);
    });
    return absl::OkStatus();
  }
  for (size_t m = 0; m < num_moments_; ++m) {
    const TensorId tensor = tensors_[first_moment_ + m];
    const TensorSpec& spec = engine_->Spec(tensor);
    SPILLWAY_ASSIGN_OR_RETURN(const Lease lease,
                              engine_->AcquireHost({tensor, tile}, Access::kDiscard));
    const auto n = static_cast<int64_t>(from.moments[m].size());
    if (spec.dtype == DType::kBF16) {
      EncodeBf16Randomly(from.moments[m].data(), n, RoundingKey(spec.name, kStep), first,
                         reinterpret_cast<uint16_t*>(lease.data()));
    } else {
      std::copy_n(from.moments[m].data(), n, reinterpret_cast<float*>(lease.data()));
    }
  }
  return absl::OkStatus();
}

}  // namespace spillway::optim
