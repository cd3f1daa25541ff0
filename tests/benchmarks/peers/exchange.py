"""A rank of torchrun for exchange_bench.py: the work of exchange_program.cpp with PyTorch's DDP.

  exchange.py CONTESTANT LAYERS WIDTH STEPS [images]
"""
import os
import sys

import torch.distributed as dist
from torch import nn

import step_model
from training import Training

contestant = sys.argv[1]
layers, width, steps = (int(word) for word in sys.argv[2:5])
net, x, y = step_model.make(layers, width, images=sys.argv[5:] == ["images"])
training = Training(net, x, y, steps)
OF_DDP = {"static_graph": True, "gradient_as_bucket_view": True}


def ddp():
    dist.init_process_group("gloo")
    training.by_hand(nn.parallel.DistributedDataParallel(net, **OF_DDP))


def barebones():
    from lightning.pytorch.strategies import DDPStrategy

    training.with_lightning(devices=int(os.environ["WORLD_SIZE"]), use_distributed_sampler=False, barebones=True,
                            strategy=DDPStrategy(process_group_backend="gloo", **OF_DDP))


def accelerate():
    from accelerate import DistributedDataParallelKwargs

    training.with_accelerate(kwargs_handlers=[DistributedDataParallelKwargs(**OF_DDP)])


{"ddp": ddp, "barebones": barebones, "accelerate": accelerate}[contestant]()
if dist.get_rank() == 0:
    training.tell()
dist.destroy_process_group()
