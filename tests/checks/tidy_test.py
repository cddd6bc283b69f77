# SPDX-License-Identifier: Apache-2.0
"""Tests what tools/checks/tidy selects in small repositories, how it splits units with findings, and what it remembers.
Does not need clang-tidy."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import script  # noqa: E402

tidy = script.load("tidy")


class FolderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, path, *lines):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


class SelectionTest(FolderTest):
    """io/store.cc -> io/store.h -> io/page.h -> spillway/types.h; clock.cc and plan.cc include nothing."""

    def setUp(self):
        super().setUp()
        self.git("init", "--quiet", "--initial-branch=main")
        self.write("include/spillway/types.h")
        self.write("io/page.h", '#include "spillway/types.h"')
        self.write("io/store.h", '#include "io/page.h"')
        self.write("io/store.cc", '#include "io/store.h"')
        self.write("src/base/clock.cc")
        self.write("src/plan/plan.cc")
        self.write("src/base/version.cc", '#include "spillway/types.h"')
        self.write("tiers/stream_cuda.cc", '#include "spillway/types.h"')
        self.write("tests/io/store_test.cc", '#include "io/store.h"')
        self.write(".clang-tidy")
        self.commit()

    def git(self, *arguments):
        who = {f"GIT_{role}_{what}": "test@example.org"
               for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        subprocess.run(["git", "-C", str(self.root), *arguments], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, **who, "GIT_CONFIG_GLOBAL": "/dev/null"})

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "a change")

    def branch(self):
        self.git("checkout", "--quiet", "-b", "branch")
        self.commit()

    def select(self, **options):
        return tidy.select(self.root, **options)

    ALL = ["io/store.cc", "src/base/clock.cc", "src/plan/plan.cc"]

    def test_a_changed_source(self):
        self.branch()
        self.write("src/base/clock.cc", "int now;")
        self.commit()
        self.assertEqual(self.select(), ["src/base/clock.cc"])

    def test_a_changed_header_selects_what_includes_it(self):
        self.branch()
        self.write("io/page.h", '#include "spillway/types.h"', "int page;")
        self.commit()
        self.assertEqual(self.select(), ["io/store.cc"])

    def test_what_only_includes_a_changed_header_is_left_out(self):
        self.branch()
        self.write("io/page.h", '#include "spillway/types.h"', "int page;")
        self.write("src/plan/plan.cc", "int plan;")
        self.assertEqual(self.select(is_direct=True), ["src/plan/plan.cc"])
        self.write("io/store.h", "int store;")
        self.assertEqual(self.select(is_direct=True), ["io/store.cc", "src/plan/plan.cc"])
        self.write(".clang-tidy", "Checks: -*")
        self.assertEqual(self.select(is_direct=True), self.ALL)

    def test_a_changed_public_header_selects_what_includes_it(self):
        self.branch()
        self.write("include/spillway/types.h", "int type;")
        self.assertEqual(self.select(), ["io/store.cc"])

    def test_what_is_not_committed_counts(self):
        self.branch()
        self.assertEqual(self.select(), [])
        self.write("src/plan/plan.cc", "int plan;")
        self.write("src/plan/new.cc")
        self.assertEqual(self.select(), ["src/plan/new.cc", "src/plan/plan.cc"])

    def test_what_main_changed_since_does_not_count(self):
        self.branch()
        self.git("checkout", "--quiet", "main")
        self.write("src/plan/plan.cc", "int plan;")
        self.commit()
        self.git("checkout", "--quiet", "branch")
        self.assertEqual(self.select(), [])

    def test_another_base(self):
        self.branch()
        self.write("src/plan/plan.cc", "int plan;")
        self.commit()
        self.git("checkout", "--quiet", "-b", "second")
        self.write("src/base/clock.cc", "int now;")
        self.commit()
        self.assertEqual(self.select(base="branch"), ["src/base/clock.cc"])
        self.assertEqual(self.select(), ["src/base/clock.cc", "src/plan/plan.cc"])

    def test_a_change_of_the_checks_concerns_all(self):
        self.branch()
        self.write(".clang-tidy", "Checks: -*")
        self.assertEqual(self.select(), self.ALL)

    def test_all(self):
        self.branch()
        self.assertEqual(self.select(is_all=True), self.ALL)

    def test_files(self):
        self.assertEqual(self.select(files=["io/page.h"]), ["io/store.cc"])
        self.assertEqual(self.select(files=["src/plan/plan.cc", ".clang-tidy"]), ["src/plan/plan.cc"])

    def test_main_with_a_short_history(self):
        self.assertEqual(self.select(), self.ALL)

    def test_main_with_a_long_history(self):
        with mock.patch.object(tidy.changes, "COMMITS_OF_MAIN", 2):
            self.write("src/base/clock.cc", "int now;")
            self.commit()
            self.write("src/plan/plan.cc", "int plan;")
            self.commit()
            self.assertEqual(self.select(), ["src/base/clock.cc", "src/plan/plan.cc"])
            self.commit()
            self.assertEqual(self.select(), ["src/plan/plan.cc"])

    def test_changed_below_paths(self):
        self.branch()
        self.write("io/page.h", "int page;")
        self.write("io/FORMAT.md", "text")
        self.write("iota/other.h", "int other;")
        self.assertEqual(tidy.changes.changed_below(self.root, ["io", "src"]), ["io/page.h"])
        self.assertEqual(tidy.changes.changed_below(self.root, ["io/page.h"]), ["io/page.h"])
        self.assertEqual(tidy.changes.changed_below(self.root, ["*.h"]), ["io/page.h", "iota/other.h"])
        self.assertEqual(tidy.changes.changed_below(self.root, ["src/plan", "*.cc"]), [])

    def test_all_is_changed_below_paths_of_a_short_history(self):
        self.assertEqual(tidy.changes.changed_below(self.root, ["src/plan", "tiers"]),
                         ["src/plan/plan.cc", "tiers/stream_cuda.cc"])

    def test_no_commit_in_common(self):
        with self.assertRaisesRegex(tidy.Failure, "nowhere.*--all"):
            self.select(base="nowhere")


class ReadingTest(FolderTest):
    def read_all(self, sources, read_one):
        return tidy.read_all([tidy.Unit(tuple(sources), (), ".")], read_one, 2, lambda done, total: None)

    def test_a_clean_unit_is_read_once(self):
        read = []
        self.assertEqual(self.read_all("abcd", lambda unit: read.append(unit.sources)), [])
        self.assertEqual(read, [tuple("abcd")])

    def test_a_finding_is_reported_once_and_by_its_source_alone(self):
        for guilty in ("a", "c", "bd", "abcd"):
            findings = self.read_all("abcd", lambda unit: "".join(
                f"/x/{each}:1:1: error: wrong in {unit.sources}\n" for each in unit.sources if each in guilty))
            self.assertEqual(sorted(findings), [f"/x/{each}:1:1: error: wrong in ('{each}',)\n" for each in guilty])

    def test_a_finding_that_names_no_source(self):
        findings = self.read_all("abcde", lambda unit: "d.h:1:1: error: wrong" if "d" in unit.sources else "")
        self.assertEqual(findings, ["d.h:1:1: error: wrong"])

    def test_sources_that_only_collide_are_clean(self):
        findings = self.read_all("abcd", lambda unit: "/x/c:1:1: error: redefinition" if {"a", "c"} <= set(unit.sources)
                                 else "")
        self.assertEqual(findings, [])

    def test_units_share_flags(self):
        for source in "abcd":
            self.write(source)
        self.write("kernel", '#define HWY_TARGET_INCLUDE "kernel"')
        self.write("using", "namespace n { using base::Mutex; }")
        commands = {source: (("-O2",), ".") for source in ("a", "b", "c", "kernel", "using")} | {"d": (("-O1",), ".")}
        units = tidy.units_of(["a", "b", "c", "d", "kernel", "using"], commands, self.root, 2)
        self.assertEqual([unit.sources for unit in units], [("a", "b"), ("c",), ("d",), ("kernel",), ("using",)])

    def test_a_build_that_does_not_compile_a_source(self):
        with self.assertRaisesRegex(tidy.Failure, "does not compile a"):
            tidy.units_of(["a"], {}, self.root, 2)

    def test_a_build_by_another_compiler(self):
        self.write("b/compile_commands.json",
                   '[{"directory": "/", "file": "/a.cc", "command": "/usr/bin/ccache /usr/bin/c++ -o a.o -c /a.cc"}]')
        with self.assertRaisesRegex(tidy.Failure, "preset clang"):
            tidy.compile_commands(self.root, "b")

    def test_flags(self):
        self.write("b/compile_commands.json", '[{"directory": "/b", "file": "%s/io/a.cc", "command": "/usr/bin/ccache '
                   'clang++-19 -O0 -DX=\\\\\\"y\\\\\\" -o a.o -c %s/io/a.cc"}]' % (self.root, self.root))
        self.assertEqual(tidy.compile_commands(self.root, "b"), {"io/a.cc": (("-O0", '-DX="y"'), "/b")})


class MemoryTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.write("tool", "#!/bin/sh", "echo version 1")
        (self.root / "tool").chmod(0o755)
        self.write(".clang-tidy", "Checks: -*")
        for file in ("a.cc", "b.cc", "a.h"):
            self.write(file)
        patch = mock.patch.object(tidy, "TIDY", str(self.root / "tool"))
        patch.start()
        self.addCleanup(patch.stop)
        self.flags = ("-I" + str(self.root),)
        unit = tidy.Unit(("a.cc", "b.cc"), self.flags, ".")
        self.memory().take(unit, [self.root / name for name in ("a.cc", "b.cc", "a.h")])

    def memory(self):
        tidy.hash_of.cache_clear()
        return tidy.Memory(self.root, self.root / "memory")

    def known(self, *flags):
        memory = self.memory()
        return [source for source in ("a.cc", "b.cc") if memory.knows(source, flags or self.flags)]

    def test_what_was_clean_is_known(self):
        self.assertEqual(self.known(), ["a.cc", "b.cc"])

    def test_a_change_of_a_source_concerns_that_source(self):
        self.write("a.cc", "int a;")
        self.assertEqual(self.known(), ["b.cc"])

    def test_a_change_of_a_header_concerns_all_that_were_read_with_it(self):
        self.write("a.h", "int a;")
        self.assertEqual(self.known(), [])
        (self.root / "a.h").unlink()
        self.assertEqual(self.known(), [])

    def test_changes_of_what_is_asked(self):
        self.assertEqual(self.known("-DX"), [])
        self.write(".clang-tidy", "Checks: '*'")
        self.assertEqual(self.known(), [])
        self.write(".clang-tidy", "Checks: -*")
        self.write("tool", "#!/bin/sh", "echo version 2")
        self.assertEqual(self.known(), [])


if __name__ == "__main__":
    unittest.main()
