"""Opens a checkpoint of tests/support/train_program.cpp as a Python user would."""
import sys

import torch
from safetensors.torch import load_file

state = load_file(sys.argv[1] + "/model.safetensors")
net = torch.nn.Module()
net.a = torch.nn.Linear(10, 16)
net.b = torch.nn.Linear(16, 1)
net.load_state_dict(state)  # strict: the module's own names and shapes
print(f"{len(state)} tensors, sum {sum(t.double().sum().item() for t in state.values()):.6f}")
