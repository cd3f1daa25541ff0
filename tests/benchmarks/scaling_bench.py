#!/usr/bin/env python3
"""What ranks cost each other from 2 to 10,000: measures few real ranks on this machine, checks a model with the largest number, and
computes the rest.

scaling_bench.py --program build/bench/tests/benchmarks/scaling_program [--ranks 2 4 8 16 32] [--rounds 3] [--report FILE]
"""

import argparse
import json
import statistics
import subprocess

import report

LATENCY = 50e-6  # of a message between machines; assumed
LOOKS = 7  # questions to the store per rank and second: 5 looks, and once per second the heartbeat and the other processes
WINDOW = 2  # seconds between two searches for a slow rank, and at least 100 times what one takes


def measure(program, ranks):
    run = subprocess.run([program, "--nprocs", str(ranks), "--run_dir", "/nonexistent"], capture_output=True, text=True, check=True)
    return json.loads(next(line for line in (run.stdout + run.stderr).splitlines() if line.startswith('{"ranks"')))


def line(points):
    """a, b of a + b x, by least squares."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x, y = statistics.mean(xs), statistics.mean(ys)
    b = sum((p - x) * (q - y) for p, q in points) / sum((p - x) ** 2 for p in xs)
    return y - b * x, b


class Model:
    """In seconds of CPU time. `rows`: number of ranks -> medians."""

    def __init__(self, rows):
        self.question = statistics.median((r["question"][0] - r["question"][1]) / n for n, r in rows.items()) / 1e6
        self.gather_fixed, self.gather_rank = (v / 1e6 for v in line([(n - 1, r["gather"][1]) for n, r in rows.items()]))
        self.connect_fixed, self.connect_rank = (v / 1e6 for v in line([(n, r["channel"][1]) for n, r in rows.items()]))
        self.start = statistics.median(r["start"][1] for r in rows.values()) / 1e6
        self.serve = statistics.median((r["channel"][0] - r["channel"][1]) / n for n, r in rows.items() if n >= 8) / 1e6
        self.serve_start = statistics.median((r["start"][0] - r["start"][1]) / n**2 for n, r in rows.items() if n >= 8) / 1e6

    def gather(self, n):
        return self.gather_fixed + self.gather_rank * (n - 1)

    def connect(self, n):
        return self.connect_fixed + self.connect_rank * n


def duration(seconds):
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report")
    options = parser.parse_args()
    load = report.load()
    found = {n: [] for n in options.ranks}
    for _ in range(options.rounds):
        for n in options.ranks:
            found[n].append(measure(options.program, n))
    rows = {n: {key: [statistics.median(run[key][i] for run in runs) for i in range(3)] for key in ("start", "gather", "barrier", "question", "channel")}
            for n, runs in found.items()}
    largest = max(rows)
    model, check = Model(rows), Model({n: row for n, row in rows.items() if n < largest})
    out = [report.title("What ranks cost each other, CPU"), "",
           f"{report.machine()}; `scaling_program`, {options.rounds} rounds, medians; load average {load:.1f} when it began. CPU milliseconds of one rank",
           "(all ranks share the cores, so the time of day says nothing); rank 0 also serves the store.", "",
           "| ranks | start: rank 0 / others | exchange of 120 bytes | barrier | a question to the store, rank 0 / others | another world of the same ranks, rank 0 / others |",
           "|---|---|---|---|---|---|"]
    for n, r in rows.items():
        ms = {key: [v / 1e3 for v in values] for key, values in r.items()}
        out.append(f"| {n} | {ms['start'][0]:.0f} / {ms['start'][1]:.0f} | {ms['gather'][1]:.2f} | {ms['barrier'][1]:.2f} | {ms['question'][0]:.3f} / "
                   f"{ms['question'][1]:.3f} | {ms['channel'][0]:.1f} / {ms['channel'][1]:.1f} |")
    measured, predicted = rows[largest]["gather"][1] / 1e6, check.gather(largest)
    served, serve = (rows[largest]["channel"][0] - rows[largest]["channel"][1]) / 1e6, check.serve * largest
    out += ["", "## The model", "", "| constant | |", "|---|---|",
            f"| a question to the store, at the process that serves it | {model.question * 1e6:.0f} us |",
            f"| an exchange: per other rank | {model.gather_rank * 1e6:.0f} us |",
            f"| connecting: per other rank | {model.connect_rank * 1e6:.0f} us |",
            f"| connecting: work of the store, per rank | {model.serve * 1e6:.0f} us |",
            f"| start: work of the store, times the square of the number of ranks, all on one machine | {model.serve_start * 1e6:.0f} us |",
            f"| start of a process | {duration(model.start)} |", "",
            f"Fitted without the runs of {largest} ranks, it predicts for them {duration(predicted)} for an exchange (measured {duration(measured)}) and "
            f"{duration(serve)} for the store's work (measured {duration(served)}).", "",
            "## Computed, not run", "",
            f"With {LATENCY * 1e6:.0f} us from machine to machine, which is assumed.", "",
            "| ranks | connecting, a rank | connecting, the store | questions to the store | search for a slow rank, each | of the time |",
            "|---|---|---|---|---|---|"]
    for n in (16, 64, 256, 1000, 4000, 10000):
        exchange = model.gather(n) + 2 * (n - 1) * LATENCY
        out.append(f"| {n:,} | {duration(model.connect(n))} | {duration(model.serve * n)} | {100 * LOOKS * n * model.question:.2g} % of a core | "
                   f"{duration(exchange)} | {100 * exchange / max(WINDOW, 100 * exchange):.2g} % |")
    report.write("\n".join(out) + "\n", options.report)


if __name__ == "__main__":
    main()
