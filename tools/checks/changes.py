#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a change touches: the files that differ since the branch left main, on main itself those of the last 100 commits.

  tools/checks/changes.py tiers '*.cu'   prints the changed files at or below these paths, or of these patterns;
                                         exit code 1: none

Pages (*.md) are left out there: no step that asks depends on one.
"""

import fnmatch
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
import includes  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMITS_OF_MAIN = 100


class Failure(Exception):
    pass


def git(root, *arguments):
    ended = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    if ended.returncode != 0:
        raise Failure(f"git {' '.join(arguments)}: {ended.stderr.strip()}")
    return ended.stdout


def merge_base(root, base):
    """Returns the commit at which HEAD left `base`, which is origin/main or main if it is None."""
    for name in [base] if base else ["origin/main", "main"]:
        ended = subprocess.run(["git", "-C", str(root), "merge-base", "HEAD", name], capture_output=True, text=True)
        if ended.returncode == 0:
            return ended.stdout.strip()
    raise Failure(f"HEAD has no commit in common with {base or 'origin/main or main'}: name another with --base, "
                  "or take --all")


def changed_since_main(root, base):
    """Returns the files changed since HEAD left `base`, or in the last commits if HEAD is in it. None means all."""
    since = merge_base(root, base)
    if since == git(root, "rev-parse", "HEAD").strip():
        commits = git(root, "rev-list", "--first-parent", f"--max-count={COMMITS_OF_MAIN + 1}", "HEAD").split()
        if len(commits) <= COMMITS_OF_MAIN:
            return None
        since = commits[-1]
    differ = git(root, "diff", "--name-only", "--no-renames", "-z", since, "--").split("\0")
    new = git(root, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    return {file for file in differ + new if file}


def with_includers(root, files):
    """Returns `files` and every file that includes one of them, directly or through others."""
    includers = {}
    for file in includes.project_files(root):
        for line in (root / file).read_text(encoding="utf-8").splitlines():
            if match := includes.INCLUDE.match(line):
                path = match["path"]
                header = f"include/{path}" if path.startswith(includes.PUBLIC + "/") else path
                includers.setdefault(header, []).append(file)
    found, ahead = set(files), list(files)
    while ahead:
        for includer in includers.get(ahead.pop(), ()):
            if includer not in found:
                found.add(includer)
                ahead.append(includer)
    return found


def changed_below(root, paths):
    """Returns the changed files at or below the paths, or that match them as patterns, in order of name; pages are left out.
    If everything counts as changed, these are all files there."""
    changed = changed_since_main(root, None)
    if changed is None:
        changed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return sorted(file for file in changed if not file.endswith(".md")
                  and any(fnmatch.fnmatch(file, path) or file.startswith(path + "/") for path in paths))


def main(paths):
    if not paths or any(path.startswith("-") for path in paths):
        print(__doc__.strip())
        return 0 if paths in (["-h"], ["--help"]) else 2
    if missing := [path for path in paths if "*" not in path and not (ROOT / path).exists()]:
        print(f"tools/checks/changes.py: there is no {missing[0]}", file=sys.stderr)
        return 2
    try:
        changed = changed_below(ROOT, [path.rstrip("/") for path in paths])
    except Failure as failure:
        print(f"tools/checks/changes.py: {failure}", file=sys.stderr)
        return 2
    print("\n".join(changed))
    return 0 if changed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
