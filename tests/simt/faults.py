# SPDX-License-Identifier: Apache-2.0
"""Faults of kernels and of the emulator, which tests/simt/mutants makes one at a time."""

import dataclasses

EMULATOR = "src/simt/emulated_block.h"
BLOCK = "src/simt/block.h"
ELEMENTS = "src/simt/elements.h"
GPU = "tools/trainer/compute/gpu/"


@dataclasses.dataclass(frozen=True)
class Fault:
    what: str  # is wrong
    file: str
    old: str  # occurs in the file exactly once
    new: str
    test: str  # the test that must find it
    survives: str = ""  # why no test can find it


def emulator(what, old, new, file=EMULATOR, **more):
    return Fault(what, file, old, new, "emulator_test", **more)


def kernel(name, what, old, new, **more):
    return Fault(what, f"{GPU}{name}.h", old, new, f"compute_{name}_test", **more)


def element(what, old, new, **more):
    return Fault(what, ELEMENTS, old, new, "compute_copies_test", **more)


def update(what, old, new, file="src/optim/adamw_kernel.h", **more):
    return Fault(what, file, old, new, "compute_adamw_test", **more)


ENCODED = "src/optim/compact_elements.h"


# By whoever wrote the code that they are in.
OWN = (
    # --- The emulator's reports ---
    emulator("two writes are no race",
             'uses.writer != run.thread()) {\n      ReportRace(index, uses.writer, run.thread(), "writes");',
             'uses.writer == kSeveral) {\n      ReportRace(index, uses.writer, run.thread(), "writes");'),
    emulator("a read after a write is no race",
             'uses.writer != run.thread()) {\n      ReportRace(index, uses.writer, run.thread(), "reads");',
             'uses.writer == kSeveral) {\n      ReportRace(index, uses.writer, run.thread(), "reads");'),
    emulator("a write after a read is no race",
             "} else if (uses.read_in == run.interval() && uses.reader != run.thread()) {",
             "} else if (uses.read_in == run.interval() && uses.reader == kNobody) {"),
    emulator("of several readers the last is remembered",
             "uses.reader = is_first || uses.reader == run.thread() ? run.thread() : kSeveral;",
             "uses.reader = is_first || uses.reader != kNobody ? run.thread() : kSeveral;"),
    emulator("a thread is taken for several readers when it reads twice",
             "is_first || uses.reader == run.thread() ? run.thread() : kSeveral",
             "is_first ? run.thread() : kSeveral"),
    emulator("barriers do not separate accesses", "      ++run_.interval_;\n", ""),
    emulator("an unwritten element may be read", "if (uses.writer == kNobody) {", "if (uses.writer == kSeveral) {"),
    emulator("an array ends one element late", "index >= 0 && index < kSize", "index >= 0 && index <= kSize"),
    emulator("an array begins one element early", "index >= 0 && index < kSize", "index >= -1 && index < kSize"),
    emulator("a thread that has ended holds up no barrier",
             "if (ended < 0 && other == waiting->end()) return true;", "if (other == waiting->end()) return true;"),
    emulator("any barrier is the same", "if (ended < 0 && other == waiting->end()) return true;",
             "if (ended < 0) return true;"),
    emulator("after a lost barrier the next blocks are not watched", "    run_.is_muted_ = false;\n", ""),
    emulator("after a lost barrier the block's other errors are reported", "    run_.is_muted_ = true;\n", ""),
    emulator("reports are not limited", "reports_.size() < kMostReports", "reports_.size() + 1 > 0"),
    # --- What the emulator runs ---
    emulator("arrays start as zero",
             "EmulatedArray() { std::memset(static_cast<void*>(values_), 0xff, sizeof(values_)); }",
             "EmulatedArray() { std::memset(static_cast<void*>(values_), 0, sizeof(values_)); }"),
    emulator("a block begins with the arrays of the one before", "const auto shared = std::make_unique<Shared>();",
             "static const auto shared = std::make_unique<Shared>();"),
    emulator("blocks run in order", "    std::shuffle(blocks.begin(), blocks.end(), random_);\n", ""),
    emulator("threads start in order", "    std::shuffle(order.begin(), order.end(), random_);\n    for (", "    for ("),
    emulator("threads go on in order",
             "      std::shuffle(order.begin(), order.end(), random_);\n      for (", "      for ("),
    # --- What threads do together ---
    emulator("a reduction reads what is not written yet",
             "  shared.values.Write(thread, value);\n  block.Sync();\n", "  shared.values.Write(thread, value);\n", BLOCK),
    emulator("a reduction's result is read too early",
             "    shared.results.Write(thread, result);\n  }\n  block.Sync();\n",
             "    shared.results.Write(thread, result);\n  }\n", BLOCK),
    emulator("a reduction takes values twice", "for (int i = thread + kGroups; i", "for (int i = thread; i", BLOCK),
    emulator("a reduction leaves out a group", "for (int i = 1; i < kGroups; ++i)", "for (int i = 2; i < kGroups; ++i)",
             BLOCK),
    emulator("the largest is the smallest", "return a < b ? b : a;", "return a < b ? a : b;", BLOCK),
    # --- Elements ---
    element("a half way between two halves is rounded up", "0xfffu + ((magnitude >> 13) & 1u)", "0x1000u"),
    element("a float is half way to infinity only past the last half", "magnitude >= 0x477ff000u",
            "magnitude >= 0x47800000u"),
    element("infinity becomes a half that is NaN", "if (magnitude > 0x7f800000u) {", "if (magnitude >= 0x7f800000u) {"),
    element("a subnormal half is half as large", "0x1p-24f", "0x1p-25f"),
    element("NaN may become infinity as bf16",
            "  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);\n", ""),
    element("bf16 is cut off", "(bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16", "bits >> 16"),
    # --- Kernels ---
    Fault("elements past the end are written", GPU + "elementwise_kernel.h",
          "begin + kElements < n ? begin + kElements : n", "begin + kElements", "compute_copies_test"),
    kernel("copies", "a sum replaces its first term by the second", "to.Get(i) + from.Get(i)", "from.Get(i) + from.Get(i)"),
    kernel("copies", "a bias is that of the row", "bias.Get(column)", "bias.Get(row)"),
    kernel("sums", "squares are rounded to fp32", "const double value = tile.Get(i);", "const float value = tile.Get(i);"),
    kernel("sums", "a sum of columns is read too early", "    block.Sync();\n", ""),
    kernel("sums", "columns past the end are written", "if (lane != 0 || !is_inside) return;", "if (lane != 0) return;"),
    kernel("sums", "a lane is left out", "int other = 1; other < kLanes", "int other = 1; other < kLanes - 1"),
    kernel("norms", "the epsilon is left out", "squares / width + epsilon", "squares / width"),
    kernel("norms", "the gradient of layer norm lacks the mean", "(g - sum - normed * dot)", "(g - normed * dot)"),
    kernel("norms", "a gradient is overwritten", "dx.Get(row, i) + inverse *", "inverse *"),
    kernel("norms", "a threads sum is taken for the block's", "squares = simt::BlockSum(block, shared, squares);", ""),
    kernel("norms", "the gradient of the scale forgets the mean", "sums[0] += gradient * ((x.Get(row, column) - mean)",
           "sums[0] += gradient * ((x.Get(row, column))"),
    kernel("rope", "windows are not told apart", "block.index();\n    const int64_t position = row % length;",
           "block.index();\n    const int64_t position = row < length ? row : length - 1;"),
    kernel("rope", "backward rotates forward", "backward ? -sines", "backward ? sines"),
    kernel("rope", "the second of a pair is computed from the new first",
           "high * cosine + low * sine", "high * cosine + x.Get(row, at) * sine"),
    kernel("softmax", "a query sees one key too few of its window", "query(row) - window + 1;", "query(row) - window + 2;"),
    kernel("softmax", "a query sees the key after its own", "return query(row) + 1 - first_key;",
           "return query(row) + 2 - first_key;"),
    kernel("softmax", "stacked heads are taken for queries", "row / group % queries", "row % queries"),
    kernel("softmax", "the largest score is that of a thread", "largest = simt::BlockMax(block, shared, largest);", ""),
    kernel("softmax", "scores are not shifted in the sum", "sum += std::exp(scale * scores.Get(row, i) - largest);",
           "sum += std::exp(scale * scores.Get(row, i));"),
    kernel("softmax", "a gradient that no key sees is used",
           "is_seen ? scale * (probabilities.Get(row, i) * (dp.Get(row, i) - dot)) : 0.0f",
           "scale * (probabilities.Get(row, i) * (dp.Get(row, i) - dot))"),
    kernel("softmax", "scores are scaled in the sum alone", "std::exp(scale * scores.Get(row, i) - largest) * factor",
           "std::exp(scores.Get(row, i) - largest) * factor"),
    kernel("softmax", "the gradient of scores is not scaled", "scale * (probabilities.Get(row, i)", "(probabilities.Get(row, i)"),
    Fault("heads are taken to follow each other", GPU + "rows.h", "i / head_dim * head_stride", "i / head_dim * head_dim",
          "compute_copies_test"),
    kernel("activations", "the slope of silu lacks a term", "s * (1.0f + g * (1.0f - s))", "s * (1.0f + g)"),
    kernel("activations", "GELU's cube is not limited", "x > 30.0f ? 30.0f : x < -30.0f ? -30.0f : x;", "x;"),
    kernel("activations", "a large negative input hides an overflow", "x < -30.0f ? 0.0f : Sigmoid", "Sigmoid"),
    kernel("cross_entropy", "an earlier sum is not rescaled", "before.sum * std::exp(before.largest - largest)",
           "before.sum"),
    kernel("cross_entropy", "a tile's first token is left out", "targets[token] - first_token;\n    const bool",
           "targets[token];\n    const bool"),
    kernel("cross_entropy", "a tile without the target forgets its logit", ": before.target_logit", ": 0.0f"),
    kernel("cross_entropy", "a loss is overwritten", "*loss += sum", "*loss = sum"),
    kernel("cross_entropy", "the target's share stays", "i == target ? share - scale : share", "share"),
    kernel("lookups", "a row with several entries is added once for each",
           "    if (first > 0 && entries[first - 1].row == row) return;\n", ""),
    kernel("lookups", "the last entry is left out", "entry < num_entries && entries[entry]",
           "entry < num_entries - 1 && entries[entry]"),
    kernel("lookups", "a tile's first row is left out", "const int64_t row = entry.row - first_row;",
           "const int64_t row = entry.row % 4;"),
    # --- The update ---
    update("weights do not decay", "f.decay * state.ReadMaster(at)", "state.ReadMaster(at)"),
    update("the square is rounded elsewhere", "f.one_minus_beta2 * (g * g)", "f.one_minus_beta2 * g * g"),
    update("rounding does not know where the run begins", "at.element = first_element + static_cast<uint64_t>(at.index);",
           "at.element = static_cast<uint64_t>(at.index);"),
    update("a block of zeros is divided by its scale", "scale == 0 ? 1.0f : scale", "scale"),
    update("the scale of each second block is not written",
           "    if (at.column % kGroup == 0)\n      StoreAnywhere(scale, state.Scale(moment, at, kGroup, sizeof(float)));",
           "    if (at.column % (2 * kGroup) == 0)\n      StoreAnywhere(scale, state.Scale(moment, at, kGroup, sizeof(float)));"),
    update("a group's largest is read too early", "  shared.values.Write(block.thread(), value);\n  block.Sync();\n",
           "  shared.values.Write(block.thread(), value);\n"),
    update("the end of a row waits for no barrier", "    if (is_inside) Update(at, moments);",
           "    if (!is_inside) return;\n    Update(at, moments);"),
    update("a group's scale is cut off", "(magnitude_bits + 0xffffu) >> 16", "magnitude_bits >> 16", ENCODED),
    update("a small second moment becomes zero", "is_positive && level < 1.0f ? 1.0f : level", "level", ENCODED),
    update("a residual takes other random bits", "random >> 3", "random >> 2", ENCODED),
    update("a large moment becomes infinite",
           "    if (rounded > 0x7f7fffffu) rounded = 0x7f7fffffu;\n", "", ENCODED),
    update("a negative magnitude wraps around", "sum < 0 ? 0 : sum", "sum", ENCODED),
)

# By someone who did not write it.
OTHERS = ()

FAULTS = OWN + OTHERS
