# SPDX-License-Identifier: Apache-2.0

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/checks"))

import ci_summary

RESULTS = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="(empty)" tests="4">
  <testcase name="quick_test" classname="quick_test" time="0.25" status="run"/>
  <testcase name="gpu_test" classname="gpu_test" time="0.1" status="notrun">
    <skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>
  <testcase name="slow_test" classname="slow_test" time="61.5" status="run"/>
  <testcase name="bad_test" classname="bad_test" time="2" status="{status}">{what}</testcase>
</testsuite>
"""


class CiSummaryTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def write(self, run, status, what=""):
        (self.path / f"{run}.xml").write_text(RESULTS.format(status=status, what=what), encoding="utf-8")

    def test_steps_and_their_sum(self):
        (self.path / "seconds.tsv").write_text("set-up\t100\nclang-tidy: FAILED\t20\n", encoding="utf-8")
        lines = ci_summary.summary(self.path).splitlines()
        self.assertIn("     100 s  set-up", lines)
        self.assertIn("      20 s  clang-tidy: FAILED", lines)
        self.assertIn("     120 s  in all", lines)

    def test_slowest_first_over_all_runs_and_a_closing_line(self):
        self.write("release", "run")
        self.write("asan", "run")
        lines = ci_summary.summary(self.path).splitlines()
        first = lines[lines.index("The 8 slowest tests:") + 1]
        self.assertEqual(first, "      62 s  slow_test (asan)")
        self.assertEqual(lines[-1], "100% tests passed, 0 tests failed out of 8")

    def test_a_failure_is_counted_and_a_skip_is_not(self):
        self.write("release", "fail", '<failure message="Failed"/>')
        self.assertEqual(ci_summary.summary(self.path).splitlines()[-1],
                         "75% tests passed, 1 tests failed out of 4")

    def test_skipped_tests_are_named(self):
        self.write("release", "run")
        self.write("asan", "run")
        lines = ci_summary.summary(self.path).splitlines()
        self.assertEqual(lines[-2], "2 skipped: gpu_test (asan), gpu_test (release)")

    def test_no_skipped_test_is_no_line(self):
        (self.path / "release.xml").write_text(
            '<testsuite><testcase name="quick_test" time="0.25" status="run"/></testsuite>', encoding="utf-8")
        self.assertNotIn("skipped", ci_summary.summary(self.path))

    def test_only_the_slowest_twenty(self):
        for run in range(10):
            self.write(f"run{run}", "run")
        lines = ci_summary.summary(self.path).splitlines()
        self.assertEqual(len(lines) - lines.index("The 20 slowest tests:") - 4, 20)


if __name__ == "__main__":
    unittest.main()
