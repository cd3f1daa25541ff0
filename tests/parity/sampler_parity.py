#!/usr/bin/env python3
"""Compares our torch-free torch.randperm and DistributedSampler with the real ones, index by index.

Usage: sampler_parity.py PATH/TO/sampler_dump [--large]     (--large: also n around 2^32 / 20; 6 GB, a minute)
"""
import itertools
import subprocess
import sys

import torch
from torch.utils.data import BatchSampler
from torch.utils.data.distributed import DistributedSampler

SIZES_RANDPERM = [1, 2, 3, 10, 1000, 29999, 30000, 30001, 100000, 1000000]
SEEDS_RANDPERM = [0, 1, 42, 123456789, 2**32 - 1, 2**32, 2**32 + 7, 2**63 + 11]
SIZES = [1, 2, 3, 5, 7, 8, 16, 31, 100, 257, 1000]
WORLDS = [1, 2, 3, 4, 7, 8, 64]
SEEDS = [0, 42, 2**40 + 5]
EPOCHS = [0, 1, 9]
PER_RANK = [1, 3, 8]


def ask(program, requests):
    text = "".join(" ".join(str(int(x) if isinstance(x, bool) else x) for x in r) + "\n" for r in requests)
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    answers = [[int(x) for x in line.split()] for line in done.stdout.splitlines()]
    if len(answers) != len(requests):
        sys.exit(f"{program}: {len(answers)} answers to {len(requests)} requests")
    return answers


def randperm(n, seed):
    generator = torch.Generator()
    generator.manual_seed(seed)
    return torch.randperm(n, generator=generator)


def checksum(values):
    return int((values * torch.arange(1, len(values) + 1)).sum()) % 2**64


def real_list(size, batch, world, seed, epoch, shuffle, drop_last, rank):
    sampler = DistributedSampler(range(size), world, rank, shuffle, seed, drop_last)
    sampler.set_epoch(epoch)
    return [index for step in BatchSampler(sampler, batch // world, drop_last) for index in step]


def rank_cases():
    grid = itertools.product(SIZES, WORLDS, PER_RANK, SEEDS, EPOCHS, [True, False], [True, False])
    for size, world, per_rank, seed, epoch, shuffle, drop_last in grid:
        if not shuffle and (seed, epoch) != (SEEDS[0], EPOCHS[0]):
            continue  # neither has an influence
        if drop_last and size // world < per_rank:
            continue  # nothing is left: refused here, an empty loader there
        for rank in sorted({0, world // 2, world - 1}):
            yield (size, per_rank * world, world, seed, epoch, shuffle, drop_last, rank)


def main():
    arguments = sys.argv[1:]
    large = "--large" in arguments
    arguments = [a for a in arguments if a != "--large"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    program = arguments[0]

    requests, expected = [], []
    for n, seed in itertools.product(SIZES_RANDPERM, SEEDS_RANDPERM):
        requests.append(("randperm", n, seed))
        expected.append(randperm(n, seed).tolist())
    for case in rank_cases():
        requests.append(("rank", *case))
        expected.append(real_list(*case))
    different = sum(a != b for a, b in zip(ask(program, requests), expected))
    cases = len(requests)

    if large:  # on both sides of the size where torch.randperm changes its algorithm
        for n in ((2**32 - 1) // 20 - 1, (2**32 - 1) // 20):
            different += ask(program, [("checksum", n, 42)]) != [[checksum(randperm(n, 42))]]
            cases += 1

    # Known-bad control: another seed must differ, in both halves of the comparison.
    control = ask(program, [("randperm", 1000, 43), ("rank", 1000, 4, 4, 43, 0, 1, 0, 1)])
    if control[0] == randperm(1000, 42).tolist() or control[1] == real_list(1000, 4, 4, 42, 0, True, False, 1):
        sys.exit("the control with another seed was not told apart: this comparison proves nothing")

    print(f"torch {torch.__version__}: {cases} cases, {different} different")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
