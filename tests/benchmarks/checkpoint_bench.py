#!/usr/bin/env python3
"""Durable saves and verified loads, beside torch.save, safetensors and the bare disk, in one run. See README.md."""
import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import report

PEER = Path(__file__).parent / "peers" / "checkpoint.py"
SAVES = {
    "raw O_DIRECT": ("ours", "raw_direct"),
    "lockstep": ("ours", "save"),
    "lockstep, until the oldest one is deleted, too": ("ours", "save_and_remove"),
    "torch.save + fsync": ("peer", "torch_save"),
    "safetensors + fsync": ("peer", "safetensors_save"),
}
STALLS = {
    "memcpy": ("peer", "memcpy"),
    "lockstep, save_in_background": ("ours", "stall"),
    "DCP async_save": ("peer", "dcp_async"),
    "DCP async_save, a stager by hand that keeps its memory": ("peer", "dcp_async_cached"),
}
LOADS = {
    "lockstep, verified": ("ours", "load"),
    "torch.load": ("peer", "torch_load"),
    "torch.load, every byte touched": ("peer", "torch_load_touched"),
    "torch.load(mmap=True), every byte touched": ("peer", "torch_load_mapped_touched"),
    "safetensors, every byte touched": ("peer", "safetensors_load_touched"),
}


class Worker:
    def __init__(self, *command):
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.process.args[0]} ended during {what}")
        return float(answer)


def rounds_of(workers, contestants, count):
    rounds = []
    for _ in range(count + 1):
        names = list(contestants)
        random.shuffle(names)
        times = {}
        for name in names:
            os.sync()
            worker, what = contestants[name]
            times[name] = workers[worker].seconds(what)
        rounds.append(times)
    return rounds[1:]  # the first one only warms up


def with_interval(values):
    draws = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(2000))
    return f"{statistics.median(values):.2f} [{draws[50]:.2f}, {draws[1949]:.2f}]"


def table(rounds, base, mib):
    lines = [f"| contestant | s, min / median | GB/s | times as fast as {base} |", "|---|---|---|---|"]
    for name in rounds[0]:
        times = [times[name] for times in rounds]
        ratios = [times[base] / times[name] for times in rounds]
        rate = mib * 2**20 / 1e9 / statistics.median(times)
        lines.append(f"| {name} | {min(times):.3f} / {statistics.median(times):.3f} | {rate:.2f} | {with_interval(ratios)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, help="checkpoint_program of the preset bench")
    parser.add_argument("--python", required=True, help="a Python with torch and safetensors")
    parser.add_argument("--folder", default=".", help="on the disk to be measured")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--note", default="")
    parser.add_argument("--report")
    args = parser.parse_args()
    load = report.load()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        workers = {
            "ours": Worker(args.program, folder, args.mib),
            "peer": Worker(args.python, PEER, folder, args.mib),
        }
        saves = rounds_of(workers, SAVES, args.rounds)
        stalls = rounds_of(workers, STALLS, args.rounds)
        loads = rounds_of(workers, LOADS, args.rounds)
        for worker in workers.values():
            worker.process.stdin.close()
            worker.process.wait()
    text = f"""{report.title("Checkpoints")}

{args.mib} MiB of float32 in tensors of 4 MiB, one process. A save is over when it is durable: fsync of a new file and of its
directory; lockstep's also has checksums, a manifest, the renames of the commit and the links. Everybody deletes the old file
afterwards, and the next contestant begins when it is deleted. Loads come from the page cache;
lockstep's compares every checksum; everybody's ends with tensors. A save in the background is timed until the loop may go on; the next one begins when it is durable.
`memcpy` is torch's copy into memory that is there: what any copy costs. Ratios are formed within a round: median [95 % bootstrap interval].

- machine: {report.machine()}; load when it began: {load:.1f}
- versions: {report.versions(args.python, 'torch', 'safetensors')}; lockstep release build
- command: `checkpoint_bench.py --mib {args.mib} --rounds {args.rounds}`
{args.note}
## Durable save

{table(saves, "raw O_DIRECT", args.mib)}

## What the loop waits for a save in the background

{table(stalls, "lockstep, save_in_background", args.mib)}

## Load

{table(loads, "torch.load", args.mib)}
"""
    report.write(text, args.report)


if __name__ == "__main__":
    main()
