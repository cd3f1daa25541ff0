#!/usr/bin/env python3
"""Converts weights between PyTorch's .pt files and lockstep's checkpoints.

  lockstep-convert snapshot.pt checkpoints/        a checkpoint step-<N> in that folder (N: --step, 0)
  lockstep-convert weights.pt model.safetensors    the weights alone
  lockstep-convert checkpoints/step-0000000500 snapshot.pt --format snapshot
  lockstep-convert runs/a weights.pt               of the newest checkpoint of a run
  lockstep-convert model.safetensors weights.pt    a state dict, as module.load_state_dict() takes it

A .pt file is a state dict, or a dictionary with one, such as MODEL_STATE beside EPOCHS_RUN (finished epochs) in PyTorch's
DDP tutorial. Reading one executes nothing: torch.load(weights_only=True). The prefix `module.` of DDP is removed; --ddp
adds it. Tied weights that a source has once, as checkpoints of lockstep have, are written under each of their names.
A checkpoint is checked against its manifest before it is read. Only weights and the number of finished epochs are
converted: no optimizer, no position in the data. Needs torch, numpy and safetensors.
"""
import argparse
import json
import os
import re
import secrets
import sys
from pathlib import Path

try:
    import numpy
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
except ImportError as error:
    packages = "torch numpy safetensors"
    fix = f"{sys.executable} -m pip install {packages}"
    if sys.prefix == sys.base_prefix:  # pip of a distribution's Python refuses to install
        fix = f"python3 -m venv DIR && DIR/bin/pip install {packages}, then start it with DIR/bin/python {sys.argv[0]}"
    sys.exit(f"lockstep-convert: {error}; it needs a Python with {packages}: {fix}")

CHUNK = 4 << 20
PREFIX = "module."
CHECKPOINT = re.compile(r"step-[0-9]{10,}")


class Refused(Exception):
    pass


# ---- CRC-32C of whole arrays: 4096 lanes in parallel, then joined in pairs ------------------------------------------
POLYNOMIAL = 0x82F63B78
LANES = 4096


def byte_table():
    table = numpy.arange(256, dtype=numpy.uint32)
    for _ in range(8):
        table = numpy.where(table & 1, (table >> 1) ^ numpy.uint32(POLYNOMIAL), table >> 1)
    return table


TABLE = byte_table()


def through(columns, values):
    """Applies to each value the linear map that maps the 32 single bits to `columns`."""
    result = numpy.zeros_like(values)
    for bit in range(32):
        result ^= numpy.where((values >> numpy.uint32(bit)) & 1, columns[bit], numpy.uint32(0))
    return result


def zeros(count):
    """The map that appends `count` zero bytes."""
    result = numpy.uint32(1) << numpy.arange(32, dtype=numpy.uint32)
    power = TABLE[result & 255] ^ (result >> 8)
    while count:
        if count & 1:
            result = through(power, result)
        power = through(power, power)
        count >>= 1
    return result


def remainder(data):
    """Checksum of the bytes with an initial value of 0."""
    width = len(data) // LANES
    lanes = data[: width * LANES].reshape(LANES, width)
    state = numpy.zeros(LANES, dtype=numpy.uint32)
    for column in range(width):
        state = TABLE[(state ^ lanes[:, column]) & 255] ^ (state >> 8)
    length = width
    while len(state) > 1:
        state = through(zeros(length), state[0::2]) ^ state[1::2]
        length *= 2
    state = int(state[0])
    for byte in data[width * LANES :].tolist():
        state = int(TABLE[(state ^ byte) & 255]) ^ (state >> 8)
    return state


def crc32c(data):
    data = numpy.frombuffer(data, dtype=numpy.uint8)
    start = through(zeros(len(data)), numpy.array([0xFFFFFFFF], dtype=numpy.uint32))[0]
    return int(start) ^ remainder(data) ^ 0xFFFFFFFF


# ---- safetensors -------------------------------------------------------------------------------------------------------
def read_safetensors(path):
    state = load_file(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
    # Of tied weights, Python's save_model() and lockstep write one, and the other names into the metadata.
    others = {name: first for name, first in metadata.items() if name != "format"}
    tied = {name: state[first].clone() for name, first in others.items() if first in state and name not in state}
    return state | tied


def write_safetensors(path, state):
    try:
        save_file(state, path, metadata={"format": "pt"})
    except KeyError as error:  # the dtype
        names = ", ".join(name for name, tensor in state.items() if tensor.dtype == error.args[0])
        raise Refused(f"{path}: safetensors has no dtype {error}, which these tensors have: {names}") from error


# ---- lockstep's side: docs/checkpoint_format.md ----------------------------------------------------------------------
def chunk_checksums(path):
    with open(path, "rb") as file:
        return [f"{crc32c(chunk):08x}" for chunk in iter(lambda: file.read(CHUNK), b"")]


def manifest_text(step, run_id, names, folder):
    files = ",\n".join(
        '    {"name": "%s", "size": %d, "crc32c": [%s]}'
        % (name, (folder / name).stat().st_size, ", ".join(f'"{c}"' for c in chunk_checksums(folder / name)))
        for name in names
    )
    body = (
        f'{{\n  "format": 1,\n  "step": {step},\n  "run_id": {json.dumps(run_id)},\n  "restart": 0,\n'
        f'  "chunk_bytes": {CHUNK},\n  "files": [\n{files}\n  ],\n'
    )
    return body + f'  "crc32c": "{crc32c(body.encode()):08x}"\n}}\n'


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_checkpoint(directory, step, state, epochs):
    name = f"step-{step:010d}"
    if (directory / name).exists():
        raise Refused(f"{directory / name}: already exists")
    directory.mkdir(parents=True, exist_ok=True)
    folder = directory / f"{name}.tmp.{secrets.token_hex(8)}"
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", state)
    values = {"format": 1, "data_order": 1, "step": step, "world_size": 1, "epoch": str(epochs)}
    (folder / "state.json").write_text(json.dumps(values, indent=2) + "\n")
    names = ["model.safetensors", "state.json"]
    (folder / "MANIFEST.json").write_text(manifest_text(step, "converted", names, folder))
    for file in [*(folder / name for name in [*names, "MANIFEST.json"]), folder]:
        sync(file)
    folder.rename(directory / name)
    sync(directory)
    return directory / name


def read_checkpoint(folder):
    text = (folder / "MANIFEST.json").read_bytes()
    if len(text) < 25 or text[-25:] != f'  "crc32c": "{crc32c(text[:-25]):08x}"\n}}\n'.encode():
        raise Refused(f"{folder}/MANIFEST.json: its checksum does not match its text")
    manifest = json.loads(text)
    if manifest["format"] != 1:
        raise Refused(f"{folder}/MANIFEST.json: checkpoint format {manifest['format']}, this script reads 1")
    entries = {entry["name"]: entry for entry in manifest["files"]}
    for name in ("model.safetensors", "state.json"):
        if name not in entries:
            raise Refused(f"{folder}/{name}: not in the manifest")
        if (folder / name).stat().st_size != entries[name]["size"]:
            raise Refused(f"{folder}/{name}: its length differs from the manifest")
        if chunk_checksums(folder / name) != entries[name]["crc32c"]:
            raise Refused(f"{folder}/{name}: its checksum does not match")
    values = json.loads((folder / "state.json").read_text())
    return read_safetensors(folder / "model.safetensors"), int(values.get("epoch", 0))


def newest_checkpoint(directory):
    """The directory itself if it is a checkpoint; else it is a run or its directory of checkpoints."""
    if (directory / "MANIFEST.json").exists() or CHECKPOINT.fullmatch(directory.name):
        return directory
    inside = directory / "checkpoints"
    found = [folder for folder in (inside if inside.is_dir() else directory).iterdir() if CHECKPOINT.fullmatch(folder.name)]
    if not found:
        raise Refused(f"{directory}: expected a run, its directory of checkpoints, or a checkpoint such as step-0000000500")
    newest = max(found, key=lambda folder: int(folder.name.removeprefix("step-")))
    print(f"{newest}: the newest checkpoint")
    return newest


# ---- PyTorch's side --------------------------------------------------------------------------------------------------
def is_state_dict(value):
    return isinstance(value, dict) and all(isinstance(v, torch.Tensor) for v in value.values())


def state_dict_in(content, path):
    """As load_tensors() finds it: the whole content, or its only entry that is a dictionary of tensors."""
    if is_state_dict(content):
        return content
    entries = content if isinstance(content, dict) else {}
    found = [key for key, value in entries.items() if is_state_dict(value) and value]
    if len(found) == 1:
        return entries[found[0]]
    others = [str(key) for key, value in entries.items() if not isinstance(value, torch.Tensor)]
    if not found and len(others) < len(entries):
        raise Refused(f"{path}: found entries that are no tensors: {', '.join(others)}")
    keys = ", ".join(map(str, found or entries)) or "none"
    raise Refused(f"{path}: found {len(found)} dictionaries of tensors, expected one; the keys are: {keys}")


def read_pt(path):
    content = torch.load(path, map_location="cpu", weights_only=True)
    epochs = 0
    if isinstance(content, dict) and "MODEL_STATE" in content:
        epochs = int(content.get("EPOCHS_RUN", 0))
        content = content["MODEL_STATE"]
    content = state_dict_in(content, path)
    if content and all(name.startswith(PREFIX) for name in content):
        content = {name[len(PREFIX) :]: tensor for name, tensor in content.items()}
    # Tensors that share memory (tied weights) are stored twice: safetensors cannot represent shared memory.
    return {name: tensor.detach().clone().contiguous() for name, tensor in content.items()}, epochs


def write_pt(path, state, epochs, snapshot, ddp):
    if ddp:
        state = {PREFIX + name: tensor for name, tensor in state.items()}
    torch.save({"MODEL_STATE": state, "EPOCHS_RUN": epochs} if snapshot else state, path)


def convert(args):
    source, target = Path(args.source), Path(args.target)
    if source.is_dir():
        state, epochs = read_checkpoint(newest_checkpoint(source))
    elif source.suffix == ".safetensors":
        state, epochs = read_safetensors(source), 0
    else:
        state, epochs = read_pt(source)
    epochs = args.epochs if args.epochs is not None else epochs
    if target.suffix == ".safetensors":
        write_safetensors(target, state)
    elif target.suffix in (".pt", ".pth", ".bin"):
        write_pt(target, state, epochs, args.format == "snapshot", args.ddp)
    elif target.suffix and not target.is_dir():
        raise Refused(f"{target}: expected a directory, or a name that ends in .safetensors, .pt, .pth or .bin")
    elif args.step < 0:
        raise Refused(f"--step is {args.step}, expected 0 or more")
    else:
        target = write_checkpoint(target, args.step, state, epochs)
    print(f"{target}: {len(state)} tensors, {epochs} finished epochs")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help=".pt file, .safetensors file, a checkpoint, or a run (its newest one)")
    parser.add_argument("target", help=".pt file, .safetensors file, or a folder of checkpoints")
    parser.add_argument("--format", choices=["state_dict", "snapshot"], default="state_dict", help="of a .pt target")
    parser.add_argument("--ddp", action="store_true", help="names in a .pt target begin with module.")
    parser.add_argument("--step", type=int, default=0, help="of a checkpoint target")
    parser.add_argument("--epochs", type=int, help="finished epochs, instead of what the source says")
    try:
        convert(parser.parse_args())
    except (Refused, OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 65
    except Exception as error:  # errors of torch and safetensors: unreadable files
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 65
    return 0


if __name__ == "__main__":
    sys.exit(main())
