"""The training of tests/support/train_program.cpp in Python: DistributedDataParallel under torchrun, one loss a line."""
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SIZE, SEED, BATCH = 103, 42, 4


class Points(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, i):
        x = torch.sin(torch.arange(10) * 0.3 + float(i))
        return x, x.sum().tanh().unsqueeze(0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(10, 16)
        self.b = torch.nn.Linear(16, 1)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def main(optimizer_name, steps):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    net = DistributedDataParallel(Net())
    if optimizer_name == "sgd":
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    data = Points()
    sampler = DistributedSampler(data, seed=SEED)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    step = epoch = 0
    while step < steps:
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                print(f"{mean.item() / dist.get_world_size():.9g}", flush=True)
            step += 1
            if step == steps:
                break
        epoch += 1
    dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]))
sys.stdout.flush()
os._exit(0)  # at the interpreter's own end threads of PyTorch's are at times still there, and it aborts
