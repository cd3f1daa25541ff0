"""Saves the weights of a module under DistributedDataParallel as a Python user would."""
import sys

import torch
from safetensors.torch import save_file

torch.manual_seed(1)
net = torch.nn.Module()
net.a = torch.nn.Linear(10, 16)
net.b = torch.nn.Linear(16, 1)
save_file({"module." + name: tensor for name, tensor in net.state_dict().items()}, sys.argv[1])
print(f"sum {sum(t.double().sum().item() for t in net.state_dict().values()):.6f}")
