#!/usr/bin/env python3
"""Scripts a small residual net, and torchvision's ResNet-18 if torchvision is installed, trains them with lockstep on 1
and 2 ranks and with PyTorch on the same samples, and compares losses, weights and statistics. Batch norm learns on one rank; on two it is in evaluation mode, because its
statistics are those of a rank. The checkpoint is loaded into the Python module if safetensors is installed; the small net has tied weights.

Usage: script_parity.py PATH/TO/script_program
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import torch
from torch import nn

try:
    from safetensors.torch import load_model
except ImportError:
    load_model = None

SAMPLES, BATCH, EPOCHS = 40, 8, 4
TOLERANCE = {"fp32": 1e-5, "fp64": 1e-10}


class Block(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.bn(self.conv(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.mix = nn.Conv2d(8, 8, 1, bias=False)
        self.mix_again = nn.Conv2d(8, 8, 1, bias=False)
        self.mix_again.weight = self.mix.weight
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.mix_again(torch.relu(self.mix(self.blocks(self.stem(x)))))
        return self.head(x.mean((2, 3)))


def nets():
    """Each net with its image size, learning rate and precision."""
    found = {"residual net": (Net, 8, 0.05, "fp32")}
    try:
        from torchvision.models import resnet18
        found["torchvision's ResNet-18"] = (lambda: resnet18(num_classes=2).double(), 32, 1e-3, "fp64")  # deep: it enlarges rounding
    except ImportError:
        print("torchvision is not installed: its ResNet-18 is not trained")
    return found


def net_in_mode(make, ranks):
    torch.manual_seed(1)
    net = make()
    if ranks > 1:
        for part in net.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.eval()
    return net


def ours(make, program, folder, ranks, x, y, lr, precision):
    torch.jit.script(net_in_mode(make, ranks)).save(folder / "model.pt")
    torch.save({"epoch": 3, "samples": {"x": x, "y": y}}, folder / "data.pt")
    run = folder / f"run_{ranks}"
    subprocess.run([program, folder / "model.pt", folder / "data.pt", folder / "result.pt", "--nprocs", str(ranks),
                    "--compute_setup", "cpu", "--global_batch_size", str(BATCH), "--max_epochs", str(EPOCHS),
                    "--optim.lr", str(lr), "--precision", precision, "--run_dir", run], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    state = torch.jit.load(folder / "result.pt").state_dict()
    check_checkpoint(net_in_mode(make, ranks), run / "checkpoints" / "last" / "model.safetensors", state)
    return [row["loss"] for row in rows], state


def check_checkpoint(net, file, expected):
    if load_model is None:
        print("safetensors is not installed: the checkpoint is not loaded")
        return
    load_model(net, file)
    for name, tensor in net.state_dict().items():
        if not torch.equal(tensor, expected[name]):
            sys.exit(f"{file}: {name} is not that of the trained model")


def theirs(make, ranks, x, y, lr):
    net = net_in_mode(make, ranks)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    losses = []
    for _ in range(EPOCHS):
        for first in range(0, SAMPLES, BATCH):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x[first:first + BATCH]), y[first:first + BATCH])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, net.state_dict()


def difference(found, expected):
    losses, state = found
    expected_losses, expected_state = expected
    if len(losses) != len(expected_losses) or state.keys() != expected_state.keys():
        sys.exit(f"{len(losses)} losses, expected {len(expected_losses)}; names {list(state)}")
    apart = [abs(a - b) / max(abs(b), 1e-3) for a, b in zip(losses, expected_losses)]
    apart += [(state[name] - tensor).abs().max().item() for name, tensor in expected_state.items() if tensor.is_floating_point()]
    return max(x if math.isfinite(x) else math.inf for x in apart)  # max() drops a NaN


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    different = 0
    cases = [(name, *net, ranks) for name, net in nets().items() for ranks in (1, 2)]
    for name, make, size, lr, precision, ranks in cases:
        dtype = torch.float64 if precision == "fp64" else torch.float32
        x, y = torch.randn(SAMPLES, 3, size, size, dtype=dtype), torch.randn(SAMPLES, 2, dtype=dtype)
        with tempfile.TemporaryDirectory() as folder:
            found = ours(make, sys.argv[1], pathlib.Path(folder), ranks, x, y, lr, precision)
        off = difference(found, theirs(make, ranks, x, y, lr))
        different += not off <= TOLERANCE[precision]
        print(f"{name}, {ranks} ranks, {precision}: {len(found[0])} losses, weights and statistics differ by at most {off:.2g}")
        if difference(found, theirs(make, ranks, x, y, 1.01 * lr)) <= TOLERANCE[precision]:  # the control
            sys.exit("another learning rate was not told apart: this comparison proves nothing")
    print(f"torch {torch.__version__}: {len(cases)} trainings, {different} different")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
