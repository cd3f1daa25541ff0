"""The models of gpu_training_bench.py: the same parameters, names and operations as in gpu_models.h."""
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    """ResNet-18 for images of 32 x 32 pixels, with `width` channels in its first stage (64 in the paper)."""

    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.blocks = nn.ModuleList()
        inputs = width
        for stage in range(4):
            for number in range(2):
                outputs = width << stage
                self.blocks.append(Block(inputs, outputs, 2 if stage > 0 and number == 0 else 1))
                inputs = outputs
        self.fc = nn.Linear(inputs, 10)

    def forward(self, images, labels):
        x = torch.relu(self.bn1(self.conv1(images)))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.fc(x.mean((2, 3))), labels)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2; the head has the weights of the token embedding."""

    def __init__(self, vocabulary, context, width, heads, layers):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, text, following):
        x = self.tokens(text) + self.positions(torch.arange(text.shape[1], device=text.device))
        for layer in self.layers:
            x = layer(x)
        scores = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(scores.flatten(0, 1), following.flatten())


def make(model, shape):
    """`shape`: the width of the ResNet; vocabulary, context, width, heads and layers of the GPT."""
    return ResNet(*shape) if model == "resnet18" else Gpt(*shape)


def make_optimizer(model, net):
    if model == "resnet18":
        return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, fused=True)
    return torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.1, betas=(0.9, 0.95), fused=True)
