// SPDX-License-Identifier: Apache-2.0

#include "io/store/free_space.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <span>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

// One bit for each unit of a chunk, set if the unit is free. Works on whole words, because most
// runs are long.
class ChunkBits {
 public:
  // Marks a run as free or as not free. Returns false if any unit of the run was marked so already;
  // the bits mean nothing then.
  bool Set(const UnitRun& run, bool free) {
    for (uint32_t unit = run.first; unit < run.first + run.count;) {
      const uint32_t first = unit % 64;
      const uint32_t count = std::min(64 - first, run.first + run.count - unit);
      const uint64_t mask = (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << first;
      uint64_t& word = words_[unit / 64];
      if ((free ? word : ~word) & mask) return false;
      word ^= mask;
      unit += count;
    }
    return true;
  }
  std::vector<UnitRun> Runs() const {
    std::vector<UnitRun> runs;
    for (uint32_t begin = Next(0, true); begin < kChunkUnits;) {
      const uint32_t end = Next(begin, false);
      runs.push_back({begin, end - begin});
      begin = Next(end, true);
    }
    return runs;
  }

 private:
  // Returns the first unit from `unit` on whose state is `free`; kChunkUnits if there is none.
  uint32_t Next(uint32_t unit, bool free) const {
    while (unit < kChunkUnits) {
      const uint64_t word = (free ? words_[unit / 64] : ~words_[unit / 64]) >> unit % 64;
      if (word != 0) return unit + static_cast<uint32_t>(std::countr_zero(word));
      unit = (unit / 64 + 1) * 64;
    }
    return kChunkUnits;
  }

  std::array<uint64_t, kChunkUnits / 64> words_ = {};
};

// Reads a number and moves `text` past it.
bool ReadNumber(std::string_view& text, uint32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool ReadCharacter(std::string_view& text, char wanted) {
  if (text.empty() || text.front() != wanted) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

std::optional<std::vector<UnitRun>> ParseRuns(std::string_view text) {
  std::vector<UnitRun> runs;
  uint32_t end = 0;  // the end of the previous run
  do {
    UnitRun run;
    if (!runs.empty() && !ReadCharacter(text, ' ')) return std::nullopt;
    if (!ReadNumber(text, &run.first) || !ReadCharacter(text, '+') || !ReadNumber(text, &run.count))
      return std::nullopt;
    if (run.first >= kChunkUnits || run.count == 0 || run.count > kChunkUnits - run.first)
      return std::nullopt;
    if (!runs.empty() && run.first <= end) return std::nullopt;
    end = run.first + run.count;
    runs.push_back(run);
  } while (!text.empty());
  return runs;
}

std::string FormatRuns(const std::vector<UnitRun>& runs) {
  std::string text;
  for (const UnitRun& run : runs)
    absl::StrAppend(&text, text.empty() ? "" : " ", run.first, "+", run.count);
  return text;
}

void FreeSpaceChange::Append(Pieces& pieces, uint16_t device, uint32_t segment, uint64_t offset,
                             uint64_t size_bytes) {
  const uint64_t end = offset + size_bytes;
  while (offset < end) {
    const uint32_t chunk = static_cast<uint32_t>(offset / kChunkBytes);
    const uint64_t piece_end = std::min(end, (uint64_t{chunk} + 1) * kChunkBytes);
    const UnitRun run = {static_cast<uint32_t>(offset % kChunkBytes / kIoAlignment),
                         static_cast<uint32_t>((piece_end - offset) / kIoAlignment)};
    offset = piece_end;
    // Most extents are adjacent to the one before. Joined into one piece, they keep a change of
    // millions of extents small.
    if (!pieces.empty() && pieces.back().device == device &&
        pieces.back().id == ChunkId{segment, chunk} &&
        pieces.back().run.first + pieces.back().run.count == run.first) {
      pieces.back().run.count += run.count;
    } else {
      pieces.push_back({device, {segment, chunk}, run});
    }
  }
}

absl::Status FreeSpaceChange::Conflict(const Piece& piece, bool free) const {
  return absl::DataLossError(absl::StrCat(
      database_->path(), " is damaged: units ", piece.run.first, "+", piece.run.count, " of chunk ",
      piece.id.chunk, " in segment ", piece.id.segment, " of folder ", piece.device,
      free ? " are given back but partly free already" : " are taken but partly not free",
      "; check the store, restore it from a copy, or remove it and start over"));
}

absl::Status FreeSpaceChange::Apply() {
  SPILLWAY_ASSIGN_OR_RETURN(SqliteStatement get,
                            database_->Prepare("SELECT runs FROM free_space WHERE device = ? AND "
                                               "segment = ? AND chunk = ?"));
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement put,
      database_->Prepare("INSERT OR REPLACE INTO free_space (device, segment, chunk, free_bytes, "
                         "runs) VALUES (?, ?, ?, ?, ?)"));
  SPILLWAY_ASSIGN_OR_RETURN(
      SqliteStatement erase,
      database_->Prepare("DELETE FROM free_space WHERE device = ? AND segment = ? AND chunk = ?"));

  const auto key = [](const Piece& piece) {
    return std::tuple(piece.device, piece.id.segment, piece.id.chunk, piece.run.first);
  };
  const auto chunk_of = [](const Piece& piece) { return std::tuple(piece.device, piece.id); };
  std::span<const Piece> rest[3];  // pieces left to apply: added, taken, given
  Pieces* const all[3] = {&added_, &taken_, &given_};
  for (int kind = 0; kind < 3; ++kind) {
    std::sort(all[kind]->begin(), all[kind]->end(),
              [&](const Piece& a, const Piece& b) { return key(a) < key(b); });
    rest[kind] = *all[kind];
  }

  while (true) {
    const Piece* first = nullptr;
    for (const auto& pieces : rest) {
      if (!pieces.empty() && (!first || chunk_of(pieces.front()) < chunk_of(*first)))
        first = &pieces.front();
    }
    if (!first) return absl::OkStatus();
    const Piece chunk = *first;
    ChunkBits bits;
    get.Bind(1, chunk.device).Bind(2, chunk.id.segment).Bind(3, chunk.id.chunk);
    SPILLWAY_ASSIGN_OR_RETURN(const bool has_row, get.Step());
    if (has_row) {
      const auto runs = ParseRuns(get.Bytes(0));
      get.Reset();
      if (!runs) return Conflict(chunk, false);
      for (const UnitRun& run : *runs) bits.Set(run, true);
    }
    for (int kind = 0; kind < 3; ++kind) {
      const bool free = kind != 1;  // the state afterwards
      auto& pieces = rest[kind];
      while (!pieces.empty() && chunk_of(pieces.front()) == chunk_of(chunk)) {
        if (!bits.Set(pieces.front().run, free)) return Conflict(pieces.front(), free);
        pieces = pieces.subspan(1);
      }
    }
    const std::vector<UnitRun> runs = bits.Runs();
    if (runs.empty()) {
      erase.Bind(1, chunk.device).Bind(2, chunk.id.segment).Bind(3, chunk.id.chunk);
      SPILLWAY_RETURN_IF_ERROR(erase.Run());
      continue;
    }
    uint64_t free_bytes = 0;
    for (const UnitRun& run : runs) free_bytes += run.count * kIoAlignment;
    const std::string text = FormatRuns(runs);
    put.Bind(1, chunk.device).Bind(2, chunk.id.segment).Bind(3, chunk.id.chunk);
    SPILLWAY_RETURN_IF_ERROR(put.Bind(4, free_bytes).BindText(5, text).Run());
  }
}

}  // namespace spillway::io
