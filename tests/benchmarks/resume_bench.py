#!/usr/bin/env python3
"""Start again in the middle of an epoch: from exec to the first step that is done, beside Python. See README.md.

  resume_bench.py --program BUILD/tests/benchmarks/resume_program --python VENV/bin/python --report docs/benchmarks/NAME.md
"""
import argparse
import os
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import report

PEER = Path(__file__).parent / "peers" / "resuming.py"
PEERS = ["raw_skip", "raw_stateful", "accelerate_skip", "lightning_stateful", "lightning"]
LIMIT_S = 1200


def command(args, name, phase, folder, steps):
    if name != "lockstep":
        return [str(args.python), str(PEER), name, phase, folder, str(steps)]
    limit = steps if phase == "prepare" else steps + 1
    # A resumed run would save again; the next round shall find what the first one left.
    return [str(args.program), phase, str(steps), "--run_dir", f"{folder}/run", "--max_steps", str(limit)]


def launch(args, name, phase, folder, steps):
    """Seconds from exec to the line that the contestant prints, and the samples in it."""
    start = time.monotonic()
    done = subprocess.run(command(args, name, phase, folder, steps), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=LIMIT_S, env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = [line for line in done.stdout.splitlines() if line[:1].isdigit()]
    if done.returncode or not lines:
        raise RuntimeError(f"{name} {phase} {steps}: exit code {done.returncode}\n{done.stderr}")
    at, *samples = lines[-1].split()
    return float(at) - start, samples


def forget_the_resumed_step(folder, steps):
    """Leaves the checkpoint of `steps` as the newest."""
    for checkpoint in Path(folder, "run", "checkpoints").glob("step-*"):
        if checkpoint.name > f"step-{steps:010}":
            subprocess.run(["rm", "-r", str(checkpoint)], check=True)


def measure(args, steps, folder):
    names = ["lockstep", *PEERS]
    expected = {name: launch(args, name, "prepare", folder, steps)[1] for name in names}
    times, right = {name: [] for name in names}, {}
    for turn in range(args.rounds + 1):  # the first one fills the page cache
        for name in random.sample(names, len(names)):
            seconds, samples = launch(args, name, "resume", folder, steps)
            right[name] = samples == expected[name]
            if turn:
                times[name].append(seconds)
            if name == "lockstep":
                forget_the_resumed_step(folder, steps)
    best = min(statistics.median(times[name]) for name in PEERS if right[name])
    rows = []
    for name in names:
        middle = statistics.median(times[name])
        rows.append(f"| {name} | {steps:,} | {min(times[name]):.2f} / {middle:.2f} | {best / middle:.2f} | "
                    f"{'the next batch' if right[name] else '**another batch**'} |")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, required=True, help="resume_program")
    parser.add_argument("--python", type=Path, required=True, help="of an environment with torch, torchdata, lightning, accelerate")
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    lines = [
        report.title("Resume in the middle of an epoch, CPU"),
        "",
        "A linear layer of 8 inputs, 16 samples per step, AdamW, one process. Each contestant trained so many steps of the first epoch, saved and",
        "ended; then it is started again. Time from exec until its first step is done; seconds, min / median of the rounds; each round runs all",
        "in random order. The ratio is the median of the fastest peer that goes on with the right batch, over the contestant's.",
        "",
        f"- machine: {report.machine()}, `OMP_NUM_THREADS=1`; load when it began {report.load():.1f}",
        f"- versions: {report.versions(args.python, 'torch', 'torchdata', 'lightning', 'accelerate')}",
        f"- command: `resume_bench.py --steps {' '.join(map(str, args.steps))} --rounds {args.rounds}`",
        "",
        "| contestant | steps before | first step s, min / median | times as fast as the best correct peer | goes on with |",
        "|---|---|---|---|---|",
    ]
    for steps in args.steps:
        with tempfile.TemporaryDirectory() as folder:
            lines += measure(args, steps, folder)
            print("\n".join(lines[-len(PEERS) - 1:]), flush=True)
    report.write("\n".join([*lines, ""]), args.report)


if __name__ == "__main__":
    main()
