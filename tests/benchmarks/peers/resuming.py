"""The peers of resume_bench.py: train, save in the middle of an epoch; start again and do the next step.

  resuming.py CONTESTANT prepare|resume FOLDER STEPS

`prepare` prints the samples of the batch after STEPS steps; `resume` prints when its first step was done (CLOCK_MONOTONIC) and the
samples of its batch.
"""
import itertools
import sys
import time

import torch

BATCH, WIDTH = 16, 8


def samples(steps):
    """A data set whose rows say who they are, a few batches longer than needed."""
    ids = torch.arange((steps + 50) * BATCH)
    return torch.utils.data.TensorDataset(ids.float().unsqueeze(1).expand(-1, WIDTH) * 1e-6, ids)


def make_loader(steps, kind=torch.utils.data.DataLoader):
    return kind(samples(steps), batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(0))


def make_model():
    torch.manual_seed(1)
    model = torch.nn.Linear(WIDTH, 1)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def step(model, optimizer, batch):
    optimizer.zero_grad()
    model(batch[0]).square().mean().backward()
    optimizer.step()


def say(ids):
    print(f"{time.monotonic():.6f}", *ids.tolist(), flush=True)


def raw(path, steps, resume, kind, skip):
    """A loop of one's own; `skip(loader, saved)` gives the rest of the epoch."""
    loader = make_loader(steps, kind)
    model, optimizer = make_model()
    if resume:
        saved = torch.load(path, weights_only=False)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        batch = next(iter(skip(loader, saved)))
        step(model, optimizer, batch)
        return say(batch[1])
    batches = iter(loader)
    for batch in itertools.islice(batches, steps):
        step(model, optimizer, batch)
    position = loader.state_dict() if hasattr(loader, "state_dict") else None
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "position": position}, path)
    say(next(batches)[1])


def raw_skip(path, steps, resume):
    raw(path, steps, resume, torch.utils.data.DataLoader, lambda loader, saved: itertools.islice(loader, steps, None))


def raw_stateful(path, steps, resume):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def skip(loader, saved):
        loader.load_state_dict(saved["position"])
        return loader

    raw(path, steps, resume, StatefulDataLoader, skip)


def accelerate_skip(path, steps, resume):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    raw(path, steps, resume, torch.utils.data.DataLoader,
        lambda loader, saved: accelerator.skip_first_batches(accelerator.prepare(loader), steps))


def lightning_with(kind, path, steps, resume):
    import logging
    import warnings

    import lightning

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.made = make_model()

        def training_step(self, batch, index):
            self.ids = batch[1]
            return self.model(batch[0]).square().mean()

        def configure_optimizers(self):
            return self.made

        def on_train_batch_end(self, outputs, batch, index):
            if self.trainer.global_step > steps:
                say(batch[1])
            elif not resume and self.trainer.global_step == steps:
                self.trainer.save_checkpoint(path)  # as ModelCheckpoint does, in this hook

    trainer = lightning.Trainer(accelerator="cpu", max_steps=steps + 1, max_epochs=1, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(), make_loader(steps, kind), ckpt_path=path if resume else None)


def lightning(path, steps, resume):
    lightning_with(torch.utils.data.DataLoader, path, steps, resume)


def lightning_stateful(path, steps, resume):
    from torchdata.stateful_dataloader import StatefulDataLoader

    lightning_with(StatefulDataLoader, path, steps, resume)


if __name__ == "__main__":
    contestant, phase, folder, count = sys.argv[1:]
    torch.set_num_threads(1)
    globals()[contestant](f"{folder}/{contestant}.ckpt", int(count), phase == "resume")
