"""Saves and loads for checkpoint_bench.py: reads one word per line, does it, answers with the seconds it took."""
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

folder, mib = Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(1)
state = {f"layer{i}.weight": torch.randn(1 << 20) for i in range(mib // 4)}


def durable(name, save):
    """Seconds until a new file is durable. It then replaces the old one, which is not measured, as for everybody."""
    start = time.perf_counter()
    new = folder / (name + ".new")
    save(new)
    for path, flags in (new, os.O_RDONLY), (folder, os.O_RDONLY | os.O_DIRECTORY):
        fd = os.open(path, flags)
        os.fsync(fd)
        os.close(fd)
    seconds = time.perf_counter() - start
    new.rename(folder / name)
    return seconds


def touched(tensors):
    """A mapped file is read when it is touched: every byte, as 64-bit numbers."""
    return sum(tensor.view(torch.int64).sum().item() for tensor in tensors.values())


copies = {name: torch.empty_like(tensor).fill_(0) for name, tensor in state.items()}


def memcpy():
    for name, tensor in state.items():
        copies[name].copy_(tensor)


def dcp_async(**how):
    """Seconds until the loop may go on."""
    start = time.perf_counter()
    saving = dcp.async_save(state, checkpoint_id=folder / "dcp", **how)
    stood = time.perf_counter() - start
    saving.result()
    return stood


torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)


class KeptCopies:
    """A stager by hand: memory that is there already. DefaultStager fails with KeyError on this state without a GPU."""

    should_synchronize_after_execute = False

    def stage(self, state_dict):
        memcpy()
        return copies

    def synchronize_staging(self):
        pass

    def close(self):
        pass


stager = KeptCopies()
jobs = {
    "memcpy": memcpy,
    "dcp_async": dcp_async,
    "dcp_async_cached": lambda: dcp_async(async_stager=stager),
    "torch_save": lambda: durable("state.pt", lambda path: torch.save(state, path)),
    "safetensors_save": lambda: durable("state.safetensors", lambda path: save_file(state, path)),
    "torch_load": lambda: torch.load(folder / "state.pt", weights_only=True),
    "torch_load_touched": lambda: touched(torch.load(folder / "state.pt", weights_only=True)),
    "torch_load_mapped_touched": lambda: touched(torch.load(folder / "state.pt", weights_only=True, mmap=True)),
    "safetensors_load_touched": lambda: touched(load_file(folder / "state.safetensors")),
}
for line in sys.stdin:
    start = time.perf_counter()
    own = jobs[line.strip()]()
    print(own if isinstance(own, float) else time.perf_counter() - start, flush=True)
