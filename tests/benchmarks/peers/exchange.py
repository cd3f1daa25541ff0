"""A rank of torchrun for exchange_bench.py: the work of exchange_program.cpp with PyTorch's DDP.

  exchange.py LAYERS WIDTH STEPS [images]
"""
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import step_model

layers, width, steps = (int(word) for word in sys.argv[1:4])
net, x, y = step_model.make(layers, width, images=sys.argv[4:] == ["images"])
dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(net, static_graph=True, gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0, fused=True)
times = []
for step in range(min(50, 2 * steps) + steps + 1):
    times.append(time.perf_counter_ns())
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    for before, after in list(zip(times, times[1:]))[-steps:]:
        print("step", after - before)
    print("loss", loss.item())
dist.destroy_process_group()
