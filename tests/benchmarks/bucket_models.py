"""Models whose gradients become ready at different times, and a measurement of these times on the CPU."""

import time

import torch
from torch import nn
from torch.nn import functional


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return functional.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


def resnet50():
    parts = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(depth):
            parts.append(Bottleneck(inputs, width, stride if i == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt2(nn.Module):
    """GPT-2 with 124 million parameters. The head uses the weight of the embedding, or one of its own."""

    def __init__(self, tied=True, vocabulary=50257, width=768, depth=12):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(Block(width, 12) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions.weight[:x.size(1)])))


class UNet(nn.Module):
    """31 million parameters, with batch norm."""

    def __init__(self, widths=(64, 128, 256, 512, 1024)):
        super().__init__()
        self.downs = nn.ModuleList(self.double(a, b) for a, b in zip((3, *widths), widths))
        self.grows = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(list(zip(widths, widths[1:]))))
        self.ups = nn.ModuleList(self.double(2 * a, a) for a in reversed(widths[:-1]))
        self.last = nn.Conv2d(widths[0], 2, 1)

    @staticmethod
    def double(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
                             nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())

    def forward(self, x):
        kept = []
        for i, down in enumerate(self.downs):
            x = down(x if i == 0 else functional.max_pool2d(x, 2))
            kept.append(x)
        for grow, up, skip in zip(self.grows, self.ups, reversed(kept[:-1])):
            x = up(torch.cat([skip, grow(x)], 1))
        return self.last(x)


def mlp():
    hidden = [part for _ in range(4) for part in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), *hidden, nn.Linear(2048, 10))


# The backward of a step in ms on one A100; two thirds of a step. ResNet-50: 64 images at 2,470 images per second (NVIDIA's
# DeepLearningExamples, mixed precision). GPT-2: 16 x 1024 tokens at 231,000 tokens per second (llm.c: 10 billion in 90 minutes on
# eight). With the FLOP per second of ResNet-50: U-Net with 11 images of 256 x 256, MLP with 768 samples.
MODELS = {
    "MLP 18 M": (mlp, lambda: torch.randn(256, 784), 0.9),
    "ResNet-50": (resnet50, lambda: torch.randn(2, 3, 160, 160), 17.3),
    "U-Net 31 M": (UNet, lambda: torch.randn(1, 3, 128, 128), 35.0),
    "GPT-2, tied": (Gpt2, lambda: torch.randint(50257, (1, 128)), 47.0),
    "GPT-2, not tied": (lambda: Gpt2(tied=False), lambda: torch.randint(50257, (1, 128)), 47.0),
}


def measure(make, make_batch, repeats):
    """Returns bytes and ready times of the gradients in reverse order of registration; times as parts of the backward."""
    model = make()
    parameters = list(reversed(list(model.parameters())))
    runs = []
    for _ in range(repeats + 1):
        ready = {}

        def note(parameter):
            ready[id(parameter)] = time.perf_counter()

        hooks = [p.register_post_accumulate_grad_hook(note) for p in parameters]
        loss = model(make_batch()).square().mean()
        begin = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        runs.append([(ready[id(p)] - begin) / (end - begin) for p in parameters])
        for hook in hooks:
            hook.remove()
        model.zero_grad()
    times = [sorted(column)[repeats // 2] for column in zip(*runs[1:])]
    return [(p.numel() * 4, t) for p, t in zip(parameters, times)]
