#!/usr/bin/env python3
"""loader_bench beside Python's loaders: every contestant once per round, in random order; ratios within a round.

Usage: loader_bench.py --program build/bench/tests/benchmarks/loader_bench --python VENV/bin/python [--rounds 11]
                       [--seconds 1] [--report FILE]
"""
import argparse
import json
import os
import random
import statistics
import subprocess

import report

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = {"lockstep cifar": "cifar/0/real_time", "lockstep cifar, 2 workers": "cifar/2/real_time",
        "plain loops, cifar": "cifar_limit/real_time", "lockstep tokens": "tokens/0/real_time",
        "lockstep tokens, 2 workers": "tokens/2/real_time"}
THEIRS = {"DataLoader, workers 0": "workers0", "DataLoader, workers 2": "workers2",
          "batched indices, numpy": "batched_numpy", "numpy take(out=), multiply(out=)": "numpy_out",
          "nanoGPT get_batch": "nanogpt", "torch gather": "torch", "torch rows of a strided view": "windows"}
GOALS = {"cifar": {"workers0": 15, "workers2": 22, "batched_numpy": 2, "numpy_out": 1.3},
         "tokens": {"workers0": 18, "workers2": 85, "nanogpt": 18, "torch": 2.7}}


def run_ours(program, name, seconds):
    done = subprocess.run([program, f"--benchmark_filter=^{name}$", f"--benchmark_min_time={seconds}",
                           "--benchmark_format=json"], capture_output=True, text=True, check=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads(done.stdout)["benchmarks"][0]["us_per_sample"]


def run_theirs(python, name, seconds):
    done = subprocess.run([python, os.path.join(HERE, "peers", "loading.py"), name, str(seconds)],
                          capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return float(done.stdout)


def spread(values):
    return f"{statistics.median(values):.3g} [{min(values):.3g}-{max(values):.3g}]"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--report")
    args = parser.parse_args()

    contestants = {(work, label): (lambda name=name: run_ours(args.program, name, args.seconds))
                   for label, name in OURS.items() for work in ("cifar", "tokens") if work in label}
    for work, goals in GOALS.items():
        for label, key in THEIRS.items():
            if key in goals or (work, key) == ("tokens", "windows"):
                contestants[work, label] = lambda name=f"{work}_{key}": run_theirs(args.python, name, args.seconds)
    rounds, load = [], []
    for _ in range(args.rounds):
        order = list(contestants)
        random.shuffle(order)
        load.append(report.load())
        rounds.append({each: contestants[each]() for each in order})

    lines = [report.title("Loader"), "",
             f"{report.machine()}, {report.versions(args.python, 'torch')}, one compute thread each; {args.rounds} "
             f"rounds; load average {min(load):.1f} to {max(load):.1f} meanwhile."]
    for work, unit in (("cifar", "CIFAR-shaped bytes to floats, batch 256"),
                       ("tokens", "windows of 1024 uint16 tokens to int64, batch 64")):
        lines += ["", f"## {unit}", "", "| | us per sample: median [all rounds] | times lockstep's, one thread | goal |",
                  "|---|---|---|---|"]
        ours = (work, f"lockstep {work}")
        for each in (c for c in contestants if c[0] == work):
            goal = GOALS[work].get(THEIRS.get(each[1], ""), "")
            lines.append(f"| {each[1]} | {spread([r[each] for r in rounds])} | "
                         f"{spread([r[each] / r[ours] for r in rounds])} | {goal} |")
    report.write("\n".join(lines) + "\n", args.report)


if __name__ == "__main__":
    main()
