"""Saves and loads for checkpoint_bench.py: reads one word per line, does it, answers with the seconds it took."""
import os
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

folder, mib = Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(1)
state = {f"layer{i}.weight": torch.randn(1 << 20) for i in range(mib // 4)}


def synced(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    fd = os.open(path.parent, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def torch_save():
    torch.save(state, folder / "state.pt")
    synced(folder / "state.pt")


def safetensors_save():
    save_file(state, folder / "state.safetensors")
    synced(folder / "state.safetensors")


def touched(tensors):
    """A mapped file is read when it is touched: every byte, as 64-bit numbers."""
    return sum(tensor.view(torch.int64).sum().item() for tensor in tensors.values())


jobs = {
    "torch_save": torch_save,
    "safetensors_save": safetensors_save,
    "torch_load": lambda: torch.load(folder / "state.pt", weights_only=True),
    "torch_load_touched": lambda: touched(torch.load(folder / "state.pt", weights_only=True)),
    "safetensors_load_touched": lambda: touched(load_file(folder / "state.safetensors")),
}
for line in sys.stdin:
    start = time.perf_counter()
    jobs[line.strip()]()
    print(time.perf_counter() - start, flush=True)
