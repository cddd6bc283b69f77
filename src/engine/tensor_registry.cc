// SPDX-License-Identifier: Apache-2.0

#include "src/engine/tensor_registry.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/base/status_macros.h"

namespace spillway::engine {
namespace {

absl::Status CheckSpec(const TensorSpec& spec) {
  const auto bad = [&](std::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", spec.name, "': ", std::string(why)));
  };
  if (spec.name.empty() || spec.name.size() > 512) return bad("its name must have 1 to 512 bytes");
  uint64_t bytes = ElementBytes(spec.dtype);
  for (int64_t dimension : spec.shape) {
    if (dimension < 1) return bad(absl::StrCat("dimension ", dimension, " must be at least 1"));
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes) ||
        bytes > (uint64_t{1} << 62)) {
      return bad("its size overflows 2^62 bytes");
    }
  }
  if (spec.num_tiles() >= std::numeric_limits<uint32_t>::max())
    return bad(absl::StrCat("it has ", spec.num_tiles(),
                            " tiles, and at most 2^32 - 2 are allowed: "
                            "raise tile_rows"));
  if (spec.tile_rows < 0)
    return bad(absl::StrCat("tile_rows is ", spec.tile_rows, ": it must be 0 or more"));
  return absl::OkStatus();
}

}  // namespace

std::string DescribeSpec(const TensorSpec& spec) {
  return absl::StrCat("{\"dtype\":\"", std::string(Name(spec.dtype)), "\",\"shape\":[",
                      absl::StrJoin(spec.shape, ","), "],\"role\":\"", std::string(Name(spec.role)),
                      "\",\"tile_rows\":", spec.tile_rows, "}");
}

void TensorRegistry::Begin(Mover* mover, bool has_store, uint64_t page_bytes, RestingRoom rests) {
  mover_ = mover;
  has_store_ = has_store;
  page_bytes_ = page_bytes;
  base::MutexLock lock(&changes_mu_);
  rests_ = std::move(rests);
}

// --- Registering tensors ---

absl::StatusOr<TensorId> TensorRegistry::Register(const TensorSpec& spec, const FillTile& fill) {
  SPILLWAY_RETURN_IF_ERROR(CheckSpec(spec));
  SPILLWAY_ASSIGN_OR_RETURN(const std::optional<TensorId> known, FindOrReserve(spec));
  if (known) return *known;
  absl::StatusOr<TensorId> made = absl::CancelledError("the reader threw");
  const absl::Cleanup publish = [&] {
    Publish(spec.name, made.ok() ? std::optional(*made) : std::nullopt);
  };
  const Mover::Turn filling(mover_, Mover::Turn::Kind::kFills);
  if (!filling.status().ok()) return made = filling.status();
  made = Make(spec, fill);
  return made;
}

// Returns the tensor if it is registered. If not, returns nullopt and reserves the name for the
// caller, until it calls Publish with the outcome.
absl::StatusOr<std::optional<TensorId>> TensorRegistry::FindOrReserve(const TensorSpec& spec) {
  base::MutexLock lock(&names_mu_);
  auto known = by_name_.find(spec.name);
  while (known != by_name_.end() && !known->second) {
    published_.Wait(&names_mu_);
    known = by_name_.find(spec.name);
  }
  if (known == by_name_.end()) {
    by_name_.emplace(spec.name, std::nullopt);
    return std::nullopt;
  }
  const TensorId id = *known->second;
  if (Spec(id) == spec) return id;
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", spec.name, "' is registered already as ", DescribeSpec(Spec(id)),
                   ", now as ", DescribeSpec(spec), ": give it another name"));
}

void TensorRegistry::Publish(const std::string& name, std::optional<TensorId> id) {
  base::MutexLock lock(&names_mu_);
  if (id) {
    by_name_[name] = id;
  } else {
    by_name_.erase(name);
  }
  published_.NotifyAll();
}

absl::StatusOr<TensorId> TensorRegistry::Make(const TensorSpec& spec, const FillTile& fill) {
  TensorId id;
  bool is_found = false;
  {
    base::MutexLock lock(&changes_mu_);
    SPILLWAY_RETURN_IF_ERROR(rests_.Add(spec));
    const absl::StatusOr<StoredTensor> stored = Store(spec);
    if (!stored.ok()) {
      rests_.Remove(spec);
      return stored.status();
    }
    is_found = stored->is_found;
    id = AddTiles(spec, *stored);
  }
  absl::Status filled = absl::CancelledError("the reader threw");
  const absl::Cleanup forget = [&] {
    if (filled.ok()) return;
    base::MutexLock lock(&changes_mu_);
    // Fails only for a leased tile, and no other caller has a lease. What the store has, stays.
    Forget(id, is_found ? Stored::kKept : Stored::kRemoved).IgnoreError();
  };
  filled = Reserve(id);
  if (filled.ok() && !is_found && fill) filled = Fill(id, fill);
  SPILLWAY_RETURN_IF_ERROR(filled);
  tensors_[id.value].state = Tensor::State::kThere;
  return id;
}

uint64_t TensorRegistry::PagesPerTile(const TensorSpec& spec) const {
  return (spec.tile_bytes(0) + page_bytes_ - 1) / page_bytes_;
}

absl::StatusOr<TensorRegistry::StoredTensor> TensorRegistry::Store(const TensorSpec& spec) {
  const uint64_t num_tiles = spec.num_tiles();
  const uint64_t pages_per_tile = PagesPerTile(spec);
  StoredTensor stored{.has_bytes = std::vector<bool>(num_tiles, false)};
  if (!has_store_) return stored;
  const std::string description = DescribeSpec(spec);
  const auto ask = [&](io::Store* store) -> absl::Status {
    std::optional<io::TensorIndex> existing;
    if (!spec.transient) {
      SPILLWAY_ASSIGN_OR_RETURN(existing, store->FindTensor(spec.name));
    }
    if (!existing) {
      SPILLWAY_ASSIGN_OR_RETURN(
          stored.tensor,
          store->AddTensor({spec.name, description, num_tiles * pages_per_tile}, spec.transient));
      return absl::OkStatus();
    }
    stored.is_found = true;
    stored.tensor = *existing;
    if (const std::string& before = store->Tensor(*existing).description; before != description) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", spec.name, "' is ", before, " in the store, but is registered as ",
          description, ": the store belongs to another model or configuration"));
    }
    const uint64_t num_pages = store->Tensor(*existing).num_pages;
    if (num_pages != num_tiles * pages_per_tile) {
      return absl::DataLossError(
          absl::StrCat("the store is damaged: tensor '", spec.name, "' has ", num_pages,
                       " pages in its catalog and should have ", num_tiles * pages_per_tile,
                       "; restore the store from a copy, or remove it and start over"));
    }
    for (uint64_t tile = 0; tile < num_tiles; ++tile) {
      SPILLWAY_ASSIGN_OR_RETURN(const auto page, store->FindPage(*existing, tile * pages_per_tile));
      stored.has_bytes[tile] = page.has_value();
    }
    return absl::OkStatus();
  };
  absl::Status status;
  mover_->transfers().RunWithStore([&](io::Store* store) { status = ask(store); });
  SPILLWAY_RETURN_IF_ERROR(status);
  return stored;
}

TensorId TensorRegistry::AddTiles(const TensorSpec& spec, const StoredTensor& stored) {
  TileIndex first_tile = 0;
  for (uint64_t tile = 0; tile < stored.has_bytes.size(); ++tile) {
    const TileIndex index =
        mover_->AddTile(spec.tile_bytes(tile), spec.role, spec.transient, stored.has_bytes[tile],
                        {.tensor = stored.tensor, .first_page = tile * PagesPerTile(spec)});
    if (tile > 0) continue;
    first_tile = index;
    base::MutexLock lock(&names_mu_);
    names_.emplace_back(index, spec.name);
  }
  const TensorId id{static_cast<uint32_t>(tensors_.size())};
  tensors_.emplace_back(spec, first_tile, stored.tensor);
  return id;
}

absl::Status TensorRegistry::Reserve(TensorId id) {
  const auto num_tiles = static_cast<TileIndex>(Spec(id).num_tiles());
  for (TileIndex tile = 0; tile < num_tiles; ++tile)
    SPILLWAY_RETURN_IF_ERROR(mover_->Reserve(FirstTile(id) + tile));
  return absl::OkStatus();
}

absl::Status TensorRegistry::Fill(TensorId id, const FillTile& fill) {
  const uint64_t num_tiles = Spec(id).num_tiles();
  for (uint64_t tile = 0; tile < num_tiles; ++tile)
    SPILLWAY_RETURN_IF_ERROR(fill(FirstTile(id) + static_cast<TileIndex>(tile), {id, tile}));
  return absl::OkStatus();
}

// --- Unregistering tensors ---

absl::Status TensorRegistry::Unregister(TensorId id) {
  base::MutexLock lock(&changes_mu_);
  return Remove(id);
}

absl::Status TensorRegistry::Remove(TensorId id) {
  SPILLWAY_RETURN_IF_ERROR(IndexOf({id, 0}).status());
  SPILLWAY_RETURN_IF_ERROR(Forget(id, Stored::kRemoved));
  Publish(Spec(id).name, std::nullopt);
  return absl::OkStatus();
}

absl::Status TensorRegistry::Forget(TensorId id, Stored stored) {
  Tensor& tensor = tensors_[id.value];
  const auto num_tiles = static_cast<TileIndex>(tensor.spec.num_tiles());
  const auto remove = [&tensor, stored](io::Store* store) {
    if (store != nullptr && stored == Stored::kRemoved) store->RemoveTensor(tensor.stored_as);
  };
  SPILLWAY_RETURN_IF_ERROR(mover_->Forget(tensor.first_tile, num_tiles, stored, remove));
  tensor.state = Tensor::State::kGone;
  rests_.Remove(tensor.spec);
  return absl::OkStatus();
}

absl::Status TensorRegistry::ForgetName(std::string_view name) {
  base::MutexLock lock(&changes_mu_);
  if (const auto id = Find(name); id.ok()) return Remove(*id);
  const std::string tensor = absl::StrCat("tensor '", std::string(name), "'");
  {
    base::MutexLock names(&names_mu_);
    if (by_name_.find(name) != by_name_.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat(tensor, " is being registered: call ForgetName when Register has returned"));
    }
  }
  absl::Status status =
      absl::NotFoundError(absl::StrCat("no ", tensor, " is registered or in the last commit"));
  if (!has_store_) return status;
  mover_->transfers().RunWithStore([&](io::Store* store) {
    const auto found = store->FindTensor(name);
    if (!found.ok()) status = found.status();
    if (!found.ok() || !found->has_value()) return;
    store->RemoveTensor(**found);
    status = absl::OkStatus();
  });
  return status;
}

absl::Status TensorRegistry::WhileNoneChanges(const std::function<absl::Status()>& change) {
  base::MutexLock lock(&changes_mu_);
  return change();
}

// --- Lookup ---

absl::StatusOr<TensorId> TensorRegistry::Find(std::string_view name) const {
  {
    base::MutexLock lock(&names_mu_);
    const auto known = by_name_.find(name);
    if (known != by_name_.end() && known->second) return *known->second;
  }
  return absl::NotFoundError(absl::StrCat("no tensor '", std::string(name), "' is registered"));
}

absl::StatusOr<TileIndex> TensorRegistry::IndexOf(TileRef tile) const {
  if (tile.tensor.value >= tensors_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor id ", tile.tensor.value, " is not of this engine"));
  }
  const Tensor& tensor = tensors_[tile.tensor.value];
  if (const Tensor::State state = tensor.state; state != Tensor::State::kThere) {
    return absl::NotFoundError(absl::StrCat("tensor '", tensor.spec.name, "' ",
                                            state == Tensor::State::kGone
                                                ? "was unregistered: its id is void"
                                                : "is being registered"));
  }
  if (const uint64_t num_tiles = tensor.spec.num_tiles(); tile.tile >= num_tiles) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.spec.name, "' has ",
                                                   num_tiles, " tiles: tile ", tile.tile,
                                                   " is past them"));
  }
  return tensor.first_tile + tile.tile;
}

std::string TensorRegistry::DescribeTile(TileIndex tile) const {
  base::MutexLock lock(&names_mu_);
  auto after =
      std::upper_bound(names_.begin(), names_.end(), tile,
                       [](TileIndex index, const auto& entry) { return index < entry.first; });
  if (after == names_.begin()) return absl::StrCat("tile ", tile);
  const auto& [first, name] = *std::prev(after);
  return absl::StrCat("tensor '", name, "' tile ", tile - first);
}

std::vector<Timeline::Tensor> TensorRegistry::Tensors() const {
  std::vector<Timeline::Tensor> tensors;
  const size_t num_tensors = tensors_.size();
  for (size_t i = 0; i < num_tensors; ++i) {
    const Tensor& tensor = tensors_[i];
    tensors.push_back({.name = tensor.spec.name,
                       .first_tile = tensor.first_tile,
                       .num_tiles = static_cast<uint32_t>(tensor.spec.num_tiles())});
  }
  return tensors;
}

}  // namespace spillway::engine
