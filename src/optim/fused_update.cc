// SPDX-License-Identifier: Apache-2.0

#include "src/optim/fused_update.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/optim/element_codecs.h"
#include "src/optim/given_weight.h"
#include "src/optim/group_codec.h"
#include "src/optim/split_master.h"

namespace spillway::optim {
namespace {

// Small enough that the processor overlaps decoding a piece, the rule and encoding: pieces of 1024
// elements took a fifth longer, and pieces of 256 as long. Three buffers of floats and the arrays
// that are updated in place take 14 KiB.
constexpr int64_t kPieceElements = 512;
static_assert(kPieceElements % kBlockElements == 0);
static_assert(kPieceElements % kGroupElements == 0);
static_assert(kPieceElements <= kMostGivenElements);

struct Buffers {
  alignas(64) float gradient[kPieceElements];
  alignas(64) float moments[kMostMoments][kPieceElements];
  alignas(64) float weight[kPieceElements];  // elements of any type
  // For compact state; `master` also holds the copy that takes a given weight's changes.
  alignas(64) float master[kPieceElements];
  alignas(64) uint32_t random_words[kPieceElements];
  uint64_t words_key = 0;    // of the random words
  int64_t words_begin = -1;  // of their piece
};

void* At(void* base, int64_t element, uint64_t element_bytes) {
  return static_cast<std::byte*>(base) + static_cast<uint64_t>(element) * element_bytes;
}
const void* At(const void* base, int64_t element, uint64_t element_bytes) {
  return static_cast<const std::byte*>(base) + static_cast<uint64_t>(element) * element_bytes;
}

// Returns the gradient's piece in fp32: in place if it rests in fp32, else decoded into the buffer.
const float* Gradient(const FusedRun& run, int64_t begin, int64_t n, Buffers& buffers) {
  const ElementCodec& codec = CodecOf(run.gradient_dtype);
  const void* const from = At(run.gradient, begin, codec.element_bytes);
  if (run.gradient_dtype == DType::kF32) return static_cast<const float*>(from);
  codec.decode(from, n, buffers.gradient);
  return buffers.gradient;
}

// Where a piece of a row begins. `begin` counts elements from the run's first.
struct EncodedPiece {
  std::byte* scales;
  uint8_t* codes;
};
EncodedPiece PieceOf(const EncodedMoments& of, uint64_t moment, int64_t begin) {
  const uint64_t element = of.first_block * of.layout.block_elements + static_cast<uint64_t>(begin);
  std::byte* const codes = of.row + of.layout.code_offset(moment, element);
  return {of.row + of.layout.scale_offset(moment, element / of.layout.block_elements),
          reinterpret_cast<uint8_t*>(codes)};
}
uint8_t* ResidualsOf(const EncodedMoments& of, int64_t begin) {
  const uint64_t element = of.first_block * of.layout.block_elements + static_cast<uint64_t>(begin);
  return reinterpret_cast<uint8_t*>(of.row + of.layout.residual_offset(element));
}

// Returns the master weight's piece: in place, or joined from weight and residual in the buffer.
float* Master(const FusedRun& run, int64_t begin, int64_t n, Buffers& buffers) {
  if (!IsSplit(run.format)) return run.master + begin;
  DecodeMasters(run.weight_dtype, static_cast<uint16_t*>(run.weight) + begin,
                ResidualsOf(run.encoded, begin), n, buffers.master);
  return buffers.master;
}

// Calls visit(scale, codes, first element in the piece, elements) for each block of a piece that
// begins with a block.
template <class Visit>
void ForEachBlock(const EncodedMoments& of, uint64_t moment, int64_t begin, int64_t n,
                  const Visit& visit) {
  constexpr auto kBlock = static_cast<int64_t>(kBlockElements);
  for (int64_t done = 0; done < n; done += kBlock) {
    const uint64_t block = of.first_block + static_cast<uint64_t>((begin + done) / kBlock);
    std::byte* const codes = of.row + of.layout.code_offset(moment, block * kBlockElements);
    visit(of.row + of.layout.scale_offset(moment, block), reinterpret_cast<uint8_t*>(codes), done,
          std::min(kBlock, n - done));
  }
}

// Returns a moment's piece in fp32: in place if it rests in fp32, else decoded into the buffer.
float* DecodeMoment(const FusedRun& run, const FusedMoment& moment, int64_t begin, int64_t n,
                    Buffers& buffers) {
  float* const decoded = buffers.moments[moment.slot];
  switch (run.format) {
    case StateFormat::kF32: return static_cast<float*>(moment.data) + begin;
    case StateFormat::kBf16:
      CodecOf(DType::kBF16).decode(static_cast<uint16_t*>(moment.data) + begin, n, decoded);
      break;
    case StateFormat::k8Bit:
      ForEachBlock(run.encoded, moment.index, begin, n,
                   [&](const std::byte* scale, const uint8_t* codes, int64_t at, int64_t count) {
                     DecodeBlock(moment.map, scale, codes, count, decoded + at);
                   });
      break;
    case StateFormat::kCompact: {
      const EncodedPiece piece = PieceOf(run.encoded, moment.index, begin);
      DecodeGroups(moment.map, piece.scales, piece.codes, n, decoded);
      break;
    }
  }
  return decoded;
}

// Returns the random words of a piece. The buffer may have them already.
const uint32_t* RandomWords(const FusedRun& run, uint64_t key, int64_t begin, int64_t n,
                            Buffers& buffers) {
  if (key != buffers.words_key || begin != buffers.words_begin) {
    FillRandomWords(key, run.first_element + static_cast<uint64_t>(begin), n, buffers.random_words);
    buffers.words_key = key;
    buffers.words_begin = begin;
  }
  return buffers.random_words;
}

void EncodeMoment(const FusedRun& run, const FusedMoment& moment, int64_t begin, int64_t n,
                  Buffers& buffers) {
  const float* const decoded = buffers.moments[moment.slot];
  switch (run.format) {
    case StateFormat::kF32: return;
    case StateFormat::kBf16:
      return EncodeBf16Randomly(decoded, n, moment.rounding_key,
                                run.first_element + static_cast<uint64_t>(begin),
                                static_cast<uint16_t*>(moment.data) + begin);
    case StateFormat::k8Bit:
      return ForEachBlock(run.encoded, moment.index, begin, n,
                          [&](std::byte* scale, uint8_t* codes, int64_t at, int64_t count) {
                            EncodeBlock(moment.map, decoded + at, count, scale, codes);
                          });
    case StateFormat::kCompact: {
      const EncodedPiece piece = PieceOf(run.encoded, moment.index, begin);
      const uint32_t* const words = RandomWords(run, moment.rounding_key, begin, n, buffers);
      return EncodeGroups(moment.map, decoded, words, n, piece.scales, piece.codes);
    }
  }
}

// Returns a piece of the run in fp32, with the first `num_moments` moments.
RuleRun PieceOf(const FusedRun& run, size_t num_moments, int64_t begin, int64_t n,
                Buffers& buffers) {
  RuleRun piece = {.num_elements = n,
                   .gradient = Gradient(run, begin, n, buffers),
                   .master = Master(run, begin, n, buffers)};
  for (const FusedMoment& moment : std::span(run.moments).first(num_moments))
    piece.moments[moment.slot] = DecodeMoment(run, moment, begin, n, buffers);
  return piece;
}

const void* GivenWeight(const FusedRun& run, int64_t begin) {
  return At(run.given_weight, begin, ElementBytes(run.weight_dtype));
}

// Writes the new weight's piece if the run has a weight. An update of fp32 state is limited by
// memory bandwidth, so a weight that is only written must not be read from memory first.
void EncodeWeight(const FusedRun& run, int64_t begin, int64_t n, const float* master,
                  Buffers& buffers) {
  if (run.weight == nullptr) return;
  const ElementCodec& codec = CodecOf(run.weight_dtype);
  void* const weight = At(run.weight, begin, codec.element_bytes);
  if (run.format == StateFormat::kF32 && run.given_weight == nullptr) {
    codec.encode(master, n, buffers.weight);
    return CopyStreamed(buffers.weight, n * static_cast<int64_t>(codec.element_bytes), weight);
  }
  if (!IsSplit(run.format)) return codec.encode(master, n, weight);
  const uint32_t* const words = RandomWords(run, run.residual_key, begin, n, buffers);
  EncodeMasters(run.weight_dtype, master, words, n, weight, ResidualsOf(run.encoded, begin));
}

}  // namespace

void UpdateFused(const RuleFactors& factors, const FusedRun& run) {
  Buffers buffers;
  for (int64_t begin = 0; begin < run.num_elements; begin += kPieceElements) {
    const int64_t n = std::min(kPieceElements, run.num_elements - begin);
    const RuleRun piece = PieceOf(run, run.num_moments, begin, n, buffers);
    if (run.given_weight != nullptr)
      TakeGiven(run.weight_dtype, GivenWeight(run, begin), n, piece.master);
    UpdateElements(factors, piece);
    EncodeWeight(run, begin, n, piece.master, buffers);
    for (const FusedMoment& moment : std::span(run.moments).first(run.num_moments))
      EncodeMoment(run, moment, begin, n, buffers);
  }
  FlushStreamed();
}

void AddSquaresFused(const RuleFactors& factors, const FusedRun& run, uint64_t first,
                     SumLanes* sums) {
  Buffers buffers;
  alignas(64) float direction[kPieceElements];
  const size_t num_moments = DirectionNeedsMoments(factors.kind) ? run.num_moments : 0;
  for (int64_t begin = 0; begin < run.num_elements; begin += kPieceElements) {
    const int64_t n = std::min(kPieceElements, run.num_elements - begin);
    RuleRun piece = PieceOf(run, num_moments, begin, n, buffers);
    if (run.given_weight != nullptr) {
      std::copy_n(piece.master, n, buffers.master);
      piece.master = buffers.master;
      TakeGiven(run.weight_dtype, GivenWeight(run, begin), n, piece.master);
    }
    DirectionOfElements(factors, piece, direction);
    AddSquares(piece.master, n, first + static_cast<uint64_t>(begin), &sums[0]);
    AddSquares(direction, n, first + static_cast<uint64_t>(begin), &sums[1]);
  }
}

}  // namespace spillway::optim
