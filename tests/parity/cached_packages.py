#!/usr/bin/env python3
"""The Python packages that some tests read our files with, or take data from. They are installed once per user, below
~/.cache/lockstep.

    cached_packages.py NAME

prints the Python that has them. If they cannot be installed, a line that begins with SKIPPED says why.
"""

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys

PACKAGES = {
    "wandb": ["wandb==0.31.0"],
    "mlflow": ["mlflow-skinny==3.17.2", "sqlalchemy", "alembic"],
    "aim": ["aim==3.29.1"],
    "tensorboard": ["tensorboard==2.21.0"],
    "scikit-learn": ["scikit-learn==1.9.1"],
}


def python_with(name):
    """The Python of an environment with the packages; ends the program with a line SKIPPED if there is none."""
    packages = PACKAGES[name]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "lockstep")
    folder = cache / packages[0].replace("==", "-")
    python, complete = folder / "bin/python", folder / "complete"
    cache.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            for command in ([sys.executable, "-m", "venv", folder],
                            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir",
                             "--prefer-binary", "--retries", "1", *packages]):
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                if done.returncode != 0:
                    shutil.rmtree(folder, ignore_errors=True)
                    print(f"SKIPPED: cannot install {', '.join(packages)}: {(done.stdout.strip().splitlines() or ['no message'])[-1]}")
                    sys.exit(0)
            complete.touch()
    return python


if __name__ == "__main__":
    print(python_with(sys.argv[1]))
