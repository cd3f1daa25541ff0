#!/usr/bin/env python3
"""The Python side of 11_finetune.cpp: makes the first weights, and uses the last ones.

    python3 11_finetune.py pretrain FILE
    python3 11_finetune.py check FILE...
"""

import collections
import sys

import torch
from safetensors.torch import load_file, save_file

net = torch.nn.Sequential(
    collections.OrderedDict(
        hidden1=torch.nn.Linear(1, 64),
        tanh1=torch.nn.Tanh(),
        hidden2=torch.nn.Linear(64, 64),
        tanh2=torch.nn.Tanh(),
        output=torch.nn.Linear(64, 1),
    )
)
x = torch.linspace(-1, 1, 256).unsqueeze(1)


def pretrain(file):
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(500):
        loss = torch.nn.functional.mse_loss(net(x), torch.sin(3 * x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_file(net.state_dict(), file)


def check(*files):
    for file in files:
        net.load_state_dict(load_file(file))
        with torch.no_grad():
            error = (net(x) - torch.sin(3 * x) - x / 2).abs().max().item()
        print(f"largest error {error:.4f} with {file}")


{"pretrain": pretrain, "check": check}[sys.argv[1]](*sys.argv[2:])
