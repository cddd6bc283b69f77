# SPDX-License-Identifier: Apache-2.0
"""Runs tools/checks/includes.py on trees with wrong includes, and on this repository, which has none."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
import includes  # noqa: E402


class IncludesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, path, *lines):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def wrong(self):
        return [str(each) for each in includes.check(self.root)]

    def assert_rejects(self, file, line, header):
        self.write(header)
        self.write(file, "// first line", line)
        wrong = [each for each in self.wrong() if each.startswith(f"{file}:2: ")]
        self.assertEqual(len(wrong), 1, f"{file} including {header}")
        (self.root / file).unlink()

    def assert_accepts(self, file, line, header):
        self.write(header)
        self.write(file, line)
        self.assertEqual(self.wrong(), [])

    def test_this_repository_has_none(self):
        self.assertEqual([str(each) for each in includes.check(ROOT)], [])

    def test_arrows_against_the_direction(self):
        for file, header in [
            ("src/base/a.h", "io/store.h"),
            ("io/a.cc", "tiers/arena.h"),
            ("io/a.cc", "src/engine/mover.h"),
            ("tiers/a.cc", "src/engine/mover.h"),
            ("tiers/a.cc", "src/plan/plan.h"),
            ("src/plan/a.cc", "io/store.h"),
            ("src/plan/a.cc", "tiers/arena.h"),
            ("src/engine/a.cc", "src/optim/update_pass.h"),
            ("src/optim/a.cc", "tools/trainer/model.h"),
            ("src/simt/a.h", "src/base/bytes.h"),
            ("src/engine/a.cc", "src/simt/block.h"),
            ("tools/trainer/compute/gpu/a.h", "src/engine/mover.h"),
            ("tools/trainer/a.cc", "src/plan/plan.h"),
            ("tools/trainer/a.cc", "io/store.h"),
            ("tools/trainer/kernels/a.cc", "src/engine/mover.h"),
            ("tools/hf/a.cc", "io/store.h"),
            ("tools/hf/a.cc", "tools/trainer/model.h"),
            ("src/engine/a.cc", "tests/io/fake.h"),
            ("tools/spillway/train/a.cc", "bench/util.h"),
            ("tools/spillway/train/a.cc", "tools/spillway/store/b.h"),
            ("tools/spillway/command/a.cc", "tools/spillway/train/b.h"),
        ]:
            self.assert_rejects(file, f'#include "{header}"', header)

    def test_parts_of_a_folder_have_an_order(self):
        pager = "src/engine/pager"
        self.assert_rejects(f"{pager}/room_search.cc", f'#include "{pager}/pager.h"', f"{pager}/pager.h")
        self.assert_accepts(f"{pager}/pager_more.cc", f'#include "{pager}/room.h"', f"{pager}/room.h")
        self.assert_rejects(f"{pager}/unheard_of.cc", f'#include "{pager}/room.h"', f"{pager}/room.h")

    def test_folders_inside_the_engine_have_a_direction(self):
        for file, header in [
            ("src/engine/pager/room.cc", "src/engine/mover.h"),
            ("src/engine/pager/room.cc", "io/store.h"),
            ("src/engine/following/plan_index.cc", "src/engine/pager/room.h"),
            ("src/optim/a.cc", "src/engine/pager/room.h"),
        ]:
            self.assert_rejects(file, f'#include "{header}"', header)
        header = "src/engine/pager/pager.h"
        self.assert_accepts("src/engine/mover_timeline.cc", f'#include "{header}"', header)

    def test_only_compute_includes_the_trainers_kernels(self):
        header = "tools/trainer/kernels/gemm.h"
        self.assert_rejects("tools/trainer/walk.cc", f'#include "{header}"', header)
        for command in ("machine", "step", "train"):
            self.assert_rejects(f"tools/spillway/{command}/a.cc", f'#include "{header}"', header)
        holders = {folder for folder, allowed in includes.MAY_INCLUDE.items()
                   if allowed is not None and "tools/trainer/kernels" in allowed}
        self.assertEqual(holders, {"tools/trainer/compute"})
        self.assert_accepts("tools/trainer/compute/a.cc", f'#include "{header}"', header)
        self.assert_accepts("tools/trainer/walk.cc", '#include "tools/trainer/compute/view.h"', "tools/trainer/compute/view.h")

    def test_a_public_header_stays_public(self):
        self.assert_rejects("include/spillway/a.h", '#include "src/base/bytes.h"', "src/base/bytes.h")
        self.assert_rejects("tools/hf/a.h", '#include "spillway/types.h"', "include/spillway/types.h")

    def test_arrows_along_the_direction(self):
        for file, header in [
            ("include/spillway/engine.h", "include/spillway/types.h"),
            ("src/base/a.cc", "include/spillway/types.h"),
            ("io/a.cc", "src/base/bytes.h"),
            ("tiers/a.cc", "io/store.h"),
            ("src/engine/a.cc", "tiers/arena.h"),
            ("src/optim/a.cc", "src/engine/mover.h"),
            ("src/optim/a.cc", "src/simt/block.h"),
            ("tools/trainer/compute/gpu/a.h", "src/simt/block.h"),
            ("tools/hf/a.cc", "src/base/bytes.h"),
            ("tools/trainer/a.cc", "src/base/bytes.h"),
            ("tools/trainer/a.cc", "tools/hf/npy.h"),
            ("tools/spillway/bench/io/a.cc", "src/base/bytes.h"),
            ("tools/spillway/store/a.cc", "tools/spillway/command/b.h"),
            ("tests/io/a.cc", "src/engine/mover.h"),
            ("bench/io/a.cc", "tests/io/fake.h"),
        ]:
            self.assert_accepts(file, f'#include "{header.removeprefix("include/")}"', header)

    def test_cuda_is_for_cuda_files(self):
        self.assert_rejects("tiers/a.cc", "#include <cuda_runtime.h>", "tiers/unused.h")
        self.assert_rejects("include/spillway/a_cuda.h", "#include <cuda.h>", "tiers/unused.h")
        self.assert_rejects("tiers/cuda.cc", "#include <nvtx3/nvToolsExt.h>", "tiers/unused.h")
        self.assert_accepts("tiers/runtime_cuda.cc", "#include <cuda_runtime.h>", "tiers/unused.h")
        self.assert_accepts("tests/engine/a.cu", "#include <cuda_runtime.h>", "tiers/unused.h")

    def test_libraries_have_their_folders(self):
        self.assert_rejects("src/engine/a.cc", "#include <liburing.h>", "io/unused.h")
        self.assert_rejects("tools/trainer/a.cc", '#include "CLI/CLI.hpp"', "io/unused.h")
        self.assert_accepts("io/a.cc", "#include <sqlite3.h>", "io/unused.h")

    def test_paths_are_written_from_the_root(self):
        self.write("io/store.h")
        self.write("io/pages.cc", '#include "store.h"')
        self.assertRegex(self.wrong()[0], "io/pages.cc:1: .*from the root")

    def test_a_header_that_is_not_there(self):
        self.write("io/store.cc", '#include "io/stroe.h"')
        self.assertRegex(self.wrong()[0], "io/store.cc:1: .*no such file")

    def write_header(self, path):
        self.write(path, "#ifndef GUARD_", "#define GUARD_", "#endif")

    def test_a_source_includes_its_own_header_first(self):
        self.write_header("io/store.h")
        self.write("io/store.cc", "#include <string>", "", '#include "io/store.h"')
        self.assertRegex(self.wrong()[0], 'io/store.cc:1: "io/store.h" must be the first include')
        self.write("io/store.cc", "// It includes nothing.")
        self.assertRegex(self.wrong()[0], "io/store.cc:1: .*first include")
        self.write("io/store.cc", "// What it is.", '#include "io/store.h"', "#include <string>")
        self.assertEqual(self.wrong(), [])

    def test_a_public_header_is_first_in_its_source(self):
        self.write_header("include/spillway/types.h")
        self.write_header("include/spillway/export.h")
        self.write("src/base/types.cc", "#include <string>", '#include "spillway/types.h"')
        self.assertRegex(self.wrong()[0], 'src/base/types.cc:1: "spillway/types.h" must be the first include')
        self.write("src/base/types.cc", '#include "spillway/types.h"')
        self.write("tools/trainer/export.cc", "#include <string>")  # not the source of the public header of that name
        self.assertEqual(self.wrong(), [])

    def test_a_test_is_not_concerned(self):
        self.write_header("io/store.h")
        self.write("tests/io/store_test.cc", "#include <string>", '#include "io/store.h"')
        self.assertEqual(self.wrong(), [])

    def test_headers_that_no_source_proves(self):
        for header in ("include/spillway/types.h", "include/spillway/stats.h", "io/store.h", "io/deadline.h",
                       "tiers/frames_cuda.h", "tests/io/disk.h"):
            self.write_header(header)
        self.write("src/base/types.cc", '#include "spillway/types.h"')
        self.write("io/store.cc", '#include "io/store.h"')
        self.write("tests/io/disk.cc", '#include "tests/io/disk.h"')
        self.assertEqual(includes.headers_to_compile(self.root),
                         ["include/spillway/stats.h", "io/deadline.h", "tests/io/disk.h"])

    def test_a_header_without_a_guard(self):
        self.write("io/deadline.h")  # has no source, so it is compiled alone, which checks its guard
        self.write("io/store.h", "#ifndef STORE_H_", "#define STROE_H_", "#endif")
        self.write("io/store.cc", '#include "io/store.h"')
        self.assertEqual(len(self.wrong()), 1)
        self.assertRegex(self.wrong()[0], "io/store.h:1: no include guard")

    def test_a_folder_without_a_rule(self):
        self.write("src/novel/a.cc", "#include <vector>")
        self.assertRegex(self.wrong()[0], "src/novel/a.cc:1: .*say there")


if __name__ == "__main__":
    unittest.main()
