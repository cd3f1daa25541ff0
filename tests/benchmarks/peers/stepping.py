"""One process that trains for step_bench.py: the work of exchange_program.cpp, with a trainer of Python.

  stepping.py CONTESTANT LAYERS WIDTH STEPS [images]
"""
import sys

import torch

import step_model
from training import Training

contestant = sys.argv[1]
layers, width, steps = (int(word) for word in sys.argv[2:5])
net, x, y = step_model.make(layers, width, images=sys.argv[5:] == ["images"])
training = Training(net, x, y, steps)
run = {
    "eager": lambda: training.by_hand(net, fused=False),
    "fused": lambda: training.by_hand(net),
    "compile": lambda: training.by_hand(torch.compile(net)),
    "lightning": lambda: training.with_lightning(devices=1, logger=False, enable_checkpointing=False),
    "barebones": lambda: training.with_lightning(devices=1, barebones=True),
    "accelerate": training.with_accelerate,
}
run[contestant]()
training.tell()
