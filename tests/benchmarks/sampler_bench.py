#!/usr/bin/env python3
"""sampler_bench beside PyTorch's DistributedSampler, in one run; both in every round.

Usage: sampler_bench.py --program build/bench/tests/benchmarks/sampler_bench --python VENV/bin/python [--rounds 5]
                        [--report FILE]
"""
import argparse
import json
import os
import statistics
import subprocess

import report

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = [10**6, 10**7, 10**8, 10**12]
UNITS = {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def run_ours(program):
    done = subprocess.run([program, "--benchmark_min_time=0.1", "--benchmark_format=json"], capture_output=True,
                          text=True, check=True)
    found = {}
    for row in json.loads(done.stdout)["benchmarks"]:
        name, size = row["name"].split("/")
        found[name, int(size)] = row.get("s_per_index", row["cpu_time"] * UNITS[row["time_unit"]])
    return found


def run_theirs(python, size):
    done = subprocess.run([python, os.path.join(HERE, "peers", "sampling.py"), str(size)], capture_output=True, text=True,
                          check=True)
    first, following = (float(word) for word in done.stdout.split())
    return {("first_index", size): first, ("next_index", size): following}


def show(rounds, key):
    values = [each[key] for each in rounds if key in each]
    if not values:
        return ""
    median = statistics.median(values)
    for unit in ("s", "ms", "us", "ns"):
        if median >= UNITS[unit] or unit == "ns":
            return " ".join([f"{median / UNITS[unit]:.3g} {unit}",
                             f"[{min(values) / UNITS[unit]:.3g}-{max(values) / UNITS[unit]:.3g}]"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--report")
    args = parser.parse_args()
    ours, theirs, load = [], [], []
    for number in range(args.rounds):
        load.append(report.load())
        ours.append(run_ours(args.program))
        sizes = [size for size in SIZES if size <= 10**7 or (size == 10**8 and number == 0)]  # 4.6 GB, 10 s: once
        theirs.append({key: value for size in sizes for key, value in run_theirs(args.python, size).items()})
    lines = [report.title("Sampler"), "",
             f"{report.machine()}; {args.rounds} rounds, median [all]; load average "
             f"{min(load):.1f} to {max(load):.1f} meanwhile.", "",
             "| samples | | lockstep, keyed | DistributedSampler |", "|---|---|---|---|"]
    for size in SIZES:
        for key, label in (("first_index", "first index of an epoch"), ("next_index", "next index, in steps of 256"),
                           ("random_seek", "any index")):
            lines.append(f"| {size:.0e} | {label} | {show(ours, (key, size))} | {show(theirs, (key, size))} |")
    lines.append(f"| 1e+06 | next index, weighted | {show(ours, ('weighted_index', 10**6))} | |")
    report.write("\n".join(lines) + "\n", args.report)


if __name__ == "__main__":
    main()
