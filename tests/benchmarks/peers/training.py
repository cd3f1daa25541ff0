"""What stepping.py and exchange.py have in common: training loops of Python that note when each step begins."""
import logging
import time
import warnings

import torch
from torch import nn


class Training:
    """`steps` after a warm-up, as in one_batch.h. The end of the last one is not known, so the others are measured."""

    def __init__(self, net, x, y, steps):
        self.net, self.x, self.y, self.steps = net, x, y, steps
        self.total = min(50, 2 * steps) + steps
        self.times = []
        self.loss = None

    def adamw(self, fused=True):
        return torch.optim.AdamW(self.net.parameters(), weight_decay=0, fused=fused)

    def by_hand(self, model, fused=True, optimizer=None, backward=torch.Tensor.backward):
        optimizer = optimizer or self.adamw(fused)
        for _ in range(self.total):
            self.times.append(time.perf_counter_ns())
            optimizer.zero_grad(set_to_none=True)
            self.loss = nn.functional.cross_entropy(model(self.x), self.y)
            backward(self.loss)
            optimizer.step()

    def with_accelerate(self, **options):
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True, **options)
        model, optimizer = accelerator.prepare(self.net, self.adamw())
        self.by_hand(model, optimizer=optimizer, backward=accelerator.backward)

    def with_lightning(self, **options):
        import lightning

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
        training = self

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = training.net

            def training_step(self, batch, _):
                training.times.append(time.perf_counter_ns())
                training.loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
                return training.loss

            def configure_optimizers(self):
                return training.adamw()

        class Repeated:
            def __len__(self):
                return training.total

            def __iter__(self):
                return iter([(training.x, training.y)] * training.total)

        trainer = lightning.Trainer(accelerator="cpu", max_steps=self.total, max_epochs=1, **options)
        trainer.fit(Module(), Repeated())

    def tell(self):
        for before, after in list(zip(self.times, self.times[1:]))[1 - self.steps:]:
            print("step", after - before)
        print("loss", self.loss.item())
