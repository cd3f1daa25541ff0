#!/usr/bin/env python3
"""Sends the settings and the rows of a run to Weights & Biases:

    ./train --report.command 'python3 examples/trackers/wandb_rows.py'

A resumed run continues the same run of W&B. With WANDB_MODE=offline the rows stay in wandb/ of the run directory, in a folder
for each part of the run. Needs the package wandb.
"""

import json
import pathlib
import sys

import wandb

run = json.loads(sys.stdin.readline())
name = pathlib.Path(run["run_dir"]).name
wandb.init(project="first", dir=run["run_dir"], id=name, resume="allow", config=run["settings"])  # and the program's flags
for line in sys.stdin:
    row = json.loads(line)
    wandb.log({name: float(value) for name, value in row.items() if name not in ("step", "time")}, step=row["step"])
