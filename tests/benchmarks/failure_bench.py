#!/usr/bin/env python3
"""One rank throws: how long until its text is read, until all is over, and who is blamed. lockstep beside torchrun with Python.

  failure_bench.py --program BUILD/tests/benchmarks/failing_program --python VENV/bin/python --report docs/benchmarks/NAME.md
"""
import argparse
import os
import random
import re
import select
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import report

PEER = Path(__file__).parent / "peers" / "failing.py"
TEXT = b"cannot decode sample 4411"
LIMIT_S = 120


def contestants(args, rank, folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    torchrun = [str(args.python), "-m", "torch.distributed.run", "--nproc-per-node", str(args.ranks), "--master-port", port]
    return {
        "lockstep": [str(args.program), folder, "--nprocs", str(args.ranks), "--fail_rank", str(rank), "--run_dir", f"{folder}/run"],
        "torchrun, Python": [*torchrun, str(PEER), folder, str(rank), "20"],
    }


def blamed(name, output):
    """The rank that the last report names."""
    pattern = rb"error: rank (\d+) " if name == "lockstep" else rb"Root Cause[\s\S]*?rank\s*: (\d+)"
    found = re.findall(pattern, output)
    return int(found[-1]) if found else None


def measure(args, name, rank):
    """Seconds from the throw to its text, seconds to the end of all, and whether the right rank was blamed."""
    with tempfile.TemporaryDirectory() as folder:
        command = contestants(args, rank, folder)[name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, env=environment)
        output, read_at = b"", None
        try:
            deadline = time.monotonic() + LIMIT_S
            while time.monotonic() < deadline:
                if not select.select([process.stdout], [], [], 0.2)[0]:
                    continue
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    break
                output += chunk
                if read_at is None and TEXT in output:
                    read_at = time.monotonic()
            process.wait(LIMIT_S)
            end = time.monotonic()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        failed_at = float(Path(f"{folder}/failed").read_text())
        return {"text": read_at - failed_at, "end": end - failed_at, "right": blamed(name, output) == rank, "code": process.returncode}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    results = {}
    for round_ in range(args.rounds):
        rank = round_ % args.ranks
        names = list(contestants(args, rank, ""))
        for name in random.sample(names, len(names)):
            results.setdefault(name, []).append(measure(args, name, rank))
    lines = [
        report.title("One rank throws, CPU"),
        "",
        f"{args.ranks} ranks over Gloo; {report.machine()}; {args.rounds} rounds, every rank failing in turn, contestants in random",
        f"order. Seconds from the throw, median / largest. torchrun: {report.versions(args.python, 'torch')}, defaults, its worker under `@record`.",
        "",
        "| contestant | its text on the screen | launcher ended | right rank blamed | exit codes |",
        "|---|---|---|---|---|",
    ]
    for name, runs in sorted(results.items()):
        spread = lambda key: f"{statistics.median(r[key] for r in runs):.3f} / {max(r[key] for r in runs):.3f}"  # noqa: E731
        codes = ", ".join(str(code) for code in sorted({r["code"] for r in runs}))
        lines.append(f"| {name} | {spread('text')} | {spread('end')} | {sum(r['right'] for r in runs)} of {len(runs)} | {codes} |")
    report.write("\n".join(lines) + "\n", args.report)


main()
