# SPDX-License-Identifier: Apache-2.0
"""Runs tools/checks/stress on a folder that ctest reads. Its tests are small shell commands."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import script  # noqa: E402

stress = script.load("stress")


class StressTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name).resolve()
        self.tmp = self.build / "tmp"
        self.tmp.mkdir()
        self.lines = []

    def add(self, name, shell="true", **properties):
        """Adds a test that runs `shell`."""
        self.lines.append(f"add_test({name} [==[/bin/sh]==] [==[-c]==] [==[{shell}]==])")
        given = "".join(f" {key} [==[{value}]==]" for key, value in ({"LABELS": "unit"} | properties).items())
        self.lines.append(f"set_tests_properties({name} PROPERTIES{given})")
        (self.build / "CTestTestfile.cmake").write_text("\n".join(self.lines) + "\n")

    def command(self, *arguments):
        return [sys.executable, str(script.CHECKS / "stress"), "--build", str(self.build), *arguments]

    def run_it(self, *arguments, code=0):
        ended = subprocess.run(self.command(*arguments), capture_output=True, text=True,
                               env={**os.environ, "TMPDIR": str(self.tmp)})
        self.assertEqual(ended.returncode, code, ended.stdout + ended.stderr)
        self.assertEqual(list(self.tmp.iterdir()), [])  # every run's folder is removed
        return ended.stdout + ended.stderr

    def test_each_test_runs_so_often(self):
        self.add("one", f"echo run >>{self.build}/one")
        self.add("two", f"echo run >>{self.build}/two", LABELS="unit;threads")
        output = self.run_it("--copies", "3")
        self.assertEqual((self.build / "one").read_text().count("run"), 3 * stress.REPEAT_OTHERS)
        self.assertEqual((self.build / "two").read_text().count("run"), 3 * stress.REPEAT_WITH_THREADS)
        self.assertIn("2 tests, 66 runs, 0 failed, 0 skipped", output)
        self.assertIn("13 runs, 0 failed", self.run_it("--copies", "1", "--repeat", "13", "one"))

    def test_copies_run_at_once(self):
        # Each copy waits until three of them run.
        self.add("meeting", f"touch {self.build}/here-$$; "
                 f"until [ $(ls {self.build} | grep -c here-) -ge 3 ]; do sleep 0.01; done", TIMEOUT="20")
        self.run_it("--copies", "3", "--repeat", "1")

    def test_a_test_of_its_own_runs_one_at_a_time(self):
        self.add("alone", f"mkdir {self.build}/taken && sleep 0.02 && rmdir {self.build}/taken", RUN_SERIAL="ON")
        self.run_it("--copies", "4", "--repeat", "2")

    def test_a_failure_is_printed_with_its_seed_and_its_first_failing_line(self):
        self.add("broken", "printf '[ RUN      ] Store.Opens\\nstore_test.cc:7: Failure\\nExpected equality\\n"
                 "store_test.cc:9: Failure\\n'; exit 1", ENVIRONMENT="GTEST_FILTER=-*/cuda")
        output = self.run_it("--copies", "1", "--repeat", "2", code=1)
        line = "FAILED broken, exit 1: Store.Opens: store_test.cc:7: Failure Expected equality\n"
        self.assertEqual(output.count(line), 2)
        self.assertRegex(output, r"\n  GTEST_FILTER='-\*/cuda' SPILLWAY_TEST_SEED=\d+ SPILLWAY_TEST_ONE_POINT=1 /bin/sh -c ")
        self.assertIn("  broken: 2 failed", output)
        self.assertEqual(len(list((self.build / "stress").glob("broken-*.log"))), 2)

    def test_a_flaky_test_is_repeated_by_its_seed(self):
        self.add("flaky", 'test $((SPILLWAY_TEST_SEED % 3)) -ne 0 || { echo "check failed: seed"; exit 3; }')
        output = self.run_it("--copies", "4", "--repeat", "10", "--seed", "5", code=1)
        seeds = [int(seed) for seed in re.findall(r"SPILLWAY_TEST_SEED=(\d+)", output)]
        self.assertTrue(0 < len(seeds) < 40)
        self.assertTrue(all(seed % 3 == 0 for seed in seeds))
        self.assertIn(f"flaky: 40 runs, {len(seeds)} failed", output)
        again = self.run_it("--copies", "4", "--repeat", "10", "--seed", "5", code=1)
        self.assertEqual(sorted(int(seed) for seed in re.findall(r"SPILLWAY_TEST_SEED=(\d+)", again)), sorted(seeds))

    def test_a_test_that_hangs_is_killed_with_its_children(self):
        child = self.build / "child"
        self.add("hanging", f"sleep 6000 & echo $! >{child}; wait", TIMEOUT="2")
        while not (child.exists() and child.read_text().strip()):  # under load, shells may be killed before they write
            self.assertIn("FAILED hanging, timed out after 4 s: ", self.run_it("--copies", "2", "--repeat", "1", code=1))
        self.assertTrue(ends(int(child.read_text())), "a child is still there")

    def test_a_crash(self):
        self.add("crash", "kill -SEGV $$")
        self.assertIn("FAILED crash, killed by SIGSEGV: it printed nothing",
                      self.run_it("--copies", "1", "--repeat", "1", code=1))

    def test_skipped_is_not_failed(self):
        self.add("skipped", "exit 77", SKIP_RETURN_CODE="77")
        self.assertIn("1 tests, 2 runs, 0 failed, 2 skipped", self.run_it("--copies", "2", "--repeat", "1"))

    def test_a_skipped_case_hides_no_failure(self):
        self.add("broken", "echo '[  SKIPPED ] Store.Opens'; exit 1", SKIP_RETURN_CODE="77")
        self.assertIn("1 failed, 0 skipped", self.run_it("--copies", "1", "--repeat", "1", code=1))

    def test_runs_share_no_folder(self):
        self.add("writes", "mkdir here $TMPDIR/there $TEST_TMPDIR/elsewhere && sleep 0.05")
        self.run_it("--copies", "4", "--repeat", "2")

    def test_a_working_folder_among_the_sources_stays(self):
        self.add("reads", "test -f stress_test.py", WORKING_DIRECTORY=str(pathlib.Path(__file__).resolve().parent))
        self.run_it("--copies", "1", "--repeat", "1")

    def names(self, *arguments, code=0):
        return re.findall(r"^(\w+): \d+ runs", self.run_it("--copies", "1", "--repeat", "1", *arguments, code=code),
                          re.MULTILINE)

    def test_choice(self):
        self.add("page", LABELS="unit")
        self.add("mover", LABELS="unit;threads")
        self.add("grid", LABELS="slow")
        self.add("device", LABELS="gpu")
        self.add("torch", LABELS="reference")
        self.assertEqual(self.names(), ["mover", "page"])
        self.assertEqual(self.names("--label", "threads"), ["mover"])
        self.assertEqual(self.names("--label", "!threads"), ["page"])
        self.assertEqual(self.names("--label", "slow"), ["grid"])
        self.assertEqual(self.names("^p"), ["page"])
        self.assertEqual(self.names("nothing", code=2), [])

    def test_parts_hold_each_test_once_whatever_ran_before(self):
        names = [f"test{number}" for number in range(20)]
        for name in names:
            self.add(name)
        parts = [self.names("--part", "1/3"), self.names("--part", "2/3")]
        folder = self.build / "Testing" / "Temporary"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "CTestCostData.txt").write_text("test1 1 100\ntest2 1 1\n---\n")
        parts.append(self.names("--part", "3/3"))
        self.assertEqual(sorted(sum(parts, [])), sorted(names))
        self.assertLessEqual(max(map(len, parts)) - min(map(len, parts)), 1)

    def test_what_a_test_leaves_behind_is_killed(self):
        self.add("careless", f"sleep 6000 & echo $! >{self.build}/child")
        self.run_it("--copies", "1", "--repeat", "1")
        child = int((self.build / "child").read_text())
        self.assertTrue(ends(child), f"process {child} is still there")

    def test_wrong_usage(self):
        self.add("page")
        for arguments in (["--part", "3/2"], ["--part", "0/2"], ["--part", "x"], ["--copies", "0"], ["("], ["--novel"]):
            self.run_it(*arguments, code=2)

    def test_a_folder_without_tests(self):
        self.assertIn("finds no tests", self.run_it(code=1))

    def test_an_interrupt_ends_all_and_prints_what_was_found(self):
        self.add("a_broken", "exit 1")
        self.add("b_hanging", f"echo $$ >{self.build}/child; sleep 6000")
        process = subprocess.Popen(self.command("--copies", "2", "--repeat", "1"), stdout=subprocess.PIPE, text=True)
        child = self.build / "child"
        while not (child.exists() and child.read_text().strip()):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output = process.communicate()[0]
        self.assertEqual(process.returncode, 130)
        self.assertIn("interrupted", output)
        self.assertIn("  a_broken: 2 failed", output)
        self.assertTrue(ends(int(child.read_text())))


def ends(process):
    """Returns whether the process ends within five minutes. A zombie counts: its parent may never collect it."""
    for _ in range(30_000):
        try:
            if pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


if __name__ == "__main__":
    unittest.main()
