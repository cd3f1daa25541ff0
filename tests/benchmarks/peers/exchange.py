"""A rank of torchrun for exchange_bench.py: the work of exchange_program.cpp with PyTorch's DDP.

  exchange.py LAYERS WIDTH STEPS
"""
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

layers, width, steps = (int(word) for word in sys.argv[1:])
torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo")
parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
net = nn.parallel.DistributedDataParallel(nn.Sequential(*parts, nn.Linear(width, 10)), static_graph=True,
                                          gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0, fused=True)
x, y = torch.randn(16, width), torch.randint(10, (16,))
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
