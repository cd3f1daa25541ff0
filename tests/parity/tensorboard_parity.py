"""Reads the event files of a run with TensorBoard's own reader and compares them with its metrics.jsonl.

usage: tensorboard_parity.py RUN
"""

import json
import math
import pathlib
import struct
import sys

from tensorboard.backend.event_processing import event_accumulator


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run = pathlib.Path(sys.argv[1])
    events = event_accumulator.EventAccumulator(str(run), size_guidance={event_accumulator.SCALARS: 0})
    events.Reload()
    found = {}  # by name and step; a report and a validation of one step both have an epoch
    for name in events.Tags()["scalars"]:
        steps = found.setdefault(name, {})
        for event in events.Scalars(name):
            steps.setdefault(event.step, []).append(event.value)
    rows = 0
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        for name, value in row.items():
            if name in ("step", "time"):
                continue
            single = struct.unpack("f", struct.pack("f", float(value)))[0]
            values = found.get(name, {}).get(row["step"])
            if not values:
                sys.exit(f"step {row['step']}: TensorBoard has no {name}")
            seen = values.pop(0)
            if seen != single and not (math.isnan(seen) and math.isnan(single)):
                sys.exit(f"step {row['step']}: {name} is {seen} in TensorBoard, expected {single}")
            rows += 1
    left = {name: steps for name, steps in found.items() if any(steps.values())}
    if left:
        sys.exit(f"TensorBoard has more than metrics.jsonl: {left}")
    if "config" not in events.Tags()["tensors"]:
        sys.exit("the configuration is missing")
    print(f"{rows} values are equal")


if __name__ == "__main__":
    main()
