"""PyTorch's DistributedSampler with N samples on 8 ranks: sampling.py N. Prints seconds to the first index and to the next."""
import sys
import time

from torch.utils.data.distributed import DistributedSampler

size = int(float(sys.argv[1]))
sampler = DistributedSampler(range(size), num_replicas=8, rank=3, shuffle=True, seed=42)
sampler.set_epoch(1)
start = time.perf_counter()
indices = iter(sampler)
next(indices)
first = time.perf_counter() - start
count = min(size // 8 - 1, 1_000_000)
start = time.perf_counter()
for _ in range(count):
    next(indices)
print(first, (time.perf_counter() - start) / count)
