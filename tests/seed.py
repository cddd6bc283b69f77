# SPDX-License-Identifier: Apache-2.0
"""The seed of a random test: SPILLWAY_TEST_SEED repeats a run that printed it. tests/seed.h does the same for C++.

Uses only Python's standard library.
"""

import os
import random
import re


def seed_line(seed):
    """Returns a seed as it is printed: the assignment that repeats the test, or the round, that used it."""
    return f"SPILLWAY_TEST_SEED={seed}"


def draw_seed():
    """Returns SPILLWAY_TEST_SEED or, if it is not set, a random number. Prints it. ValueError if the variable is not a
    number below 2^64."""
    given = os.environ.get("SPILLWAY_TEST_SEED")
    if given is None:
        seed = random.SystemRandom().randrange(1 << 32)
    else:
        if not re.fullmatch("[0-9]+", given) or int(given) >= 1 << 64:
            raise ValueError(f"SPILLWAY_TEST_SEED is '{given}': want a number from 0 to 2^64 - 1")
        seed = int(given)
    print(seed_line(seed), flush=True)
    return seed
