# SPDX-License-Identifier: Apache-2.0
"""Runs tools/python/examples/lightning_module.py, which uses spillway.torch in Lightning's configure_optimizers."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

from torch_case import TorchTest

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "tools/python/examples/lightning_module.py"


class LightningTest(TorchTest):
    def losses(self, store, *flags):
        command = [sys.executable, str(EXAMPLE), str(self.folder / store), "--out", str(self.folder / f"{store}-out"), *flags]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
                              timeout=500)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])["losses"]

    def test_it_trains_as_torchs_and_a_resumed_run_gives_the_same_bits(self):
        whole = self.losses("whole")
        self.assertEqual(len(whole), 40)
        self.assertLess(whole[-1], 0.5 * whole[0])
        for ours, torchs in zip(whole, self.losses("memory", "--memory")):
            self.assertAlmostEqual(ours, torchs, delta=1e-4)
        self.assertEqual(self.losses("cut", "--steps", "10") + self.losses("cut", "--resume"), whole)


if __name__ == "__main__":
    unittest.main()
