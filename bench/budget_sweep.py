#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How much does a step move, and how long does it take, as pinned memory shrinks? With plans and on demand.

  bench/budget_sweep.py --quick                # a small new model, about two minutes
  bench/budget_sweep.py                        # the model and text that tools/quickstart made, about an hour
  bench/budget_sweep.py --out bench/results    # leaves budget_sweep.json and budget_sweep.svg there

Each point is one run of `spillway train` in a scratch store. Pinned memory is a percentage of the state (16 bytes per
parameter: weight and gradient in fp16, master weight and two moments in fp32), and device memory is the same for all points.
The limit: under `planned`, each step that follows a plan, except the plan's first, moves exactly the bytes that the plan
predicted; no step deviates from its plan; and both policies compute the same losses. Otherwise the script fails. Bytes are
exact on any machine, seconds only on an idle one. A table in Markdown goes to stdout.
"""

import argparse
import dataclasses
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/memory")]
sys.dont_write_bytecode = True
import line_plot  # noqa: E402
import machine  # noqa: E402  (tools/machine.py)
import small_inputs  # noqa: E402  (tests/memory/small_inputs.py)

POLICIES = ("planned", "demand")
STATE_BYTES_PER_PARAMETER = 16
UNPLANNED_STEPS = 2  # the first is recorded, the second moves tiles to where the plan begins
SMALL = {"vocab_size": 2048, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8,
         "num_attention_heads": 4, "num_key_value_heads": 2}


class Wrong(Exception):
    """A condition of the limit does not hold."""


@dataclasses.dataclass
class Point:
    """The figures of a steady step, for a policy and a budget."""
    policy: str
    percent: float
    pinned_budget: int
    seconds: float
    stall_seconds: float
    nvme_bytes: int = 0
    pinned_bytes: int = 0  # between pinned memory and the device
    planned_bytes: int | None = None
    bytes_bound: int | None = None
    nvme_bytes_bound: int | None = None
    not_planned: str = ""

    @property
    def moved_bytes(self):
        return self.nvme_bytes + self.pinned_bytes


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small new model on tokens made up here")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/quickstart/model")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "build/quickstart/data")
    parser.add_argument("--spillway", type=pathlib.Path, default=ROOT / "build/release/bin/spillway")
    parser.add_argument("--store", type=pathlib.Path, default=ROOT / "build/budget_sweep", help="folder for scratch stores")
    parser.add_argument("--out", type=pathlib.Path, help="folder for budget_sweep.json and .svg, new after each budget")
    parser.add_argument("--percents", default="5,10,20,30,40,50,60,70,80,90,100", help="pinned memory, %% of the state")
    parser.add_argument("--device-percent", type=float, default=5, help="device memory, %% of the state")
    parser.add_argument("--policies", default=",".join(POLICIES), help=f"of {','.join(POLICIES)}")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--note", default="",
                        help="what figures must be read with, as 'a busy machine'; the drawing then has no seconds")
    arguments = parser.parse_args()
    arguments.percents = [float(word) for word in arguments.percents.split(",")]
    arguments.policies = arguments.policies.split(",")
    if unknown := set(arguments.policies) - set(POLICIES):
        parser.error(f"--policies {','.join(unknown)}: there are {','.join(POLICIES)}")
    if arguments.steps <= UNPLANNED_STEPS:
        parser.error(f"--steps {arguments.steps}: the first {UNPLANNED_STEPS} are left out; give more")
    needed = [(arguments.spillway, "tools/setup builds it")]
    if not arguments.quick:
        needed += [(path, "tools/quickstart makes it; or --quick") for path in (arguments.model, arguments.data)]
    for path, cure in needed:
        if not path.exists():
            sys.exit(f"bench/budget_sweep.py: {path} is missing; {cure}")
    return arguments


class Sweep:
    def __init__(self, arguments, scratch):
        self.arguments = arguments
        self.scratch = scratch
        model, data = small_inputs.make(scratch, SMALL) if arguments.quick else (arguments.model, arguments.data)
        # The loss scale is so small that no step is skipped.
        self.flags = ["--model", model, "--data", data, "--precision", "fp16-amp", "--loss-scale", 8192, "--seq",
                      arguments.seq, "--batch", arguments.batch, *(["--init", "random"] if arguments.quick else [])]
        self.parameters = self.train("--steps", 0)["parameters"]
        self.state_bytes = STATE_BYTES_PER_PARAMETER * self.parameters
        self.device_budget = self.share(arguments.device_percent)
        self.losses = None

    def share(self, percent):
        return int(self.state_bytes * percent / 100)

    def train(self, *flags):
        """Runs the command and returns its summary."""
        command = [str(word) for word in (self.arguments.spillway, "train", *self.flags, *flags, "--json")]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"bench/budget_sweep.py: {' '.join(command)}\nexited {done.returncode}: {done.stderr[-1000:]}")
        return json.loads(done.stdout)

    def measure(self, policy, percent):
        log = self.scratch / "log.jsonl"
        budget = self.share(percent)
        summary = self.train("--steps", self.arguments.steps, "--policy", policy, "--device-bytes", self.device_budget,
                             "--pinned-bytes", budget, "--store", self.scratch / "store", "--durability", "none",
                             "--calibrate", "off", "--log-json", log)
        steps = [json.loads(line) for line in log.read_text().splitlines()]
        self.check_losses([step["loss"] for step in steps], f"{policy} at {percent:g}%")
        steady = steps[UNPLANNED_STEPS:]
        point = Point(policy=policy, percent=percent, pinned_budget=budget,
                      seconds=statistics.median(step["seconds"] for step in steady),
                      stall_seconds=statistics.median(step["stall_s"] for step in steady),
                      not_planned=summary["plan"].get("not_planned", ""))
        # With a plan, transfers count for the step that began them; without one, for the step in which they end.
        follows = summary["plan"]["steps"] > 0
        point.nvme_bytes, point.pinned_bytes = (both_ways(summary["plan"] if follows else steps[-1], edge)
                                                for edge in ("nvme", "pinned"))
        if follows:
            point.planned_bytes = summary["plan"]["planned_bytes"]
            point.bytes_bound, point.nvme_bytes_bound = summary["bytes_bound"], summary["nvme_bytes_bound"]
        if policy == "planned":
            check_planned(summary, steps, percent)
        return point

    def check_losses(self, losses, where):
        self.losses = self.losses or losses
        if losses != self.losses:
            raise Wrong(f"{where}: losses {losses} are not those of the first run, {self.losses}")


def both_ways(step, edge):
    return step["read_bytes"][edge] + step["written_bytes"][edge]


def check_planned(summary, steps, percent):
    """Checks the limit under `planned`. If everything fits, there is no plan, and nothing may move over NVMe."""
    plan = summary["plan"]
    if plan["plans"] == 0:
        if both_ways(steps[-1], "nvme"):
            raise Wrong(f"planned at {percent:g}%: no plan was made: {plan.get('not_planned', 'no reason is given')}")
        return
    if plan["deviations"] or plan["steps"] < len(steps) - UNPLANNED_STEPS:
        raise Wrong(f"planned at {percent:g}%: {plan['steps']} of {len(steps)} steps followed a plan and "
                    f"{plan['deviations']} left it")
    # A plan's first step also moves tiles to where the plan expects them, so it is left out.
    steady = [step for step in steps if step.get("plan_steps", 0) > 1]
    if not steady:
        raise Wrong(f"planned at {percent:g}%: of {len(steps)} steps none is the second of a plan, so no bytes can be "
                    "compared: give more --steps")
    for step in steady:
        if step["plan_moved_bytes"] != step["planned_bytes"]:
            raise Wrong(f"planned at {percent:g}%: by step {step['step']} a step moved {step['plan_moved_bytes']} bytes, "
                        f"{step['planned_bytes']} were planned")


def row(cells):
    return "| " + " | ".join(cells) + " |"


def mib(size_bytes):
    return f"{size_bytes / 2**20:,.0f}"


def table(points, policies):
    """Yields one row per budget: the bounds, the plan, and for each policy the MiB over NVMe and over all links, and seconds."""
    at = {(point.policy, point.percent): point for point in points}
    yield row(["Pinned, % of state", "bound, NVMe / all", "planned / bound", *policies])
    yield row(["---:"] * (3 + len(policies)))
    for percent in sorted({point.percent for point in points}):
        plan = at.get(("planned", percent))
        bounds = ["–", "–"]
        if plan is not None and plan.planned_bytes is not None:
            bounds = [f"{mib(plan.nvme_bytes_bound)} / {mib(plan.bytes_bound)}",
                      f"{plan.planned_bytes / max(plan.bytes_bound, 1):.3f}"]
        yield row([f"{percent:g}", *bounds,
                   *(f"{mib(point.nvme_bytes)} / {mib(point.moved_bytes)}, {point.seconds:.1f} s"
                     for point in (at[policy, percent] for policy in policies))])


COLORS = {"planned": "#0b6e4f", "demand": "#7b4fa3", "bound": "#222222"}


def svg(points, policies, with_seconds):
    """Draws GB per step over NVMe, and seconds per step, against pinned memory."""
    lines = {policy: [point for point in points if point.policy == policy] for policy in policies}
    traffic = {policy: [(p.percent, p.nvme_bytes / 1e9) for p in line] for policy, line in lines.items()}
    bound = [(p.percent, p.nvme_bytes_bound / 1e9) for p in lines.get("planned", []) if p.nvme_bytes_bound is not None]
    if bound:
        traffic["bound"] = bound
    panels = [line_plot.Panel("GB a step over NVMe", "pinned memory, % of the state", traffic)]
    if with_seconds:
        seconds = {policy: [(p.percent, p.seconds) for p in line] for policy, line in lines.items()}
        panels.append(line_plot.Panel("seconds a step", "pinned memory, % of the state", seconds))
    return line_plot.svg(panels, COLORS, ("bound",))


def heading(sweep):
    arguments = sweep.arguments
    note = f" **{arguments.note}.**" if arguments.note else ""
    return (f"{sweep.parameters / 1e6:.1f} M parameters, {mib(sweep.state_bytes)} MiB of state, fp16-amp, "
            f"{arguments.batch * arguments.seq} tokens a step, device {mib(sweep.device_budget)} MiB "
            f"({arguments.device_percent:g}% of the state). MiB a step over NVMe / over all links, and seconds.{note} "
            f"Measured on {machine.sentence(machine.describe(arguments.store))}.")


def write_results(sweep, points):
    out = sweep.arguments.out
    out.mkdir(parents=True, exist_ok=True)
    drawn = svg(points, sweep.arguments.policies, with_seconds=not sweep.arguments.note)
    (out / "budget_sweep.svg").write_text(drawn + "\n", encoding="utf-8")
    result = {"v": 1, "parameters": sweep.parameters, "state_bytes": sweep.state_bytes,
              "device_budget": sweep.device_budget, "seq": sweep.arguments.seq, "batch": sweep.arguments.batch,
              "note": sweep.arguments.note, "machine": machine.describe(sweep.arguments.store),
              "points": [dataclasses.asdict(point) for point in points]}
    (out / "budget_sweep.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main():
    arguments = parse()
    arguments.store.mkdir(parents=True, exist_ok=True)
    scratch = pathlib.Path(tempfile.mkdtemp(dir=arguments.store))
    points = []
    try:
        sweep = Sweep(arguments, scratch)
        for percent in arguments.percents:
            for policy in arguments.policies:
                points.append(point := sweep.measure(policy, percent))
                print(f"{policy} at {percent:g}%: {mib(point.nvme_bytes)} MiB over NVMe, {point.seconds:.2f} s",
                      file=sys.stderr)
            if arguments.out:
                write_results(sweep, points)
    except Wrong as wrong:
        sys.exit(f"bench/budget_sweep.py: {wrong}")
    finally:
        shutil.rmtree(scratch)
    print(heading(sweep), "", *table(points, arguments.policies), sep="\n")
    for point in points:
        if point.not_planned:
            print(f"\n{point.policy} at {point.percent:g}% was not planned: {point.not_planned}")


if __name__ == "__main__":
    main()
