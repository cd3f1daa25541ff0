#!/usr/bin/python3
"""Builds the manual (docs/site), without a warning, a dead link, or a page that is too wide for a phone. Argument: a folder."""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def expect(condition, message):
    if not condition:
        sys.exit(f"failed: {message}")


def too_wide(site, pages, width):
    """Those pages that cannot be shown in `width` pixels, by a real browser; None without one."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        return None
    frames = "".join(f'<iframe src="{page}" style="width:{width}px;height:800px"></iframe>' for page in pages)
    script = f"""onload = () => {{
      const wide = [...document.querySelectorAll('iframe')].filter(f => f.contentDocument.documentElement.scrollWidth > {width});
      document.body.innerHTML = '<pre>wide:' + wide.map(f => f.getAttribute('src')).join(' ') + '</pre>';
    }};"""
    (site / "frames.html").write_text(f"<!doctype html><style>iframe{{border:0}}</style><body>{frames}<script>{script}</script>")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        run = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             f"--user-data-dir={profile}", "--allow-file-access-from-files", "--dump-dom", (site / "frames.html").as_uri()],
            capture_output=True, text=True, timeout=120)
    (site / "frames.html").unlink()
    expect("<pre>wide:" in run.stdout, f"the browser did not draw the pages:\n{run.stderr}")
    return run.stdout.split("<pre>wide:")[1].split("</pre>")[0].split()


def main(work):
    if not shutil.which("/usr/bin/mkdocs") or subprocess.run(["dpkg-query", "-W", "mkdocs-material"], capture_output=True).returncode:
        print("SKIPPED: found no mkdocs with mkdocs-material; they are in the Debian packages of these names")
        return
    spec = importlib.util.spec_from_file_location("build", ROOT / "docs/site/build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)

    expect(build.main(work) == 0, "the manual has errors (above)")
    site = work / "site"
    for page in ["index.html", "docs/getting_started.html", "api/trainer.html", "search/search_index.json"]:
        expect((site / page).exists(), f"the manual has no {page}")

    # Controls: what is wrong is found.
    pages = build.Pages(work)
    pages.markdown("README.md", "README.md", "[x](docs/missing.md)")
    expect(len(pages.errors) == 1, "a link to a file that does not exist is accepted")
    header = work / "planted.h"
    header.write_text("// planted.h\n#pragma once\n\n/// This one has a comment.\nstd::function<int(int)> a();\n\nint b();\n")
    errors = []
    expect(build.header_page(header, "planted.h", errors)[1] == ["a", "b"], "the names of a header are wrong")
    expect(errors == ["planted.h: b has no comment"], f"a function without a comment: {errors}")
    planted = site / "planted.html"
    planted.write_text('<a href="missing.html">x</a> <a href="index.html#missing">x</a> <a href="index.html">x</a>')
    expect(len(list(build.dead_links(site))) == 2, "a dead link is not found")
    planted.write_text('<!doctype html><div style="width:600px">x</div>')
    pages = ["index.html", "docs/launching.html", "docs/migration.html", "docs/errors.html", "api/index.html", "api/trainer.html"]
    wide = too_wide(site, [*pages, "planted.html"], 400)
    planted.unlink()
    if wide is None:
        print("found no chromium and no google-chrome in PATH: the width of the pages was not checked")
    else:
        expect(wide == ["planted.html"], f"pages that are wider than 400 pixels, besides the planted one: {wide}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
