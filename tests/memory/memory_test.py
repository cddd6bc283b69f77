# SPDX-License-Identifier: Apache-2.0
"""Tests that training stays within the memory that it was given: memory_test.py SPILLWAY_COMMAND [CLASS]

Resident memory may take at most budgets + workspace + 200 MiB. Two things check this: a memory cgroup of that size,
which kills a process that exceeds it, and the process's own high-water mark. Neither counts pages of hugetlbfs. The
calibration uses some where the machine has reserved any, so the test adds them to the mark. A model ten times as large
trains within the same limit (TenTimesTest). A small model trains in budgets of a few tiles, with several page sizes, and
gives the same bits as without budgets.

If SPILLWAY_TEST_ONE_POINT is set, CLASS must be given, and only one of its tests is run, which the seed chooses
(tests/exhaustive.h).
"""

import json
import os
import pathlib
import random
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import memory_limit  # noqa: E402
import seed  # noqa: E402
import small_inputs  # noqa: E402

MIB = 2**20
DEVICE_BYTES, PINNED_BYTES = 16 * MIB, 48 * MIB
ALLOWANCE_BYTES = 200 * MIB

# 44 M parameters: 16 bytes each are 671 MiB of state, twice the memory of the test.
LARGE = {"vocab_size": 8192, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 6,
         "num_attention_heads": 12, "num_key_value_heads": 4}
# 440 M parameters, 6.6 GiB of state, in layers of the same size as LARGE's.
TEN_TIMES = {**LARGE, "num_hidden_layers": 69}
# The largest tensors, 400 x 256 in fp32, take 0.4 MB.
SMALL = {"vocab_size": 400, "hidden_size": 256, "intermediate_size": 400, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2}


class TrainingTest(unittest.TestCase):
    command = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="spillway-memory-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.stores = 0

    def make_inputs(self, sizes):
        self.model, self.data = small_inputs.make(self.folder, sizes)

    def words(self, *flags):
        return [str(word) for word in (self.command, "train", "--model", self.model, "--data", self.data, "--init", "random",
                                       "--seed", 3, "--threads", 2, "--hash-weights", "--json", *flags)]

    def train(self, *flags, group=None):
        """Trains. Returns the JSON object that the run prints, with `hugetlb_bytes` added."""
        words = self.words(*flags)
        done = memory_limit.run(words, group)
        self.assertEqual(done.returncode, 0, f"{' '.join(words)}\n{done.stderr[-2000:]}")
        return {**json.loads(done.stdout), "hugetlb_bytes": done.hugetlb_bytes}

    def new_store(self):
        self.stores += 1
        return self.folder / f"store{self.stores}"

    def train_in_limit(self, limit, *flags):
        """Trains in a group of `limit` bytes if one can be made, and checks the memory used. Returns the run's JSON object."""
        flags = (*flags, "--device-bytes", DEVICE_BYTES, "--pinned-bytes", PINNED_BYTES, "--store", self.new_store())
        try:
            with memory_limit.memory_group(limit) as group:
                held = self.train(*flags, group=group)
                charged = memory_limit.peak_bytes(group)
        except memory_limit.Unavailable as why:
            print(f"no memory cgroup ({why}): only the high-water mark is checked", file=sys.stderr)
            held, charged = self.train(*flags), None
        state = 16 * held["parameters"]
        self.assertLess(limit, 0.6 * state, "the limit would prove nothing")
        self.assertLessEqual(held["peak_bytes"]["device"], DEVICE_BYTES)
        self.assertLessEqual(held["peak_bytes"]["pinned"], PINNED_BYTES)
        self.assertLessEqual(held["peak_rss_bytes"] + held["hugetlb_bytes"], limit)
        print(f"state {state / MIB:.0f} MiB, limit {limit / MIB:.0f} MiB: peak resident "
              f"{held['peak_rss_bytes'] / MIB:.0f} MiB, workspace {held['workspace_bytes'] / MIB:.0f} MiB, charged "
              f"{'unknown' if charged is None else f'{charged / MIB:.0f} MiB'}", file=sys.stderr)
        return held


class LargeTest(TrainingTest):
    def check_large(self, *flags):
        """Trains outside a group, which gives the workspace for the limit, then in one. Both must give the same weights."""
        self.make_inputs(LARGE)
        flags = ("--steps", 2, "--seq", 128, *flags)
        free = self.train(*flags)
        limit = DEVICE_BYTES + PINNED_BYTES + free["workspace_bytes"] + ALLOWANCE_BYTES
        held = self.train_in_limit(limit, *flags)
        self.assertEqual(held["weights_hash"], free["weights_hash"])

    def test_fp16_amp_in_a_limited_group(self):
        self.check_large("--precision", "fp16-amp")

    def test_fp32_in_a_limited_group(self):
        self.check_large("--precision", "fp32")

    def test_without_checkpointing_in_a_limited_group(self):
        self.check_large("--precision", "fp16-amp", "--checkpoint-activations", "off", "--batch", 2)


class SmallTest(TrainingTest):
    def check_small(self, precision):
        self.make_inputs(SMALL)
        flags = ("--steps", 4, "--seq", 64, "--batch", 2, "--precision", precision)
        free = self.train(*flags)
        for page_kib in (64, 128, 256, 512, 1024):
            with self.subTest(page_kib=page_kib):
                held = self.train(*flags, "--device-bytes", "1MiB", "--pinned-bytes", "6MiB", "--page-bytes",
                                  f"{page_kib}KiB", "--store", self.new_store())
                self.assertEqual(held["weights_hash"], free["weights_hash"])
                self.assertEqual(held["final_loss"], free["final_loss"])
                self.assertLessEqual(held["peak_bytes"]["device"], MIB)
                self.assertLessEqual(held["peak_bytes"]["pinned"], 6 * MIB)
                self.assertLess(held["peak_bytes"]["pinned"], held["peak_bytes"]["nvme"])

    def test_one_mebibyte_of_device_fp16_amp(self):
        self.check_small("fp16-amp")

    def test_one_mebibyte_of_device_bf16(self):
        self.check_small("bf16")

    def test_one_mebibyte_of_device_fp32(self):
        self.check_small("fp32")


class TenTimesTest(TrainingTest):
    def test_a_model_ten_times_as_large_in_the_same_limit(self):
        flags = ("--steps", 2, "--seq", 32, "--precision", "fp16-amp", "--durability", "none", "--calibrate", "off")
        self.make_inputs(LARGE)
        small = self.train(*flags)
        limit = DEVICE_BYTES + PINNED_BYTES + small["workspace_bytes"] + ALLOWANCE_BYTES
        small_held = self.train_in_limit(limit, *flags)
        self.assertEqual(small_held["weights_hash"], small["weights_hash"])
        self.make_inputs(TEN_TIMES)
        large = self.train_in_limit(limit, *flags)
        self.assertAlmostEqual(large["parameters"] / small["parameters"], 10, delta=0.1)
        # Its tiles are larger, so its workspace may be, too. Its limit is still that of the small model.
        self.assertGreaterEqual(large["workspace_bytes"], small["workspace_bytes"])
        self.assertEqual(large["steps"], 2)


if __name__ == "__main__":
    TrainingTest.command = sys.argv.pop(1)
    if "SPILLWAY_TEST_ONE_POINT" in os.environ:  # the last argument is CLASS
        names = unittest.defaultTestLoader.getTestCaseNames(globals()[sys.argv[-1]])
        sys.argv[-1] += "." + random.Random(seed.draw_seed()).choice(names)
    unittest.main()
