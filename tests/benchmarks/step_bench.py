#!/usr/bin/env python3
"""A training step of one process: lockstep's Trainer, and PyTorch, Lightning and Accelerate.

  step_bench.py --program BUILD/tests/benchmarks/exchange_program --python VENV/bin/python --report docs/benchmarks/NAME.md

VENV has torch, lightning and accelerate.
"""
import steps

PEERS = {
    "PyTorch, fused AdamW": "fused",
    "PyTorch": "eager",
    "PyTorch, torch.compile": "compile",
    "Lightning, barebones": "barebones",
    "Lightning, no logger, no checkpoints": "lightning",
    "Accelerate": "accelerate",
}


def contestants(args, model):
    found = {"lockstep": steps.ours(args.program, 1, model)}
    if args.python:
        for name, peer in PEERS.items():
            found[name] = [args.python, steps.PEERS / "stepping.py", peer, *model.words()]
    return found


if __name__ == "__main__":
    steps.compare(steps.arguments().parse_args(), "A training step of one CPU process", contestants,
                  ["torch", "lightning", "accelerate"])
