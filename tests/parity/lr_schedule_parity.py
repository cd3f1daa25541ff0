#!/usr/bin/env python3
"""Compares our learning-rate schedules with torch.optim.lr_scheduler, step by step, and where PyTorch has no
counterpart with the published formula.

Usage: lr_schedule_parity.py PATH/TO/lr_schedule_dump
"""
import math
import subprocess
import sys
import warnings

import torch
from torch.optim import lr_scheduler as torch_schedules
from torch.optim.swa_utils import SWALR

warnings.filterwarnings("ignore", module="torch.optim.lr_scheduler")
STEPS, PER_EPOCH = 120, 10
TOLERANCE = 1e-9  # torch.optim adds up some schedules recursively


def of_torch(make, per=1, base=1.0, first=0):
    """The factors of a torch schedule that is stepped once per `per` steps, from step `first` on."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=base)
    schedule = make(optimizer)
    factors = []
    for step in range(STEPS):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if (step + 1) % per == 0 and step >= first:
            schedule.step()
    return factors


def of_formula(f):
    return [f(step) for step in range(STEPS)]


def hard_restarts(step, warmup=20, cycles=3):
    """transformers.get_cosine_with_hard_restarts_schedule_with_warmup."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / (STEPS - warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((cycles * progress) % 1.0))))


def rex(step, d):
    """Chen et al. 2021, "REX: Revisiting Budgeted Training with an Improved Schedule", d = 1/2 there."""
    left = 1 - step / STEPS
    return left / (1 - d + d * left)


def cases():
    s = torch_schedules
    yield "constant:factor=0.3,for=40+constant", of_torch(lambda o: s.ConstantLR(o, 0.3, 40))
    yield "linear:from=0.25,to=1,for=30", of_torch(lambda o: s.LinearLR(o, 0.25, 1, 30))
    yield "linear:from=1,to=0.1,for=12ep,per=epoch", of_torch(lambda o: s.LinearLR(o, 1, 0.1, 12), PER_EPOCH)
    yield "step:30,factor=0.2", of_torch(lambda o: s.StepLR(o, 30, 0.2))
    yield "step:3ep,factor=0.2", of_torch(lambda o: s.StepLR(o, 3, 0.2), PER_EPOCH)
    yield "multistep:at=20/25/90,factor=0.5", of_torch(lambda o: s.MultiStepLR(o, [20, 25, 90], 0.5))
    yield "exponential:0.97", of_torch(lambda o: s.ExponentialLR(o, 0.97))
    yield "exponential:0.8,every=1ep,per=epoch", of_torch(lambda o: s.ExponentialLR(o, 0.8), PER_EPOCH)
    yield "exponential:0.5,per=epoch", of_torch(lambda o: s.ExponentialLR(o, 0.5), PER_EPOCH)
    yield "polynomial:power=3,for=100", of_torch(lambda o: s.PolynomialLR(o, 100, 3))
    yield "cosine:to=0.1", of_torch(lambda o: s.CosineAnnealingLR(o, STEPS, 0.1))
    yield "cosine:for=12ep,per=epoch", of_torch(lambda o: s.CosineAnnealingLR(o, 12, 0), PER_EPOCH)
    yield "restarts:15,to=0.2", of_torch(lambda o: s.CosineAnnealingWarmRestarts(o, 15, 1, 0.2))
    yield "restarts:15,grow=2", of_torch(lambda o: s.CosineAnnealingWarmRestarts(o, 15, 2))
    yield "cyclic:up=12,down=20,low=0.1", of_torch(lambda o: s.CyclicLR(o, 0.1, 1, 12, 20, cycle_momentum=False))
    yield "cyclic:12,low=0.1,cycle_factor=0.5", of_torch(
        lambda o: s.CyclicLR(o, 0.1, 1, 12, mode="triangular2", cycle_momentum=False))
    yield "cyclic:12,low=0.1,step_factor=0.99", of_torch(
        lambda o: s.CyclicLR(o, 0.1, 1, 12, mode="exp_range", gamma=0.99, cycle_momentum=False))
    yield "cyclic:3ep,low=0.1,step_factor=0.9,per=epoch", of_torch(
        lambda o: s.CyclicLR(o, 0.1, 1, 3, mode="exp_range", gamma=0.9, cycle_momentum=False), PER_EPOCH)
    yield "one_cycle", of_torch(lambda o: s.OneCycleLR(o, 1, STEPS, cycle_momentum=False))
    yield "one_cycle:rise=0.6,div=10,final_div=100", of_torch(
        lambda o: s.OneCycleLR(o, 1, STEPS, pct_start=0.6, div_factor=10, final_div_factor=100, cycle_momentum=False))
    yield "one_cycle:per=epoch", of_torch(
        lambda o: s.OneCycleLR(o, 1, STEPS // PER_EPOCH, cycle_momentum=False), PER_EPOCH)
    yield "warmup:3ep,per=epoch", of_torch(lambda o: s.LambdaLR(o, lambda epoch: min(1, (epoch + 1) / 3)), PER_EPOCH)
    yield "linear:from=0.5,to=1,for=10+constant:for=50+cosine:for=60", of_torch(lambda o: s.SequentialLR(
        o, [s.LinearLR(o, 0.5, 1, 10), s.ConstantLR(o, 1, 0), s.CosineAnnealingLR(o, 60)], [10, 60]))
    yield "cosine:to=0.05,for=30+constant:factor=0.05", of_torch(lambda o: SWALR(o, 0.05, 30))
    yield "constant:for=40+cosine:to=0.05,for=30", of_torch(lambda o: SWALR(o, 0.05, 30), first=40)
    yield "constant:for=4ep+linear:to=0.05,for=5ep,per=epoch", of_torch(
        lambda o: SWALR(o, 0.05, 5, "linear"), PER_EPOCH, first=40)
    yield "warmup:20+restarts:cycles=3", of_formula(hard_restarts)
    yield "rex", of_formula(lambda step: rex(step, 0.5))
    yield "rex:d=0.9", of_formula(lambda step: rex(step, 0.9))  # OneTrainer's
    # transformers.get_inverse_sqrt_schedule, of which the warm-up ends at 1
    yield "warmup:20+inverse_sqrt:timescale=20", of_formula(
        lambda step: (step + 1) / 20 if step < 20 else 1 / math.sqrt(step / 20))


def ask(program, schedules):
    text = "".join(f"{STEPS} {STEPS} {PER_EPOCH} {schedule}\n" for schedule in schedules)
    done = subprocess.run([program], input=text, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{program}: {done.stderr}")
    return [[float(x) for x in line.split()] for line in done.stdout.splitlines()]


def worst(found, expected):
    assert len(found) == len(expected) == STEPS
    return max(abs(a - b) if math.isfinite(a) else math.inf for a, b in zip(found, expected))  # max() drops a NaN


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    names, expected = zip(*cases())
    found = ask(sys.argv[1], names)
    different = 0
    for name, ours, theirs in zip(names, found, expected, strict=True):
        if not worst(ours, theirs) <= TOLERANCE:
            different += 1
            step = max(range(STEPS), key=lambda i: abs(ours[i] - theirs[i]))
            print(f"{name}: step {step}: {ours[step]} here, {theirs[step]} there")

    # Known-bad control: another setting must differ.
    if worst(ask(sys.argv[1], ["cosine:to=0.11"])[0], expected[names.index("cosine:to=0.1")]) <= TOLERANCE:
        sys.exit("the control with another setting was not told apart: this comparison proves nothing")

    print(f"torch {torch.__version__}: {len(names)} schedules, {different} different")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
