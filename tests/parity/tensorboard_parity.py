"""Reads the event files of a run with TensorBoard's own reader and compares them with its metrics.jsonl.

The run is one of tests/support/train_program.cpp, which also writes histograms, texts and images.

usage: tensorboard_parity.py RUN
"""

import json
import math
import pathlib
import struct
import sys
import zlib

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import api_pb2, metadata


def check_media(events):
    for name in ("parameters/a.weight", "gradients/a.weight", "parameters/b.bias"):
        for event in events.Histograms(name):
            histogram = event.histogram_value
            if histogram.num != sum(histogram.bucket) or list(histogram.bucket_limit) != sorted(histogram.bucket_limit):
                sys.exit(f"{name}, step {event.step}: the buckets do not hold {histogram.num} numbers")
    if events.Histograms("parameters/a.weight")[0].histogram_value.num != 160:
        sys.exit("a.weight has 160 elements")
    text = events.Tensors("note")[0].tensor_proto.string_val[0].decode()
    if text != "epoch **1**":
        sys.exit(f"the text is {text}")
    image = events.Images("weights")[0]
    if (image.width, image.height) != (10, 16):
        sys.exit(f"the image has {image.width} x {image.height} pixels")
    check_png(image.encoded_image_string)


def check_png(png):
    at, rows = 8, b""
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        data = png[at + 8 : at + 8 + size]
        if zlib.crc32(kind + data) != struct.unpack(">I", png[at + 8 + size : at + 12 + size])[0]:
            sys.exit(f"the checksum of {kind} is wrong")
        rows += zlib.decompress(data) if kind == b"IDAT" else b""
        at += 12 + size
    if len(rows) != 16 * 11:
        sys.exit(f"the image has {len(rows)} bytes, expected 176")


def check_settings(events):
    start, experiment = (
        metadata.parse_session_start_info_plugin_data(
            events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content),
        metadata.parse_experiment_plugin_data(events.SummaryMetadata(metadata.EXPERIMENT_TAG).plugin_data.content),
    )
    kinds = {info.name: api_pb2.DataType.Name(info.type) for info in experiment.hparam_infos}
    settings = {}
    for name, value in start.hparams.items():
        kind = value.WhichOneof("kind")
        settings[name] = getattr(value, kind)
        if kinds[name] != {"string_value": "DATA_TYPE_STRING", "bool_value": "DATA_TYPE_BOOL",
                           "number_value": "DATA_TYPE_FLOAT64"}[kind]:
            sys.exit(f"{name} is a {kind} of {kinds[name]}")
    expected = {"report.tensorboard": True, "benchmark": False, "report.every_steps": 3.0, "dropout": 0.2,
                "precision": "fp32", "devices": "auto", "data.steps_per_epoch": "0"}
    for name, value in expected.items():
        if settings.get(name) != value or type(settings[name]) is not type(value):
            sys.exit(f"{name} is {settings.get(name)!r}, expected {value!r}")
    if "loss" not in [metric.name.tag for metric in experiment.metric_infos]:
        sys.exit("the metric loss is not among those of HPARAMS")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run = pathlib.Path(sys.argv[1])
    events = event_accumulator.EventAccumulator(
        str(run), size_guidance={kind: 0 for kind in event_accumulator.DEFAULT_SIZE_GUIDANCE})
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
    check_media(events)
    check_settings(events)
    print(f"{rows} values are equal")


if __name__ == "__main__":
    main()
