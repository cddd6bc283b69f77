# SPDX-License-Identifier: Apache-2.0
"""Kills ranks of a job, which torchrun starts again (kills_of_ranks.py). It must end as a job without kills does."""

import pathlib
import random
import sys
import tempfile
import unittest

import kills_of_ranks

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import seed  # noqa: E402


class KillsTest(unittest.TestCase):
    def check(self, kind, kills):
        with tempfile.TemporaryDirectory(prefix="spillway-kills-") as scratch:
            kills_of_ranks.check(pathlib.Path(scratch), kind, 2, kills)


class SampleTest(KillsTest):
    def test_ranks_are_killed_between_their_commits_and_during_a_load(self):
        chance = random.Random(seed.draw_seed())
        kills = kills_of_ranks.plan(chance, 2, 2, "commit")
        self.check("commit", [kills[0] | {"where": "commit", "turn": 0}, kills[1] | {"where": "load", "turn": 1}])


class TwentyTest(KillsTest):
    def test_ranks_are_killed_at_random_moments(self):
        chance = random.Random(seed.draw_seed())
        for kind in ("commit", "tensors"):
            self.check(kind, kills_of_ranks.plan(chance, 20, 2, kind))


if __name__ == "__main__":
    unittest.main()
