#!/usr/bin/python3
"""Runs a command in a terminal of its own and writes what stands on the screen as an SVG.

docs/images/terminal.py OUT.svg [--columns N] [--rows N] [--seconds S] [--answers TEXT] -- COMMAND...
--seconds: ends the command with Ctrl-C after that time.  --answers: typed one line at a time, each after a prompt.

The pictures of the manual have 104 columns, and 06_char_gpt as ./train:
    console.svg                            ./train --nprocs 2 --max_steps 1000 --sample 0 --run_name console
    start.svg   --answers 2,16,1,first,n   lockstep start ./train
    top.svg     --seconds 4                lockstep top runs/shakes     (600 steps, interrupted once and continued)
"""

import argparse
import fcntl
import html
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

COLORS = {30: "#3b4048", 31: "#e06c75", 32: "#98c379", 33: "#e5c07b", 34: "#61afef", 35: "#c678dd", 36: "#56b6c2", 37: "#dcdfe4", 90: "#7f848e"}
TOKEN = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|(.)", re.DOTALL)


def run(command, columns, rows, seconds, answers):
    """All that the command wrote to its terminal."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, start_new_session=True,
                               env={**os.environ, "TERM": "xterm-256color"})
    os.close(side)
    end = time.monotonic() + seconds
    output, waiting = b"", list(answers)
    while True:
        ready, _, _ = select.select([main], [], [], 0.3)
        if ready:
            try:
                data = os.read(main, 65536)
            except OSError:
                break
            output += data
        elif waiting:
            os.write(main, waiting.pop(0).encode() + b"\n")
        if time.monotonic() > end:
            shown = output  # without the end: a full-screen program clears the screen there
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=60)
            return shown.decode(errors="replace")
    process.wait()
    return output.decode(errors="replace")


def screen(text, columns):
    """Rows of (character, color, bold): what a terminal with enough rows shows. Knows what our programs use."""
    rows, row, column, style = [[]], 0, 0, (None, False)
    for match in TOKEN.finditer(re.sub(r"\x1b[\]].*?(\x07|\x1b\\)|\x1b[=>78]", "", text)):
        arguments, command, char = match.groups()
        if char == "\n":
            row += 1
        elif char == "\r":
            column = 0
        elif char:
            if column == columns:
                row, column = row + 1, 0
            while len(rows) <= row:
                rows.append([])
            rows[row] += [(" ", None, False)] * (column + 1 - len(rows[row]))
            rows[row][column] = (char, *style)
            column += 1
        elif command == "m":
            for number in [int(n or 0) for n in arguments.split(";")]:
                style = (None, False) if number == 0 else (style[0], True) if number == 1 else (COLORS[90], style[1]) if number == 2 else (
                    (COLORS[number], style[1]) if number in COLORS else style)
        elif command == "K":
            while len(rows) <= row:
                rows.append([])
            rows[row] = rows[row][:column]
        elif command == "A":
            row = max(0, row - int(arguments or 1))
        elif command == "H":
            row, column = (int(n or 1) - 1 for n in (arguments.split(";") + ["1"])[:2]) if arguments else (0, 0)
        elif command == "J":
            rows = rows[: row + 1]
        while len(rows) <= row:
            rows.append([])
    while rows and not any(char.strip() for char, _, _ in rows[-1]):
        rows.pop()
    return rows


def svg(rows, columns):
    width, height, margin = 8.43, 18, 14
    total = (round(columns * width + 2 * margin), len(rows) * height + 2 * margin)
    lines = []
    for i, row in enumerate(rows):
        spans, start = [], 0
        for end in range(1, len(row) + 1):
            if end == len(row) or row[end][1:] != row[start][1:]:
                text = html.escape("".join(char for char, _, _ in row[start:end])).replace(" ", "\N{NO-BREAK SPACE}")
                _, color, bold = row[start]
                attributes = f' fill="{color}"' * bool(color) + ' font-weight="bold"' * bold
                spans.append(f"<tspan{attributes}>{text}</tspan>" if attributes else text)
                start = end
        length = f' textLength="{len(row) * width:.1f}"' if row else ""
        lines.append(f'<text x="{margin}" y="{margin + 14 + i * height}"{length}>{"".join(spans)}</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{total[0]}" height="{total[1]}" viewBox="0 0 {total[0]} {total[1]}" '
            'font-family="Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="14" fill="#dcdfe4">'
            f'<rect width="100%" height="100%" rx="8" fill="#1e2127"/>\n' + "\n".join(lines) + "\n</svg>\n")


def main():
    split = sys.argv.index("--")
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--answers", default="")
    options = parser.parse_args(sys.argv[1:split])
    command = sys.argv[split + 1 :]
    text = f"$ {' '.join(command)}\r\n" + run(command, options.columns, options.rows, options.seconds, options.answers.split(",") if options.answers else [])
    Path(options.out).write_text(svg(screen(text, options.columns), options.columns))


if __name__ == "__main__":
    main()
