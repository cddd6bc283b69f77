#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Does optimizer state in fewer bytes train equally well? Compares the same runs in every state format, paired by seed.

  bench/state_quality.py --name smollm2 --model build/quickstart/model --data build/quickstart/data --out bench/results
  bench/state_quality.py --name new --model MODEL --data DATA --init random --lr 5e-4 --warmup-steps 20 --control

Each run is `spillway train` in memory with bf16 weights. It starts from the model's weights or (--init random) from random
weights of its seed; the seed also gives the order of windows. A seed's run in a format is compared with its run in fp32, by
the difference of the final validation losses as a share of fp32's. Limit: the mean over seeds is at most 0.5%. The interval
is Student's, of 95%. --control adds runs in fp32 with one thread, which round sums in another order. If these differ from
fp32 by as much as the limit, the recipe cannot distinguish a format from rounding.

Finished runs are kept in --work and are not repeated, so the script may be stopped and started again. It writes
state_quality_NAME.json (every step's loss, every validation loss) and state_quality_NAME.svg to --out, and prints a table in
Markdown.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools")]
sys.dont_write_bytecode = True
import line_plot  # noqa: E402
import machine  # noqa: E402  (tools/machine.py)

FORMATS = ("fp32", "bf16", "8bit", "compact")
CONTROL = "fp32, one thread"
COLORS = {CONTROL: "#999999", "fp32": "#222222", "bf16": "#0b6e4f", "8bit": "#e09f3e", "compact": "#3a6ea5"}
LIMIT = 0.005
# Student's t for a two-sided interval of 95%, by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="of the results")
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--init", choices=("model", "random"), default="model")
    parser.add_argument("--spillway", type=pathlib.Path, default=ROOT / "build/release/bin/spillway")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/state_quality", help="folder of runs that are done")
    parser.add_argument("--out", type=pathlib.Path, help="folder for the results")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--lr", default="1e-4")
    parser.add_argument("--warmup-steps", type=int, default=10)
    parser.add_argument("--eval-every", type=int, default=50)
    parser.add_argument("--eval-batches", type=int, default=32)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--control", action="store_true", help="also run fp32 with one thread")
    arguments = parser.parse_args()
    arguments.seeds = [int(word) for word in arguments.seeds.split(",")]
    if len(arguments.seeds) < 2 or len(arguments.seeds) - 1 not in STUDENT:
        parser.error("--seeds must name from 2 to 10 seeds: an interval needs two")
    if arguments.steps % arguments.eval_every:
        parser.error("--steps must be a multiple of --eval-every: the last step's validation loss is compared")
    if arguments.control and arguments.threads == 1:
        parser.error("--control compares with one thread: --threads must be more than 1")
    for path in (arguments.spillway, arguments.model, arguments.data):
        if not path.exists():
            parser.error(f"{path} is missing: tools/setup builds the command, tools/quickstart makes a model and data")
    return arguments


def settings(arguments):
    return {"init": arguments.init, "steps": arguments.steps, "seq": arguments.seq, "batch": arguments.batch,
            "lr": arguments.lr, "warmup_steps": arguments.warmup_steps, "threads": arguments.threads,
            "eval_every": arguments.eval_every, "eval_batches": arguments.eval_batches}


def run(arguments, way, seed):
    """Returns the losses of a run, which is made unless it is in --work. A way is a state format or the control."""
    state_format, threads = ("fp32", 1) if way == CONTROL else (way, arguments.threads)
    folder = arguments.work / arguments.name
    folder.mkdir(parents=True, exist_ok=True)
    name = "control" if way == CONTROL else state_format
    log, done = folder / f"{name}-{seed}.jsonl", folder / f"{name}-{seed}.done"
    of = {**settings(arguments), "threads": threads, "model": str(arguments.model), "data": str(arguments.data)}
    if not done.exists() or json.loads(done.read_text()) != of:
        command = [arguments.spillway, "train", "--model", arguments.model, "--data", arguments.data, "--init", arguments.init,
                   "--precision", "bf16", "--state-format", state_format, "--order", "shuffled", "--seed", seed, "--steps",
                   arguments.steps, "--seq", arguments.seq, "--batch", arguments.batch, "--lr", arguments.lr, "--warmup-steps",
                   arguments.warmup_steps, "--schedule", "cosine", "--eval-every", arguments.eval_every, "--eval-batches",
                   arguments.eval_batches, "--threads", threads, "--log-json", log, "--force", "--json"]
        done.unlink(missing_ok=True)
        ended = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               check=False)
        if ended.returncode != 0:
            sys.exit(f"bench/state_quality.py: {' '.join(map(str, command))}\nexited {ended.returncode}: {ended.stderr[-1000:]}")
        done.write_text(json.dumps(of))
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    print(f"{way}, seed {seed}: validation loss {steps[-1]['eval_loss']:.4f}", file=sys.stderr, flush=True)
    return {"losses": [round(step["loss"], 5) for step in steps],
            "validation": [[step["step"], step["eval_loss"]] for step in steps if "eval_loss" in step]}


def ways(runs):
    return list(dict.fromkeys(way for way, _ in runs))


def compare(runs, seeds, way):
    """Returns the way's differences in final validation loss, as shares of fp32's, their mean, and half of its interval."""
    final = {key: of["validation"][-1][1] for key, of in runs.items()}
    differences = [final[way, seed] / final["fp32", seed] - 1 for seed in seeds]
    half = STUDENT[len(seeds) - 1] * statistics.stdev(differences) / len(seeds) ** 0.5
    return differences, statistics.mean(differences), half


def percent(share):
    return f"{100 * share:+.3f}%"


def table(runs, seeds):
    yield f"| State | Validation loss, seeds {', '.join(map(str, seeds))} | Beside `fp32` | Mean (95%) | Limit 0.5% |"
    yield "|---|---|---|---|---|"
    for way in ways(runs):
        final = ", ".join(f"{runs[way, seed]['validation'][-1][1]:.4f}" for seed in seeds)
        if way == "fp32":
            yield f"| `fp32` | {final} | | | |"
            continue
        differences, mean, half = compare(runs, seeds, way)
        name = way if way == CONTROL else f"`{way}`"
        verdict = "" if way == CONTROL else "met" if mean <= LIMIT else "missed"
        yield (f"| {name} | {final} | {', '.join(map(percent, differences))} | {percent(mean)} "
               f"({percent(mean - half)} to {percent(mean + half)}) | {verdict} |")


def picture(runs, seeds):
    """Draws validation losses and training losses, as means over seeds. Training losses are also means of 20 steps."""
    validation, training = {}, {}
    for way in ways(runs):
        points = zip(*(runs[way, seed]["validation"] for seed in seeds))
        validation[way] = [(at[0][0], statistics.mean(loss for _, loss in at)) for at in points]
        means = [statistics.mean(step) for step in zip(*(runs[way, seed]["losses"] for seed in seeds))]
        training[way] = [(i + 1, statistics.mean(means[max(0, i - 19):i + 1])) for i in range(len(means))]
    least = lambda lines: min(y for line in lines.values() for _, y in line) * 0.98  # noqa: E731
    return line_plot.svg([line_plot.Panel("validation loss", "step", validation, least(validation)),
                          line_plot.Panel("training loss, mean of 20 steps", "step", training, least(training),
                                          has_points=False)], COLORS)


def main():
    arguments = parse()
    tried = (*FORMATS, CONTROL) if arguments.control else FORMATS
    runs = {(way, seed): run(arguments, way, seed) for seed in arguments.seeds for way in tried}
    where = machine.describe(arguments.work)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        result = {"v": 1, "name": arguments.name, **settings(arguments), "machine": where,
                  "runs": [{"state_format": "fp32" if way == CONTROL else way, "threads": 1 if way == CONTROL else arguments.threads,
                            "seed": seed, **of} for (way, seed), of in runs.items()]}
        (arguments.out / f"state_quality_{arguments.name}.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
        (arguments.out / f"state_quality_{arguments.name}.svg").write_text(picture(runs, arguments.seeds) + "\n", encoding="utf-8")
    print(f"{arguments.steps} steps of {arguments.batch * arguments.seq} tokens, bf16 weights, AdamW, lr {arguments.lr}. Measured "
          f"on {machine.sentence(where)}.", "", *table(runs, arguments.seeds), sep="\n")


if __name__ == "__main__":
    main()
