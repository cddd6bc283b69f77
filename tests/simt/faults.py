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


def element(what, old, new, file=ELEMENTS, **more):
    return Fault(what, file, old, new, "compute_copies_test", **more)


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
    element("a value half way to infinity becomes the largest half", "magnitude >= 0x477ff000u", "magnitude > 0x477ff000u",
            survives="65520 becomes infinity in the last branch, too: ties go to even, which infinity is"),
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

# By someone who did not write the code that they are in. The last part was written with its tests in view.
OTHERS = (
    # --- The emulator ---
    emulator("a thread races with itself where it reads what it wrote",
             "uses.written_in == run.interval() && uses.writer != run.thread()", "uses.written_in == run.interval()",
             after="T Read(int64_t index)"),
    emulator("a thread races with itself where it writes twice",
             "uses.written_in == run.interval() && uses.writer != run.thread()", "uses.written_in == run.interval()",
             after="void Write(int64_t index, T value)"),
    emulator("a read before a barrier races with a write after it",
             "uses.read_in == run.interval() && uses.reader != run.thread()",
             "uses.read_in >= 0 && uses.reader != run.thread()"),
    emulator("barriers at one line of two files are one", "std::strcmp(At(thread).file, At(first).file) != 0", "false"),
    emulator("one report more than the most", "reports_.size() < kMostReports", "reports_.size() <= kMostReports"),
    emulator("a report names the thread as its block", "std::to_string(block_)", "std::to_string(thread_)"),
    emulator("what is read outside of an array is zero", "0xff", "0", after="static T Undefined()"),
    # --- Blocks ---
    emulator("a share of elements begins at zero", "begin + block.thread()", "block.thread()", file=BLOCK),
    emulator("a group of a reduction ends one thread early", "i < kThreads", "i < kThreads - 1", file=BLOCK,
             after="T result = shared.values.Read(thread);"),
    emulator("one thread too many combines a group", "thread < kGroups", "thread <= kGroups", file=BLOCK),
    emulator("only the threads that combined wait for the results", "block.Sync()",
             "(thread < kGroups ? block.Sync() : (void)0)",
             file=BLOCK, after="shared.results.Write(thread, result);"),
    # --- Elements ---
    element("bf16 ties round up", "bits + 0x7fffu + ((bits >> 16) & 1u)", "bits + 0x8000u"),
    element("what is below the least normal fp16 is truncated", "BitsOf(FloatOf(magnitude) + 0.5f) - 0x3f000000u",
            "static_cast<uint32_t>(FloatOf(magnitude) * 0x1p24f)"),
    element("a signalling NaN of fp16 stays one", "magnitude > 0x7c00u ? 0x400000u : 0u", "0u"),
    element("a matrix is written as if its rows followed each other", "row * stride + column", "row * columns + column",
            file=f"{GPU}matrix.h", after="simt::Store(type, value, data, "),
    # --- Copies ---
    element("each block goes on to the matrix's end", "begin + kElements < n ? begin + kElements : n", "n",
            file=f"{GPU}elementwise_kernel.h"),
    element("the source's rows follow each other", "from.Get(row, i)", "from.Get(row * to.columns + i)", file=f"{GPU}rows.h"),
    element("a column of heads is counted from the stride", "i % head_dim", "i % head_stride", file=f"{GPU}rows.h"),
    kernel("copies", "an addend is rounded before the addition", "to.Get(i) + from.Get(i)",
           "to.Get(i) + (to.type == simt::Element::kBF16 ? simt::FloatOfBf16(simt::Bf16OfFloat(from.Get(i))) : from.Get(i))"),
    kernel("copies", "a thread adds one number of the bias to all its columns", "bias.Get(column)",
           "bias.Get(block.thread())"),
    kernel("copies", "an odd number of elements is zeroed but for the last", "to.elements()", "to.elements() / 2 * 2",
           after="struct ZeroElements"),
    # --- Activations ---
    kernel("activations", "the gate is read as the gradient once the result is in its place", "gradient * u * slope",
           "out.Get(i) * u * slope"),
    kernel("activations", "silu's slope has the wrong sign within", "1.0f + g * (1.0f - s)", "1.0f - g * (1.0f - s)"),
    kernel("activations", "the derivative of GELU's cube has no factor 3", "3.0f * kCube * v * v", "kCube * v * v"),
    kernel("activations", "GELU has no lower limit", "x < -30.0f ? -30.0f : x", "x"),
    # --- Cross-entropy ---
    kernel("cross_entropy", "the target's column is the vocabulary's in the gradient", "targets[token] - first_token",
           "targets[token]", after="const float factor"),
    kernel("cross_entropy", "the sum so far is scaled the wrong way", "before.largest - largest", "largest - before.largest"),
    kernel("cross_entropy", "the largest is the tile's alone", "before.largest", "-simt::kInfinity", after="float largest = "),
    kernel("cross_entropy", "a tile's first column is never the target", "target >= 0", "target > 0"),
    kernel("cross_entropy", "a tile's last column is never the target", "target < logits.columns",
           "target < logits.columns - 1"),
    kernel("cross_entropy", "the target's share is less by 1, whatever the scale", "share - scale", "share - 1.0f"),
    # --- Lookups ---
    kernel("lookups", "rows of the gradient's tile are the table's", "row - first_row", "row", after="tile.Get("),
    kernel("lookups", "the first entry's place is its position", "entries[first].position", "first"),
    kernel("lookups", "a row's first entry counts twice", "first + 1", "first"),
    kernel("lookups", "a row that is added replaces what was there", "x.Get(entry.position, i) + value", "value"),
    # --- Norms ---
    kernel("norms", "epsilon is added to the root", "squares / width + epsilon",
           "(std::sqrt(squares / width) + epsilon) * (std::sqrt(squares / width) + epsilon)"),
    kernel("norms", "the variance is a difference of squares", "difference * difference",
           "x.Get(row, i) * x.Get(row, i) - mean * mean"),
    kernel("norms", "the gradient has no inverse deviation", "g - sum - normed * dot", "(g - sum - normed * dot) / inverse"),
    kernel("norms", "the projection takes x with its mean", "(x.Get(row, i) - mean) * inverse", "x.Get(row, i) * inverse",
           after="dot += g * ("),
    kernel("norms", "a mean divides by the stride", "static_cast<float>(x.columns)", "static_cast<float>(x.stride)",
           after="struct Norm {"),
    Fault("of several sums of a column, each is the first", f"{GPU}sums.h", "s * kThreads + other * kColumns + block.thread()",
          "other * kColumns + block.thread()", "compute_norms_test"),
    Fault("a matrix is read as if its rows followed each other", f"{GPU}matrix.h", "row * stride + column",
          "row * columns + column", "compute_norms_test", after="simt::Load(type, data, "),
    # --- Rope ---
    kernel("rope", "the second of a pair is its neighbour", "x.Get(row, at + half)", "x.Get(row, at + 1)"),
    kernel("rope", "a position is its sequence's number", "row % length", "row / length"),
    kernel("rope", "heads follow each other", "head * head_stride + j", "head * head_dim + j"),
    # --- Softmax ---
    kernel("softmax", "a window's first key is counted from zero", "first > first_key ? first - first_key : 0",
           "first > 0 ? first : 0"),
    kernel("softmax", "the largest score has no scale", "scale * scores.Get(row, i)", "scores.Get(row, i)",
           after="const float score = "),
    kernel("softmax", "the largest score is at least 0", "-simt::kInfinity", "0.0f"),
    kernel("softmax", "the gradient takes keys before the window", "visible.begin(row)", "0", after="struct SoftmaxGradient"),
    kernel("softmax", "the gradient takes keys after the query", "visible.end(row)", "dp.columns",
           after="struct SoftmaxGradient"),
    # --- Sums ---
    kernel("sums", "the tail of a tile is not read", "begin + kElements < n ? begin + kElements : n",
           "begin + kElements < n ? begin + kElements : n / kThreads * kThreads"),
    kernel("sums", "numbers are added as fp32", "numbers[i]", "static_cast<float>(numbers[i])"),
    kernel("sums", "threads beyond the last column wait at no barrier", "block.Sync()",
           "(is_inside ? block.Sync() : (void)0)"),
    # --- AdamW, in any format ---
    update("blocks are those of all elements together", "rows * simt::BlocksOf(width, kThreads)",
           "simt::BlocksOf(rows * width, kThreads)"),
    update("epsilon is corrected for bias", "std::sqrt(v) / f.bias2_root + f.epsilon",
           "(std::sqrt(v) + f.epsilon) / f.bias2_root"),
    update("the step is rounded before the division", "f.step_size * (m / denominator)", "f.step_size * m / denominator"),
    update("there is always a weight", "weight != nullptr", "true"),
    update("the weight is rounded to bf16 whatever it is",
           "simt::Store(weight_type, value, weight, at.index);",
           "simt::Store(weight_type, simt::FloatOfBf16(simt::Bf16OfFloat(value)), weight, at.index);"),
    # --- AdamW with fp32 moments ---
    update("fp32 moments of all rows rest in the first", "static_cast<float*>(moments[moment])[at.index]",
           "static_cast<float*>(moments[moment])[at.column]"),
    # --- AdamW with bf16 moments ---
    update("both moments are rounded by one key", "at.Random(keys[moment]) >> 16", "at.Random(keys[0]) >> 16"),
    update("moments are rounded by the lower half of a word", "at.Random(keys[moment]) >> 16",
           "at.Random(keys[moment]) & 0xffffu"),
    # --- AdamW with 8-bit moments ---
    update("a block's last thread writes the scale", "at.column % kGroup == 0", "at.column % kGroup == kGroup - 1",
           after="struct BlockState"),
    update("small magnitudes become zero also where the map has them",
           "x < map.decades[0].from && magnitude <= map.most_zero", "x < map.decades[0].from"),
    update("a NaN is not among the largest", "simt::BitsOf(value) & 0x7fffffffu",
           "(value != value ? 0u : simt::BitsOf(value) & 0x7fffffffu)", after="MagnitudeBits(float value)"),
    # --- AdamW with compact state ---
    update("a row's groups have the first one's largest", "shared.parts.Read(group * kParts + i)", "shared.parts.Read(i)"),
    update("groups are of 256 elements in a row", "at.column / group * bytes", "at.column / 256 * bytes"),
    update("the residual is rounded by a moment's key", "at.Random(residual_key)", "at.Random(keys[0])"),
    update("a residual is never negative", "static_cast<int8_t>(residual)", "residual", file=ENCODED),
    update("a first moment loses its sign", "level * (level < 0 ? -level : level)", "level * level", file=ENCODED),
    update("first moments are rounded to nearest", "UniformOf<8, 10>(word)", "0.5f", file=ENCODED),
    update("the scale of a group with a NaN is finite", "magnitude_bits > 0x7f800000u", "false", file=ENCODED),
    # --- What tests might not reach ---
    emulator("a launch within another ends the other", "EmulatedRun::Current() = outer;", NOTHING + ";"),
    element("an element is read by a 32-bit index", "row * stride + column", "static_cast<int32_t>(row * stride + column)",
            file=f"{GPU}matrix.h", after="simt::Load(type, data, "),
    element("an element is written by a 32-bit index", "row * stride + column", "static_cast<int32_t>(row * stride + column)",
            file=f"{GPU}matrix.h", after="simt::Store(type, value, data, "),
    kernel("cross_entropy", "the loss is lost beside the largest logit",
           "std::log(state.sum) + (state.largest - state.target_logit)",
           "std::log(state.sum) + state.largest - state.target_logit"),
    update("random bits are those of 32-bit elements", "first_element + static_cast<uint64_t>(at.index)",
           "static_cast<uint32_t>(first_element + static_cast<uint64_t>(at.index))"),
    update("a factor is rounded with the gradient's scale", "f.one_minus_beta1 * g",
           "f.one_minus_beta1 * f.gradient_scale * simt::Load(gradient_type, gradient, at.index)"),
    update("an infinity over an infinite scale is NaN", "ratio <= 1.0f ? ratio : 1.0f", "ratio"),
    update("a level goes past its decade's last", "level < decade.last ? level : decade.last", "level"),
    update("small magnitudes become zero", "level > map.least_level ? level : map.least_level", "level"),
    update("a group's parts are read too early", "block.Sync()", NOTHING,
           after="shared.parts.Write(group * kParts + member, largest);"),
    update("an infinite scale is finite", "magnitude_bits == 0x7f800000u", "false", file=ENCODED),
    update("a scale is less than the least", "up < kLeast ? kLeast : up > kMost ? kMost : up",
           "up > kMost ? kMost : up", file=ENCODED),
    update("a level goes past the largest", "scaled <= most ? scaled : most", "scaled", file=ENCODED,
           after="const float scaled = (value < 0"),
)

FAULTS = OWN + OTHERS
