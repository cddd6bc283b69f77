# SPDX-License-Identifier: Apache-2.0
"""Faults of kernels and of the emulator, which tests/simt/mutants makes one at a time.

All faults of a test are compiled into one program, which makes the one that it is told. So `old` and `new` are either whole
expressions, or whole statements, which end with a semicolon.
"""

import dataclasses

EMULATOR = "src/simt/emulated_block.h"
BLOCK = "src/simt/block.h"
ELEMENTS = "src/simt/elements.h"
GPU = "tools/trainer/compute/gpu/"
UPDATE = "src/optim/adamw_kernel.h"
ENCODED = "src/optim/compact_elements.h"
NOTHING = "(void)0"


@dataclasses.dataclass(frozen=True)
class Fault:
    what: str  # is wrong
    file: str
    old: str  # occurs in the file exactly once, or first after `after`
    new: str
    test: str  # the test that must find it
    after: str = ""
    survives: str = ""  # why no test can find it


def emulator(what, old, new, file=EMULATOR, **more):
    return Fault(what, file, old, new, "emulator_test", **more)


def element(what, old, new, **more):
    return Fault(what, ELEMENTS, old, new, "compute_copies_test", **more)


def kernel(name, what, old, new, **more):
    return Fault(what, f"{GPU}{name}.h", old, new, f"compute_{name}_test", **more)


def update(what, old, new, file=UPDATE, **more):
    return Fault(what, file, old, new, "compute_adamw_test", **more)


# By whoever wrote the code that they are in.
OWN = (
    # --- The emulator's reports ---
    emulator("two writes are no race", 'ReportRace(index, uses.writer, run.thread(), "writes")', NOTHING),
    emulator("a read after a write is no race", 'ReportRace(index, uses.writer, run.thread(), "reads")', NOTHING),
    emulator("a write after a read is no race", "uses.read_in == run.interval() && uses.reader != run.thread()",
             "uses.read_in == run.interval() && uses.reader == kNobody"),
    emulator("of several readers the last is remembered",
             "is_first || uses.reader == run.thread() ? run.thread() : kSeveral", "run.thread()"),
    emulator("a thread that reads twice is taken for several",
             "is_first || uses.reader == run.thread() ? run.thread() : kSeveral", "is_first ? run.thread() : kSeveral"),
    emulator("barriers do not separate accesses", "++run_.interval_", "run_.interval_"),
    emulator("an unwritten element may be read", "uses.writer == kNobody", "uses.writer == kSeveral"),
    emulator("an array ends one element late", "index >= 0 && index < kSize", "index >= 0 && index <= kSize"),
    emulator("an array begins one element early", "index >= 0 && index < kSize", "index >= -1 && index < kSize"),
    emulator("a thread that has ended holds up no barrier", "ended < 0 && other == waiting->end()",
             "other == waiting->end()"),
    emulator("any barrier is the same", "ended < 0 && other == waiting->end()", "ended < 0"),
    emulator("after a lost barrier the next blocks are not watched", "run_.is_muted_ = false", "run_.is_muted_"),
    emulator("reports are not limited", "reports_.size() < kMostReports", "true"),
    # --- What the emulator runs ---
    emulator("arrays start as zero", "std::memset(static_cast<void*>(values_), 0xff, sizeof(values_))",
             "std::memset(static_cast<void*>(values_), 0, sizeof(values_))"),
    emulator("blocks run in order", "std::shuffle(blocks.begin(), blocks.end(), random_)", NOTHING),
    emulator("threads start in order", "std::shuffle(order.begin(), order.end(), random_)", NOTHING,
             after="std::iota(order.begin()"),
    emulator("threads go on in order", "std::shuffle(order.begin(), order.end(), random_)", NOTHING,
             after="while (AllWait("),
    # --- What threads do together ---
    emulator("a reduction reads what is not written yet", "block.Sync()", NOTHING, BLOCK,
             after="shared.values.Write(thread, value);"),
    emulator("a reduction's result is read too early", "block.Sync()", NOTHING, BLOCK,
             after="shared.results.Write(thread, result);"),
    emulator("a reduction takes values twice", "thread + kGroups", "thread", BLOCK),
    emulator("a reduction leaves out a group", "i < kGroups", "i < kGroups - 1", BLOCK),
    emulator("the largest is the smallest", "a < b ? b : a", "a < b ? a : b", BLOCK),
    # --- Elements ---
    element("a value half way between two halves is rounded up", "0xfffu + ((magnitude >> 13) & 1u)", "0x1000u"),
    element("a value half way to infinity becomes the largest half", "magnitude >= 0x477ff000u", "magnitude > 0x477ff000u"),
    element("infinity becomes a half that is NaN", "magnitude > 0x7f800000u", "magnitude >= 0x7f800000u"),
    element("a subnormal half is half as large", "0x1p-24f", "0x1p-25f"),
    element("NaN may become infinity as bf16", "(bits & 0x7fffffffu) > 0x7f800000u", "false"),
    element("bf16 is cut off", "(bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16", "bits >> 16"),
    # --- Kernels ---
    Fault("elements past the end are written", GPU + "elementwise_kernel.h",
          "begin + kElements < n ? begin + kElements : n", "begin + kElements", "compute_copies_test"),
    kernel("copies", "a sum has its second term twice", "to.Get(i) + from.Get(i)", "from.Get(i) + from.Get(i)"),
    kernel("copies", "a bias is that of the row", "bias.Get(column)", "bias.Get(row)"),
    kernel("sums", "squares are rounded to fp32", "value * value",
           "static_cast<double>(static_cast<float>(value) * static_cast<float>(value))"),
    kernel("sums", "a sum of columns is read too early", "block.Sync()", NOTHING),
    kernel("sums", "columns past the end are written", "lane != 0 || !is_inside", "lane != 0"),
    kernel("sums", "a lane is left out", "other < kLanes", "other < kLanes - 1"),
    kernel("norms", "the epsilon is left out", "squares / width + epsilon", "squares / width"),
    kernel("norms", "the gradient of layer norm lacks the mean", "g - sum - normed * dot", "g - normed * dot"),
    kernel("norms", "a gradient is overwritten", "dx.Get(row, i)", "0.0f"),
    kernel("norms", "a thread's sum is taken for the block's", "squares = simt::BlockSum(block, shared, squares)",
           "squares"),
    kernel("norms", "the gradient of the scale forgets the mean", "x.Get(row, column) - mean", "x.Get(row, column)"),
    kernel("rope", "windows are not told apart", "row % length", "row < length ? row : length - 1"),
    kernel("rope", "backward rotates forward", "backward ? -sines.Get(position, j) : sines.Get(position, j)",
           "sines.Get(position, j)"),
    kernel("rope", "the second of a pair is computed from the new first", "low * sine", "x.Get(row, at) * sine"),
    kernel("softmax", "a query sees one key too few of its window", "query(row) - window + 1", "query(row) - window + 2"),
    kernel("softmax", "a query sees the key after its own", "query(row) + 1 - first_key", "query(row) + 2 - first_key"),
    kernel("softmax", "stacked heads are taken for queries", "row / group % queries", "row % queries"),
    kernel("softmax", "the largest score is that of a thread", "largest = simt::BlockMax(block, shared, largest)",
           "largest"),
    kernel("softmax", "scores are not shifted in the sum", "std::exp(scale * scores.Get(row, i) - largest)",
           "std::exp(scale * scores.Get(row, i))", after="sum += "),
    kernel("softmax", "a gradient that no row sees is used",
           "is_seen ? scale * (probabilities.Get(row, i) * (dp.Get(row, i) - dot)) : 0.0f",
           "scale * (probabilities.Get(row, i) * (dp.Get(row, i) - dot))"),
    kernel("softmax", "scores are scaled in the sum alone", "std::exp(scale * scores.Get(row, i) - largest) * factor",
           "std::exp(scores.Get(row, i) - largest) * factor"),
    Fault("heads are taken to follow each other", GPU + "rows.h", "i / head_dim * head_stride", "i / head_dim * head_dim",
          "compute_copies_test"),
    kernel("activations", "the slope of silu lacks a term", "1.0f + g * (1.0f - s)", "1.0f + g"),
    kernel("activations", "GELU's slope is not limited", "x > 30.0f ? 30.0f : x < -30.0f ? -30.0f : x", "x"),
    kernel("activations", "the slope of GELU lacks a factor", "s * (1.0f - s) * parts.slope", "s * (1.0f - s)"),
    kernel("cross_entropy", "an earlier sum is not rescaled", "before.sum * std::exp(before.largest - largest)",
           "before.sum"),
    kernel("cross_entropy", "a target is that of the first tile", "targets[token] - first_token", "targets[token]",
           after="before.sum * std::exp("),
    kernel("cross_entropy", "a tile without the target forgets its logit",
           "is_here ? logits.Get(token, target) : before.target_logit", "is_here ? logits.Get(token, target) : 0.0f"),
    kernel("cross_entropy", "a loss is overwritten", "*loss += sum / static_cast<double>(tokens)",
           "*loss = sum / static_cast<double>(tokens)"),
    kernel("cross_entropy", "the target's share stays", "i == target ? share - scale : share", "share"),
    kernel("lookups", "a row with several entries is added once for each", "first > 0 && entries[first - 1].row == row",
           "false"),
    kernel("lookups", "the last entry is left out", "entry < num_entries", "entry < num_entries - 1"),
    kernel("lookups", "a tile's first row is left out", "entry.row - first_row", "entry.row % 4"),
    # --- The update ---
    update("weights do not decay", "f.decay * state.ReadMaster(at)", "state.ReadMaster(at)"),
    update("the square is rounded elsewhere", "f.one_minus_beta2 * (g * g)", "f.one_minus_beta2 * g * g"),
    update("rounding does not know where the run begins", "first_element + static_cast<uint64_t>(at.index)",
           "static_cast<uint64_t>(at.index)"),
    update("a block of zeros is divided by its scale", "scale == 0 ? 1.0f : scale", "scale"),
    update("the scale of each second block is not written", "at.column % kGroup == 0", "at.column % (2 * kGroup) == 0",
           after="scale = simt::FloatOf(largest);"),
    update("a group's largest is read too early", "block.Sync()", NOTHING,
           after="shared.values.Write(block.thread(), value);"),
    update("the end of a row waits at no barrier", "if (is_inside) Update(at, moments);",
           "if (!is_inside) return; Update(at, moments);"),
    update("residuals are those of a row's first elements", "residuals + at.column", "at.column"),
    update("a group's scale is cut off", "magnitude_bits + 0xffffu", "magnitude_bits", ENCODED),
    update("a small second moment becomes zero", "is_positive && level < 1.0f ? 1.0f : level", "level", ENCODED),
    update("a residual takes other random bits", "random >> 3", "random >> 2", ENCODED),
    update("a large moment becomes infinite", "rounded > 0x7f7fffffu", "false", ENCODED),
    update("a magnitude below zero wraps around", "sum < 0 ? 0 : sum", "sum", ENCODED),
)

# By someone who did not write it.
OTHERS = ()

FAULTS = OWN + OTHERS
