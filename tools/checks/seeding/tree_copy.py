# SPDX-License-Identifier: Apache-2.0
"""A copy of the tree that is changed. It is kept, and only files that differ are written, so builds are incremental."""

import io
import pathlib
import subprocess
import tarfile


class TreeCopy:
    def __init__(self, root):
        self.root = pathlib.Path(root)

    def sync(self, files):
        """Makes the copy hold exactly `files`, a dictionary of path -> (content, is executable), and its builds. The
        copy is a git repository without a commit, because the checks ask git for the files."""
        if not (self.root / ".git").is_dir():
            self.root.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "init", "--quiet", str(self.root)], check=True)
        for path, (content, executable) in files.items():
            self.write(path, content)
            mode = 0o755 if executable else 0o644
            if (self.root / path).stat().st_mode & 0o777 != mode:
                (self.root / path).chmod(mode)
        for path in self._tracked():
            if path not in files:
                (self.root / path).unlink()

    def _tracked(self):
        for path in sorted(self.root.rglob("*")):
            relative = path.relative_to(self.root)
            if relative.parts[0] not in ("build", ".git") and "__pycache__" not in relative.parts and not path.is_dir():
                yield relative.as_posix()

    def read(self, path):
        return (self.root / path).read_text(encoding="utf-8")

    def write(self, path, content):
        """Writes the file if it differs. Its modification time then changes, so that it is built again."""
        content = content.encode() if isinstance(content, str) else content
        file = self.root / path
        if file.is_file() and file.read_bytes() == content:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def working_tree(repository):
    """Returns the files of the working tree: those that are tracked and those that git does not ignore."""
    listed = subprocess.run(["git", "-C", repository, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            check=True, capture_output=True).stdout.decode()
    files = {}
    for path in filter(None, listed.split("\0")):
        file = pathlib.Path(repository) / path
        if file.is_file():
            files[path] = (file.read_bytes(), bool(file.stat().st_mode & 0o100))
    return files


def committed_tree(repository, reference):
    """Returns the files of a commit."""
    archive = subprocess.run(["git", "-C", repository, "archive", "--format=tar", reference],
                             check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: (tar.extractfile(member).read(), bool(member.mode & 0o100))
                for member in tar if member.isfile()}
