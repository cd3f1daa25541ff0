"""The work of ../launch_program.cpp in Python: one step of DistributedDataParallel, a report, a wait.

  torchrun --nproc-per-node 2 first_step.py FOLDER     one rank of a launch
  python first_step.py FOLDER --tuned                  the fastest of PyTorch's own settings for the model and the optimizer
  python first_step.py FOLDER --tuned --fork 2         starts its ranks itself, after a single import of torch
"""
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn import Linear, ReLU, Sequential
from torch.nn.parallel import DistributedDataParallel

ROWS, WIDTH, CLASSES, BATCH = 64, 32, 10, 16


def first_step(folder, tuned, rank, ranks):
    torch.set_num_threads(1)
    model = net = Sequential(Linear(WIDTH, WIDTH), ReLU(), Linear(WIDTH, WIDTH), ReLU(), Linear(WIDTH, CLASSES))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.2 * torch.arange(p.numel()).sin().view_as(p))
    if dist.is_initialized():
        options = dict(static_graph=True, gradient_as_bucket_view=True) if tuned else {}
        model = DistributedDataParallel(net, **options)
    optimizer = torch.optim.AdamW(net.parameters(), fused=tuned)
    x = torch.arange(ROWS * WIDTH).sin().view(ROWS, WIDTH)[rank::ranks][:BATCH]
    y = (torch.arange(ROWS) % CLASSES)[rank::ranks][:BATCH]
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()

    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    weights = sum(p.detach().abs().sum().item() for p in net.parameters())
    with open(f"{folder}/report", "w") as report:
        report.write(f"{rank} {os.getpid()} {now:.6f} {loss.item():.9g} {weights:.9g}\n")
    open(f"{folder}/go").close()  # a fifo: opens when the other end does


def joined_first_step(folder, tuned, rank=None, ranks=None):
    """With `rank`: a rank of --fork. Without: what the launcher's variables say."""
    if rank is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    first_step(folder, tuned, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--fork", type=int, default=0)
    args = parser.parse_args()
    if args.fork == 0:
        joined_first_step(args.folder, args.tuned)
    elif args.fork == 1:
        first_step(args.folder, args.tuned, 0, 1)
    else:
        import torch._dynamo  # what making an optimizer imports: once here instead of in every rank

        children = []
        for rank in range(args.fork):
            child = os.fork()
            if child == 0:
                joined_first_step(args.folder, args.tuned, rank, args.fork)
                os._exit(0)
            children.append(child)
        raise SystemExit(any(os.waitpid(child, 0)[1] for child in children))


main()
