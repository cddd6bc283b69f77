# SPDX-License-Identifier: Apache-2.0
"""Runs the command that the wheel carries: `spillway plan ...`, or `python -m spillway plan ...`."""

import os
import pathlib
import sys


def main():
    command = pathlib.Path(__file__).parent / "bin" / "spillway"
    if not command.exists():
        sys.exit("spillway: no command lies beside this copy of the package; `pip install .` in a clone builds both")
    if not os.access(command, os.X_OK):  # some installers drop the mode of a package's files
        command.chmod(0o755)
    os.execv(command, ["spillway", *sys.argv[1:]])


if __name__ == "__main__":
    main()
