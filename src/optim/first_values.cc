// SPDX-License-Identifier: Apache-2.0
//
// Reads what a parameter's tensors hold before the first update, and joins master weights that are
// split between two tensors. Both functions are public: spillway/optimizer.h.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "spillway/optimizer.h"
#include "src/base/status_macros.h"
#include "src/optim/element_codecs.h"
#include "src/optim/split_master.h"
#include "src/optim/state_format.h"

namespace spillway {
namespace {

// Elements that are read and rounded together.
constexpr uint64_t kPieceElements = 16384;

// Reads master weights and splits them into 16-bit weights and residuals, rounded to nearest, a
// piece at a time.
class SplitSource {
 public:
  SplitSource(Reader weights, DType dtype) : weights_(std::move(weights)), dtype_(dtype) {}

  // Calls take(weights, residuals, elements before) for pieces of [first, first + count).
  template <class Take>
  absl::Status ForEachPiece(uint64_t first, uint64_t count, const Take& take) {
    for (uint64_t done = 0; done < count;) {
      const uint64_t n = std::min(count - done, kPieceElements);
      SPILLWAY_RETURN_IF_ERROR(weights_((first + done) * sizeof(float),
                                        std::as_writable_bytes(std::span(masters_).first(n))));
      optim::EncodeMasters(dtype_, masters_.data(), words_.data(), static_cast<int64_t>(n),
                           halves_.data(), residuals_.data());
      take(std::span(halves_).first(n), std::span(residuals_).first(n), done);
      done += n;
    }
    return absl::OkStatus();
  }

 private:
  const Reader weights_;
  const DType dtype_;
  std::vector<float> masters_ = std::vector<float>(kPieceElements);
  std::vector<uint32_t> words_ = std::vector<uint32_t>(kPieceElements, optim::kNearestWord);
  std::vector<uint16_t> halves_ = std::vector<uint16_t>(kPieceElements);
  std::vector<uint8_t> residuals_ = std::vector<uint8_t>(kPieceElements);
};

// Returns a reader of the 16-bit weight of a split master weight.
Reader SplitWeights(const TensorSpec& weight, Reader weights) {
  auto source = std::make_shared<SplitSource>(std::move(weights), weight.dtype);
  return [source](uint64_t offset_bytes, std::span<std::byte> out) {
    return source->ForEachPiece(
        offset_bytes / sizeof(uint16_t), out.size() / sizeof(uint16_t),
        [&](std::span<const uint16_t> halves, std::span<const uint8_t>, uint64_t done) {
          std::memcpy(out.data() + done * sizeof(uint16_t), halves.data(), halves.size_bytes());
        });
  };
}

// Returns a reader of the residuals of a split master weight. The residuals of a row are the first
// of its `row_bytes`; the other bytes are zeros.
Reader SplitResiduals(const TensorSpec& weight, uint64_t row_bytes, Reader weights) {
  auto source = std::make_shared<SplitSource>(std::move(weights), weight.dtype);
  const uint64_t row_elements = optim::EncodedRowElements(weight.shape);
  return [=](uint64_t offset_bytes, std::span<std::byte> out) -> absl::Status {
    std::fill(out.begin(), out.end(), std::byte{0});
    const uint64_t end = offset_bytes + out.size();
    for (uint64_t row = offset_bytes / row_bytes; row * row_bytes < end; ++row) {
      const uint64_t row_begin = row * row_bytes;
      const uint64_t from = std::max(row_begin, offset_bytes);
      const uint64_t to = std::min(row_begin + row_elements, end);
      if (from >= to) continue;
      SPILLWAY_RETURN_IF_ERROR(source->ForEachPiece(
          row * row_elements + (from - row_begin), to - from,
          [&](std::span<const uint16_t>, std::span<const uint8_t> residuals, uint64_t done) {
            std::memcpy(out.data() + (from - offset_bytes) + done, residuals.data(),
                        residuals.size());
          }));
    }
    return absl::OkStatus();
  };
}

// Returns a reader of the weight's values, rounded to nearest even.
Reader RoundedWeights(const TensorSpec& weight, Reader weights) {
  if (weight.dtype == DType::kF32) return weights;
  const optim::ElementCodec& codec = optim::CodecOf(weight.dtype);
  return [&codec, weights = std::move(weights)](uint64_t offset_bytes,
                                                std::span<std::byte> out) -> absl::Status {
    const uint64_t first = offset_bytes / codec.element_bytes;
    const uint64_t count = out.size() / codec.element_bytes;
    std::vector<float> piece(std::min(count, kPieceElements));
    for (uint64_t done = 0; done < count; done += piece.size()) {
      piece.resize(std::min(count - done, kPieceElements));
      SPILLWAY_RETURN_IF_ERROR(
          weights((first + done) * sizeof(float), std::as_writable_bytes(std::span(piece))));
      codec.encode(piece.data(), static_cast<int64_t>(piece.size()),
                   out.data() + done * codec.element_bytes);
    }
    return absl::OkStatus();
  };
}

}  // namespace

Reader FirstValues(StateFormat format, const TensorSpec& weight, const TensorSpec& tensor,
                   Reader weights) {
  const bool is_weight = tensor.name == weight.name;
  if (optim::IsSplit(format)) {
    return is_weight ? SplitWeights(weight, std::move(weights))
                     : SplitResiduals(weight, tensor.row_bytes(), std::move(weights));
  }
  if (is_weight) return RoundedWeights(weight, std::move(weights));
  return tensor.role == Role::kMasterWeight ? weights : Reader();
}

absl::Status JoinMasterWeights(const TensorSpec& weight, const TensorSpec& state,
                               std::span<const std::byte> weight_rows,
                               std::span<const std::byte> state_rows, std::span<float> masters) {
  const bool is_16_bits = weight.dtype == DType::kF16 || weight.dtype == DType::kBF16;
  const uint64_t elements = optim::EncodedRowElements(weight.shape);
  const uint64_t rows = weight.shape.size() < 2 ? 1 : weight.num_rows();
  if (elements == 0 || !is_16_bits || state.dtype != DType::kU8 || state.shape.size() != 2 ||
      state.num_rows() != rows || state.row_bytes() < elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer: tensor '", state.name, "' is no compact state of weight '", weight.name, "'"));
  }
  const uint64_t count = state_rows.size() / state.row_bytes();
  if (state_rows.size() != count * state.row_bytes() ||
      weight_rows.size() != count * elements * sizeof(uint16_t) ||
      masters.size() != count * elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer: ", weight_rows.size(), " bytes of weight '", weight.name, "' and ",
        state_rows.size(), " of its state are not the same rows of ", elements, " elements"));
  }
  for (uint64_t row = 0; row < count; ++row) {
    const std::byte* const residuals = state_rows.data() + row * state.row_bytes();
    optim::DecodeMasters(weight.dtype, weight_rows.data() + row * elements * sizeof(uint16_t),
                         reinterpret_cast<const uint8_t*>(residuals),
                         static_cast<int64_t>(elements), masters.data() + row * elements);
  }
  return absl::OkStatus();
}

}  // namespace spillway
