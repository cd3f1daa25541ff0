"""The contestants of gpu_training_bench.py in Python. The lines on standard input and output are those of gpu_training_program.cpp."""
import argparse
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))
import gpu_models  # noqa: E402


def say(*words):
    print(*words, flush=True)


class Conductor:
    """Tells when to train and for how long."""

    def __init__(self, checked, device):
        self.left, self.device, self.losses, self.told, self.profiler = checked, device, [], False, None
        self.start = time.monotonic()

    def took_step(self, loss):
        if not self.told:
            if not self.losses:
                loss.item()
                say(f"first {time.monotonic():.6f}")
            self.losses.append(loss.detach().clone())

    def wait(self):
        """False: the end."""
        self.left -= 1
        if self.left >= 0:
            return True
        self.finish()
        for line in sys.stdin:
            what, *words = line.split()
            if what == "quit":
                return False
            self.left = int(words[0]) - 1
            if what == "profile":
                self.trace = words[1]
                self.profiler = torch.profiler.profile()
                self.profiler.start()
            self.start = time.monotonic()
            return True
        return False

    def finish(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.monotonic() - self.start
        if self.profiler:
            self.profiler.stop()
            self.profiler.export_chrome_trace(self.trace)
            self.profiler = None
        if self.told:
            say(f"took {seconds:.6f}")
        else:
            self.told = True
            say("losses", *(f"{loss.item():.7f}" for loss in self.losses))


class Work:
    """Model, samples and one step."""

    def __init__(self, args):
        self.args = args
        self.device = torch.device(args.device)
        self.net = gpu_models.make(args.model, [int(word) for word in args.shape.split(",")])
        self.net.load_state_dict(load_file(args.weights))
        self.net.to(self.device)
        if args.channels_last:
            self.net.to(memory_format=torch.channels_last)
        self.optimizer = gpu_models.make_optimizer(args.model, self.net)
        samples = load_file(args.samples)
        self.input, self.target = samples["input"], samples["target"]
        if self.device.type == "cuda":
            self.input, self.target = self.input.pin_memory(), self.target.pin_memory()
        self.loss = self.net
        modes = {"compile": None, "compile_reduce_overhead": "reduce-overhead"}
        if args.contestant in modes:
            self.loss = torch.compile(self.net, mode=modes[args.contestant])

    def batch(self, step):
        begin = step * self.args.batch_size % len(self.input)
        rows = slice(begin, begin + self.args.batch_size)
        images = self.input[rows].to(self.device, non_blocking=True)
        if self.args.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images, self.target[rows].to(self.device, non_blocking=True)

    def loss_of(self, images, labels):
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.precision == "bf16_mixed"):
            return self.loss(images, labels)

    def step(self, number):
        images, labels = self.batch(number)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss_of(images, labels)
        loss.backward()
        self.optimizer.step()
        return loss


def train(work, conductor):
    step = 0
    while conductor.wait():
        conductor.took_step(work.step(step))
        step += 1
        if work.args.save_every and step % work.args.save_every == 0:
            torch.save({"model": work.net.state_dict(), "optimizer": work.optimizer.state_dict()}, work.args.save_to)


def train_with_lightning(work, conductor):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = work.net

        def training_step(self, number, _):
            loss = work.loss(*work.batch(int(number)))
            conductor.took_step(loss)
            return loss

        def configure_optimizers(self):
            return gpu_models.make_optimizer(work.args.model, self.net)

    class Numbers(torch.utils.data.IterableDataset):
        def __iter__(self):
            number = 0
            while conductor.wait():
                yield number
                number += 1

    lightning.Trainer(
        max_epochs=1,
        accelerator="gpu" if work.device.type == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed" if work.args.precision == "bf16_mixed" else "32-true",
        barebones=work.args.contestant == "lightning_barebones",
        **({} if work.args.contestant == "lightning_barebones" else {"logger": False, "enable_checkpointing": False}),
    ).fit(Module(), torch.utils.data.DataLoader(Numbers(), batch_size=None))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ["contestant", "model", "shape", "weights", "samples", "device", "precision"]:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--checked", type=int, default=10)
    parser.add_argument("--channels_last", action="store_true")
    parser.add_argument("--save_every", type=int, default=0, help="steps")
    parser.add_argument("--save_to", help="file")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    work = Work(args)
    conductor = Conductor(args.checked, work.device)
    (train_with_lightning if args.contestant.startswith("lightning") else train)(work, conductor)


if __name__ == "__main__":
    main()
