// SPDX-License-Identifier: Apache-2.0
//
// The embedding lookup and its gradient. In training and evaluation both lease every tile, whether
// or not it holds a token of the batch, so that the leases of a step do not depend on its tokens
// and can be planned. Generation leases only the tiles that hold a token of the window. The
// gradients of a token that occurs several times are summed in fp32, in order of position, before
// one addition to the tensor.

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

// A batch's tokens, sorted by tile of the embedding, then id, then position.
class TokenOrder {
 public:
  // `num_tiles`: the number of tiles of the embedding, to list them all; nullopt to list only tiles
  // that hold a token.
  TokenOrder(std::span<const int32_t> tokens, int64_t tile_rows, std::optional<uint64_t> num_tiles);

  struct Entry {
    int32_t token;
    int32_t position;
  };
  struct Tile {
    uint64_t index;
    std::span<const Entry> entries;
  };
  // In ascending order. A tile that holds no token has no entries.
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

  // Returns the leases that Lookup will take.
  std::vector<Use> LookupUses(const TokenOrder& order) const;
  // Sets x[position] to the token's row in fp32, rounded to the residual's type if the weight has
  // another type.
  absl::Status Lookup(const TokenOrder& order, float* x) const;

  // Does the lookup for the tokens of one tile.
  absl::Status LookupTile(const TokenOrder::Tile& tile, float* x) const;
  // Adds gradient[position] to the gradient of the token's row, for the tokens of one tile. If the
  // embedding is tied to the head, the head's gradient must be added first. Those rows of
  // `gradient` are undefined afterwards.
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
