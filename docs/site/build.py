#!/usr/bin/python3
"""The manual as a site: build.py FOLDER writes it to FOLDER/site. Anything that is wrong is an error.

The pages are those of mkdocs.yml and all that they link to, directly or not, at the same paths as in the repository. A linked source file
becomes a page too. The pages of the API are made from the public headers. Needs the Debian packages mkdocs and mkdocs-material;
uses no network.
"""

import html.parser
import posixpath
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LANGUAGES = {".cpp": "cpp", ".h": "cpp", ".py": "python", ".sh": "sh", ".sbatch": "sh", ".json": "json", ".cmake": "cmake", ".txt": "cmake"}
LIST_ITEM = re.compile(r"\s*([*-]|\d+\.) ")


def split_at_code(text):
    """Pieces of a page, by turns outside and inside of fenced code."""
    return re.split(r"(^```.*?^```[ \t]*$)", text, flags=re.MULTILINE | re.DOTALL)


def as_python_markdown(text):
    """Markdown as GitHub reads it, written so that Python-Markdown reads the same: an empty line before a list."""
    lines = []
    for line in text.split("\n"):
        follows_text = lines and lines[-1].strip() and not lines[-1].startswith(" ") and not LIST_ITEM.match(lines[-1])
        if LIST_ITEM.match(line) and follows_text:
            lines.append("")
        indent = len(line) - len(line.lstrip(" "))
        lines.append("  " * (indent >= 2) + line if lines and indent in (2, 3) else line)
    return "\n".join(lines)


class Pages:
    """Follows links from page to page and writes each one to a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.errors = []
        self.todo = []
        self.done = set()

    def add(self, path):
        """Plans the page of a file or folder of the repository and returns where it will be."""
        found = ROOT / path
        if found.is_dir():
            if (found / "README.md").exists():
                path = posixpath.join(path, "README.md")
            page = path if path.endswith(".md") else posixpath.join(path, "index.md")
        elif found.suffix in (".md", ".png", ".svg"):
            page = path
        else:
            page = path + ".md"
        if page not in self.done:
            self.done.add(page)
            self.todo.append((path, page))
        return page

    def write_all(self):
        while self.todo:
            path, page = self.todo.pop()
            target = self.folder / page
            target.parent.mkdir(parents=True, exist_ok=True)
            found = ROOT / path
            if found.suffix in (".png", ".svg"):
                shutil.copy(found, target)
            elif found.suffix == ".md":
                target.write_text(self.markdown(path, page, found.read_text()))
            elif found.is_dir():
                names = sorted(entry.name for entry in found.iterdir() if not entry.name.startswith((".", "__")))
                text = f"# {path}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
                target.write_text(self.markdown(path + "/index.md", page, text))
            else:
                target.write_text(f"# {found.name}\n\n`{path}`\n\n~~~~~~ {LANGUAGES.get(found.suffix, 'text')}\n{found.read_text()}~~~~~~\n")

    def markdown(self, path, page, text):
        def link(match):
            target, anchor = match.group(1), match.group(2) or ""
            if re.match(r"[a-z]+:", target):
                return match.group(0)
            resolved = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            if not (ROOT / resolved).exists():
                self.errors.append(f"{path} links to {target}, which does not exist")
                return match.group(0)
            return f"]({posixpath.relpath(self.add(resolved), posixpath.dirname(page) or '.')}{anchor})"

        pieces = split_at_code(text)
        for i in range(0, len(pieces), 2):
            pieces[i] = as_python_markdown(re.sub(r"\]\(([^)\s#]+)(#[^)\s]*)?\)", link, pieces[i]))
        return "".join(pieces)


# The API. A header is read as clang-format writes it: a declaration at the beginning of a line is at namespace scope.


def declarations(lines):
    """(comment, code) of each declaration at namespace scope; a declaration right below another one shares its comment."""
    comment, code, depth, last_comment, blank = [], [], 0, [], True
    for line in lines:
        if not code and not line.strip():
            comment, blank = [], True
            continue
        if not code and line.startswith("//"):
            comment.append(line.lstrip("/").removeprefix(" "))
            continue
        code.append(line)
        bare = re.sub(r"//.*|\"(\\.|[^\"\\])*\"", "", line)
        depth += bare.count("{") + bare.count("(") - bare.count("}") - bare.count(")")
        if depth == 0 and re.search(r"[;}]\s*$", bare):
            shown = comment or ([] if blank else last_comment)
            yield shown, code
            last_comment, comment, code, blank = shown, [], [], False


def without_private(code):
    """The code of a class up to `private:`."""
    for i, line in enumerate(code):
        if re.match(r" ?private:", line):
            code = code[:i] + [code[-1]]
            while len(code) > 1 and not code[-2].strip():
                del code[-2]
            break
    return code


def name_of(code):
    text = " ".join(line.strip() for line in code if not line.startswith("template"))
    text = re.sub(r"\[\[.*?\]\] ?", "", text)
    while re.search(r"<[^<>]*>", text):  # what a template is filled with has names, too
        text = re.sub(r"<[^<>]*>", "", text)
    if match := re.match(r"(?:class|struct|enum(?: class)?|union|using) (\w+)", text):
        return match.group(1).removesuffix("Impl")  # of a TORCH_MODULE
    if match := re.search(r"(operator\W+|\w+)\(", text):
        return match.group(1)
    match = re.search(r"(\w+)(?:\[\])?\s*[={;]", text)
    return match.group(1) if match else ""


def prose(comment):
    text = "\n".join(comment)
    text = re.sub(r"(?<!`)\b(Collective\.|Throws:|Shape:|Returns)", r"**\1**", text)
    pieces = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"(?<!\*)\*(?!\*)(?=\w)", r"\\*", pieces[i].replace("<", "&lt;").replace("_", "\\_").replace("[", "\\["))
    return as_python_markdown("".join(pieces))


def header_page(header, include, errors):
    """The section of one header, and its names."""
    # Declarations of other libraries, and what is not for users.
    text = re.sub(r"^namespace (?:torch|at|c10)\S* \{\n.*?^\}.*?\n", "", header.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^namespace detail \{\n.*?^\}  // namespace detail\n", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = text.split("\n")
    start = lines.index("#pragma once")
    intro = [line.lstrip("/").removeprefix(" ") for line in lines[1:start] if line.startswith("//")]
    text = [f"## {include}", prose(intro).strip(), ""]
    body = [line for line in lines[start + 1 :] if not line.startswith(("#", "namespace ", "}  // namespace"))]
    names, previous = [], None
    for comment, code in declarations(body):
        if re.match(r"(class|struct|friend) [\w:]+;", code[0]):
            continue  # only declared here
        name = previous if code[0].startswith("TORCH_MODULE") else name_of(code)
        if not comment and name != previous and "///<" not in code[0]:
            errors.append(f"{include}: {name} has no comment")
        if name != previous:
            text += [f"### {name}", ""]
            names.append(name)
        previous = name
        text += [prose(comment), "", "```cpp", *(re.sub(r"///<? ?", "// ", line) for line in without_private(code)), "```", ""]
    return "\n".join(text), names


def write_api(folder, errors):
    """One page per folder of headers, and a page with all names; returns the pages for the navigation."""
    folder.mkdir(parents=True)
    root = ROOT / "include/lockstep"
    nav, index = [], ["# API", "", "`#include <lockstep/lockstep.h>` has what a training program needs; the other headers are included by their names.", "",
                      "| header | names |", "|---|---|"]
    for part in [root, *sorted(entry for entry in root.iterdir() if entry.is_dir())]:
        page = f"{'front' if part == root else part.name}.md"
        title = "run and Session" if part == root else part.name
        sections = [f"# {title}"]
        for header in sorted(part.glob("*.h")):
            include = header.relative_to(ROOT / "include").as_posix()
            section, names = header_page(header, include, errors)
            if names:
                sections.append(section)
                links = ", ".join(f"[`{name}`]({page}#{name.lower()})" for name in names)
                index.append(f"| [{include}]({page}#{re.sub(r'[^a-z0-9_-]', '', include)}) | {links} |")
        (folder / page).write_text("\n".join(sections))
        nav.append({title: f"api/{page}"})
    (folder / "index.md").write_text("\n".join(index) + "\n")
    return [{"All names": "api/index.md"}, *nav]


class Links(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.targets = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.targets.append(value)


def dead_links(site):
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html")}
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # it is served from any folder, so its links begin with /
        for target in page.targets:
            url = urllib.parse.urlsplit(target)
            if url.scheme or url.netloc:
                continue  # this machine may have no network
            file = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            if not file.exists():
                yield f"{path.relative_to(site)}: {target}: no such file"
            elif url.fragment and file in pages and urllib.parse.unquote(url.fragment) not in pages[file].ids:
                yield f"{path.relative_to(site)}: {target}: no such place on that page"


def main(out):
    shutil.rmtree(out, ignore_errors=True)
    pages_folder = out / "pages"
    pages_folder.mkdir(parents=True)
    config = yaml.load((HERE / "mkdocs.yml").read_text(), yaml.Loader)
    pages = Pages(pages_folder)
    api = write_api(pages_folder / "api", pages.errors)
    for part in config["nav"]:
        for name, entries in part.items():
            if entries == "api":
                part[name] = api
            else:
                for entry in entries:
                    pages.add(*entry.values())
    pages.write_all()
    shutil.copy(HERE / "site.css", pages_folder)
    (out / "mkdocs.yml").write_text(yaml.dump(config))
    run = subprocess.run(["/usr/bin/mkdocs", "build", "--strict", "--config-file", out / "mkdocs.yml"], capture_output=True, text=True)
    errors = pages.errors
    if run.returncode:
        errors += [line for line in run.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))] or [f"mkdocs ended with code {run.returncode}"]
    else:
        errors += dead_links(out / "site")
    for error in errors:
        print(f"docs: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve()))
