#!/usr/bin/env python3
"""A training step of several ranks on the CPUs of this machine: gradients in shared memory, over Gloo, LibTorch's reducer
over Gloo in a loop by hand, and PyTorch's DDP over Gloo, alone and in trainers.

  exchange_bench.py --program BUILD/tests/benchmarks/exchange_program --python VENV/bin/python --report docs/benchmarks/NAME.md
"""
import steps

PEERS = {"PyTorch DDP, fused AdamW": "ddp", "Lightning, barebones": "barebones", "Accelerate": "accelerate"}


def contestants(args, model):
    ours = steps.ours(args.program, args.ranks, model)
    found = {"lockstep, shm": [*ours, "--backend", "shm"], "lockstep, Gloo": [*ours, "--backend", "gloo"],
             "LibTorch's reducer, Gloo": [*ours, "--backend", "gloo", "--bare", "true"]}
    if args.python:
        for name, peer in PEERS.items():
            found[name] = [args.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", args.ranks,
                           steps.PEERS / "exchange.py", peer, *model.words()]
    return found


def main():
    parser = steps.arguments()
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    steps.compare(args, f"A training step of {args.ranks} CPU ranks", contestants, ["torch", "lightning", "accelerate"])


if __name__ == "__main__":
    main()
