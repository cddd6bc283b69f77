# SPDX-License-Identifier: Apache-2.0
"""Tests how tools/checks/wheel reads the report of `auditwheel show`."""

import pathlib
import subprocess
import unittest

WHEEL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "checks" / "wheel"

SYSTEM_LIBRARIES_ONLY = """
spillway_offload-0.1.0-py3-none-linux_x86_64.whl is consistent with
the following platform tag: "manylinux_2_35_x86_64".

The wheel references external versioned symbols in these
system-provided shared libraries: libc.so.6 with versions
{'GLIBC_2.34'}

This constrains the platform tag to "manylinux_2_35_x86_64".
"""

# The wheel needs liburing.so.2, which a system may lack.
OTHER_LIBRARIES = """
spillway_offload-0.1.0-py3-none-linux_x86_64.whl is consistent with
the following platform tag: "linux_x86_64".

The wheel references external versioned symbols in these
system-provided shared libraries: libc.so.6 with versions
{'GLIBC_2.34'}, liburing.so.2 with versions {'LIBURING_2.3'}

This constrains the platform tag to "manylinux_2_35_x86_64". In order
to achieve a more compatible tag, you would need to recompile a new
wheel from source on a system with earlier versions of these
libraries, such as a recent manylinux image.
"""


def is_manylinux(report):
    return subprocess.run(["bash", "-c", f"source '{WHEEL}' && is_manylinux"], input=report, text=True).returncode == 0


class WheelTest(unittest.TestCase):
    def test_a_wheel_that_needs_system_libraries_only(self):
        self.assertTrue(is_manylinux(SYSTEM_LIBRARIES_ONLY))

    def test_the_line_may_be_folded_elsewhere(self):
        self.assertTrue(is_manylinux(SYSTEM_LIBRARIES_ONLY.replace("with\nthe", "with the").replace("tag: ", "tag:\n", 1)))

    def test_a_wheel_that_needs_other_libraries(self):
        self.assertFalse(is_manylinux(OTHER_LIBRARIES))

    def test_no_report(self):
        self.assertFalse(is_manylinux(""))


if __name__ == "__main__":
    unittest.main()
