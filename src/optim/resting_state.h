// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes the state of one parameter in fp32, a tile at a time, whatever the format in
// which it rests. It is for code that reads a state once, such as a conversion. The update has its
// own code, fused with the rule (fused_update.h).

#ifndef SPILLWAY_OPTIM_RESTING_STATE_H_
#define SPILLWAY_OPTIM_RESTING_STATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "src/optim/block_codec.h"
#include "src/optim/rule_kernels.h"
#include "src/optim/state_format.h"

namespace spillway::optim {

// The elements of a tile.
struct DecodedTile {
  std::vector<float> master;
  std::array<std::vector<float>, kMostMoments> moments;  // as many as the rule has
};

// What a write of a tile does with the master weights: keeps them, writes them, or writes them and
// the 16-bit weight, which is rounded from them. If master weights are split, kWrite and
// kWithWeight both write weight and residuals. An fp32 weight is its own master weight, and both
// write it.
enum class Masters : uint8_t { kKeep, kWrite, kWithWeight };

// The engine must outlive it, and so must a weight in the caller's memory. Holds one lease at a
// time.
class RestingState {
 public:
  // `weight` is the spec for which StateSpecs lists the tensors; all tile numbers refer to it.
  // `values` is where the weight's values lie: in memory, or in a tensor of the engine, whose tiles
  // may differ.
  // InvalidArgument: the pair of rule and format does not exist, the tensors are not those that
  // StateSpecs lists, or the rule is Adafactor, whose moments may have fewer elements than the
  // weight.
  static absl::StatusOr<RestingState> Create(Engine* engine, const Rule& rule, StateFormat format,
                                             const TensorSpec& weight, const Values& values,
                                             const std::vector<TensorId>& tensors);

  uint64_t num_tiles() const { return spec_.num_tiles(); }
  size_t num_moments() const { return num_moments_; }
  uint64_t FirstElement(uint64_t tile) const;
  uint64_t NumElements(uint64_t tile) const;

  absl::Status Read(uint64_t tile, DecodedTile* to) const;
  // Like Read, for the master weights or the moments alone.
  absl::Status ReadMaster(uint64_t tile, std::vector<float>* to) const;
  absl::Status ReadMoments(uint64_t tile, DecodedTile* to) const;
  absl::Status Write(uint64_t tile, const DecodedTile& from, Masters masters) const;
  absl::Status WriteMaster(uint64_t tile, const std::vector<float>& from, Masters masters) const;

 private:
  // A run of elements within one row of an encoded tile.
  struct RowPart {
    std::byte* row;
    uint64_t first_in_row;
    int64_t num_elements;
    uint64_t at;  // index of the first among the tile's elements
  };

  bool IsOneTile() const;
  absl::StatusOr<Lease> LeaseEncoded(uint64_t tile, Access access) const;
  void ForEachPart(uint64_t tile, const Lease& encoded,
                   const std::function<void(const RowPart&)>& visit) const;
  absl::StatusOr<std::vector<std::byte>> ReadWeight(uint64_t tile) const;
  absl::Status WriteWeight(uint64_t tile, std::span<const std::byte> bytes) const;
  absl::Status WriteSplitMaster(uint64_t tile, const std::vector<float>& from) const;
  absl::Status WriteRounded(uint64_t tile, const std::vector<float>& from) const;
  void DecodePart(const RowPart& part, size_t moment, float* to) const;
  void EncodePart(const RowPart& part, size_t moment, uint64_t first_element,
                  const float* from) const;

  Engine* engine_ = nullptr;
  StateFormat format_ = StateFormat::kF32;
  TensorSpec spec_;  // of the weight
  Values values_;
  std::vector<TensorId> tensors_;
  size_t num_moments_ = 0;
  size_t first_moment_ = 0;  // in tensors_
  std::array<CodeMap, kMostMoments> maps_ = {};
  std::array<std::string, kMostMoments> keying_names_;  // of moments in compact state
  EncodedRow row_;                                      // of encoded moments
};

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_RESTING_STATE_H_
