#!/usr/bin/env python3
"""Training on one GPU beside PyTorch: throughput, model FLOP utilization, and where a step's time goes. See README.md.

  gpu_training_bench.py --build build/bench --out docs/benchmarks --device cuda --seconds 10

With --device cpu it runs with tiny shapes, to show that it works; its numbers then mean nothing.
"""
import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import report

HERE = Path(__file__).parent
CHECKED = 10
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}  # the host only launches kernels

@dataclass(frozen=True)
class Effort:
    rounds: int
    profiled: int  # steps
    launches: int  # of each program for the time to its first step
    save_every: int  # steps
    batches: int  # of the loader alone


EFFORTS = {"cuda": Effort(rounds=5, profiled=20, launches=4, save_every=50, batches=200),
           "cpu": Effort(rounds=2, profiled=5, launches=1, save_every=10, batches=20)}

# Dense peaks of the tensor cores in FLOP/s: (bf16, TF32).
PEAKS = {"H200": (989e12, 494e12), "H100 80GB HBM3": (989e12, 494e12), "H100 PCIe": (756e12, 378e12), "A100": (312e12, 156e12)}


@dataclass(frozen=True)
class Cell:
    model: str
    shape: str
    batch: int
    precision: str
    channels_last: bool = False
    pixels: int = 32
    label: str = ""

    @property
    def kind(self):
        return self.label or self.model

    @property
    def name(self):
        number = "bf16" if self.precision == "bf16_mixed" else "fp32"
        return f"{self.kind} batch {self.batch} {number}{' channels_last' if self.channels_last else ''}"

    @property
    def tolerance(self):
        """Of the losses of the first steps, relative."""
        return 2e-2 if self.precision == "bf16_mixed" else 5e-3


def cells(device):
    if device == "cpu":
        return [Cell("resnet18", "4", 8, "fp32", pixels=8), Cell("gpt2", "64,16,32,2,2", 4, "bf16_mixed")]
    gpt = "50304,1024,768,12,12"
    images = [Cell("resnet18", "64", batch, precision, last)
              for precision, last in [("bf16_mixed", True), ("fp32", False), ("bf16_mixed", False)]
              for batch in [128, 512, 64, 1024]]
    # All contestants are on the GPU at once; these fit into 80 GB.
    small = Cell("gpt2", "96,128,128,4,4", 32, "bf16_mixed", label="a small gpt")
    return [Cell("gpt2", gpt, 8, "bf16_mixed"), small, *images, Cell("gpt2", gpt, 4, "fp32")]


PREPARE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import gpu_models, torch
from safetensors.torch import save_file
from torch.utils.flop_counter import FlopCounterMode
cell = json.loads(sys.argv[2])
torch.manual_seed(1)
net = gpu_models.make(cell["model"], [int(word) for word in cell["shape"].split(",")])
if cell["model"] == "gpt2":
    for parameter in net.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    vocabulary, context = [int(word) for word in cell["shape"].split(",")][:2]
    text = torch.randint(vocabulary, (8 * cell["batch"], context + 1))
    samples = {"input": text[:, :-1].contiguous(), "target": text[:, 1:].contiguous()}
else:
    size = max(4096, 4 * cell["batch"]) if cell["pixels"] == 32 else 4 * cell["batch"]
    samples = {"input": torch.randn(size, 3, cell["pixels"], cell["pixels"]), "target": torch.randint(10, (size,))}
save_file(net.state_dict(), sys.argv[3])
save_file(samples, sys.argv[4])
net.eval()
with FlopCounterMode(display=False) as counter:
    net(samples["input"][:1], samples["target"][:1])
print(json.dumps({"flops": 3 * counter.get_total_flops() * cell["batch"], "parameters": sum(p.numel() for p in net.parameters())}))
"""


class Failed(Exception):
    pass


def progress(text):
    print(f"{time.strftime('%T')} {text}", file=sys.stderr, flush=True)


class Contestant:
    """A process that waits between the windows in which it trains."""

    def __init__(self, name, command, folder):
        self.name = name
        self.errors = Path(folder, f"{name}.err")
        self.start = time.monotonic()
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                                            env={**os.environ, **ENVIRONMENT})

    def read(self, word):
        """The rest of the next line that begins with this word."""
        for line in self.process.stdout:
            if line.startswith(word + " "):
                return line.split()[1:]
        lines = self.errors.read_text().strip().splitlines()
        raise Failed(f"ended with {self.process.wait()}: {lines[-1] if lines else 'no message'}")

    def tell(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # read() says why

    def take(self, steps, profile=None):
        self.tell(f"profile {steps} {profile}" if profile else f"steps {steps}")
        return float(self.read("took")[0])

    def end(self):
        self.tell("quit")
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Bench:
    def __init__(self, args):
        self.args = args
        self.effort = EFFORTS[args.device]
        self.program = Path(args.build, "tests/benchmarks/gpu_training_program")
        self.wrong = []

    def command(self, name, cell, folder, more=()):
        kind = name.split()[0]
        native = kind in ("lockstep", "loop", "loader", "copy")
        words = [str(self.program)] if native else [str(self.args.python), str(HERE / "peers" / "gpu_training.py")]
        words += ["--contestant", kind, "--model", cell.model, "--shape", cell.shape, "--weights", f"{folder}/weights.safetensors",
                  "--samples", f"{folder}/samples.safetensors", "--batch_size", str(cell.batch), "--checked", str(CHECKED)]
        words += [] if "--precision" in more else ["--precision", cell.precision]
        if native:
            words += ["--compute_setup", "gpu" if self.args.device == "cuda" else "cpu", "--run_dir", f"{folder}/{name}", "--nprocs", "1"]
            words += ["--cuda_graphs", "true"] if name == "lockstep with graphs" else []
        else:
            words += ["--device", self.args.device]
        return words + (["--channels_last"] if cell.channels_last else []) + list(more)

    def prepare(self, cell, folder):
        done = subprocess.run([str(self.args.python), "-c", PREPARE, str(HERE / "peers"), json.dumps(asdict(cell)),
                               f"{folder}/weights.safetensors", f"{folder}/samples.safetensors"],
                              capture_output=True, text=True, check=True, env={**os.environ, **ENVIRONMENT})
        return json.loads(done.stdout.splitlines()[-1])

    def start(self, names, cell, folder):
        """All at once, because compilers take long; then the losses of each."""
        started = {name: Contestant(name, self.command(name, cell, folder), folder) for name in names}
        losses, failed = {}, {}
        for name, contestant in started.items():
            try:
                losses[name] = [float(word) for word in contestant.read("losses")]
            except Failed as error:
                failed[name] = str(error)
        return {name: started[name] for name in losses}, losses, failed

    def measure(self, cell, names, folder):
        """Leaves weights and samples in the folder, for the methods below."""
        progress(f"{cell.name}: the model and its samples")
        facts = self.prepare(cell, folder)
        progress(f"{cell.name}: the first steps of {', '.join(names)}")
        contestants, losses, failed = self.start(names, cell, folder)
        progress(f"{cell.name}: {self.effort.rounds} rounds")
        rows = {name: {"failed": text} for name, text in failed.items()}
        try:
            self.take_windows(cell, contestants, losses, rows, folder)
        finally:
            for contestant in contestants.values():
                contestant.end()
        return {"cell": cell.name, **facts, "tokens": cell.batch * int(cell.shape.split(",")[1]) if cell.model == "gpt2" else None,
                "batch": cell.batch, "contestants": {name: rows[name] for name in names}}

    def take_windows(self, cell, contestants, losses, rows, folder):
        def take(name, steps, trace=None):
            """None: the contestant has ended, and its row says why."""
            try:
                return contestants[name].take(steps, trace)
            except Failed as error:
                rows[name] = {"failed": str(error)}
                del contestants[name]
                return None

        window = {}
        for name in list(contestants):
            if take(name, 5) and (seconds := take(name, 5)):
                window[name] = max(5, int(self.args.seconds / self.effort.rounds / (seconds / 5)))
        times = {name: [] for name in contestants}
        for _ in range(self.effort.rounds):
            for name in random.sample(list(contestants), len(contestants)):
                if seconds := take(name, window[name]):
                    times[name].append(seconds / window[name])
        for name in list(contestants):
            agrees, difference = self.compare(cell, name, losses)
            rows[name] = {"seconds": times[name], "loss_difference": difference, "agrees": agrees, "losses": losses[name],
                          "relative": statistics.median(e / t for e, t in zip(times.get("eager", times[name]), times[name]))}
            trace = Path(folder, f"{name.replace(' ', '_')}.json")
            if name in ("lockstep", "lockstep with graphs", "loop", "eager") and (seconds := take(name, self.effort.profiled, trace)):
                rows[name]["anatomy"] = anatomy(trace, seconds, self.effort.profiled)

    def compare(self, cell, name, losses):
        if "eager" not in losses:
            return False, None
        difference = max(abs(a - b) / abs(b) for a, b in zip(losses[name], losses["eager"]))
        if difference > cell.tolerance:
            self.wrong.append(f"{cell.name}, {name}: the losses of the first steps differ by {difference:.1e} from those of eager")
        return difference <= cell.tolerance, difference

    def first_steps(self, cell, folder):
        """Seconds from exec to the end of the first step, one program at a time."""
        seconds = {}
        for name in ["lockstep", "loop", "eager"]:
            seconds[name] = []
            for _ in range(self.effort.launches):
                contestant = Contestant(name, self.command(name, cell, folder), folder)
                seconds[name].append(float(contestant.read("first")[0]) - contestant.start)
                contestant.read("losses")
                contestant.end()
        return {name: values[1:] or values for name, values in seconds.items()}  # the first one fills the page cache

    def bandwidth(self, cell, folder):
        """Bytes per second to the device: one large copy, and the batches of the loader."""
        found = {}
        for name in ["copy", "loader"]:
            contestant = Contestant(name, self.command(name, cell, folder), folder)
            size = int(contestant.read("bytes")[0])
            contestant.read("losses")
            steps = 10 if name == "copy" else self.effort.batches
            found[name] = steps * size / min(contestant.take(steps) for _ in range(3))
            contestant.end()
        return found

    def stalls(self, cell, folder):
        """Seconds by which one save makes the training longer."""
        every = str(self.effort.save_every)
        save = ["--checkpoint.enabled", "true", "--checkpoint.every_epochs", "0", "--checkpoint.every_steps", every]
        runs = {"lockstep": (), "lockstep in the foreground": save, "lockstep in the background": [*save, "--checkpoint.async", "true"],
                "eager": (), "eager torch.save": ["--save_every", every, "--save_to", f"{folder}/saved.pt"]}
        contestants = {name: Contestant(name, self.command(name, cell, folder, more), folder) for name, more in runs.items()}
        times = {name: [] for name in runs}
        for contestant in contestants.values():
            contestant.read("losses")
        for _ in range(self.effort.rounds):
            for name in random.sample(list(runs), len(runs)):
                times[name].append(contestants[name].take(2 * self.effort.save_every))
        for contestant in contestants.values():
            contestant.end()
        middle = {name: statistics.median(values) for name, values in times.items()}
        return {name: (middle[name] - middle[name.split()[0]]) / 2 for name in runs if " " in name}


    def settings(self, cell, folder):
        """Seconds per step and peak memory of lockstep, as its settings are added one after the other."""
        plain = replace(cell, precision="fp32", channels_last=False)
        added = [("the defaults: fp32", []), ("--matmul_precision high", ["--matmul_precision", "high"]),
                 ("--precision bf16_mixed", ["--precision", "bf16_mixed"])]
        if cell.model == "resnet18":
            added += [("--memory.channels_last true", ["--memory.channels_last", "true"]), ("--benchmark true", ["--benchmark", "true"])]
        added += [("--cuda_graphs true", ["--cuda_graphs", "true"])]
        contestants, flags = {}, {"--tuned": "false", "--precision": "fp32"}
        for title, more in added:
            flags |= dict(zip(more[::2], more[1::2]))
            name = f"lockstep {len(contestants)}"
            contestants[title] = Contestant(name, self.command(name, plain, folder, [word for pair in flags.items() for word in pair]), folder)
        for contestant in contestants.values():
            contestant.read("losses")
        window = {title: max(5, int(self.args.seconds / self.effort.rounds / (contestant.take(5) / 5)))
                  for title, contestant in contestants.items()}
        times, memory = {title: [] for title in contestants}, {}
        for _ in range(self.effort.rounds):
            for title in random.sample(list(contestants), len(contestants)):
                contestants[title].tell(f"steps {window[title]}")
                seconds, peak = contestants[title].read("took")
                times[title].append(float(seconds) / window[title])
                memory[title] = int(peak)
        for contestant in contestants.values():
            contestant.end()
        return {title: {"seconds": statistics.median(times[title]), "peak": memory[title]} for title in contestants}


def anatomy(trace, wall, steps):
    """Milliseconds per step in which the GPU worked, copied, or did neither, from a chrome trace."""
    events = json.loads(trace.read_text())["traceEvents"]
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "dur" in e]
    busy, end = 0.0, float("-inf")
    for event in sorted(work, key=lambda e: e["ts"]):
        begin = max(event["ts"], end)
        end = max(end, event["ts"] + event["dur"])
        busy += max(0.0, end - begin)
    copies = [e["dur"] for e in work if "HtoD" in e["name"]]
    launches = [e for e in events if e.get("cat") == "cuda_runtime" and "LaunchKernel" in e["name"]]
    waits = [e["dur"] for e in events if e.get("cat") == "cuda_runtime" and "Synchronize" in e["name"]]
    return {"wall_ms": 1e3 * wall / steps, "busy_ms": busy / 1e3 / steps, "idle_ms": 1e3 * wall / steps - busy / 1e3 / steps,
            "copy_ms": sum(copies) / 1e3 / steps, "launches": len(launches) / steps, "host_waits_ms": sum(waits) / 1e3 / steps,
            "operations": sum(e.get("cat") == "cpu_op" for e in events) / steps}


def gpu_name(args):
    if args.device == "cpu":
        return None
    script = "import torch; print(torch.cuda.get_device_name(0))"
    return subprocess.run([str(args.python), "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def has_lightning(args):
    script = "import importlib.util, sys; sys.exit(importlib.util.find_spec('lightning') is None)"
    return subprocess.run([str(args.python), "-c", script]).returncode == 0


def peak_of(gpu, precision):
    for name, (bf16, tf32) in PEAKS.items():
        if gpu and name in gpu:
            return bf16 if precision == "bf16" else tf32
    return None


def table(result, gpu):
    unit = "tokens/s" if result["tokens"] else "samples/s"
    per_step = result["tokens"] or result["batch"]
    peak = peak_of(gpu, "bf16" if "bf16" in result["cell"] else "tf32")
    lines = [f"### {result['cell']}", "",
             f"| contestant | {unit}, median (min - max) | times eager | MFU | losses differ by |", "|---|---|---|---|---|"]
    for name, row in result["contestants"].items():
        if "failed" in row:
            lines.append(f"| {name} | {row['failed']} | | | |")
            continue
        rates = sorted(per_step / seconds for seconds in row["seconds"])
        middle = statistics.median(rates)
        use = f"{100 * result['flops'] * middle / per_step / peak:.1f} %" if peak else "-"
        difference = "-" if row["loss_difference"] is None else f"{row['loss_difference']:.1e}{'' if row['agrees'] else ' **too much**'}"
        lines.append(f"| {name} | {middle:,.0f} ({rates[0]:,.0f} - {rates[-1]:,.0f}) | {row['relative']:.2f} | {use} | {difference} |")
    rows = {name: row["anatomy"] for name, row in result["contestants"].items() if "anatomy" in row}
    lines += ["", "| under the profiler, per step | ms | GPU works | GPU idle | copies to the GPU | host waits | kernel launches | operations |",
              "|---|---|---|---|---|---|---|---|"]
    lines += [f"| {name} | {a['wall_ms']:.2f} | {a['busy_ms']:.2f} | {a['idle_ms']:.2f} | {a['copy_ms']:.3f} | {a['host_waits_ms']:.2f} | "
              f"{a['launches']:.0f} | {a['operations']:.0f} |" for name, a in rows.items()]
    return [*lines, ""]


def render(args, gpu, results, others):
    lines = [
        report.title(f"Training on one {'GPU' if gpu else 'CPU (tiny shapes, to show that the benchmark works)'}"),
        "",
        "Every contestant has the same weights, samples, order and precision; the losses of the first 10 steps are compared with PyTorch eager's.",
        f"All stay alive and train in turn: {EFFORTS[args.device].rounds} rounds in random order, {args.seconds:g} s per contestant in all. `fp32` is fp32 with TF32.",
        "`loop`: a loop written by hand with LibTorch and its own optimizers; Python's optimizers are fused, as lockstep's are.",
        "\"lockstep with graphs\": `--cuda_graphs true`, which records forward and backward; `compile_reduce_overhead` records graphs too. lockstep compiles nothing.",
        "MFU: FLOPs of the matrix products and convolutions of forward and backward, over the dense peak of the tensor cores.",
        "",
        f"- machine: {gpu or 'no GPU'}; {report.machine()}; load when it began {args.load:.1f}",
        f"- versions: {args.versions}",
        f"- command: `gpu_training_bench.py {' '.join(sys.argv[1:])}`",
        "",
    ]
    for result in results:
        lines += table(result, gpu)
    if "first" in others:
        lines += [f"### From exec to the first step, {others['first']['of']}", "", "| contestant | s, median |", "|---|---|"]
        lines += [f"| {name} | {statistics.median(values):.2f} |" for name, values in others["first"]["values"].items()] + [""]
    if "bandwidth" in others:
        limit = others["bandwidth"]["values"]["copy"]
        lines += [f"### To the device, {others['bandwidth']['of']}", "", "| what | GB/s | of the limit |", "|---|---|---|",
                  f"| one pinned copy of 256 MiB: the limit | {limit / 1e9:.1f} | |",
                  f"| lockstep's loader, without training | {others['bandwidth']['values']['loader'] / 1e9:.1f} | "
                  f"{100 * others['bandwidth']['values']['loader'] / limit:.0f} % |", ""]
    for part in [part for part in others if part.startswith("settings")]:
        rows, cell = others[part]["values"], others[part]["of"]
        first = next(iter(rows.values()))["seconds"]
        lines += [f"### Settings, each added to those above it, {cell}", "", "| setting | ms per step | times the defaults | GiB, peak |",
                  "|---|---|---|---|"]
        lines += [f"| {title} | {1e3 * row['seconds']:.2f} | {first / row['seconds']:.2f} | {row['peak'] / 2**30:.2f} |" for title, row in rows.items()]
        lines += [""]
    if "stalls" in others:
        lines += [f"### What one checkpoint costs the training, {others['stalls']['of']}", "", "| contestant | ms |", "|---|---|"]
        lines += [f"| {name} | {1e3 * seconds:.0f} |" for name, seconds in others["stalls"]["values"].items()] + [""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="folder of a build with LOCKSTEP_BUILD_BENCHMARKS")
    parser.add_argument("--out", type=Path, required=True, help="folder for the report")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=10, help="per contestant and table")
    parser.add_argument("--python", type=Path, help="of an environment with torch and safetensors; default: that of LOCKSTEP_LIBTORCH")
    parser.add_argument("--cells", default="", help="regular expression for the titles of the tables; default: all")
    parser.add_argument("--parts", default="settings,stalls,first,bandwidth", help="beside the tables of throughput; names with commas between them, or nothing")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="torch.compile; default: with --device cuda")
    parser.add_argument("--name", help="of the report; default: gpu_training_<device>_<date>")
    args = parser.parse_args()
    args.python = args.python or Path(os.environ["LOCKSTEP_LIBTORCH"]).parents[3] / "bin" / "python"
    args.load, args.versions = report.load(), report.versions(args.python, "torch")
    gpu = gpu_name(args)
    names = ["lockstep", "lockstep with graphs", "loop", "eager"]
    if args.compile if args.compile is not None else args.device == "cuda":
        names += ["compile", "compile_reduce_overhead"]
    lightning = ["lightning", "lightning_barebones"]
    installed = has_lightning(args)
    file = args.out / (args.name or f"gpu_training_{args.device}_{time.strftime('%F')}")
    args.out.mkdir(parents=True, exist_ok=True)
    bench, results, others = Bench(args), [], {}

    def write():  # after each part, so that nothing is lost if the machine is
        text = render(args, gpu, results, others)
        file.with_suffix(".md").write_text(text + "\n")
        file.with_suffix(".json").write_text(json.dumps({"gpu": gpu, "results": results, **others}, indent=1) + "\n")
        return text

    chosen = [cell for cell in cells(args.device) if re.search(args.cells, cell.name)]
    for cell in chosen:
        with tempfile.TemporaryDirectory() as folder:
            result = bench.measure(cell, names + (lightning if installed else []), folder)
            if not installed:
                result["contestants"].update({name: {"failed": "not installed"} for name in lightning})
            results.append(result)
            write()
            print(f"{cell.name}: done", flush=True)
            parts = [("stalls", bench.stalls), (f"settings of {cell.kind}", bench.settings)]
            if cell.model == "resnet18":
                parts += [("first", bench.first_steps), ("bandwidth", bench.bandwidth)]
            for part, work in parts:
                if part.split()[0] in args.parts.split(",") and part not in others:
                    others[part] = {"of": f"{cell.kind}, batch {cell.batch}" if part.startswith("settings") else cell.name, "values": work(cell, folder)}
                    write()
    print(write())
    for text in bench.wrong:
        print(f"error: {text}", file=sys.stderr)
    sys.exit(1 if bench.wrong else 0)


if __name__ == "__main__":
    main()
