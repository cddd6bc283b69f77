# SPDX-License-Identifier: Apache-2.0
"""Tests the parts of tools/checks/seeded_faults on small trees, and its table on this repository."""

import dataclasses
import mmap
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
from seeding import fault_run, faults, mutant_run, schemata, sites, suite, tree_copy  # noqa: E402

SAMPLE = """// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

namespace sample {

constexpr int kMost = 3 + 4;

struct Sum {
  uint64_t bytes = 0;
  void Add(uint64_t more) { bytes += more; }
};

template <typename T>
bool IsBetween(T low, T value, T high) {
  return low <= value && value < high;  // the end is not in it
}

int Count(const std::vector<int>& values, int rest) {
  int count = 0;
  for (int value : values) {
    if (value % 2 == rest) ++count;
  }
  return count;
}

}  // namespace sample
"""


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class TheTable(unittest.TestCase):
    def test_no_fault_is_stale(self):
        for fault in faults.FAULTS:
            fault.apply((ROOT / fault.file).read_text(encoding="utf-8"))

    def test_every_step_is_one_of_continuous_integration(self):
        steps = (ROOT / ".ci/run").read_text(encoding="utf-8")
        for fault in faults.FAULTS:
            self.assertIn(f"'{fault.check.step}'", steps, fault.name)

    def test_contributing_shows_it(self):
        shown = subprocess.run([ROOT / "tools/checks/seeded_faults", "--list", "--markdown"], check=True,
                               capture_output=True, text=True).stdout
        self.assertGreater(len(faults.FAULTS), 11)
        self.assertIn(shown, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


class Faults(Folder):
    """A tree with one file, and a check that requires the word `good` in it."""

    def setUp(self):
        super().setUp()
        check = faults.Check("a step", command=("sh", "-c", "grep good file || { echo it is bad; exit 1; }"))
        self.fault = faults.Fault("spoilt", "it is not good", "file", "good", "bad", check, "it is bad")
        self.files = {"file": (b"all is good\n", False)}

    def run_one(self, **changes):
        tree = tree_copy.TreeCopy(self.folder)
        fault = dataclasses.replace(self.fault, **changes)
        [finding] = fault_run.run_faults([fault], tree, self.files, 1, lambda text: None)
        self.assertEqual((self.folder / "file").read_bytes(), self.files["file"][0], "the copy is mended")
        return finding

    def test_a_stale_fault_says_so(self):
        for text in ("nothing of it", "good and good"):
            with self.assertRaisesRegex(faults.Stale, "spoilt is stale: file has its text [02] times"):
                self.fault.apply(text)

    def test_a_fault_is_found(self):
        finding = self.run_one()
        self.assertTrue(finding.found)
        self.assertEqual(finding.line, "it is bad")

    def test_a_fault_that_its_check_passes_is_not(self):
        finding = self.run_one(new="as good")
        self.assertFalse(finding.found)
        self.assertEqual(finding.line, "it passed")

    def test_nor_is_one_that_fails_for_another_reason(self):
        self.assertFalse(self.run_one(says="AddressSanitizer").found)

    def test_a_check_that_fails_without_a_fault_proves_nothing(self):
        finding = self.run_one(check=dataclasses.replace(self.fault.check, command=("false",)))
        self.assertFalse(finding.found)
        self.assertRegex(finding.line, "a step fails without a fault")


class Copies(Folder):
    def test_only_what_differs_is_written(self):
        tree = tree_copy.TreeCopy(self.folder)
        tree.sync({"same": (b"1", False), "changed": (b"1", False), "gone": (b"1", True)})
        for name in ("same", "changed"):
            os.utime(self.folder / name, (1, 1))
        (self.folder / "build").mkdir()
        (self.folder / "build/object").write_text("built")
        tree.sync({"same": (b"1", False), "changed": (b"2", True)})
        self.assertEqual((self.folder / "same").stat().st_mtime, 1)
        self.assertGreater((self.folder / "changed").stat().st_mtime, 1)
        self.assertEqual((self.folder / "changed").stat().st_mode & 0o777, 0o755)
        self.assertFalse((self.folder / "gone").exists())
        self.assertTrue((self.folder / "build/object").exists())


class Runs(Folder):
    def test_what_hangs_is_killed_with_its_children(self):
        outcome = suite.run(["sh", "-c", "sleep 6000 & wait"], self.folder, limit_seconds=0.2)
        self.assertTrue(outcome.hung)
        self.assertFalse(outcome.passed)
        self.assertIn("no end after", outcome.why())

    def test_the_most_telling_line_is_shown(self):
        for output, line in [
            ("first\na.cc:3:1: error: no\nlast", "a.cc:3:1: error: no"),
            ("a.cc:3: Failure\n  Expected: 1\n[  FAILED  ] A.B", "a.cc:3: Failure Expected: 1"),
            ("x\n==1==ERROR: AddressSanitizer: heap-use-after-free\n", "==1==ERROR: AddressSanitizer: heap-use-after-free"),
            ("", "it failed and said nothing"),
        ]:
            self.assertEqual(suite.Outcome(False, output, 0).why(), line)


class Sites(unittest.TestCase):
    def changes(self, text):
        return {(site.before, site.after) for site in sites.find_sites("a.cc", text)}

    def test_of_a_sample(self):
        self.assertEqual(self.changes(SAMPLE), {
            ("bytes += more;", ";"), ("bytes += more", "bytes -= more"),
            ("low <= value", "low < value"), ("low <= value", "low > value"),
            ("value < high", "value <= high"), ("value < high", "value >= high"),
            ("low <= value && value < high", "low <= value || value < high"),
            ("return low <= value && value < high", "return !(low <= value && value < high)"),
            ("0", "1"), ("2", "3"),
            ("if (value % 2 == rest)", "if (true)"), ("if (value % 2 == rest)", "if (false)"),
            ("value % 2 == rest", "value % 2 != rest"),
            ("++count;", ";"), ("++count", "--count"),
        })

    def test_operands_end_where_weaker_operators_begin(self):
        changes = self.changes("void F() {\n  x = a + b * c < d && !e.f(g) || h;\n}\n")
        self.assertIn(("a + b * c < d", "a + b * c <= d"), changes)
        self.assertIn(("a + b * c", "a - b * c"), changes)
        self.assertIn(("a + b * c < d && !e.f(g)", "a + b * c < d || !e.f(g)"), changes)
        self.assertIn(("!e.f(g)", "e.f(g)"), changes)

    def test_templates_strings_and_constants_are_left_alone(self):
        for statement in ("std::array<int, 3> a;", 'Say("a < b");', "constexpr int a = 1;", "static_assert(a < b);",
                          "const Lock lock(&mutex);", "SPILLWAY_CHECK(a);"):
            kept = {each for each in self.changes(f"void F() {{\n  {statement}\n}}\n") if each[1] != ";"}
            self.assertEqual(kept, set(), statement)


class Schemata(Folder):
    def setUp(self):
        super().setUp()
        self.files = {"src/plan/sample.cc": (SAMPLE.encode(), False)}

    def drawn(self, seed):
        draw, mutants = schemata.Draw(self.files, seed), {}
        while mutant := draw.next():
            mutants[len(mutants)] = mutant
        return mutants

    def test_a_seed_draws_the_same_again_and_another_does_not(self):
        self.assertEqual(self.drawn(1), self.drawn(1))
        self.assertNotEqual(self.drawn(1), self.drawn(2))

    def test_mutants_do_not_overlap(self):
        ranges = sorted(mutant.find(SAMPLE) for mutant in self.drawn(3).values())
        self.assertGreater(len(ranges), 3)
        for (_, end), (start, _) in zip(ranges, ranges[1:]):
            self.assertLessEqual(end, start)

    def test_a_mutant_is_found_in_a_tree_where_other_lines_changed(self):
        for mutant in self.drawn(4).values():
            start, end = mutant.find(SAMPLE)
            self.assertEqual(mutant.find("// more\n" + SAMPLE), (start + 8, end + 8))
            self.assertIsNone(mutant.find("another file\n"))

    def test_who_does_not_compile_is_blamed(self):
        mutants = self.drawn(5)
        mutant = mutants[2]
        for folder in (f"{self.folder}/", "./", "../../"):
            output = f"{folder}{mutant.file}:{mutant.line}:7: error: no"
            blamed = schemata.blamed(output, mutants, self.folder)
            self.assertIn(2, blamed)
            self.assertEqual({mutants[each].line for each in blamed}, {mutant.line})

    def test_one_program_holds_all_mutants(self):
        """Compiles the sample with a switch for every mutant, and calls Count with each mutant switched on."""
        mutants = self.drawn(1)
        main = "\n#include <cstdio>\nint main() { std::printf(\"%d\", sample::Count({1, 2, 3, 5}, 1)); }\n"
        files = {"src/plan/sample.cc": ((SAMPLE + main).encode(), False)}
        schemata.seed_tree(tree_copy.TreeCopy(self.folder), files, mutants)
        seeded = (self.folder / "src/plan/sample.cc").read_text()
        self.assertEqual(seeded.count("\n"), (SAMPLE + main).count("\n"), "lines keep their numbers")
        subprocess.run(["g++", "-std=c++20", "-w", "-I.", "src/plan/sample.cc", "-o", "sample"], cwd=self.folder, check=True)

        def count(number):
            marks = self.folder / "marks"
            marks.write_bytes(bytes(len(mutants)))
            environment = {"SPILLWAY_MUTANT": str(number), "SPILLWAY_MUTANTS_REACHED": str(marks)}
            said = subprocess.run([self.folder / "sample"], env=environment, check=True, capture_output=True).stdout
            return int(said), marks.read_bytes()

        unchanged, reached = count(-1)
        self.assertEqual(unchanged, 3)
        for number, mutant in mutants.items():
            in_count = mutant.line > 17
            self.assertEqual(bool(reached[number]), in_count, schemata.describe(mutant))
            changed = count(number)[0] != unchanged
            self.assertEqual(changed, in_count, schemata.describe(mutant))


class Tests(Folder):
    """The tests of a build, as ctest lists them, and runs of them."""

    def setUp(self):
        super().setUp()
        self.build = suite.Build(self.folder, "release", 1)
        self.build.folder.mkdir(parents=True)
        (self.build.folder / "CTestTestfile.cmake").write_text(
            'add_test(page_test "/bin/sh" "-c" "test -d $TMPDIR && test -d $SPILLWAY_TEST_FAST_TMPDIR")\n'
            'add_test(mover_test "/bin/sh" "-c" "ulimit -d; test $COLOUR = red")\n'
            'set_tests_properties(mover_test PROPERTIES LABELS "unit;threads" ENVIRONMENT COLOUR=red TIMEOUT 7)\n')

    def test_all_or_those_of_a_name(self):
        self.assertEqual([each.name for each in self.build.tests("")], ["page_test", "mover_test"])
        (mover,) = self.build.tests("^mover")
        self.assertEqual((mover.labels, mover.limit_seconds), ({"unit", "threads"}, 7))

    def test_each_has_its_folders_and_limits(self):
        page, mover = self.build.tests("")
        self.assertTrue(page.run({}, 10).passed)
        outcome = mover.run({}, 10, suite.limit_bytes)
        self.assertTrue(outcome.passed)
        self.assertEqual(int(outcome.output), suite.MOST_DATA_BYTES // 1024)


class FakeTest:
    labels = frozenset()
    command = ("a program",)

    def __init__(self, name, reached, failing=(), hanging=()):
        self.name, self.reached, self.failing, self.hanging = name, reached, list(failing), hanging
        self.ran = []

    limit_seconds = 10

    def run(self, environment, limit_seconds, prepare=None):
        if path := environment.get("SPILLWAY_MUTANTS_REACHED"):
            with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as marks:
                for number in self.reached:
                    marks[number] = 1
            return suite.Outcome(True, "", len(self.name))
        number = int(environment["SPILLWAY_MUTANT"])
        self.ran.append(number)
        if number in self.hanging:
            return suite.Outcome(False, "", limit_seconds, hung=True)
        if number in self.failing:
            self.failing.remove(number)
            return suite.Outcome(False, "it failed", 1)
        return suite.Outcome(True, "", 1)


class Verdicts(unittest.TestCase):
    def test_of_mutants(self):
        quick = FakeTest("quick", {0, 1, 2, 3}, failing=[1, 3, 3], hanging=[2])
        thorough = FakeTest("thorough", {0, 1, 2, 4}, failing=[4, 4])
        runner = mutant_run.Runner(1, lambda text: None)
        reaches = runner.reach([thorough, quick], 6)
        self.assertEqual([reach.test.name for reach in reaches], ["quick", "thorough"])
        verdicts = [(each.result, each.by) for each in runner.judge(range(6), reaches)]
        self.assertEqual(verdicts, [
            ("survived", ""),
            ("survived", ""),  # a test failed once, then passed
            ("killed", "quick"),  # a test did not end
            ("killed", "quick"),
            ("killed", "thorough"),
            ("not reached", ""),
        ])
        self.assertNotIn(2, thorough.ran)

    def test_tests_beyond_the_seconds_are_not_tried(self):
        a = FakeTest("a", {0})  # each test takes as many seconds as its name has letters
        bb = FakeTest("bb", {0, 1}, failing=[1, 1])
        ccc = FakeTest("ccc", {0, 1}, failing=[0, 0])
        runner = mutant_run.Runner(1, lambda text: None, most_seconds=3)
        survived, killed = runner.judge(range(2), runner.reach([ccc, bb, a], 2))
        self.assertEqual((survived.result, survived.tried, survived.tests), ("survived", 2, 3))
        self.assertEqual((killed.result, killed.by, killed.tried), ("killed", "bb", 1))
        self.assertEqual(ccc.ran, [])


if __name__ == "__main__":
    unittest.main()
