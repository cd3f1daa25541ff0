#!/usr/bin/env python3
"""The report of tests/gpu/run.sh: from the folder it has filled to one Markdown file, whose path is printed.

Usage: report.py FOLDER            run.tsv; for each stage steps.tsv, seconds, ctest's *.xml and the benchmarks' tables
       report.py --count FILE.xml  only the counts of one JUnit file
"""
import collections
import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

STAGES = ("build", "check", "fault", "bench")
RESULTS = ("failed", "time limit", "missing", "passed", "skipped")  # a stage has the first that one of its steps has
LINES = 6  # of the message of a failed test


def read_table(file):
    return [line.split("\t") for line in file.read_text().splitlines()]


class Tests:
    def __init__(self, file):
        self.passed, self.failed, self.skipped = [], [], collections.Counter()
        for case in xml.parse(file).getroot().iter("testcase"):
            output = re.sub(r"\x1b\[[0-9;]*m", "", case.findtext("system-out") or "")
            if case.get("status") == "run":
                self.passed.append(case.get("name"))
            elif (reason := re.search(r": Skipped\n(.*)", output)) or "[  SKIPPED ]" in output:
                self.skipped[reason.group(1).strip() if reason else "no reason given"] += 1
            else:
                self.failed.append((case.get("name"), first_lines(case, output)))

    def __str__(self):
        counts = [(len(self.passed), "passed"), (len(self.failed), "failed"), (self.skipped.total(), "skipped")]
        return ", ".join(f"{count} {what}" for count, what in counts if count) or "no tests"


def first_lines(case, output):
    """Of a failed test: what follows GoogleTest's first ": Failure", else what ctest says, else the end of the output."""
    _, found, message = output.partition(": Failure\n")
    if not found:
        failure = case.find("failure")
        reason = (failure.get("message") or "no reason given") if failure is not None else "not run"
        message = "\n".join([reason, *output.strip().splitlines()[-LINES + 1:]])
    return [line[:200] for line in message.splitlines() if line.strip()][:LINES]


def cell(text):
    return text.strip().replace("|", "\\|")


def stage_lines(folder):
    steps = read_table(folder / "steps.tsv")
    lines = ["", f"## {folder.name}", "", "| step | result | seconds | |", "|---|---|---|---|"]
    lines += [f"| {cell(name)} | {result} | {seconds} | {cell(note)} |" for name, result, seconds, note in steps]
    for file in sorted(folder.glob("*.xml")):
        tests = Tests(file)
        for name, message in tests.failed:
            lines += ["", f"`{name}` failed:", "", "```", *message, "```"]
        if tests.skipped:
            lines += ["", "Skipped:", ""]
            lines += [f"- {count} times: {reason}" for reason, count in sorted(tests.skipped.items())]
    for name, _, _, _ in steps:
        written, printed = sorted((folder / name).glob("*.md")), folder / f"{name}.stdout"
        for table in written or [printed] * printed.exists():
            text = table.read_text().strip().splitlines()
            lines += ["", *("##" + line if line.startswith("#") else line for line in text)] if text else []
    return lines


def stage_result(folder):
    results = [step[1] for step in read_table(folder / "steps.tsv")]
    return min(results, key=RESULTS.index, default="missing")


def write_report(folder):
    facts = dict(read_table(folder / "run.tsv"))
    device, date = facts.pop("device"), facts.pop("date")
    stages = [folder / name for name in STAGES if (folder / name / "steps.tsv").exists()]
    lines = [f"# {device}, {date}", ""]
    if device == "dry run":
        lines += ["**dry run: no GPU was used.** This report says nothing about any GPU.", ""]
    lines += ["Written by `tests/gpu/run.sh`; [what the stages do](README.md).", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {cell(value)} |" for name, value in facts.items()]
    lines += ["", "| stage | result | seconds |", "|---|---|---|"]
    for name in STAGES:
        result = (stage_result(folder / name), (folder / name / "seconds").read_text().strip()) if folder / name in stages \
            else ("not run", "")
        lines.append(f"| {name} | {result[0]} | {result[1]} |")
    for stage in stages:
        lines += stage_lines(stage)
    name = re.sub("[^a-z0-9]+", "_", device.lower()).strip("_")
    file = folder / f"{name}_{date}.md"
    file.write_text("\n".join(lines) + "\n")
    return file


if __name__ == "__main__":
    if sys.argv[1] == "--count":
        print(Tests(sys.argv[2]))
    else:
        print(write_report(Path(sys.argv[1])))
