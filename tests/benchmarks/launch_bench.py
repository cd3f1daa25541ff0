#!/usr/bin/env python3
"""Start to first step, exit and memory per rank: lockstep's launcher beside torchrun. See README.md.

  launch_bench.py --program BUILD/tests/benchmarks/launch_program --python VENV/bin/python --report docs/benchmarks/NAME.md
"""
import argparse
import contextlib
import math
import os
import random
import resource
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report

PEER = Path(__file__).parent / "peers" / "first_step.py"
REFERENCE = "torchrun, defaults"
LIMIT_S = 120
MIN_ROUNDS = 11  # quiet ones, for a result that may be quoted


def contestants(args, n, folder):
    """Name -> command line. All do the same step."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    python, program = str(args.python), str(args.program)
    run_dir = ["--run_dir", f"{folder}/run"]
    torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node", str(n), "--master-port", port]
    return {
        "lockstep": [program, folder, "--nprocs", str(n), *run_dir],
        REFERENCE: [*torchrun, str(PEER), folder],
        "torchrun, tuned": [*torchrun, "--monitor-interval", "0.01", str(PEER), folder, "--tuned"],
        "Python, forked after import": [python, str(PEER), folder, "--tuned", "--fork", str(n)],
        "lockstep's program under torchrun": [*torchrun, "--no-python", program, folder, *run_dir],
    }


def memory_mib(pid):
    """Proportional and private memory."""
    fields = dict(line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    kib = {name: int(value.split()[0]) for name, value in fields.items()}
    return kib["Pss"] / 1024, (kib["Private_Clean"] + kib["Private_Dirty"]) / 1024


def read_reports(fd, n, process):
    """A line of every rank, in order of rank."""
    text, deadline = "", time.monotonic() + LIMIT_S
    while text.count("\n") < n:
        if select.select([fd], [], [], 0.2)[0]:
            text += os.read(fd, 4096).decode()
        elif process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no first step from {process.args}: exit code {process.poll()}")
    return sorted((int(rank), int(pid), *map(float, rest)) for rank, pid, *rest in map(str.split, text.splitlines()))


def measure(args, name, n):
    """One launch, from exec to exit."""
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "w+") as log:
        os.mkfifo(f"{folder}/report")
        os.mkfifo(f"{folder}/go")
        reports = os.open(f"{folder}/report", os.O_RDWR)  # both ends: neither side waits for the other's open
        command = contestants(args, n, folder)[name]
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            ranks = read_reports(reports, n, process)
            pids = [pid for _, pid, *_ in ranks]
            memory = [memory_mib(pid) for pid in pids]
            launcher = 0 if process.pid in pids else memory_mib(process.pid)[0]
            released = time.monotonic()
            go = os.open(f"{folder}/go", os.O_RDWR)
            code = process.wait(LIMIT_S)
            exit_s = time.monotonic() - released
            os.close(go)
            if code:
                raise RuntimeError(f"exit code {code} from {command}")
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read())
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            os.close(reports)
        _, _, first_step_at, loss, weights = ranks[0]
        return {
            "first": first_step_at - start,
            "exit": exit_s,
            "pss": statistics.mean(pss for pss, _ in memory),
            "uss": statistics.mean(uss for _, uss in memory),
            "launcher": launcher,
            "all": launcher + sum(pss for pss, _ in memory),
            "numbers": (loss, weights),
        }


def machine_cpu_s():
    """CPU time of the machine so far: (busy, stolen, that of this program and its children)."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    tick = os.sysconf("SC_CLK_TCK")
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return (user + nice + system + irq + softirq) / tick, steal / tick, sum(u.ru_utime + u.ru_stime for u in own)


def run_round(args, n, names):
    """Every contestant once, in random order; and the part of the machine's CPU time that strangers took."""
    before, start = machine_cpu_s(), time.monotonic()
    results = {name: measure(args, name, n) for name in random.sample(names, len(names))}
    busy, stolen, own = (b - a for a, b in zip(before, machine_cpu_s()))
    cpu_s = (time.monotonic() - start) * os.cpu_count()
    for name, result in results.items():
        if any(not math.isclose(a, b, rel_tol=1e-5) for a, b in zip(result["numbers"], results[REFERENCE]["numbers"])):
            raise RuntimeError(f"not the same work: loss and weights {result['numbers']} of {name}, {results[REFERENCE]['numbers']}")
    return {"results": {name: results[name] for name in names}, "stolen": stolen / cpu_s, "foreign": max(0.0, busy - own) / cpu_s}


def with_interval(values):
    """Median [95 % bootstrap interval]."""
    draws = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(4000))
    return f"{statistics.median(values):.2f} [{draws[100]:.2f}, {draws[3899]:.2f}]"


def table(n, rounds):
    """The Markdown section of one number of ranks."""
    quiet = [r for r in rounds if r["stolen"] <= 0.01 and r["foreign"] <= 0.05]
    noisy = len(quiet) < MIN_ROUNDS
    used = rounds if noisy else quiet
    lines = [
        f"## {n} rank{'s' * (n > 1)}",
        "",
        f"{len(rounds)} rounds, {len(quiet)} of them quiet. "
        + (f"**Noisy: fewer than {MIN_ROUNDS} quiet rounds, so all are used; not to be quoted.**" if noisy else "The quiet ones are used."),
        f"Strangers took {100 * statistics.median(r['foreign'] for r in used):.0f} % of the CPU time (median).",
        "",
        "| contestant | first step s, min / median | times as fast as torchrun | exit s | PSS / USS per rank | PSS of the launcher | PSS of all |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in used[0]["results"]:
        mine = [r["results"][name] for r in used]
        middle = {key: statistics.median(m[key] for m in mine) for key in mine[0] if key != "numbers"}
        ratios = [r["results"][REFERENCE]["first"] / r["results"][name]["first"] for r in used]
        lines.append(
            f"| {name} | {min(m['first'] for m in mine):.2f} / {middle['first']:.2f} | {with_interval(ratios)} | {middle['exit']:.2f} "
            f"| {middle['pss']:.0f} / {middle['uss']:.0f} | {middle['launcher']:.0f} | {middle['all']:.0f} |"
        )
    return [*lines, ""]


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def heading(args):
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    thp = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return [
        report.title("Launch to first step, CPU"),
        "",
        "One step of an MLP 32-32-32-10, 16 samples per rank, AdamW; DDP over Gloo in Python, lockstep's default backend. First step: from exec of the launcher until rank 0 has",
        "done its optimizer step. Exit: from the release of the ranks until the launcher has ended. Memory in MiB, from `smaps_rollup`, while",
        "the ranks wait after the step; medians. Ratios are formed within a round: median [95 % bootstrap interval].",
        "",
        f"- machine: {report.machine()}, {memory_gib:.0f} GiB, "
        f"transparent huge pages {thp.read_text().strip() if thp.exists() else 'unknown'}",
        f"- versions: {output_of(args.python, '--version')}, {report.versions(args.python, 'torch')}; {output_of('c++', '--version').splitlines()[0]}; lockstep {args.build}; `OMP_NUM_THREADS=1`",
        f"- command: `launch_bench.py --program launch_program --rounds {args.rounds} --ranks {' '.join(map(str, args.ranks))}`",
        f"- load when it began: {report.load():.1f}",
        "",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, required=True, help="launch_program")
    parser.add_argument("--python", default=shutil.which("python3"), help="of an environment with torch")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--build", default="release build", help="words for the report: which lockstep this is")
    parser.add_argument("--report", type=Path, help="Markdown file to write, beside the terminal")
    args = parser.parse_args()

    lines = heading(args)
    for n in args.ranks:
        names = list(contestants(args, n, ""))
        run_round(args, n, names)  # fills the page cache
        rounds = []
        for i in range(args.rounds):
            rounds.append(run_round(args, n, names))
            print(f"{n} ranks, round {i + 1} of {args.rounds}", file=sys.stderr)
        lines += table(n, rounds)
    report.write("\n".join(lines), args.report)


if __name__ == "__main__":
    main()
