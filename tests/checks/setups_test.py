# SPDX-License-Identifier: Apache-2.0
"""Tests the exit codes of tests/torch/setup and tests/reference/setup if pip fails: 3, which continuous integration takes
as a reason to skip tests, only if the package index does not answer."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Takes the place of Python's module venv.
VENV = """
import os, pathlib, sys
if __name__ == "__main__":
    bin = pathlib.Path(sys.argv[-1]) / "bin"
    bin.mkdir(parents=True)
    (bin / "pip").write_text(os.environ["PIP_SCRIPT"])
    (bin / "pip").chmod(0o755)
"""
DF = "#!/bin/sh\necho Avail\necho 99000000000\n"
PIP = """#!/bin/sh
echo "pip $*" >>{calls}
[ "$1" = download ] && exit {download}
echo 'ERROR: No matching distribution found for transformers' >&2
exit 1
"""


class SetupsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for path in ("tools/progress.sh", "tests/torch/setup", "tests/torch/requirements.txt", "tests/reference/setup",
                     "tests/reference/requirements.txt"):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, self.root / path)
        (self.root / "python").mkdir()
        (self.root / "python" / "venv.py").write_text(VENV)
        (self.root / "python" / "torch.py").write_text("")
        (self.root / "bin").mkdir()
        (self.root / "bin" / "df").write_text(DF)
        (self.root / "bin" / "df").chmod(0o755)

    def status(self, setup, index_answers):
        """Returns the exit code of the setup with a pip that finds no distribution."""
        calls = self.root / "calls"
        pip = PIP.format(calls=calls, download=0 if index_answers else 1)
        ended = subprocess.run([self.root / setup], capture_output=True, text=True, env={
            **os.environ, "PYTHONPATH": str(self.root / "python"), "PIP_SCRIPT": pip,
            "PATH": f"{self.root}/bin:{os.environ['PATH']}"})
        self.assertIn("pip install", calls.read_text(), ended.stderr)
        self.assertIn("ERROR: No matching distribution found", ended.stderr)
        self.assertIn("pip could not install", ended.stderr)
        self.assertEqual(list(self.root.glob("build/*/bin")), [], "what is left would count as installed")
        return ended.returncode

    def test_what_the_index_does_not_have_is_an_error(self):
        for setup in ("tests/torch/setup", "tests/reference/setup"):
            with self.subTest(setup):
                self.assertEqual(self.status(setup, index_answers=True), 1)

    def test_an_index_that_does_not_answer_is_a_reason_to_skip(self):
        for setup in ("tests/torch/setup", "tests/reference/setup"):
            with self.subTest(setup):
                self.assertEqual(self.status(setup, index_answers=False), 3)


if __name__ == "__main__":
    unittest.main()
