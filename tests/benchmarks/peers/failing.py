"""The work of ../failing_program.cpp in Python: torchrun --nproc-per-node N failing.py FOLDER RANK STEP"""
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn import Linear, ReLU, Sequential
from torch.nn.parallel import DistributedDataParallel


@record
def main():
    folder, failing_rank, failing_step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Sequential(Linear(32, 32), ReLU(), Linear(32, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x, y = torch.arange(16 * 32).sin().view(16, 32), torch.arange(16) % 10
    for step in range(1, 1_000_000):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step == failing_step and dist.get_rank() == failing_rank:
            with open(f"{folder}/failed", "w") as moment:
                moment.write(f"{time.clock_gettime(time.CLOCK_MONOTONIC):.6f}\n")
            raise RuntimeError("cannot decode sample 4411")


main()
