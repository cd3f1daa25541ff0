"""One process that trains for step_bench.py: the work of exchange_program.cpp, with a trainer of Python.

  stepping.py CONTESTANT LAYERS WIDTH STEPS [images]
"""
import logging
import sys
import time
import warnings

import torch
from torch import nn

import step_model

contestant = sys.argv[1]
layers, width, steps = (int(word) for word in sys.argv[2:5])
total = min(50, 2 * steps) + steps + 1  # as in one_batch.h
net, x, y = step_model.make(layers, width, images=sys.argv[5:] == ["images"])
times = []


def adamw(fused):
    return torch.optim.AdamW(net.parameters(), weight_decay=0, fused=fused)


def by_hand(model, fused):
    optimizer = adamw(fused)
    for _ in range(total):
        times.append(time.perf_counter_ns())
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss


def with_lightning(**options):
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net

        def training_step(self, batch, _):
            times.append(time.perf_counter_ns())
            self.loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            return self.loss

        def configure_optimizers(self):
            return adamw(fused=True)

    module = Module()
    lightning.Trainer(accelerator="cpu", devices=1, max_steps=total, max_epochs=1, **options).fit(module, Repeated())
    return module.loss


class Repeated:
    def __len__(self):
        return total

    def __iter__(self):
        return iter([(x, y)] * total)


def with_accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(net, adamw(fused=True))
    for _ in range(total):
        times.append(time.perf_counter_ns())
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
    return loss


run = {
    "eager": lambda: by_hand(net, fused=False),
    "fused": lambda: by_hand(net, fused=True),
    "compile": lambda: by_hand(torch.compile(net), fused=True),
    "lightning": lambda: with_lightning(logger=False, enable_checkpointing=False),
    "barebones": lambda: with_lightning(barebones=True),
    "accelerate": with_accelerate,
}
loss = run[contestant]()
for before, after in list(zip(times, times[1:]))[-steps:]:
    print("step", after - before)
print("loss", loss.item())
