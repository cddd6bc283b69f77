// SPDX-License-Identifier: Apache-2.0
//
// The embedding lookup and its gradient. Where the whole sequence is computed both lease every
// tile, tokens or not: then a step is the same whatever its tokens, and can be planned; a
// generation's next token needs one tile. A token that occurs often has its gradients summed in
// fp32, in order, before the one add to the tensor.

#ifndef SPILLWAY_TOOLS_TRAINER_EMBEDDING_H_
#define SPILLWAY_TOOLS_TRAINER_EMBEDDING_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "spillway/engine.h"
#include "tools/trainer/context.h"

namespace spillway::trainer {

// A batch's tokens by tile of the embedding, then id, then position.
class TokenOrder {
 public:
  // `num_tiles`: of the embedding; none for those that hold tokens only.
  TokenOrder(std::span<const int32_t> tokens, int64_t tile_rows, std::optional<uint64_t> num_tiles);

  struct Entry {
    int32_t token;
    int32_t position;
  };
  struct Tile {
    uint64_t index;
    std::span<const Entry> entries;
  };
  // Ascending; without entries are those that hold no token.
  const std::vector<Tile>& tiles() const { return tiles_; }

 private:
  std::vector<Entry> entries_;
  std::vector<Tile> tiles_;
};

// Thread-compatible; the context must outlive it.
class Embedding {
 public:
  explicit Embedding(ModelContext* context);

  TokenOrder Order(std::span<const int32_t> tokens) const {
    return TokenOrder(tokens, tile_rows_, num_tiles_);
  }
  TokenOrder OrderOfFew(std::span<const int32_t> tokens) const {
    return TokenOrder(tokens, tile_rows_, std::nullopt);
  }

  uint64_t num_tiles() const { return num_tiles_; }

  // The leases that Lookup will take.
  std::vector<Use> LookupUses(const TokenOrder& order) const;
  // x[position] = the token's row, in fp32; of a weight that is kept in fp32 as the residual's type
  // holds it.
  absl::Status Lookup(const TokenOrder& order, float* x) const;

  // Of one tile, as Lookup.
  absl::Status LookupTile(const TokenOrder::Tile& tile, float* x) const;
  // Of one tile: adds gradient[position] to the token's row, after the head's share where it is
  // tied. Destroys those rows of `gradient`.
  absl::Status BackwardTile(const TokenOrder::Tile& tile, float* gradient) const;

 private:
  void CopyRows(const TokenOrder::Tile& tile, const Lease& lease, float* x) const;
  void AddRows(const TokenOrder::Tile& tile, float* gradient, DType type, std::byte* stored) const;

  ModelContext* context_;
  DType type_;
  int64_t tile_rows_;
  uint64_t num_tiles_;
  int64_t width_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_EMBEDDING_H_
