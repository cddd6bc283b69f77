# SPDX-License-Identifier: Apache-2.0
"""Runs a function in several processes, the ranks of a job, which gloo joins.

The processes are forks of one that has imported PyTorch, so that they start at once. A job that hangs is ended.
"""

import contextlib
import datetime
import multiprocessing
import os
import pathlib
import pickle
import signal
import tempfile
import time
import traceback
from multiprocessing.connection import wait

import torch

TIMEOUT = 240  # seconds for a whole job
_GRACE = 20  # seconds that the others have to end by themselves when a rank has failed

_context = multiprocessing.get_context("forkserver")
_preloaded = ["torch", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp",
              "torch.distributed.tensor.parallel", "spillway.torch"]
_context.set_forkserver_preload(_preloaded)


def preload(*modules):
    """Has the process of which the ranks are forks import more modules. Must be called before the first job."""
    _context.set_forkserver_preload([*_preloaded, *modules])


class RankFailed(AssertionError):
    """A rank has raised, has died or did not end. `errors` has the text for each of these ranks."""

    def __init__(self, errors):
        super().__init__("\n".join(f"--- rank {rank}: {text}" for rank, text in sorted(errors.items())))
        self.errors = errors


def run(count, function, *args, timeout=TIMEOUT):
    """Calls `function(rank, *args)`, which must be a module's, on `count` ranks. Returns what each returned. Raises RankFailed
    unless all return."""
    with tempfile.TemporaryDirectory(prefix="spillway-ranks-") as folder, contextlib.ExitStack() as stack:
        processes, pipes = [], {}
        for rank in range(count):
            here, there = _context.Pipe(duplex=False)
            processes.append(_context.Process(target=_work, args=(rank, count, folder, timeout, there, function, args)))
            processes[-1].start()
            stack.callback(_end, processes[-1])
            there.close()
            pipes[here] = rank
        results, errors = {}, {}
        deadline = time.monotonic() + timeout
        while pipes and (left := deadline - time.monotonic()) > 0:
            for pipe in wait(list(pipes), left):
                rank = pipes.pop(pipe)
                try:
                    is_result, value = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    processes[rank].join()
                    is_result, value = False, f"died with exit code {processes[rank].exitcode}"
                (results if is_result else errors)[rank] = value
                if errors:
                    deadline = min(deadline, time.monotonic() + _GRACE)
        errors.update({rank: "did not end" for rank in pipes.values()})
        for rank in pipes.values():
            processes[rank].kill()
        if errors:
            raise RankFailed(errors)
        return [results[rank] for rank in range(count)]


def _end(process):
    if process.is_alive():
        process.join(_GRACE)
    if process.is_alive():
        process.kill()
    process.join()


def _work(rank, count, folder, timeout, pipe, function, args):
    signal.alarm(timeout + 60)  # ends this process even if the one that started it is gone
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0", WORLD_SIZE=str(count))
    torch.set_num_threads(1)
    try:
        torch.distributed.init_process_group("gloo", init_method=pathlib.Path(folder, "join").as_uri(), rank=rank,
                                             world_size=count, timeout=datetime.timedelta(seconds=60))
        result = True, function(rank, *args)
    except BaseException:
        result = False, traceback.format_exc()
    try:
        pickled = pickle.dumps(result)
    except Exception:
        pickled = pickle.dumps((False, traceback.format_exc()))
    pipe.send_bytes(pickled)  # send() would have tensors shared with this process, which ends
    pipe.close()
    with contextlib.suppress(Exception):
        torch.distributed.destroy_process_group()
