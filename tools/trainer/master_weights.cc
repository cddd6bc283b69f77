// SPDX-License-Identifier: Apache-2.0
//
// Reads and hashes master weights.

#include "tools/trainer/master_weights.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_format.h"
#include "spillway/optimizer.h"
#include "src/base/status_macros.h"
#include "tools/trainer/compute/elements.h"
#include "xxhash.h"

namespace spillway::trainer {
namespace {

struct FreeHashState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

// Computes XXH3-128 over the bytes added, in order.
class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) { XXH3_128bits_reset(state_.get()); }

  void Add(std::span<const std::byte> bytes) {
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  void Add(uint64_t value) { Add(std::as_bytes(std::span(&value, 1))); }

  std::string Hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
  }

 private:
  std::unique_ptr<XXH3_state_t, FreeHashState> state_;
};

// Reads a weight whose remaining bits are in another tensor. Leases each tile of the weight
// together with those of the rest that lie in it, one after the other. REQUIRES: RestTilesPerTile
// is not 0.
absl::Status ReadSplitWeight(
    Engine* engine, const TensorsOfParameter& tensors,
    const std::function<absl::Status(std::span<const std::byte>)>& consume) {
  const TensorSpec& weight = engine->Spec(tensors.master);
  const TensorSpec& rest = engine->Spec(tensors.rest_of_master);
  const uint64_t per_tile = RestTilesPerTile(weight, rest);
  const uint64_t row_bytes = weight.size_bytes() / rest.num_rows();  // a vector's rest is one row
  std::vector<Use> uses;
  for (uint64_t tile = 0; tile < rest.num_tiles(); ++tile) {
    if (tile % per_tile == 0)
      uses.push_back({{tensors.master, tile / per_tile}, Tier::kPinned, Access::kRead});
    uses.push_back({{tensors.rest_of_master, tile}, Tier::kPinned, Access::kRead});
  }
  SPILLWAY_RETURN_IF_ERROR(engine->Prefetch(uses));
  Lease lease;
  std::span<const std::byte> values;  // of the lease, from the next row on
  std::vector<float> floats;
  for (const Use& use : uses) {
    if (use.tile.tensor == tensors.master) {
      lease.Release();
      SPILLWAY_ASSIGN_OR_RETURN(lease, engine->AcquireHost(use.tile, Access::kRead));
      values = lease.as<const std::byte>();
      continue;
    }
    SPILLWAY_ASSIGN_OR_RETURN(const Lease of_rest, engine->AcquireHost(use.tile, Access::kRead));
    const uint64_t bytes = of_rest.size_bytes() / rest.row_bytes() * row_bytes;
    floats.resize(bytes / ElementBytes(weight.dtype));
    SPILLWAY_RETURN_IF_ERROR(JoinMasterWeights(weight, rest, values.first(bytes),
                                               of_rest.as<const std::byte>(), floats));
    values = values.subspan(bytes);
    SPILLWAY_RETURN_IF_ERROR(consume(std::as_bytes(std::span(floats))));
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t RestTilesPerTile(const TensorSpec& weight, const TensorSpec& rest) {
  if (weight.num_tiles() == 1) return rest.num_tiles();
  if (rest.tile_rows < 1 || weight.tile_rows % rest.tile_rows != 0) return 0;
  return static_cast<uint64_t>(weight.tile_rows / rest.tile_rows);
}

absl::Status ReadMasterWeight(
    Engine* engine, const Parameter& parameter,
    const std::function<absl::Status(std::span<const std::byte>)>& consume) {
  if (parameter.tensors.rest_of_master != TensorId())
    return ReadSplitWeight(engine, parameter.tensors, consume);
  const TensorId master = parameter.tensors.master;
  const uint64_t num_tiles = engine->Spec(master).num_tiles();
  const DType type = engine->Spec(master).dtype;
  std::vector<Use> uses;
  for (uint64_t tile = 0; tile < num_tiles; ++tile)
    uses.push_back({{master, tile}, Tier::kPinned, Access::kRead});
  SPILLWAY_RETURN_IF_ERROR(engine->Prefetch(uses));
  std::vector<float> floats;
  for (const Use& use : uses) {
    SPILLWAY_ASSIGN_OR_RETURN(const Lease lease, engine->AcquireHost(use.tile, use.access));
    if (type == DType::kF32) {
      SPILLWAY_RETURN_IF_ERROR(consume({lease.data(), lease.size_bytes()}));
      continue;
    }
    floats.resize(lease.size_bytes() / ElementBytes(type));
    ReadElements(type, lease.data(), floats);
    SPILLWAY_RETURN_IF_ERROR(consume(std::as_bytes(std::span(floats))));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> HashWeights(Engine* engine, const std::vector<Parameter>& parameters) {
  std::vector<const Parameter*> sorted;
  for (const Parameter& parameter : parameters) sorted.push_back(&parameter);
  std::sort(sorted.begin(), sorted.end(),
            [](const Parameter* a, const Parameter* b) { return a->name < b->name; });

  Hasher hasher;
  for (const Parameter* parameter : sorted) {
    hasher.Add(parameter->name.size());
    hasher.Add(std::as_bytes(std::span(parameter->name)));
    hasher.Add(parameter->shape.size());
    for (const int64_t dimension : parameter->shape) hasher.Add(static_cast<uint64_t>(dimension));
    SPILLWAY_RETURN_IF_ERROR(
        ReadMasterWeight(engine, *parameter, [&](std::span<const std::byte> bytes) {
          hasher.Add(bytes);
          return absl::OkStatus();
        }));
  }
  return hasher.Hex();
}

}  // namespace spillway::trainer
