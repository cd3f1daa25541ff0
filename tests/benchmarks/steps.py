"""What exchange_bench.py and step_bench.py have in common: programs that print the time of each training step."""
import argparse
import os
import random
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import report

PEERS = Path(__file__).parent / "peers"
COLOURS = ["#1a7f64", "#8a8f98"]  # the first contestant and the others


@dataclass(frozen=True)
class Model:
    name: str
    layers: int
    width: int
    steps: int
    images: bool = False

    def words(self):
        """For the programs of the peers."""
        return [self.layers, self.width, self.steps, *(["images"] if self.images else [])]


# Small models show what a trainer adds, large ones what it overlaps.
MODELS = [
    Model("MLP, 2 layers of 32", 2, 32, 1000),
    Model("deep, 50 layers of 64", 50, 64, 200),
    Model("CNN, 3 convolutions of 32 channels", 3, 32, 200, images=True),
    Model("MLP, 4 layers of 1024", 4, 1024, 50),
    Model("large, 4 layers of 2048", 4, 2048, 20),
    Model("largest, 7 layers of 4096", 7, 4096, 4),
]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", type=Path, required=True, help="exchange_program")
    parser.add_argument("--python", type=Path, help="with the packages of the peers; left out: only lockstep")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--report")
    return parser


def ours(program, ranks, model):
    return [program, "--nprocs", ranks, "--layers", model.layers, "--width", model.width, "--steps", model.steps,
            *(["--images", "true"] if model.images else [])]


def measure(command):
    """The median time of a step in microseconds, and the last loss."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    times = [int(found) for found in re.findall(r"^(?:\[rank0\]: )?step (\d+)$", done.stdout, re.MULTILINE)]
    loss = re.search(r"^(?:\[rank0\]: )?loss (\S+)$", done.stdout, re.MULTILINE)
    if done.returncode != 0 or not times or not loss:
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    return statistics.median(times) / 1000, float(loss[1])


def require_same_work(losses):
    """Everybody trains the same weights with the same samples."""
    first, *others = losses.items()
    for name, loss in others:
        if abs(loss - first[1]) > 1e-4 * (1 + abs(first[1])):
            sys.exit(f"{name} has the loss {loss}, {first[0]} has {first[1]}: they do not do the same work")


def compare(args, title, contestants, packages):
    ratios_of_models = {}
    lines = [report.title(title), "",
             f"{report.machine()}, load {report.load():.1f} at the start, one thread per process"
             + (f", {report.versions(args.python, *packages)}." if args.python else "."),
             f"{args.rounds} rounds; each runs every contestant once in random order and takes the median time of its steps. Ratios are formed within a round; the",
             "number in the last column is their median, with the smallest and the largest. The last losses agree to 1e-4.", "",
             f"`{Path(sys.argv[0]).name} --rounds {args.rounds}`"]
    for model in MODELS:
        commands = contestants(args, model)
        times = {name: [] for name in commands}
        for _ in range(args.rounds):
            losses = {}
            for name in random.sample(list(commands), len(commands)):
                time, losses[name] = measure(commands[name])
                times[name].append(time)
            require_same_work(losses)
        reference, *_ = commands
        lines += ["", f"## {model.name}, batch of 16 per process", "",
                  f"| contestant | best us | median us | times the step of {reference} |", "|---|---|---|---|"]
        ratios_of_models[model.name] = {}
        for name, all_times in times.items():
            ratios = sorted(mine / other for mine, other in zip(all_times, times[reference]))
            ratios_of_models[model.name][name] = ratios
            lines.append(f"| {name} | {min(all_times):.0f} | {statistics.median(all_times):.0f} | "
                         f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}] |")
    if args.report:
        picture = Path(args.report).with_suffix(".svg")
        plot(picture, ratios_of_models)
        lines[2:2] = [f"![Ratios of all contestants]({picture.name})", ""]
    report.write("\n".join(lines) + "\n", args.report)


def plot(file, ratios_of_models):
    """A row of bars for each model: medians of the ratios, with their range."""
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(len(ratios_of_models), figsize=(8, 1.7 * len(ratios_of_models)))
    for axes, (model, contestants) in zip(rows, ratios_of_models.items()):
        medians = [statistics.median(ratios) for ratios in contestants.values()]
        below = [median - ratios[0] for median, ratios in zip(medians, contestants.values())]
        above = [ratios[-1] - median for median, ratios in zip(medians, contestants.values())]
        colours = COLOURS[:1] + COLOURS[1:] * (len(medians) - 1)
        axes.barh(list(contestants), medians, xerr=[below, above], color=colours, ecolor="#555555")
        axes.set_title(model, loc="left", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.invert_yaxis()
    rows[-1].set_xlabel(f"time of a step, in those of {next(iter(contestants))}", fontsize=8)
    figure.tight_layout()
    figure.savefig(file)
