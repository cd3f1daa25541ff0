"""The model and the samples of exchange_program.cpp, with the same numbers."""
import torch
from torch import nn


def make(layers, width, images):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    if images:
        parts = [part for i in range(layers)
                 for part in (nn.Conv2d(width if i else 3, width, 3, padding=1), nn.MaxPool2d(2), nn.ReLU())]
    else:
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    features = width * (32 >> layers) ** 2 if images else width
    net = nn.Sequential(*parts, nn.Flatten(), nn.Linear(features, 10))
    x = torch.randn(16, 3, 32, 32) if images else torch.randn(16, width)
    return net, x, torch.randint(10, (16,))
