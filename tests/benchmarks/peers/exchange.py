"""A rank of torchrun for exchange_bench.py: the work of exchange_program.cpp with PyTorch's DDP.

  exchange.py LAYERS WIDTH STEPS [images]
"""
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

layers, width, steps = (int(word) for word in sys.argv[1:4])
images = sys.argv[4:] == ["images"]
torch.set_num_threads(1)
dist.init_process_group("gloo")
if images:
    parts = [part for i in range(layers) for part in (nn.Conv2d(width if i else 3, width, 3, padding=1), nn.MaxPool2d(2), nn.ReLU())]
else:
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
features = width * (32 >> layers) ** 2 if images else width
net = nn.parallel.DistributedDataParallel(nn.Sequential(*parts, nn.Flatten(), nn.Linear(features, 10)), static_graph=True,
                                          gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(net.parameters(), fused=True)
x, y = torch.randn(16, 3, 32, 32) if images else torch.randn(16, width), torch.randint(10, (16,))
times = []
for step in range(min(50, 2 * steps) + steps + 1):
    times.append(time.perf_counter_ns())
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
if dist.get_rank() == 0:
    for before, after in list(zip(times, times[1:]))[-steps:]:
        print("step", after - before)
dist.destroy_process_group()
