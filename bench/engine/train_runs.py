# SPDX-License-Identifier: Apache-2.0
"""For benchmarks that run `spillway train`: its arguments, its command line, and rows of tables."""

import pathlib
import signal
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
sys.dont_write_bytecode = True
import machine  # noqa: E402, F401  (tools/machine.py)


def clean_up_when_ended():
    """Makes SIGTERM and SIGHUP end this process by an exception. A second signal is ignored, so that it can clean up."""
    signals = (signal.SIGTERM, signal.SIGHUP)

    def end(number, _):
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    for each in signals:
        signal.signal(each, end)


def add_arguments(parser):
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/quickstart/model")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "build/quickstart/data")
    parser.add_argument("--store", type=pathlib.Path, default=ROOT / "build", help="folder for scratch stores")
    parser.add_argument("--spillway", type=pathlib.Path, default=ROOT / "build/release/bin/spillway")
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--threads", type=int, help="of the trainer (default: its own)")


def check_files(arguments, parser):
    for path, cure in ((arguments.spillway, "tools/setup builds it"), (arguments.model, "tools/quickstart makes it"),
                       (arguments.data, "tools/quickstart makes it")):
        if not path.exists():
            sys.exit(f"{parser.prog}: {path} is missing; {cure}")


def command(arguments, steps, log, device=None, pinned=None, store=None, more=(), program=None):
    """Returns the words of a command. Without budgets and a store it trains in memory. `program` replaces --spillway."""
    words = [program or arguments.spillway, "train", "--model", arguments.model, "--data", arguments.data, "--precision", "fp16-amp",
             "--loss-scale", 8192, "--seq", arguments.seq, "--batch", arguments.batch, "--steps", steps, "--lr", "5e-5",
             "--log-json", log, "--json"]
    if arguments.threads:
        words += ["--threads", arguments.threads]
    if device:
        words += ["--device-bytes", device]
    if pinned:
        words += ["--pinned-bytes", pinned]
    if store:
        words += ["--store", store, "--durability", "none", "--calibrate", "off"]
    return [str(word) for word in (*words, *more)]


def row(cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
