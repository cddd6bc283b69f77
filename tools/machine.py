# SPDX-License-Identifier: Apache-2.0
"""Describes what measured figures depend on: the machine, its kernel and file system, and the commit measured."""

import os
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
_VECTOR_FLAGS = ("amx_bf16", "avx512_fp16", "avx512_bf16", "avx512f", "avx2")


def describe(folder=ROOT):
    """Returns cpu, isa, cpus, memory_gib, kernel, filesystem (of `folder`) and commit, as a dictionary."""
    info = _cpu_info()
    flags = set(info.get("flags", info.get("Features", "")).split())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu_name(info),
        "isa": " ".join(flag for flag in _VECTOR_FLAGS if flag in flags) or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "filesystem": _filesystem(folder),
        "commit": _commit(),
    }


def sentence(machine):
    """Returns the result of `describe` as one line of text."""
    return (f"{machine['cpu']} ({machine['isa']}), {machine['cpus']} CPUs, {machine['memory_gib']} GiB, "
            f"kernel {machine['kernel']}, {machine['filesystem']}, commit {machine['commit']}")


def _cpu_info():
    info = {}
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return info
    for line in lines:
        key, _, value = line.partition(":")
        info.setdefault(key.strip(), value.strip())
    return info


def _cpu_name(info):
    name = info.get("model name", platform.processor() or platform.machine())
    if "cpu family" in info:  # the names that hypervisors report are often vague
        name += f", family {info['cpu family']} model {info.get('model', '?')}"
    return name


def _filesystem(folder):
    """Returns the type of the file system at the longest mount point that contains `folder`."""
    path, longest, kind = str(pathlib.Path(folder).resolve()) + "/", "", "unknown file system"
    for line in pathlib.Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, mount_kind = line.split()[:3]
        if path.startswith(mount.rstrip("/") + "/") and len(mount) >= len(longest):
            longest, kind = mount, mount_kind
    return kind


def _commit():
    def git(*words):
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout

    commit = git("rev-parse", "--short", "HEAD").strip() or "unknown"
    return commit + (" with changes" if git("status", "--porcelain", "--untracked-files=no").strip() else "")
