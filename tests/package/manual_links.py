#!/usr/bin/env python3
"""Checks an installed manual: it has its first pages, and each of its links leads to an installed file. Argument: its folder."""

import re
import sys
from pathlib import Path


def dead_links(root):
    for page in sorted(root.rglob("*.md")):
        text = re.sub(r"^```.*?^```[ \t]*$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)", text):
            if re.match(r"[a-z]+:", target):
                continue  # this machine may have no network
            file = (page.parent / target).resolve()
            if not file.exists() or root not in file.parents:
                yield f"{page.relative_to(root)}: {target}"


def main(root):
    missing = [name for name in ("README.md", "docs/getting_started.md", "examples/consumer/main.cpp") if not (root / name).exists()]
    problems = [f"{name} is not installed" for name in missing] + list(dead_links(root))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
