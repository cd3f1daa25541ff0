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
    found = {name: {e.step: e.value for e in events.Scalars(name)} for name in events.Tags()["scalars"]}
    rows = 0
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        for name, value in row.items():
            if name in ("step", "time"):
                continue
            single = struct.unpack("f", struct.pack("f", float(value)))[0]
            seen = found[name].pop(row["step"], math.nan)
            if seen != single and not (math.isnan(seen) and math.isnan(single)):
                sys.exit(f"step {row['step']}: {name} is {seen} in TensorBoard, expected {single}")
            rows += 1
    left = {name: steps for name, steps in found.items() if steps}
    if left:
        sys.exit(f"TensorBoard has more than metrics.jsonl: {left}")
    if "config" not in events.Tags()["tensors"]:
        sys.exit("the configuration is missing")
    print(f"{rows} values are equal")


if __name__ == "__main__":
    main()
