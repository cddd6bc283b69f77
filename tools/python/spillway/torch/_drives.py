# SPDX-License-Identifier: Apache-2.0
"""Opens the engine of a run, and measures the drives of its store if that is wanted."""

from __future__ import annotations

from typing import Any

import spillway
from spillway._engine import number_of
from spillway._folders import named
from spillway.torch._report import decimal_bytes, say

_CALIBRATE = ("auto", "now", "off")
# With less pinned memory the library measures no drive (include/spillway/engine.h).
_LEAST_PINNED = 16 << 20


def open_engine(folders: list[str], calibrate: str, *, pinned_bytes: int, **options: Any) -> spillway.Engine:
    """Opens an engine on a store in these folders; none: without a store. `calibrate`: "auto" measures the drives of a store of
    several folders that has no commit yet, "now" those of any store, again, "off" none. Lines on stderr say that drives are
    measured, and what was found."""
    number_of(calibrate, _CALIBRATE, "calibrate")

    def opened(calibration: str) -> spillway.Engine:
        return spillway.Engine(folders or None, mode="open_or_create" if folders else "create", pinned_bytes=pinned_bytes,
                               calibration=calibration, **options)

    if calibrate == "now" and not folders:
        raise spillway.InvalidArgument("calibrate='now' measures the drives of a store, and there is none: name its folders")
    if calibrate == "now" and pinned_bytes < _LEAST_PINNED:
        raise spillway.InvalidArgument(f"calibrate='now' with pinned={pinned_bytes}: measuring takes {_LEAST_PINNED} bytes of "
                                       "pinned memory")
    if calibrate != "now":
        engine = opened("keep")
        if calibrate == "off" or len(folders) < 2 or engine.commit_number > 0:
            return engine
        if pinned_bytes < _LEAST_PINNED:
            say(f"measuring drives takes pinned= of at least {_LEAST_PINNED >> 20} MiB, {_equal_shares(folders)}")
            return engine
        engine.close()
    say(f"measures the drives of {named(folders)}, some 6 s each, which calibrate='off' of spillway.torch.open leaves out")
    engine = opened("now" if calibrate == "now" else "if_none")
    stats = engine.stats()
    for line in _rates(stats["drives"]):
        say(line)
    for failure in stats["fallbacks"]:
        if "could be measured" in failure:
            say(f"{failure}, {_equal_shares(folders)}")
    return engine


def _equal_shares(folders: list[str]) -> str:
    return f"so {named(folders)} get equal shares of the bytes"


def _rates(drives: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each drive that was measured. include/spillway/stats.h defines the shares."""
    measured = [drive for drive in drives if drive["read_bytes_per_second"] > 0]
    seconds = [1 / drive["read_bytes_per_second"] + 1 / drive["write_bytes_per_second"] for drive in measured]
    lines = []
    for drive, own in zip(measured, seconds):
        line = (f"{drive['folder']} reads {decimal_bytes(drive['read_bytes_per_second'])} and writes "
                f"{decimal_bytes(drive['write_bytes_per_second'])} a second")
        if len(measured) == len(drives) > 1:
            line += f", so it gets {1 / own / sum(1 / each for each in seconds):.0%} of the bytes"
        lines.append(line)
    return lines
