#!/usr/bin/env python3
"""Runs the shell blocks of the documents, each page as one script of bash.

    shell_blocks.py BUILD LIBTORCH WORK [PAGE...]
    shell_blocks.py --bare LIBTORCH WORK

A block begins in a copy of the repository whose build/release is BUILD. What a preset would build is built there already.
./train is the program of the block's section, or the one of "Getting started"; ~/train is a project of the reader, with the
CMakeLists.txt of the README. A block after the line <!-- not run: REASON --> is read, but not run: its syntax, presets and
files, and the flags of `lockstep`, also those in other code of the pages. Blocks of Python, TOML and CMake are only read too:
the syntax, the settings, and the names of commands.

With --bare only "Getting started" is run, in a clone of the last commit in which nothing is built, and how long each block took is
printed. What `cmake --workflow` would test there is only listed. Without LOCKSTEP_TEST_ROUNDS=100 it only says that it takes minutes.
A variable CCACHE_DIR is passed on.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from markdown_blocks import fenced_blocks, line_of

ROOT = Path(__file__).resolve().parents[2]

# What a page presumes. The first lines of its script.
BEFORE = {
    "docs/getting_started.md": "export LOCKSTEP_CFG_MAX_STEPS=20",  # the GPT trains for minutes
    "docs/launching.md": """echo 'import os; print("rank", os.environ["RANK"])' >train.py""",
    "docs/reports.md": "for name in warmup no_warmup; do ./train --run_name $name; done",
}

# The build that runs this test is not configured again. Its targets are asked for, and not built.
CMAKE = """#!/bin/bash
case "$*" in
  "--preset release" | "--workflow --preset release") ;;
  "--build --preset release"*) exec {cmake} --build {build} "${{@:4}}" -- -n >/dev/null ;;
  *) exec {cmake} "$@" ;;
esac
"""

# In a clone nothing is built; the tests are those of this build.
BARE_CMAKE = """#!/bin/bash
case "$*" in
  "--workflow --preset release") {cmake} --preset release && {cmake} --build --preset release && exec ctest --preset release -N ;;
  *) exec {cmake} "$@" ;;
esac
"""

# Names the line of the page that failed. The script has the lines of the page.
TRAP = """trap 'status=$?; [ $status -eq 99 ] || echo "{page}:$LINENO: ended with $status"; exit 99' ERR"""


def pages():
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return found + sorted((ROOT / "docs").rglob("*.md")) + sorted((ROOT / "examples").rglob("*.md"))


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def program_of(page, text, position):
    """The name in docs_program of the ./train of a block at `position`."""
    section = text.rfind("\n## ", 0, position)
    program = "$DOCS_PROGRAM"
    for index, block in enumerate(fenced_blocks(text, "cpp", "not compiled"), 1):
        if section < block.start() < position and "int main(" in block["code"]:
            program = f"{name_of(page)}:{index}"
    return program


def script_of(page, text):
    """The blocks that are run, in the lines that they have in the page; "" if there is none."""
    lines = [""] * (text.count("\n") + 1)
    for block in fenced_blocks(text, "sh", "not run"):
        if block["reason"]:
            continue
        first = line_of(text, block.start("code"))
        code = block["code"].splitlines()
        lines[first - 2] = f"( SECONDS=0; export DOCS_PROGRAM={program_of(page, text, block.start())}"
        lines[first - 1:first - 1 + len(code)] = code
        lines[first - 1 + len(code)] = f"echo {name_of(page)}:{first}: $SECONDS s; )"
    if not any(lines):
        return ""
    assert not lines[0], "a page begins with its title"
    lines[0] = f"set -eEuo pipefail; {TRAP.format(page=name_of(page))}; {BEFORE.get(name_of(page), '')}"
    return "\n".join(lines) + "\n"


class Reader:
    """Checks of what is not run."""

    def __init__(self, tool):
        self.tool = tool
        presets = json.loads((ROOT / "CMakePresets.json").read_text())
        self.presets = {preset["name"] for kind in presets if kind.endswith("Presets") for preset in presets[kind]}
        self.settings = set(re.findall(r"^ *#? *([a-z_]+) = ", self.ask("config"), re.MULTILINE))
        self.commands = dict.fromkeys(re.findall(r"^  ([a-z]+) ", self.ask("help"), re.MULTILINE))
        self.cmake_names = {name for words in (["--help-command-list"], ["--help-module", "FetchContent"])
                            for name in re.findall(r"\w+", self.output_of("cmake", *words))}
        self.languages = {"python": self.python, "toml": self.toml, "cmake": self.cmake}

    @staticmethod
    def output_of(*words):
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    def ask(self, *words):
        return self.output_of(self.tool, *words)

    def flags(self, command):
        if self.commands[command] is None:
            self.commands[command] = set(re.findall(r"--([a-z-]+)", self.ask("help", command))) | {"help"}
        return self.commands[command]

    def block(self, code):
        syntax = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True)
        yield from syntax.stderr.splitlines()
        for preset in re.findall(r"--preset ([\w-]+)", code):
            if preset not in self.presets:
                yield f"CMakePresets.json has no preset {preset}"
        for path in re.findall(r"(?<![^\s(])(?:\./)?((?:cmake|docs|examples|tests)/[^\s;)]+)", code):
            if not (ROOT / path).exists():
                yield f"{path} does not exist"
        yield from self.calls(code)

    def calls(self, code):
        """Calls of `lockstep` in a piece of code. ("lockstep was ..." is a message.)"""
        for command, words in re.findall(r"(?<![\w$/.-])(?:build/release/bin/)?lockstep (?!was )([a-z]+)\b([^\n#|;&)]*)", code):
            if command not in self.commands:
                yield f"lockstep has no command {command}"
                continue
            for flag in re.findall(r"(?<=\s)--([a-z_.-]+)", re.split(r" -- | \./", words)[0]):
                if flag.replace("_", "-") not in self.flags(command) and flag.split(".")[-1] not in self.settings:
                    yield f"lockstep {command} has no flag --{flag}"

    @staticmethod
    def refusal(command, code, suffix):
        """What the command says of a file with this code; "": it accepts it."""
        with tempfile.NamedTemporaryFile("w", suffix=suffix) as file:
            file.write(code)
            file.flush()
            done = subprocess.run([*command, file.name], capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stderr.replace(file.name, "block")

    def python(self, code):
        try:
            compile(code, "block", "exec")
        except SyntaxError as error:
            yield f"line {error.lineno} is no Python: {error.msg}"

    def toml(self, code):
        yield self.refusal([self.tool, "config", "--check"], code, ".toml")

    def cmake(self, code):
        yield self.refusal(["cmake", "-P"], f"if(FALSE)\n{code}endif()\n", ".cmake")
        for name in re.findall(r"^ *(\w+)\(", code, re.MULTILINE):
            if name not in self.cmake_names:
                yield f"CMake has no command {name}"

    def page(self, name, text):
        for language, check in self.languages.items():
            for block in fenced_blocks(text, language, "not run"):
                for problem in filter(None, check(textwrap.dedent(block["code"]))):
                    yield f"{name}:{line_of(text, block.start('code'))}: {problem}"
        for block in fenced_blocks(text, "sh", "not run"):
            for problem in self.block(block["code"]) if block["reason"] else ():
                yield f"{name}:{line_of(text, block.start('code'))}: {problem}"
        for number, line in enumerate(text.splitlines(), 1):
            for span in re.findall(r"`(lockstep [^`]+)`", line):
                for problem in self.calls(span):
                    yield f"{name}:{number}: {problem}"


class Place:
    """The folders in which the pages are run; without a build they are clones."""

    def __init__(self, build, libtorch, work):
        self.build, self.work = build, work
        shutil.rmtree(work, ignore_errors=True)
        tools = work / "bin"
        tools.mkdir(parents=True)
        self.write_program(tools / "cmake", (CMAKE if build else BARE_CMAKE).format(cmake=shutil.which("cmake"), build=build))
        torchrun = (libtorch / "../../../../bin/torchrun").resolve()  # of the Python that has this LibTorch
        if torchrun.exists():
            (tools / "torchrun").symlink_to(torchrun)
        else:
            print(f"found no {torchrun}: commands with torchrun are not run")
            self.write_program(tools / "torchrun", "#!/bin/sh\n")
        self.environment = {  # of a reader, who has none of the variables of this test
            "PATH": f"{tools}:{build}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
            "CXX": os.environ.get("CXX", "c++"),
            "LOCKSTEP_LIBTORCH": str(libtorch),
            "DOCS_PROGRAM": "docs/getting_started.md:1",
        } | ({"CCACHE_DIR": os.environ["CCACHE_DIR"]} if "CCACHE_DIR" in os.environ else {})

    @staticmethod
    def write_program(path, text):
        path.write_text(text)
        path.chmod(0o755)

    def sources(self, here):
        """A copy of the repository for a page."""
        if not self.build:
            subprocess.run(["git", "clone", "--quiet", ROOT, here], check=True)
            return
        shutil.copytree(ROOT, here, ignore=shutil.ignore_patterns(".git", "build"))
        (here / "build").mkdir()
        (here / "build/release").symlink_to(self.build)
        for program in ("train", "finetune"):
            (here / program).symlink_to(self.build / "tests/docs/docs_program")

    def run(self, page, script):
        """Runs a page; what went wrong, or ""."""
        folder = self.work / name_of(page).replace("/", "_").removesuffix(".md")
        here = folder / "lockstep"
        self.sources(here)
        readme = (ROOT / "README.md").read_text()
        (here / "node.json").write_text(fenced_blocks((ROOT / "docs/getting_started.md").read_text(), "json", "")[0]["code"])
        project = folder / "home/train"
        project.mkdir(parents=True)
        (project / "CMakeLists.txt").write_text(fenced_blocks(readme, "cmake", "")[0]["code"])
        small = (ROOT / "tests/package/small/main.cpp").read_text()  # compiled in a second
        (project / "main.cpp").write_text(fenced_blocks(readme, "cpp", "")[0]["code"] if page.name == "README.md" else small)
        (folder / "script.sh").write_text(script)
        with (folder / "output").open("w") as output:
            status = subprocess.run(["bash", folder / "script.sh"], cwd=here, env=self.environment | {"HOME": str(folder / "home")},
                                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                    timeout=800 if self.build else 10000).returncode
        self.output = (folder / "output").read_text()
        return "" if status == 0 else self.output[-4000:]


def main(build, libtorch, work, wanted):
    place = Place(build, libtorch, work)
    reader = Reader(build / "bin/lockstep")
    problems = []

    # The controls: what is wrong is found.
    planted = ("# Title\n```sh\ntrue\nfalse\n```\n\n<!-- not run: no GPU -->\n```sh\ncmake --preset none; tests/none.sh; lockstep none; "
               "lockstep plan --none --nodes 2\nif\n```\n\n```python\nif\n```\n\n```toml\nmax_step = 1\n```\n\n"
               "```cmake\nadd_lib(x\n```\n")
    seen = place.run(ROOT / "docs/planted.md", script_of(ROOT / "docs/planted.md", planted))
    if seen != "docs/planted.md:4: ended with 1\n":
        problems.append(f"a block that fails was not found: {seen}")
    seen = list(reader.page("planted", planted))
    for part in ("syntax error", "no preset none", "tests/none.sh", "no command none", "no flag --none", "no Python",
                 "max_step: unknown setting", "Parse error", "no command add_lib"):
        if not any(part in problem for problem in seen):
            problems.append(f"a wrong block that is not run was not found: {part}, only {seen}")

    run = left_out = 0
    for page in pages():
        name, text = name_of(page), page.read_text()
        if wanted and name not in wanted:
            continue
        problems += reader.page(name, text)
        blocks = fenced_blocks(text, "sh", "not run")
        run += sum(block["reason"] is None for block in blocks)
        left_out += sum(block["reason"] is not None for block in blocks)
        if script := script_of(page, text):
            problems.append(place.run(page, script))
    print("\n".join(filter(None, problems)))
    print(f"{run} blocks were run, {left_out} only read")
    return 1 if any(problems) else 0


def bare(libtorch, work):
    if int(os.environ.get("LOCKSTEP_TEST_ROUNDS", "1")) < 100:
        print("SKIPPED: building in a clone takes minutes: set LOCKSTEP_TEST_ROUNDS=100")
        return 0
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        print("SKIPPED: the sources are no clone of git")
        return 0
    page = ROOT / "docs/getting_started.md"
    place = Place(None, libtorch, work)
    problem = place.run(page, script_of(page, page.read_text()))
    print(problem or "\n".join(re.findall(rf"^{re.escape(name_of(page))}:\d+: \d+ s$", place.output, re.MULTILINE)))
    return 1 if problem else 0


if __name__ == "__main__":
    if sys.argv[1] == "--bare":
        sys.exit(bare(Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve()))
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve(), sys.argv[4:]))
