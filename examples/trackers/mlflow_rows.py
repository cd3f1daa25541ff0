#!/usr/bin/env python3
"""Sends the settings and the rows of a run to MLflow, without a server:

    ./train --report.command 'python3 examples/trackers/mlflow_rows.py'

A resumed run continues the same run of MLflow. Needs the package mlflow or mlflow-skinny.
"""

import json
import math
import os
import pathlib
import sys

os.environ.setdefault("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
import mlflow

run = json.loads(sys.stdin.readline())
known = pathlib.Path(run["run_dir"], "mlflow_run_id")
mlflow.set_experiment("first")
active = mlflow.start_run(run_id=known.read_text() if known.exists() else None, run_name=run["run_dir"])
known.write_text(active.info.run_id)
# And the flags of the program. MLflow changes no parameter, so those of the first start stay.
mlflow.log_params({name: value for name, value in run["settings"].items() if name not in active.data.params})
for line in sys.stdin:
    row = json.loads(line)
    values = {name: float(value) for name, value in row.items() if name not in ("step", "time")}
    mlflow.log_metrics({name: value for name, value in values.items() if math.isfinite(value)}, step=row["step"])
