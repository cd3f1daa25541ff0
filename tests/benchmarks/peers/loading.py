"""Microseconds per sample of Python's ways to load a batch: loading.py CONTESTANT SECONDS. One number on standard output."""
import os
import sys
import tempfile
import time

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

torch.set_num_threads(1)
IMAGES, IMAGE_BATCH = 50_000, 256
TOKENS, TOKEN_BATCH, CONTEXT = 50_000_000, 64, 1024


class Images(Dataset):
    def __init__(self):
        random = np.random.default_rng(1)
        self.bytes = torch.from_numpy(random.integers(0, 256, (IMAGES, 3, 32, 32), dtype=np.uint8))
        self.labels = torch.from_numpy(random.integers(0, 10, IMAGES))

    def __len__(self):
        return IMAGES

    def __getitem__(self, i):
        return self.bytes[i].float().div_(255), self.labels[i]


class BatchedImages(Images):
    """Asked for a list of indices (sampler = BatchSampler, batch_size = None), gathered with numpy."""

    def __getitem__(self, ids):
        rows = self.bytes.numpy()[ids].astype(np.float32)
        rows *= np.float32(1 / 255)
        return torch.from_numpy(rows), torch.from_numpy(self.labels.numpy()[ids])


def token_array():
    file = tempfile.NamedTemporaryFile(delete=False)
    np.random.default_rng(1).integers(0, 50257, TOKENS, dtype=np.uint16).tofile(file)
    file.close()
    array = np.memmap(file.name, dtype=np.uint16, mode="r")
    os.unlink(file.name)
    return array


class Tokens(Dataset):
    def __init__(self):
        self.tokens = token_array()

    def __len__(self):
        return (TOKENS - 1) // CONTEXT

    def __getitem__(self, i):
        window = torch.from_numpy(self.tokens[i * CONTEXT : i * CONTEXT + CONTEXT + 1].astype(np.int64))
        return window[:-1], window[1:]


def epochs(loader):
    while True:
        yield from loader


def per_sample(data, batch, workers):
    return epochs(DataLoader(data, batch_size=batch, shuffle=True, num_workers=workers, drop_last=True,
                             persistent_workers=workers > 0))


def batched(data, batch):
    return epochs(DataLoader(data, sampler=BatchSampler(RandomSampler(data), batch, drop_last=True), batch_size=None))


def orders(size, batch):
    while True:
        order = np.random.default_rng().permutation(size)
        for at in range(0, size - batch + 1, batch):
            yield order[at : at + batch]


def cifar_numpy_out():
    data = Images()
    rows, labels = data.bytes.numpy().reshape(IMAGES, -1), data.labels.numpy()
    raw = np.empty((IMAGE_BATCH, 3072), np.uint8)
    out = np.empty((IMAGE_BATCH, 3072), np.float32)
    for ids in orders(IMAGES, IMAGE_BATCH):
        np.take(rows, ids, axis=0, out=raw, mode="clip")
        np.multiply(raw, np.float32(1 / 255), out=out, casting="unsafe")
        yield torch.from_numpy(out).view(IMAGE_BATCH, 3, 32, 32), torch.from_numpy(labels[ids])


def tokens_torch():
    tokens = torch.from_numpy(token_array().view(np.int16))
    offsets = torch.arange(CONTEXT + 1)
    for ids in orders((TOKENS - 1) // CONTEXT, TOKEN_BATCH):
        window = tokens[(torch.from_numpy(ids) * CONTEXT).unsqueeze(1) + offsets].to(torch.int64).bitwise_and_(0xFFFF)
        yield window[:, :-1], window[:, 1:]


def tokens_windows():
    """The best of the hand-vectorised: a strided view of all windows, rows picked by torch."""
    tokens = torch.from_numpy(token_array().view(np.int16))
    count = (TOKENS - 1) // CONTEXT
    windows = tokens.as_strided((count, CONTEXT + 1), (CONTEXT, 1))
    for ids in orders(count, TOKEN_BATCH):
        window = windows[torch.from_numpy(ids)].to(torch.int64).bitwise_and_(0xFFFF)
        yield window[:, :-1], window[:, 1:]


def tokens_nanogpt():
    tokens = token_array()
    while True:
        ids = torch.randint(TOKENS - CONTEXT, (TOKEN_BATCH,))
        x = torch.stack([torch.from_numpy(tokens[i : i + CONTEXT].astype(np.int64)) for i in ids])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + CONTEXT].astype(np.int64)) for i in ids])
        yield x, y


CONTESTANTS = {
    "cifar_workers0": lambda: per_sample(Images(), IMAGE_BATCH, 0),
    "cifar_workers2": lambda: per_sample(Images(), IMAGE_BATCH, 2),
    "cifar_batched_numpy": lambda: batched(BatchedImages(), IMAGE_BATCH),
    "cifar_numpy_out": cifar_numpy_out,
    "tokens_workers0": lambda: per_sample(Tokens(), TOKEN_BATCH, 0),
    "tokens_workers2": lambda: per_sample(Tokens(), TOKEN_BATCH, 2),
    "tokens_nanogpt": tokens_nanogpt,
    "tokens_torch": tokens_torch,
    "tokens_windows": tokens_windows,
}

if __name__ == "__main__":
    batches = CONTESTANTS[sys.argv[1]]()
    seconds = float(sys.argv[2])
    for _ in range(20):
        batch = next(batches)
    samples, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        batch = next(batches)
        samples += len(batch[0])
    print((time.perf_counter() - start) / samples * 1e6)
