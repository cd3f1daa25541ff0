"""What the reports of the programs here have in common."""
import datetime
import os
import platform
import subprocess
from pathlib import Path


def title(what):
    return f"# {what}, {datetime.date.today()}"


def machine():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} CPUs ({model}), Linux {platform.release()}"


def load():
    return os.getloadavg()[0]


def versions(python, *packages):
    """ "torch 2.11.0, ..." of that Python."""
    script = "import importlib, sys; print(', '.join(f'{p} {importlib.import_module(p).__version__}' for p in sys.argv[1:]))"
    done = subprocess.run([str(python), "-c", script, *packages], capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


def write(text, file):
    """To the terminal, and into `file` where there is one."""
    print(text)
    if file:
        Path(file).write_text(text)
