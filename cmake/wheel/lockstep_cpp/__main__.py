import argparse
import importlib.metadata
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def tool():
    """The console script `lockstep`: this process becomes the tool."""
    program = FOLDER / "bin/lockstep"
    os.execv(program, ["lockstep", *sys.argv[1:]])


def main():
    parser = argparse.ArgumentParser(prog="python -m lockstep_cpp", description="Where the C++ library lockstep is.")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--cmake", action="store_true", help="print the folder for CMAKE_PREFIX_PATH")
    group.add_argument("--version", action="store_true", help="print the version")
    arguments = parser.parse_args()
    print(FOLDER if arguments.cmake else importlib.metadata.version("lockstep-cpp"))


if __name__ == "__main__":
    main()
