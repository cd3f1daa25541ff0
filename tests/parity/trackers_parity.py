#!/usr/bin/env python3
"""Trains with a program of examples/trackers and reads the rows back with the tracker's own reader, without a server.

    trackers_parity.py TRACKER PROGRAM WORK

PROGRAM is examples/02_multi_device. cached_packages.py installs the tracker's package; if that is not possible, a line that
begins with SKIPPED says why.
"""

import json
import math
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import time

from cached_packages import python_with

INTERRUPTED = 130  # ExitCode::interrupted
ROOT = pathlib.Path(__file__).resolve().parents[2]


def train(program, tracker, command, work, environment):
    """Trains until the tracker reads. On a busy machine its start takes longer than a short training and the time that a
    program has after the end."""
    sign = work / "run" / {"wandb": "wandb/latest-run", "mlflow": "mlflow_run_id", "aim": "aim_run_hash"}[tracker]
    before = sign.lstat().st_mtime_ns if sign.is_symlink() or sign.exists() else 0
    with open(work / "log", "w+") as log:
        process = subprocess.Popen([program, "1000000000", "--nprocs", "2", "--run_dir", "run", "--report.every_steps", "1000",
                                    "--report.command", command], cwd=work, env=environment, stdout=log, stderr=log)
        while process.poll() is None and not ((sign.is_symlink() or sign.exists()) and sign.lstat().st_mtime_ns > before):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        code = process.wait()
        log.seek(0)
        text = log.read()
    if code != INTERRUPTED or "report.command '" in text:
        sys.exit(f"the training ended with {code}, expected {INTERRUPTED}:\n{text[-4000:]}")


def records_of(data):
    """The records of a .wandb file: 7 bytes, then the format of LevelDB's logs, with blocks of 32 KiB."""
    at, record = 7, b""
    while at + 7 <= len(data):
        left = -at % 32768
        if 0 < left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)  # checksum, bytes, 1: whole, 2: first, 3: middle, 4: last part
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield record
            record = b""


def read_wandb():
    """A file of the offline mode for each part of the run. Its records are of the package's own types."""
    from wandb.proto import wandb_internal_pb2

    rows, ids, settings = [], set(), {}
    for file in sorted(pathlib.Path("run/wandb").glob("offline-run-*/*.wandb")):
        for data in records_of(file.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
                settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            if record.WhichOneof("record_type") == "history":
                items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
                rows += [(record.history.step.num, name, value) for name, value in items.items() if name[0] != "_"]
    return ids, rows, settings


def read_mlflow():
    import mlflow

    client = mlflow.MlflowClient("sqlite:///mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("first").experiment_id])
    rows = [(metric.step, name, metric.value) for run in runs for name in run.data.metrics
            for metric in client.get_metric_history(run.info.run_id, name)]
    return {run.info.run_id for run in runs}, rows, runs[0].data.params


def read_aim():
    import aim

    repository = aim.Repo(".")
    rows, ids, settings = [], set(repository.list_all_runs()), {}
    for run_id in ids:  # opened for writing: a run that is only read has no metrics before its server has indexed it
        run = aim.Run(run_id, repo=repository, system_tracking_interval=None, capture_terminal_logs=False)
        for name, context, _ in list(run.iter_metrics_info()):
            steps, (values,) = run.get_metric(name, context).data.view("val").items_list()
            rows += [(step, name, value) for step, value in zip(steps, values)]
        settings |= run["hparams"]
        run.close()
    return ids, rows, settings


def check(ids, rows, settings):
    if len(ids) != 1:
        sys.exit(f"found {len(ids)} runs, expected one")
    with open("lines") as lines:
        sent = json.loads(lines.readline())["settings"]
    wrong = {name: (settings.get(name), value) for name, value in sent.items() if str(settings.get(name)) != str(value)}
    if wrong or sent["report.every_steps"] != 1000:
        sys.exit(f"hyperparameters differ from the settings: {wrong}")
    expected = {}
    for line in pathlib.Path("run/metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        expected.update({(row["step"], name): value for name, value in row.items() if name not in ("step", "time")})
    found = {(step, name): value for step, name, value in rows}
    if len(found) != len(rows):
        sys.exit(f"{len(rows) - len(found)} values were written twice")
    different = [key for key in expected.keys() | found.keys()
                 if not math.isclose(expected.get(key, math.nan), found.get(key, math.nan), rel_tol=1e-12)]
    if different or not expected:
        key = min(different, default=None)
        sys.exit(f"{len(different)} of {len(expected)} values differ; {key}: found {found.get(key)}, expected {expected.get(key)}")
    print(f"{len(rows)} values are equal")


def main():
    if sys.argv[1] == "--read":
        check(*{"wandb": read_wandb, "mlflow": read_mlflow, "aim": read_aim}[sys.argv[2]]())
        return
    tracker, program, work = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3]).resolve()
    python = python_with(tracker)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    environment = os.environ | {"HOME": str(work), "WANDB_MODE": "offline", "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = f"tee lines | {python} {ROOT}/examples/trackers/{tracker}_rows.py"
    for _ in range(2):  # the second run resumes
        train(program, tracker, command, work, environment)
    sys.exit(subprocess.run([python, __file__, "--read", tracker], cwd=work, env=environment).returncode)


main()
