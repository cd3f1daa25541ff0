#!/usr/bin/env python3
"""Writes a wheel of the files that build_wheel.cmake has put together. Only Python's own library is needed."""
import argparse
import base64
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

NAME = "lockstep_cpp"

METADATA = """\
Metadata-Version: 2.1
Name: lockstep-cpp
Version: {version}
Summary: Data-parallel training in C++ on LibTorch: library, headers, CMake files, tool
License: MIT
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C++
Requires-Python: >=3.8
Requires-Dist: torch>=2.11,<2.12
Description-Content-Type: text/markdown

For C++ programs whose LibTorch is the Python package torch:

    cmake -B build -DCMAKE_PREFIX_PATH=$(python -m lockstep_cpp --cmake)

with `find_package(lockstep REQUIRED)` and `target_link_libraries(train PRIVATE lockstep::lockstep)` in CMakeLists.txt. It has no Python
interface. `lockstep` is the tool that starts ranks and checks runs; `lockstep-convert` needs numpy and safetensors too.
"""

WHEEL = """\
Wheel-Version: 1.0
Generator: lockstep ({version})
Root-Is-Purelib: false
Tag: {tag}
"""

ENTRY_POINTS = """\
[console_scripts]
lockstep = lockstep_cpp.__main__:tool
"""


def platform_tag():
    """manylinux of this machine's glibc: an older one may lack what the files were linked to, or its libstdc++ may."""
    library, version = os.confstr("CS_GNU_LIBC_VERSION").split()
    if library != "glibc":
        sys.exit(f"build_wheel.py: the C library is {library}, expected glibc: a wheel for it has another tag")
    return f"py3-none-manylinux_{version.replace('.', '_')}_{platform.machine()}"


def license_of(library):
    """The licence text of a system library that the wheel contains, which must come along."""
    owner = subprocess.run(["dpkg-query", "--search", os.path.realpath(library)], capture_output=True, text=True).stdout
    text = Path("/usr/share/doc", owner.partition(":")[0], "copyright")
    if not owner or not text.exists():
        sys.exit(f"build_wheel.py: the wheel needs a copy of {library}, and the licence of its Debian package was not found: "
                 "build the wheel on Debian or Ubuntu, with libraries of the distribution")
    return text


def arrange(files, brought, version, source):
    """Files outside of the package folder: what pip and Python read."""
    package = files / NAME
    for module in (source / "cmake/wheel" / NAME).glob("*.py"):
        shutil.copy(module, package)
    info = files / f"{NAME}-{version}.dist-info"
    (info / "licenses").mkdir(parents=True)
    (info / "sboms").mkdir()
    shutil.copy(source / "LICENSE", info / "licenses/LICENSE")
    shutil.copy(next(package.glob("share/doc/*/lockstep.spdx.json")), info / "sboms")
    for library in brought:
        shutil.copyfile(license_of(library), info / "licenses" / f"LICENSE.{Path(library).name.partition('.')[0]}")
    (info / "METADATA").write_text(METADATA.format(version=version))
    (info / "WHEEL").write_text(WHEEL.format(version=version, tag=platform_tag()))
    (info / "entry_points.txt").write_text(ENTRY_POINTS)

    # pip writes the path of its Python into the first line.
    scripts = files / f"{NAME}-{version}.data/scripts"
    scripts.mkdir(parents=True)
    convert = package / "bin/lockstep-convert"
    script = scripts / convert.name
    script.write_text("#!python\n" + convert.read_text().split("\n", 1)[1])
    script.chmod(0o755)
    convert.unlink()
    return info


def write_wheel(files, info, out, date):
    paths = sorted(path for path in files.rglob("*") if path.is_file())
    paths.sort(key=lambda path: info in path.parents)  # the metadata comes last
    record = info / "RECORD"
    lines = []
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(name, data, executable):
            entry = zipfile.ZipInfo(name, date)
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)

        for path in paths:
            name, data = path.relative_to(files).as_posix(), path.read_bytes()
            add(name, data, os.access(path, os.X_OK) and ".so" not in path.name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        name = record.relative_to(files).as_posix()
        add(name, "".join(lines) + f"{name},,\n", False)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=Path, required=True, help="folder with lockstep_cpp/")
    parser.add_argument("--source", type=Path, required=True, help="folder of the sources")
    parser.add_argument("--out", type=Path, required=True, help="folder for the wheel")
    parser.add_argument("--version", required=True)
    parser.add_argument("--date", type=int, required=True, help="seconds since 1970 that the files carry")
    parser.add_argument("--brought", nargs="*", default=[], help="libraries of the system that the wheel contains")
    arguments = parser.parse_args()

    info = arrange(arguments.files, arguments.brought, arguments.version, arguments.source)
    wheel = arguments.out / f"{NAME}-{arguments.version}-{platform_tag()}.whl"
    write_wheel(arguments.files, info, wheel, time.gmtime(arguments.date)[:6])
    print(wheel)


if __name__ == "__main__":
    main()
