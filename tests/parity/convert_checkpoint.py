"""Weights go from a .pt file to a checkpoint and back, bit by bit: argv = script, an empty folder, a checkpoint of ours."""
import contextlib
import io
import pickle
import runpy
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file, save_model

script, work, golden = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])


def run(*args, code=0):
    """The converter in this process: PyTorch is imported once."""
    said, before = io.StringIO(), sys.argv
    sys.argv = [script, *map(str, args)]
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        said.write(end.code if isinstance(end.code, str) else "")
    finally:
        sys.argv = before
    assert status == code, (args, status, said.getvalue())
    return said.getvalue()


def same(a, b):
    assert a.keys() == b.keys(), (a.keys(), b.keys())
    for name in a:
        assert a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]), name


torch.manual_seed(1)
state = {
    "a.weight": torch.randn(700, 1600),  # more than one chunk of 4 MiB
    "a.bias": torch.randn(16).to(torch.bfloat16),
    "steps": torch.tensor(7),
    "turned": torch.randn(3, 5).t(),
    "none": torch.empty(0, 4),
}

# The tutorial's snapshot, saved from DDP.
torch.save({"MODEL_STATE": {"module." + k: v for k, v in state.items()}, "EPOCHS_RUN": 3}, work / "snapshot.pt")
run(work / "snapshot.pt", work / "checkpoints", "--step", 500)
checkpoint = work / "checkpoints" / "step-0000000500"
same(load_file(checkpoint / "model.safetensors"), state)
assert '"epoch": "3"' in (checkpoint / "state.json").read_text()
run(checkpoint, work / "back.pt", "--format", "snapshot", "--ddp")
back = torch.load(work / "back.pt", weights_only=True)
assert back["EPOCHS_RUN"] == 3
same({k.removeprefix("module."): v for k, v in back["MODEL_STATE"].items()}, state)
assert all(k.startswith("module.") for k in back["MODEL_STATE"])

# A plain state dict, by way of bare safetensors.
torch.save(state, work / "plain.pt")
run(work / "plain.pt", work / "plain.safetensors")
run(work / "plain.safetensors", work / "plain_back.pt")
same(torch.load(work / "plain_back.pt", weights_only=True), state)

# A checkpoint that a Trainer wrote.
run(golden, work / "golden.pt")
net = torch.nn.Module()
net.a = torch.nn.Linear(10, 16)
net.b = torch.nn.Linear(16, 1)
net.load_state_dict(torch.load(work / "golden.pt", weights_only=True))

# The newest checkpoint of a run, or of its directory of checkpoints.
torch.save({"other": torch.ones(1)}, work / "other.pt")
run(work / "other.pt", work / "checkpoints", "--step", 60)
for source in (work, work / "checkpoints"):
    assert "step-0000000500: the newest checkpoint" in run(source, work / "newest.pt")
    same(torch.load(work / "newest.pt", weights_only=True), state)
(work / "empty").mkdir()
assert "empty: expected a run" in run(work / "empty", work / "no.pt", code=65)


# Tied weights: both names, as load_state_dict() wants them. A checkpoint of ours has the same metadata.
class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


tied = Tied()
save_model(tied, work / "tied.safetensors")
assert list(load_file(work / "tied.safetensors")) == ["embed.weight"]
run(work / "tied.safetensors", work / "tied.pt")
run(work / "tied.pt", work / "again.safetensors")
same(load_file(work / "again.safetensors"), tied.state_dict())
Tied().load_state_dict(torch.load(work / "tied.pt", weights_only=True))
save_file({"pt": torch.ones(2)}, work / "named.safetensors", metadata={"format": "pt"})
run(work / "named.safetensors", work / "named.pt")
assert list(torch.load(work / "named.pt", weights_only=True)) == ["pt"]

# Lightning's files: the only dictionary of tensors, as load_tensors() finds it.
lightning = {"epoch": 3, "state_dict": state, "optimizer_states": [{"state": {}}], "callbacks": {}, "version": "2"}
torch.save(lightning, work / "last.ckpt")
run(work / "last.ckpt", work / "lightning.safetensors")
same(load_file(work / "lightning.safetensors"), state)
torch.save(lightning | {"ema": state}, work / "last.ckpt")
assert "found 2 dictionaries of tensors, expected one; the keys are: state_dict, ema" in run(
    work / "last.ckpt", work / "no.safetensors", code=65)
torch.save(state | {"_extra_state": 1}, work / "extra.pt")
assert "found entries that are no tensors: _extra_state" in run(work / "extra.pt", work / "no.safetensors", code=65)
torch.save(state | {"z": torch.ones(2, dtype=torch.complex128)}, work / "complex.pt")
assert "safetensors has no dtype torch.complex128, which these tensors have: z" in run(
    work / "complex.pt", work / "no.safetensors", code=65)

# What is damaged, taken, or would execute something is refused.
assert "already exists" in run(work / "snapshot.pt", work / "checkpoints", "--step", 500, code=65)
data = bytearray((checkpoint / "model.safetensors").read_bytes())
data[-1] ^= 1
(work / "damaged").mkdir()
for file in checkpoint.iterdir():
    (work / "damaged" / file.name).write_bytes(file.read_bytes())
(work / "damaged" / "model.safetensors").write_bytes(data)
assert "its checksum does not match" in run(work / "damaged", work / "no.pt", code=65)


class Harm:
    def __reduce__(self):
        return (Path.touch, (work / "executed",))


with open(work / "harm.pt", "wb") as file:
    pickle.dump({"MODEL_STATE": Harm()}, file)
run(work / "harm.pt", work / "no.safetensors", code=65)
torch.save({"MODEL_STATE": Harm()}, work / "harm2.pt")
run(work / "harm2.pt", work / "no.safetensors", code=65)
assert not (work / "executed").exists()
print("converted both ways")
