#!/usr/bin/env python3
"""A training step of several ranks on the CPUs of this machine: gradients in shared memory, over Gloo, and PyTorch's DDP over Gloo.

  exchange_bench.py --program BUILD/tests/benchmarks/exchange_program --python VENV/bin/python --report docs/benchmarks/NAME.md
"""
import argparse
import os
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path

import report

PEER = Path(__file__).parent / "peers" / "exchange.py"
MODELS = [("MLP, 2 layers of 32", 2, 32, 1000, False), ("deep, 50 layers of 64", 50, 64, 200, False),
          ("CNN, 3 convolutions of 32 channels", 3, 32, 200, True), ("MLP, 4 layers of 1024", 4, 1024, 50, False),
          ("large, 4 layers of 2048", 4, 2048, 20, False)]


def contestants(args, layers, width, steps, images):
    ours = [str(args.program), "--nprocs", str(args.ranks), "--layers", str(layers), "--width", str(width), "--steps", str(steps)]
    if images:
        ours += ["--images", "true"]
    found = {"lockstep, shm": [*ours, "--backend", "shm"], "lockstep, Gloo": [*ours, "--backend", "gloo"]}
    if args.python:
        found["PyTorch DDP, Gloo"] = [str(args.python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                                      str(args.ranks), str(PEER), str(layers), str(width), str(steps), *(["images"] if images else [])]
    return found


def measure(command):
    """The median time of a step in microseconds."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    times = [int(found) for found in re.findall(r"^(?:\[rank0\]: )?step (\d+)$", done.stdout, re.MULTILINE)]
    if done.returncode != 0 or not times:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return statistics.median(times) / 1000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--python", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--report")
    args = parser.parse_args()

    lines = [report.title(f"A training step of {args.ranks} CPU ranks"), "",
             f"{report.machine()}, load {report.load():.1f} at the start, one thread per rank"
             + (f", {report.versions(args.python, 'torch')}." if args.python else "."),
             f"{args.rounds} rounds; each runs every contestant once in random order and takes the median time of its steps. Ratios are formed within a round; the",
             "number in the last column is their median, with the smallest and the largest.", "", f"`{' '.join(['exchange_bench.py', *sys.argv[1:]])}`"]
    for title, *model in MODELS:
        commands = contestants(args, *model)
        times = {name: [] for name in commands}
        for _ in range(args.rounds):
            for name in random.sample(list(commands), len(commands)):
                times[name].append(measure(commands[name]))
        lines += ["", f"## {title}, batch of 16 per rank", "", "| contestant | best us | median us | times the step of shm |", "|---|---|---|---|"]
        for name, all_times in times.items():
            ratios = sorted(mine / shm for mine, shm in zip(all_times, times["lockstep, shm"]))
            lines.append(f"| {name} | {min(all_times):.0f} | {statistics.median(all_times):.0f} | "
                         f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}] |")
    report.write("\n".join(lines) + "\n", args.report)


if __name__ == "__main__":
    main()
