# SPDX-License-Identifier: Apache-2.0
"""The part of tests/torch/kills for several ranks: a job of torchrun whose ranks are killed, and started again.

Every restart draws a rank, and where it is killed:
  moment   some time after the start of training, by another process
  commit   (checkpoint="commit") when the other ranks have committed and it has not
  save     (checkpoint="tensors") before a moment is read for the checkpoint
  load     when a part of a state dict has been loaded
and whether the ranks take each other's stores, as when torchrun numbers them anew.
"""

import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

STEPS = 12  # a step with its save takes some 100 ms
KEPT = 2  # checkpoints


def plan(chance, kills, ranks, kind):
    """Draws the kills."""
    places = ("moment", "moment", "commit" if kind == "commit" else "save", "load")
    return [{"rank": chance.randrange(ranks), "where": chance.choice(places), "after": chance.uniform(0, 0.6),
             "nth": chance.randrange(4), "turn": chance.randrange(ranks)} for _ in range(kills)]


class Killer:
    """Kills this process where the plan says so for this start of the job. All ranks must make one together."""

    def __init__(self, folder, rank, count):
        import torch

        plans = json.loads((folder / "plan.json").read_text())
        number = len(list(folder.glob("killed-*")))  # a start may also fail before it is to be killed
        torch.distributed.barrier()
        self._plan = plans[number] if number < len(plans) else None
        self._is_victim = self._plan is not None and self._plan["rank"] == rank
        self._folder, self._number, self._rank, self._count = folder, number, rank, count
        self.turn = self._plan["turn"] if self._plan is not None else 0
        self._calls = 0

    def die(self):
        (self._folder / f"killed-{self._number}").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def is_at(self, where):
        return self._is_victim and self._plan["where"] == where

    def arm(self, optimizer):
        """Makes calls of the optimizer kill this process, if they are drawn."""
        from spillway.torch import _together

        real_commit, real_write, real_read = optimizer.keep_commit, optimizer.write_entry, optimizer.read_entry
        real_go_to, real_send = optimizer.go_to, _together.send

        def keep_commit():
            mark = self._folder / f"committed-{self._number}-{{}}"
            if not optimizer.run.has_stepped:  # it is asked for what a load needs, and commits nothing
                return real_commit()
            if self.is_at("commit"):
                others = [pathlib.Path(str(mark).format(rank)) for rank in range(self._count) if rank != self._rank]
                while not all(map(os.path.exists, others)):
                    time.sleep(0.002)
                self.die()
            kept = real_commit()
            pathlib.Path(str(mark).format(self._rank)).touch()
            return kept

        def nth(where, real):
            def call(*arguments, **more):
                self._calls += self.is_at(where)
                if self.is_at(where) and self._calls > self._plan["nth"]:
                    self.die()
                return real(*arguments, **more)
            return call

        def go_to(*arguments, **more):
            real_go_to(*arguments, **more)
            if self.is_at("load") and self._plan["nth"] % 2:
                self.die()

        def send(parcels, read, write):
            return real_send(parcels, nth("load", read), nth("load", write))

        optimizer.keep_commit, optimizer.go_to, _together.send = keep_commit, go_to, send
        optimizer.write_entry, optimizer.read_entry = nth("load", real_write), nth("save", real_read)

    def start(self):
        """Called when training begins. Whoever was to be killed during a load, and loaded nothing, is killed now."""
        if self.is_at("load"):
            self.die()
        if self.is_at("moment"):
            mark = self._folder / f"killed-{self._number}"
            subprocess.Popen(["/bin/sh", "-c", f"sleep {self._plan['after']}; touch '{mark}'; kill -9 {os.getpid()}"])

    def end(self):
        """Called before the last step: it is not made while kills are due."""
        if self._is_victim:
            self.die()
        if self._plan is not None:
            signal.pause()  # the victim is another rank


def worker(folder, kind):
    import spillway.torch as st
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    # In torchrun's own store PyTorch 2.15 finds the addresses of the ranks that were killed.
    join = (folder / f"join-{os.environ['TORCHELASTIC_RESTART_COUNT']}").as_uri()
    torch.distributed.init_process_group("gloo", init_method=join, rank=int(os.environ["RANK"]),
                                         world_size=int(os.environ["WORLD_SIZE"]))
    rank, count = torch.distributed.get_rank(), torch.distributed.get_world_size()
    killer = Killer(folder, rank, count)
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(30, 301), torch.nn.Tanh(), torch.nn.Linear(301, 7), torch.nn.Tanh(),
                                torch.nn.Linear(7, 2))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    run = st.open(folder / f"store{(rank + killer.turn) % count}", pinned="1MiB", report=False)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    checkpoints = st.Checkpoints(run, out)
    optimizer = st.AdamW(model.parameters(), lr=1e-2, store=run, checkpoint=kind)
    killer.arm(optimizer)

    def saved():
        model_state, state = get_state_dict(model, optimizer)
        return {"model": model_state, "optimizer": state}

    whole = sorted((each for each in out.iterdir() if (each / ".metadata").exists()), key=lambda each: int(each.name))
    torch.distributed.barrier()  # before the first rank writes another
    first = 0
    if whole:
        both = saved()
        dcp.load(both, checkpoint_id=whole[-1])
        set_state_dict(model, optimizer, model_state_dict=both["model"], optim_state_dict=both["optimizer"])
        first = int(whole[-1].name)
    killer.start()
    for step in range(first, STEPS):
        if step == STEPS - 1:
            killer.end()
        generator = torch.Generator().manual_seed(100 * step + rank)
        model(torch.randn(4, 30, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        state = saved()
        if rank == 0:
            shutil.rmtree(out / str(step + 1), ignore_errors=True)  # half of one
        torch.distributed.barrier()
        dcp.save(state, checkpoint_id=out / str(step + 1))
        if rank == 0:
            shutil.rmtree(out / str(step + 1 - KEPT), ignore_errors=True)
    values = b"".join(param.full_tensor().detach().numpy().tobytes() for param in model.parameters())
    values += b"".join(value.full_tensor().numpy().tobytes() for of in optimizer.full_state_dict()["state"].values()
                       for name, value in of.items() if name != "step")
    if rank == 0:
        (folder / "hash").write_text(hashlib.sha256(values).hexdigest())
    torch.distributed.barrier()
    checkpoints.drop_gone()
    run.close()
    torch.distributed.destroy_process_group()


def job(folder, kind, ranks, kills):
    """Runs a job with these kills to its end. Returns the hash of the weights and of the state."""
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps(kills))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
               f"--max-restarts={2 * len(kills)}", "--monitor-interval=0.1",
               str(pathlib.Path(__file__).with_name("kills")), "--worker", str(folder), "--kind", kind]
    log = folder / "log"
    with log.open("wb") as file:
        ended = subprocess.run(command, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if ended.returncode != 0:
        raise SystemExit(f"kills: the job ended with {ended.returncode}:\n{log.read_text()[-8000:]}")
    if len(list(folder.glob("killed-*"))) != len(kills):
        raise SystemExit(f"kills: the job ended before all of {len(kills)} kills")
    return (folder / "hash").read_text()


def check(scratch, kind, ranks, kills):
    """Compares a job that is killed with one that is not. Raises SystemExit if they differ, or a store is damaged."""
    expected = job(scratch / f"whole-{kind}", kind, ranks, [])
    killed = scratch / f"killed-{kind}"
    if job(killed, kind, ranks, kills) != expected:
        raise SystemExit(f"kills: checkpoint='{kind}': weights or state at the end are others than without kills")
    beside = pathlib.Path(os.environ["SPILLWAY_LIBRARY"]).parents[1] / "bin/spillway"
    command = os.environ.get("SPILLWAY_COMMAND", beside)
    for rank in range(ranks):
        checked = subprocess.run([command, "fsck", killed / f"store{rank}"], capture_output=True, text=True)
        if checked.returncode != 0:
            raise SystemExit(f"kills: the store of rank {rank} is damaged:\n{checked.stdout}{checked.stderr}")
    print(f"kills: checkpoint='{kind}', {ranks} ranks: {len(kills)} kills, the same weights and state at the end, clean stores",
          flush=True)
