#!/usr/bin/env python3
"""How much of the reduction of gradients is exposed with the buckets of make_reducer, with other rules, and with the best ones.

bucket_simulation.py [--repeats 3] [--report FILE]    # needs torch; measures with one thread of the CPU, then computes

Ready times of the gradients are measured; the duration of the backward on a GPU is that of published rates; links are computed
from latency and bandwidth. Reductions run one after the other, in the order of the buckets, and take nothing from the backward.
"""

import argparse
import math
import statistics

import bucket_models
import report
import torch

MIB = 2**20
# GB/s in one direction, microseconds from one rank to the next; assumed
LINKS = {
    "1 Gb/s": (0.125, 25), "10 Gb/s": (1.25, 25), "25 Gb/s": (3.125, 25), "100 Gb/s": (12.5, 5), "400 Gb/s": (50, 5),
    "PCIe": (20, 4), "NVLink": (200, 2),
}
INSIDE = ("PCIe", "NVLink")  # one machine; the others connect machines: up to 8 ranks are on as many, 64 ranks on 8
LAUNCH = 0.01  # ms
GPU_BYTES = 2.0e9  # per ms: what the update of an optimizer reads and writes
UPDATE_BYTES = 7  # times the bytes of the parameters: AdamW reads 4 tensors and writes 3


def link_cost(link, ranks):
    """Latency of a ring all-reduce in ms, and ms per byte."""
    rate, hop = LINKS[link]
    machines = 1 if link in INSIDE else min(ranks, 8)
    hops = 2 * (ranks - 1) * hop if link in INSIDE else 2 * (machines - 1) * hop + 2 * (ranks - machines) * LINKS["NVLink"][1]
    return LAUNCH + hops / 1000, 2 * (ranks - 1) / ranks / (rate * 1e6)


def ends(plan, sizes, times, cost):
    """When each bucket is reduced. `plan`: number of gradients in each."""
    latency, per_byte = cost
    end, first, found = 0, 0, []
    for count in plan:
        part = slice(first, first + count)
        end = max(end, *times[part]) + latency + per_byte * sum(sizes[part])
        found.append(end)
        first += count
    return found


def best(sizes, times, cost):
    """The plan that ends first: of all that begin with the same gradients, only the one that ends them first can be a part of it."""
    latency, per_byte = cost
    end, count = [0.0], [0]
    for i in range(len(sizes)):
        ready, size, found, of = 0, 0, math.inf, 0
        for first in range(i, -1, -1):
            ready, size = max(ready, times[first]), size + sizes[first]
            this = max(ready, end[first]) + latency + per_byte * size
            if this < found:
                found, of = this, i + 1 - first
        end.append(found)
        count.append(of)
    plan, i = [], len(sizes)
    while i > 0:
        plan.append(count[i])
        i -= count[i]
    return plan[::-1]


def by_limits(sizes, next_limit):
    """As c10d: a bucket is full when it has its limit. `next_limit`: from the number of full buckets and the bytes that remain."""
    plan, count, size, left = [], 0, 0, sum(sizes)
    limit = next_limit(0, left)
    for this in sizes:
        count, size = count + 1, size + this
        if size >= limit:
            plan.append(count)
            left -= size
            count, size = 0, 0
            limit = next_limit(len(plan), left)
    return plan + [count] if count else plan


def fixed(mib):
    return lambda sizes: by_limits(sizes, lambda full, _: min(1, mib) * MIB if full == 0 else mib * MIB)


def shrinking(first, part, least):
    def limit(full, left):
        return first * MIB if full == 0 else min(25 * MIB, max(least * MIB, left / part))
    return lambda sizes: by_limits(sizes, limit)


def small_at_the_end(sizes):
    return fixed(25)(sizes[::-1])[::-1]


CURRENT = "today: 1, then 25 MiB"
RULES = {
    CURRENT: fixed(25),
    **{f"1, then {mib} MiB": fixed(mib) for mib in (5, 10, 15, 20, 50, 100)},
    "25 MiB, the last one 1 MiB": small_at_the_end,
    "1, then half of the rest, 1 to 25 MiB": shrinking(1, 2, 1),
    "4, then half of the rest, 4 to 25 MiB": shrinking(4, 2, 4),
    "4, then a quarter of the rest, 4 to 25 MiB": shrinking(4, 4, 4),
    "one bucket": lambda sizes: [len(sizes)],
}
CAPS = (1, 2, 5, 10, 25, 50, 100, 200, 1000)


def cases(measured):
    for name, gradients in measured.items():
        for speed in (1 / 3, 1, 3):
            backward = bucket_models.MODELS[name][2] * speed
            sizes = [size for size, _ in gradients]
            times = [at * backward for _, at in gradients]
            for link in LINKS:
                for ranks in (2, 8) if link in INSIDE else (2, 8, 64):
                    yield name, speed, link, ranks, backward, sizes, times


def update_gain(plan, sizes, times, backward, cost):
    """Percent of a step with one update at its end, if each bucket were updated when it is reduced; at the earliest after the backward,
    because both need the GPU's memory."""
    landed = ends(plan, sizes, times, cost)
    now, first = 0, 0
    for count, end in zip(plan, landed):
        now = max(now, end, backward) + UPDATE_BYTES * sum(sizes[first:first + count]) / GPU_BYTES
        first += count
    together = landed[-1] + UPDATE_BYTES * sum(sizes) / GPU_BYTES
    return 100 * (together - now) / (together + backward / 2)


def row(name, losses):
    return (f"| {name} | {sum(loss > 3 for loss in losses)} | {sum(loss > 10 for loss in losses)} | {statistics.median(losses):.1f} % | "
            f"{statistics.mean(losses):.1f} % | {max(losses):.0f} % |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--report")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    measured = {name: bucket_models.measure(make, batch, arguments.repeats) for name, (make, batch, _) in bucket_models.MODELS.items()}

    rules = {name: [] for name in RULES}
    chosen, reordered, table = [], [], []
    gains = {name: [] for name in measured}
    wrong = {"half the bandwidth": (1, 2), "twice the bandwidth": (1, 0.5), "three times the latency": (3, 1), "no latency": (0, 1)}
    misjudged = {name: [] for name in wrong}
    for name, speed, link, ranks, backward, sizes, times in cases(measured):
        cost = link_cost(link, ranks)
        ideal = ends(best(sizes, times, cost), sizes, times, cost)[-1]
        step = ideal + backward / 2  # the forward takes half as long as the backward

        def loss(plan):
            return 100 * (ends(plan, sizes, times, cost)[-1] - ideal) / step

        for rule, found in rules.items():
            found.append(loss(RULES[rule](sizes)))
        mib = min(CAPS, key=lambda mib: loss(fixed(mib)(sizes)))
        chosen.append(loss(fixed(mib)(sizes)))
        for kind, (latency, per_byte) in wrong.items():
            misjudged[kind].append(loss(best(sizes, times, (cost[0] * latency, cost[1] * per_byte))))
        by_time = sorted(zip(times, sizes))
        in_order = [[size for _, size in by_time], [at for at, _ in by_time]]
        reordered.append(100 * (ideal - ends(best(*in_order, cost), *in_order, cost)[-1]) / step)
        gains[name].append(update_gain(RULES[CURRENT](sizes), sizes, times, backward, cost))
        if speed == 1 and (rules[CURRENT][-1] > 3 or ranks == 8):
            table.append(f"| {name} | {link} | {ranks} | {step:.1f} ms | {100 * (ideal - backward) / step:.1f} % | "
                         f"{rules[CURRENT][-1]:.1f} % | {chosen[-1]:.1f} % with {mib} |")
    lines = [
        report.title("Buckets of gradients, simulated"), "", f"{report.machine()}; torch {torch.__version__}, one thread; "
        f"load average {report.load():.1f}.", f"`tests/benchmarks/bucket_simulation.py`, {arguments.repeats} backwards of each model.", "",
        "| | |", "|---|---|",
        "| when gradients become ready | measured on this CPU, as parts of the backward; medians |",
        f"| the backward | {', '.join(f'{name} {ms} ms' for name, (_, _, ms) in bucket_models.MODELS.items())}; from published rates of one A100 |",
        "| the forward | half of the backward |",
        f"| links | {', '.join(f'{name} {hop} us' for name, (_, hop) in LINKS.items())}; the times are from rank to rank, and assumed |",
        f"| an all-reduce | a ring: {LAUNCH * 1000:.0f} us, 2 (n - 1) times the time from rank to rank, and 2 (n - 1) / n of the bytes |",
        "| 64 ranks | 8 machines with 8 GPUs each |", "",
        f"{len(chosen)} cases: {len(measured)} models, backwards a third, once and three times as long, {len(LINKS)} links, 2, 8 and 64 ranks.",
        "\"Worse\": how much longer a step is than with the best buckets of all, in percent of that step.", "",
        "| rule | more than 3 % worse | more than 10 % worse | median | mean | worst |", "|---|---|---|---|---|---|",
        *(row(name, losses) for name, losses in rules.items()),
        row("`dist.bucket_mib` chosen for each case", chosen),
        *(row(f"the best for {kind}, used on the true link", losses) for kind, losses in misjudged.items()), "",
        f"Buckets in the order in which gradients become ready, instead of the reverse order of registration: {max(reordered):.1f} % at most.",
        "", "## An update for each bucket", "",
        "AdamW updates the parameters of a bucket when it is reduced, at the earliest after the backward. Part of a step that this saves:", "",
        "| model | median | most | more than 3 % |", "|---|---|---|---|",
        *(f"| {name} | {statistics.median(saved):.1f} % | {max(saved):.1f} % | {sum(gain > 3 for gain in saved)} of {len(saved)} |"
          for name, saved in gains.items()), "", "## One A100", "",
        "8 ranks, and all cases in which the buckets of today are more than 3 % worse.", "",
        "| model | link | ranks | step | exposed with the best buckets | today worse by | with the best `dist.bucket_mib` worse by |",
        "|---|---|---|---|---|---|---|", *table, ""]
    report.write("\n".join(lines), arguments.report)


if __name__ == "__main__":
    main()
