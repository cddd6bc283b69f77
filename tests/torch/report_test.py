# SPDX-License-Identifier: Apache-2.0
"""Tests what a run prints about itself."""

import contextlib
import gc
import io
import re
import subprocess
import sys
import unittest

import spillway.torch as st
import torch
from torch_case import TorchTest, make_params, set_gradients


class ReportTest(TorchTest):
    """What a run prints at its first step and at its end."""

    SIZE = 1 << 20  # elements: the parameter has 4 MiB, and its moments have 8 MiB

    def printed(self, steps, **words):
        gc.collect()  # so that the run of an earlier test prints its last line now
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            run = st.open(self.folder / "run", pinned="4MiB", **words)
            params = [torch.nn.Parameter(torch.zeros(self.SIZE))]
            optimizer = st.AdamW(params, store=run)
            for step in range(steps):
                params[0].grad = torch.ones(self.SIZE)
                optimizer.step()
                self.assertEqual(err.getvalue().count("\n"), int(words.get("report", True)), "one line, at the first step")
            run.close()
            run.close()
        return err.getvalue().splitlines()

    def test_both_lines_say_what_is_saved_and_the_last_what_a_step_takes(self):
        first, last = self.printed(5)
        self.assertIn(f"8.0 MiB rest in {self.folder / 'run'}, at most 4.0 MiB of them in memory: at least 4.0 MiB saved", first)
        found = re.search(r"5 steps; [\d.e-]+ s, ([\d.]+) MB read and ([\d.]+) MB written a step; 8.0 MiB rested in the store "
                          r"and ([\d.]+) MiB of memory: ([\d.]+) MiB saved$", last)
        self.assertTrue(found, last)
        read, written, memory, saved = map(float, found.groups())
        # What stays in memory between steps is not moved. What the first step left to do is moved in the other four steps.
        for moved in (read, written):
            self.assertLessEqual(moved, (8 + 4 / 4) * 1.048576 + 0.01)
            self.assertGreaterEqual(moved, (4 - 4 / 4) * 1.048576 - 0.01)
        self.assertLessEqual(memory, 4.0)
        self.assertAlmostEqual(saved, 8.0 - memory, delta=0.11)

    def test_what_follows_the_last_step_is_no_steps_and_another_optimizer_goes_on_counting(self):
        gc.collect()
        err = io.StringIO()
        with contextlib.redirect_stderr(err), st.open(self.folder / "run", pinned="4MiB") as run:
            for steps in (2, 3):
                param = torch.nn.Parameter(torch.zeros(1000))
                optimizer = st.SGD([param], momentum=0.9, store=run)
                for _ in range(steps):
                    param.grad = torch.ones(1000)
                    optimizer.step()
                del optimizer
                gc.collect()
            id = run.engine.register("later", "u8", [16, 1 << 20], tile_rows=1)
            run.engine.write(id, bytes(16 << 20))
        self.assertIn("spillway.torch: 5 steps; ", err.getvalue())
        written = re.search(r"([\d.]+) (kB|MB) written a step", err.getvalue())
        self.assertLess(float(written.group(1)) * {"kB": 1e3, "MB": 1e6}[written.group(2)], 100e3)

    def test_of_one_step_no_rate_is_known_and_of_none_nothing_is_said(self):
        self.assertNotIn("a step", self.printed(1)[1])
        self.assertEqual(self.printed(0), [])

    def test_it_can_be_left_out(self):
        self.assertEqual(self.printed(2, report=False), [])

    def test_a_program_that_closes_nothing_prints_its_end(self):
        script = ("import torch, spillway.torch as st\n"
                  "p = torch.nn.Parameter(torch.ones(1000))\n"
                  f"o = st.SGD([p], momentum=0.9, store={str(self.folder / 'left')!r})\n"
                  "for _ in range(3):\n    p.grad = torch.ones(1000)\n    o.step()\n")
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        self.assertIn("spillway.torch: 3 steps; ", done.stderr)

    def test_an_optimizer_that_is_gone_before_its_run_is_counted(self):
        script = ("import torch, spillway.torch as st\n"
                  "def main():\n"
                  "    p = torch.nn.Parameter(torch.ones(1 << 20))\n"
                  f"    o = st.AdamW([p], store={str(self.folder / 'local')!r}, pinned='4MiB')\n"
                  "    for _ in range(3):\n        p.grad = torch.ones(1 << 20)\n        o.step()\n"
                  "main()\n")
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        self.assertIn("8.0 MiB rested in the store", done.stderr)

    def test_nobody_has_to_read_it(self):
        closed = io.StringIO()
        closed.close()
        with contextlib.redirect_stderr(closed):
            with st.open(self.folder / "unread") as run:
                params = make_params()
                set_gradients(params, 0)
                st.AdamW(params, store=run).step()

    def test_without_a_store_nothing_is_claimed(self):
        err = io.StringIO()
        with contextlib.redirect_stderr(err), st.open() as run:
            params = make_params()
            optimizer = st.AdamW(params, store=run)
            for step in range(2):
                set_gradients(params, step)
                optimizer.step()
        self.assertIn("none is saved", err.getvalue())
        self.assertNotIn("saved\n", err.getvalue().replace("none is saved", ""))


if __name__ == "__main__":
    unittest.main()
