#!/usr/bin/env python3
"""Trains a small net with our optimizers, clipping, accumulation, averages, loss scale, ranks and so on and with those
of PyTorch, 50 steps (every night 100) from the same weights with the same data, and compares losses and weights. Where PyTorch has no
counterpart, the published formula is here.

Usage: training_parity.py PATH/TO/training_dump DOCS/parity.md

The document must list every training. With LOCKSTEP_UPDATE_DOCS=1 it is written.
"""
import json
import math
import os
import socket
import subprocess
import sys
from concurrent import futures

import torch
from torch import nn
from torch.optim import swa_utils

SAMPLES, BATCH = 60, 8
STEPS = 100 if os.environ.keys() & {"LOCKSTEP_TEST_ROUNDS", "LOCKSTEP_UPDATE_DOCS"} else 50  # 50: every day
# Relative to the largest value. fp32: the same operations, in places in another order.
TOLERANCE = {"fp64": 1e-10, "fp32": 1e-5, "fp16_mixed": 1e-5, "bf16_mixed": 1e-5}


HEADER = f"""# Parity with PyTorch

Written by `tests/parity/training_parity.py`, which is a test: every day with 50 steps, every night with 100. Each row is a training of 100 steps with the Trainer on the CPU and with a loop of
PyTorch {torch.__version__.split("+")[0]}, from the same weights with the same data. The number is the largest difference of losses, learning rates, final weights, average, statistics of batch norm and loss scales,
relative to the largest value. At most {TOLERANCE["fp64"]:g} is allowed in fp64, {TOLERANCE["fp32"]:g} in the others.

The oracle is `torch.optim`, `torch.nn.utils.clip_grad_norm_` and `clip_grad_value_`, `torch.amp.GradScaler`, `torch.optim.swa_utils.AveragedModel` and `update_bn`; for
Lion, Prodigy, schedule-free AdamW, LoRA and the average with warm-up it is the published formula; the second half of Muon is `torch.optim.AdamW`. `huge_sample`: the values of
this sample overflow in half precision, and so the steps with it are skipped. `complex`: the first layer has complex weights. `weights_norm`, `rest_norm`: limits of two parameter groups, the first one with all weights. `accumulate`: micro-batches of 8 samples per step and rank; the last step of an epoch has fewer samples, and so unequal micro-batches.

`ranks`: so many processes over Gloo, which must give the same numbers bit for bit. The loop of PyTorch is one process with the whole batch: `sync_batch_norm` is
`torch.nn.BatchNorm1d` over the samples of all ranks, because `torch.nn.SyncBatchNorm` needs a GPU, and `shard_optimizer` is the plain optimizer. With `samples=49` a rank has no sample in
the last step of an epoch. `plateau`: `torch.optim.lr_scheduler.ReduceLROnPlateau`, after every second step, with the loss (`min`) or with 2 - loss (`max`). `steps`: more than 100, so that the loss scale grows.

`lbfgs` is compared in fp64 only. It enlarges the rounding of fp32, which depends on the CPU: on 2026-11-27 two of its trainings in fp32 differed by up to 0.006 on an Intel CPU,
and before by at most 3.1e-08 on an AMD CPU. With `MKL_CBWR=COMPATIBLE`, where the products of matrices are rounded alike, the larger difference was 0.

Learning-rate schedules are compared by `tests/parity/lr_schedule_parity.py`, the order of samples by `sampler_parity.py`.

| training | largest difference |
|---|---|
"""


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = torch.sign(beta1 * m + (1 - beta1) * p.grad)
                p.sub_(group["lr"] * (update + group["weight_decay"] * p))
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class MuonAndAdamW(torch.optim.Optimizer):
    """torch.optim.Muon for the matrices, torch.optim.AdamW for the rest."""

    def __init__(self, params, adamw_lr=1e-3, adamw_weight_decay=0.01, adamw_amsgrad=False, **muon):
        super().__init__(params, {})
        params = self.param_groups[0]["params"]
        self.parts = [
            torch.optim.Muon([p for p in params if p.ndim == 2], **muon),
            torch.optim.AdamW([p for p in params if p.ndim != 2], lr=adamw_lr, weight_decay=adamw_weight_decay,
                              amsgrad=adamw_amsgrad)]

    def step(self, closure=None):
        for part in self.parts:
            part.step()


class Prodigy(torch.optim.Optimizer):
    """Mishchenko and Defazio 2023, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner", algorithm 4."""

    def __init__(self, params, lr=1.0, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, d0=1e-6, d_coef=1.0,
                 growth_rate=math.inf, use_bias_correction=False, safeguard_warmup=False):
        super().__init__(params, {"betas": betas})
        self.params = self.param_groups[0]["params"]
        self.first = [p.detach().clone() for p in self.params]
        self.m, self.v, self.s = ([torch.zeros_like(p) for p in self.params] for _ in range(3))
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.d0, self.d, self.d_max, self.d_coef, self.growth_rate = d0, d0, d0, d_coef, growth_rate
        self.correct, self.safeguard = use_bias_correction, safeguard_warmup
        self.r, self.steps = 0.0, 0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        beta1, beta2 = self.betas
        beta3, d, rate = math.sqrt(beta2), self.d, self.lr
        if self.correct:
            rate *= math.sqrt(1 - beta2**self.steps) / (1 - beta1**self.steps)
        self.r *= beta3
        norm = 0.0
        for p, first, m, v, s in zip(self.params, self.first, self.m, self.v, self.s):
            g = p.grad
            m.mul_(beta1).add_((1 - beta1) * d * g)
            v.mul_(beta2).add_((1 - beta2) * d**2 * g**2)
            self.r += (1 - beta3) * rate * d**2 * (g * (first - p)).sum().item()
            s.mul_(beta3).add_((1 - beta3) * (1 if self.safeguard else rate) * d**2 * g)
            norm += s.abs().sum().item()
            p.sub_(self.weight_decay * rate * d * p)
            p.sub_(rate * d * m / (v.sqrt() + d * self.eps))
        estimate = self.d_coef * self.r / norm
        if d == self.d0:
            d = max(d, estimate)
        self.d_max = max(self.d_max, estimate)
        self.d = min(self.d_max, d * self.growth_rate)


class ScheduleFreeAdamW(torch.optim.Optimizer):
    """Defazio et al. 2024, "The Road Less Scheduled": AdamWScheduleFree, with x, y and z."""

    def __init__(self, params, lr=0.0025, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, warmup_steps=0, r=0.0,
                 weight_lr_power=2.0):
        super().__init__(params, {"betas": betas})
        self.params = self.param_groups[0]["params"]
        self.x, self.z = ([p.detach().clone() for p in self.params] for _ in range(2))
        self.v = [torch.zeros_like(p) for p in self.params]
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.warmup_steps, self.r, self.power = warmup_steps, r, weight_lr_power
        self.t, self.lr_max, self.weights = 0, 0.0, 0.0

    @torch.no_grad()
    def step(self, closure=None):
        self.t += 1
        beta1, beta2 = self.betas
        lr = self.lr * min(1, self.t / self.warmup_steps if self.warmup_steps else 1)
        self.lr_max = max(self.lr_max, lr)
        weight = self.t**self.r * self.lr_max**self.power
        self.weights += weight
        c = weight / self.weights
        for y, x, z, v in zip(self.params, self.x, self.z, self.v):
            v.mul_(beta2).add_((1 - beta2) * y.grad**2)
            z.sub_(lr * (y.grad / ((v / (1 - beta2**self.t)).sqrt() + self.eps) + self.weight_decay * y))
            x.mul_(1 - c).add_(c * z)
            y.copy_((1 - beta1) * z + beta1 * x)

    @torch.no_grad()
    def eval(self):
        for p, x in zip(self.params, self.x):
            p.copy_(x)

    @torch.no_grad()
    def train(self):
        for p, x, z in zip(self.params, self.x, self.z):
            p.copy_((1 - self.betas[0]) * z + self.betas[0] * x)


class LoraLinear(nn.Linear):
    """Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", equation 3."""

    def __init__(self, inputs, outputs, rank, alpha):
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self.bias.requires_grad_(False)
        self.a = nn.Parameter(torch.empty(rank, inputs))
        self.b = nn.Parameter(torch.zeros(outputs, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return super().forward(x) + self.scale * (x @ self.a.T @ self.b.T)


class ComplexLayer(nn.Module):
    """The squares of the absolute values of a complex linear layer."""

    def __init__(self):
        super().__init__()

        def values(*shape):
            real = torch.cos(torch.arange(math.prod(shape), dtype=torch.float64)).view(shape).mul(0.4).float()
            return nn.Parameter(torch.complex(real, real.flip(0) * 0.5).to(
                torch.complex128 if torch.get_default_dtype() == torch.float64 else torch.complex64))

        self.weight, self.bias = values(8, 6), values(8)

    def forward(self, x):
        sums = x.to(self.weight.dtype) @ self.weight.t() + self.bias
        return sums.real.square() + sums.imag.square()


# name -> (class, how our options become theirs)
OPTIMIZERS = {
    "sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad, "adadelta": torch.optim.Adadelta, "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam, "radam": torch.optim.RAdam, "asgd": torch.optim.ASGD, "rprop": torch.optim.Rprop,
    "lion": Lion, "adafactor": torch.optim.Adafactor, "muon": MuonAndAdamW, "prodigy": Prodigy,
    "schedule_free_adamw": ScheduleFreeAdamW, "lbfgs": torch.optim.LBFGS,
}
PLATEAU = {"factor": "factor", "patience": "patience", "threshold": "threshold", "cooldown": "cooldown", "min_lr": "min_lr", "plateau_eps": "eps"}
OF_THE_RUN = {"weights_norm", "rest_norm", "max_grad_norm", "max_grad_value", "huge_sample", "decay", "warmup", "every_steps", "first_step", "lora_rank",
              "lora_alpha", "batch_norm_steps", "complex", "steps", "samples", "accumulate", "equal_weights", "ranks", "batch_norm", "sync_batch_norm",
              "shard_optimizer", "plateau", "threshold_is_relative", *PLATEAU}

CASES = [
    "sgd lr=0.1", "sgd lr=0.05 momentum=0.9", "sgd lr=0.05 momentum=0.9 nesterov=1 weight_decay=0.01",
    "sgd lr=0.05 momentum=0.8 dampening=0.3 weight_decay=0.02",
    "adam lr=0.01", "adam lr=0.02 beta1=0.8 beta2=0.99 eps=1e-6 weight_decay=0.05", "adam lr=0.02 amsgrad=1",
    "adamw lr=0.01", "adamw lr=0.02 beta1=0.8 beta2=0.99 eps=1e-6 weight_decay=0.1", "adamw lr=0.02 amsgrad=1",
    "rmsprop lr=0.01", "rmsprop lr=0.01 alpha=0.9 weight_decay=0.05", "rmsprop lr=0.01 momentum=0.9 eps=1e-6",
    "rmsprop lr=0.01 centered=1 eps=1e-4", "rmsprop lr=0.005 centered=1 momentum=0.5 eps=1e-4",
    "adagrad lr=0.1", "adagrad lr=0.1 lr_decay=0.05 weight_decay=0.02 initial_accumulator_value=0.1 eps=1e-8",
    "adadelta lr=1", "adadelta lr=0.7 rho=0.8 eps=1e-5 weight_decay=0.02",
    "adamax lr=0.02", "adamax lr=0.02 beta1=0.8 beta2=0.99 eps=1e-6 weight_decay=0.05",
    "nadam lr=0.01", "nadam lr=0.01 beta1=0.8 weight_decay=0.05 momentum_decay=0.01",
    "nadam lr=0.01 weight_decay=0.05 decoupled_weight_decay=1",
    "radam lr=0.01", "radam lr=0.01 beta2=0.9 weight_decay=0.05",
    "radam lr=0.01 weight_decay=0.05 decoupled_weight_decay=1",
    "asgd lr=0.05", "asgd lr=0.05 lambd=0.01 alpha=0.5 t0=20 weight_decay=0.02",
    "rprop lr=0.01", "rprop lr=0.001 eta_minus=0.4 eta_plus=1.3 max_step=0.1",
    "lion lr=0.003", "lion lr=0.003 beta1=0.8 beta2=0.95 weight_decay=0.1",
    "adafactor lr=0.05", "adafactor lr=0.05 beta2_decay=-0.6 eps2=1e-2 d=2 weight_decay=0.05",
    "muon lr=0.02", "muon lr=0.01 momentum=0.9 nesterov=0 weight_decay=0.05 ns_steps=3 match_rms_adamw=1",
    "muon lr=0.02 adamw_lr=0.01 adamw_weight_decay=0.1 adamw_amsgrad=1",
    "prodigy", "prodigy lr=0.5 beta1=0.8 beta2=0.99 eps=1e-6 weight_decay=0.05 d0=1e-4 d_coef=2",
    "prodigy d0=1e-3 growth_rate=1.2 use_bias_correction=1 safeguard_warmup=1",
    "schedule_free_adamw lr=0.02",
    "schedule_free_adamw lr=0.02 beta1=0.8 beta2=0.99 eps=1e-6 weight_decay=0.05 warmup_steps=20",
    "schedule_free_adamw lr=0.02 beta1=0.95 warmup_steps=30 r=1 weight_lr_power=1 decay=0.9 max_grad_norm=0.5",
    "adamw lr=0.02 lora_rank=2 lora_alpha=3", "sgd lr=0.1 momentum=0.9 lora_rank=4 lora_alpha=4",
    "sgd lr=0.5 max_grad_norm=0.1", "adamw lr=0.02 max_grad_norm=0.05", "sgd lr=0.5 max_grad_value=0.02",
    "sgd lr=0.5 weights_norm=0.1", "adamw lr=0.02 weights_norm=0.05 rest_norm=0.01", "sgd lr=0.5 weights_norm=0.1 rest_norm=0.05 max_grad_norm=0.08",
    "adamw lr=0.02 decay=0.9", "adamw lr=0.02 decay=0.99 warmup=1", "sgd lr=0.1 decay=0.8 every_steps=5 first_step=20",
    "sgd lr=0.1 decay=0 first_step=41", "sgd lr=0.1 decay=0 first_step=41 batch_norm_steps=5",
    "sgd lr=0.05 momentum=0.9 decay=0.9 batch_norm_steps=8",
    "sgd lr=0.1 decay=0 first_step=41 every_steps=7",
    "sgd complex=1 lr=0.05 momentum=0.9 weight_decay=0.01", "adam complex=1 lr=0.02 amsgrad=1",
    "adamw complex=1 lr=0.02 max_grad_norm=0.5", "adamw complex=1 lr=0.02 decay=0.9",
    "rmsprop complex=1 lr=0.005 centered=1 momentum=0.5 eps=1e-4", "adagrad complex=1 lr=0.05",
    "adadelta complex=1 lr=0.7", "adamax complex=1 lr=0.02", "nadam complex=1 lr=0.01", "radam complex=1 lr=0.01 beta2=0.9",
    "asgd complex=1 lr=0.02", "rprop complex=1 lr=0.001", "adagrad complex=1 lr=0.05 initial_accumulator_value=0.1",
    "lbfgs lr=0.1 max_iter=3", "lbfgs lr=0.5 max_iter=5 history_size=5 strong_wolfe=1 samples=8",
    "lbfgs lr=0.1 max_iter=3 accumulate=2", "lbfgs lr=0.05 max_iter=2 ranks=2",
    "sgd lr=0.1 momentum=0.9 accumulate=2", "adamw lr=0.02 accumulate=3 max_grad_norm=0.05 decay=0.9", "sgd lr=0.1 accumulate=2 batch_norm=1",
    "sgd lr=0.2 momentum=0.9 plateau=min factor=0.5 patience=2",
    "adamw lr=0.1 plateau=min factor=0.3 patience=1 threshold=0.02 threshold_is_relative=0 cooldown=3",
    "sgd lr=0.2 momentum=0.9 plateau=max factor=0.5 patience=1 threshold=0.01 cooldown=2 min_lr=0.05",
    "adamw lr=0.1 plateau=max factor=0.5 patience=0 threshold=0.01 threshold_is_relative=0 plateau_eps=0.004",
    "sgd lr=0.1 momentum=0.9 ranks=2 samples=49", "adamw lr=0.02 ranks=2 samples=61 accumulate=2 max_grad_norm=0.05 decay=0.9",
    "sgd lr=0.1 ranks=3 samples=61 accumulate=2 weights_norm=0.1 rest_norm=0.05",
    "sgd lr=0.2 momentum=0.9 ranks=2 plateau=min factor=0.5 patience=2",
    "sgd lr=0.1 ranks=2 sync_batch_norm=1", "sgd lr=0.05 momentum=0.9 weight_decay=0.01 ranks=2 sync_batch_norm=1 samples=61",
    "sgd lr=0.01 ranks=3 sync_batch_norm=1 samples=50",
    "sgd lr=0.05 momentum=0.9 ranks=2 shard_optimizer=1", "adamw lr=0.02 ranks=2 shard_optimizer=1 samples=61 accumulate=2 max_grad_norm=0.05",
    "adamw lr=0.02 ranks=3 shard_optimizer=1", "adafactor lr=0.01 ranks=3 shard_optimizer=1", "muon lr=0.02 ranks=2 shard_optimizer=1",
    "adam lr=0.02 amsgrad=1 ranks=3 shard_optimizer=1 decay=0.9", "sgd lr=0.05 momentum=0.9 ranks=2 shard_optimizer=1 sync_batch_norm=1",
]
MIXED = [
    "fp16_mixed sgd lr=0.1", "fp16_mixed sgd lr=0.1 momentum=0.9 huge_sample=3",
    "fp16_mixed sgd lr=0.1 momentum=0.9 dampening=0.2 huge_sample=3",
    "fp16_mixed adamw lr=0.02 huge_sample=42", "fp16_mixed adam lr=0.02 huge_sample=3 max_grad_norm=0.5",
    "fp16_mixed sgd lr=0.1 huge_sample=3 weights_norm=0.1 rest_norm=0.05", "fp16_mixed nadam lr=0.01 huge_sample=20", "bf16_mixed adamw lr=0.02",
    "fp16_mixed sgd lr=0.1 huge_sample=3 accumulate=2", "fp16_mixed adamw lr=0.02 huge_sample=42 ranks=2", "fp16_mixed sgd lr=0.1 momentum=0.9 huge_sample=3 ranks=2 shard_optimizer=1",
    "fp16_mixed sgd lr=0.01 steps=2100",
]
# A training of CASES, and what the loop of PyTorch must be seen to do differently.
CONTROLS = [
    ("fp64 nadam lr=0.01", "fp64 nadam lr=0.01 momentum_decay=0.005"),
    ("fp64 sgd lr=0.1 momentum=0.9 accumulate=2", "fp64 sgd lr=0.1 momentum=0.9 accumulate=2 equal_weights=1"),
    ("fp64 sgd lr=0.1 ranks=2 sync_batch_norm=1", "fp64 sgd lr=0.1 ranks=2 batch_norm=1"),
    ("fp64 sgd lr=0.2 momentum=0.9 plateau=min factor=0.5 patience=2", "fp64 sgd lr=0.2 momentum=0.9 plateau=min factor=0.5 patience=3"),
    ("fp64 adamw lr=0.1 plateau=max factor=0.5 patience=0 threshold=0.01 threshold_is_relative=0 plateau_eps=0.004",
     "fp64 adamw lr=0.1 plateau=max factor=0.5 patience=0 threshold=0.01 plateau_eps=0.004"),
    ("fp64 adamw lr=0.02 ranks=3 shard_optimizer=1", "fp64 adamw lr=0.02 beta2=0.99 ranks=3"),
    ("fp16_mixed adamw lr=0.02 huge_sample=42", "fp16_mixed adamw lr=0.02 huge_sample=3"),
]


def batches_of(step, run):
    """The parts of the data set that a step trains with, each with its own forward and backward: the micro-batches of all ranks."""
    ranks, samples = int(run.get("ranks", 1)), int(run.get("samples", SAMPLES))
    size = BATCH * ranks * int(run.get("accumulate", 1))
    first = (step % math.ceil(samples / size)) * size
    last = min(first + size, samples)
    if "sync_batch_norm" in run:
        return [slice(first, last)]
    parts, begin = [], first
    for rank in range(ranks):
        end = begin + (last - first) // ranks + (rank < (last - first) % ranks)
        parts += [slice(i, min(i + BATCH, end)) for i in range(begin, end, BATCH)]
        begin = end
    return parts


def run_of_torch(case):
    precision, name, *words = case.split()
    given = {key: value if key == "plateau" else float(value) for key, value in (word.split("=") for word in words)}
    dtype = torch.float64 if precision == "fp64" else torch.float32
    torch.set_default_dtype(dtype)  # scalars of optimizers have this dtype
    run = {key: given.pop(key) for key in list(given) if key in OF_THE_RUN}
    if "beta1" in given or "beta2" in given:
        defaults = OPTIMIZERS[name]([torch.zeros(1)]).defaults["betas"]
        given["betas"] = (given.pop("beta1", defaults[0]), given.pop("beta2", defaults[1]))
    if name == "rprop":
        given["etas"] = (given.pop("eta_minus", 0.5), given.pop("eta_plus", 1.2))
        given["step_sizes"] = (1e-6, given.pop("max_step", 50.0))
    if name == "adafactor" and "eps2" in given:
        given["eps"] = (None, given.pop("eps2"))
    if name == "muon":
        given["adjust_lr_fn"] = "match_rms_adamw" if given.pop("match_rms_adamw", 0) else "original"
        given["ns_steps"] = int(given.pop("ns_steps", 5))
    if name == "lbfgs":
        given |= {key: int(given[key]) for key in ("max_iter", "history_size") if key in given}
        given["line_search_fn"] = "strong_wolfe" if given.pop("strong_wolfe", 0) else None
    for flag in ("nesterov", "amsgrad", "adamw_amsgrad", "centered", "decoupled_weight_decay"):
        if flag in given:
            given[flag] = bool(given[flag])

    if "lora_rank" in run:
        rank, alpha = int(run["lora_rank"]), run["lora_alpha"]
        net = nn.Sequential(LoraLinear(6, 8, rank, alpha), nn.Tanh(), LoraLinear(8, 1, rank, alpha))
    elif "complex" in run:
        net = nn.Sequential(ComplexLayer(), nn.Tanh(), nn.Linear(8, 1))
    else:
        norm = [nn.BatchNorm1d(8)] if run.keys() & {"batch_norm_steps", "batch_norm", "sync_batch_norm"} else []
        net = nn.Sequential(nn.Linear(6, 8), *norm, nn.Tanh(), nn.Linear(8, 1))
    with torch.no_grad():
        for key, p in net.named_parameters():
            if p.is_complex():
                continue  # it has its values
            p.zero_() if key.endswith(".b") else p.copy_((torch.cos(torch.arange(p.numel(), dtype=torch.float64)).view_as(p) * 0.4).float())
    samples = int(run.get("samples", SAMPLES))
    x = torch.sin(torch.arange(samples * 6, dtype=torch.float64) * 0.37).view(samples, 6)
    y = (x.sum(1, keepdim=True) * 0.3 + torch.cos(x[:, :1])).float().to(dtype)
    if "huge_sample" in run:
        x[int(run["huge_sample"])] = 1e9
    x = x.float().to(dtype)
    optimizer = OPTIMIZERS[name](net.parameters(), **given)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16_mixed")
    half = {"fp16_mixed": torch.float16, "bf16_mixed": torch.bfloat16}.get(precision)
    plateau = None
    if "plateau" in run:
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, run["plateau"], threshold_mode="rel" if run.get("threshold_is_relative", 1) else "abs",
            **{theirs: run[mine] for mine, theirs in PLATEAU.items() if mine in run})
    ranks, average, updates = int(run.get("ranks", 1)), None, 0
    result = {"losses": [], "rates": [], "scales": [], "average": [], "statistics": [], "counts": []}
    for step in range(int(run.get("steps", STEPS))):
        def evaluate():
            optimizer.zero_grad()
            parts, total = batches_of(step, run), 0.0
            weights = [1 if "equal_weights" in run else part.stop - part.start for part in parts]
            for part, weight in zip(parts, weights):
                with torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None):
                    loss = nn.functional.mse_loss(net(x[part]), y[part])
                scaler.scale(loss * (weight * ranks / sum(weights))).backward()
                total += loss.item() * weight
            for p in net.parameters():  # the mean over the ranks, as DistributedDataParallel forms it
                if ranks > 1:
                    p.grad /= ranks
            return total / sum(weights)

        if name == "lbfgs":
            result["losses"].append(optimizer.step(evaluate))
            continue
        result["losses"].append(evaluate())
        scaler.unscale_(optimizer)
        for limit, is_weight in (("weights_norm", True), ("rest_norm", False)):
            if limit in run:
                nn.utils.clip_grad_norm_([p for key, p in net.named_parameters() if key.endswith(".weight") == is_weight],
                                         run[limit])
        if "max_grad_norm" in run:
            nn.utils.clip_grad_norm_(net.parameters(), run["max_grad_norm"])
        if "max_grad_value" in run:
            nn.utils.clip_grad_value_(net.parameters(), run["max_grad_value"])
        scaler.step(optimizer)
        scaler.update()
        if half == torch.float16:
            result["scales"].append(scaler.get_scale())
        number = step + 1
        if plateau:
            result["rates"].append(optimizer.param_groups[0]["lr"])
            if number % 2 == 0:
                with torch.no_grad():
                    loss = nn.functional.mse_loss(net(x), y).item()
                plateau.step(loss if run["plateau"] == "min" else 2 - loss)
        if name == "schedule_free_adamw":
            optimizer.eval()  # the averages and the final weights are those of x
        start = int(run.get("first_step", 1))
        if "decay" in run and number >= start and (number - start) % int(run.get("every_steps", 1)) == 0:
            if average is None:
                if run.get("warmup"):  # OneTrainer's EMAModule
                    average = [p.detach().clone() for p in net.parameters()]
                else:
                    decay = run["decay"]
                    average = swa_utils.AveragedModel(
                        net, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(decay) if decay else None)
            if run.get("warmup"):
                if updates:
                    keep = min((1 + number) / (10 + number), run["decay"])
                    for a, p in zip(average, net.parameters()):
                        a.add_((1 - keep) * (p.detach() - a))
                updates += 1
            else:
                average.update_parameters(net)
        if name == "schedule_free_adamw" and number < STEPS:
            optimizer.train()

    def flat(tensors):
        return [float(v) for t in tensors for v in (torch.view_as_real(t.detach()) if t.is_complex() else t.detach()).flatten()]

    if average is not None:
        result["average"] = flat(average if isinstance(average, list) else average.module.parameters())
    if "batch_norm_steps" in run:
        net.load_state_dict(average.module.state_dict())
        swa_utils.update_bn([x[i * BATCH:(i + 1) * BATCH] for i in range(int(run["batch_norm_steps"]))], net)
    result["statistics"] = flat(b for b in net.buffers() if b.is_floating_point())
    result["counts"] = flat(b for b in net.buffers() if not b.is_floating_point())
    result["parameters"] = flat(net.parameters())
    return result


def number_of_ranks(case):
    return int(case.partition("ranks=")[2].partition(" ")[0] or 1)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ours(program, cases):
    """The results of our program, in the order of the cases. Those with so many ranks are trained one after the other by the same processes."""
    results = {}
    for ranks in sorted({number_of_ranks(case) for case in cases}):
        mine = [case for case in cases if number_of_ranks(case) == ranks]
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        processes = [subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      env=os.environ | {"OMP_NUM_THREADS": "1"} | (variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}))
                     for rank in range(ranks)]
        text = "".join(f"{case}\n" if " steps=" in case else f"{case} steps={STEPS}\n" for case in mine)
        with futures.ThreadPoolExecutor(ranks) as threads:  # a rank waits if nobody reads what it writes
            done = list(threads.map(lambda process: process.communicate(text), processes))
        for process, (_, errors) in zip(processes, done):
            if process.returncode != 0:
                sys.exit(f"{program}: {errors}")
        lines = [[line for line in output.splitlines() if line.startswith("{")] for output, _ in done]
        for case, *of_ranks in zip(mine, *lines, strict=True):
            if len(set(of_ranks)) != 1:
                sys.exit(f"{case}: the ranks have different results")
            results[case] = json.loads(of_ranks[0].replace("-nan", "NaN").replace("nan", "NaN").replace("inf", "Infinity"))
    return [results[case] for case in cases]


def worst(a, b):
    """The largest difference relative to the largest value; values that are not finite must be the same."""
    if len(a) != len(b):
        return math.inf
    if any(math.isfinite(x) != math.isfinite(y) for x, y in zip(a, b)):
        return math.inf
    pairs = [(x, y) for x, y in zip(a, b) if math.isfinite(x)]
    size = max((abs(y) for _, y in pairs), default=1) or 1
    return max((abs(x - y) for x, y in pairs), default=0) / size


def difference(found, expected):
    return max(worst(found[key], expected[key]) for key in expected)


def main():
    torch.set_num_threads(1)
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    cases = [f"{dtype} {case}" for case in CASES for dtype in (("fp64",) if case.startswith("lbfgs") else ("fp64", "fp32"))] + MIXED
    rows, different = [], 0
    results = dict(zip(cases, ours(sys.argv[1], cases), strict=True))
    for case, found in results.items():
        expected = run_of_torch(case)
        if "fp16_mixed" in case and ("huge_sample" in case or "steps=" in case) and len(set(expected["scales"])) < 2:
            sys.exit(f"{case}: the loss scale did not change: this comparison proves nothing")
        if "plateau" in case and len(set(expected["rates"])) < 3:
            sys.exit(f"{case}: the learning rate was reduced less than twice: this comparison proves nothing")
        off = difference(found, expected)
        rows.append((case, off))
        if not off <= TOLERANCE[case.split()[0]]:
            different += 1
            print(f"{case}: {off:.3g} apart, at most {TOLERANCE[case.split()[0]]:g} is allowed")

    # Known-bad controls: another training must differ.
    for case, other in CONTROLS:
        if difference(results[case], run_of_torch(other)) <= TOLERANCE[case.split()[0]]:
            sys.exit(f"{case}: the control ({other}) was not told apart: this comparison proves nothing")

    if os.environ.get("LOCKSTEP_UPDATE_DOCS"):
        with open(sys.argv[2], "w", encoding="utf-8") as document:
            document.write(HEADER + "".join(f"| `{case}` | {off:.1e} |\n" for case, off in rows))
    with open(sys.argv[2], encoding="utf-8") as document:
        listed = [line.split("`")[1] for line in document if line.startswith("| `")]
    if listed != cases:
        sys.exit(f"{sys.argv[2]} lists other trainings; write it again with LOCKSTEP_UPDATE_DOCS=1")
    print(f"torch {torch.__version__}: {len(rows)} trainings, {different} different")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
