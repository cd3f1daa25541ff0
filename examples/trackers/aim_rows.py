#!/usr/bin/env python3
"""Sends the settings and the rows of a run to Aim, into .aim of the working directory:

    ./train --report.command 'python3 examples/trackers/aim_rows.py'

A resumed run continues the same run of Aim. Needs the package aim.
"""

import json
import pathlib
import sys

import aim

run = json.loads(sys.stdin.readline())
known = pathlib.Path(run["run_dir"], "aim_run_hash")
active = aim.Run(run_hash=known.read_text() if known.exists() else None, experiment="first", system_tracking_interval=None)
known.write_text(active.hash)
active["hparams"] = run["settings"]  # and the flags of the program
active.name = run["run_dir"]
for line in sys.stdin:
    row = json.loads(line)
    active.track({name: float(value) for name, value in row.items() if name not in ("step", "time")}, step=row["step"])
active.close()
