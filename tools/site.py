"""Builds the documentation site and checks it: `make docs`.

1. Stage: the pages of docs/, the documents of the project and the result files are copied to build/docs. Links between them are
   rewritten, because some of them lie outside of docs/. Hidden comments are removed.
2. Build: Zensical reads mkdocs.yml and writes build/site. A warning is an error.
3. Complete: every page gets its Markdown source beside it, llms.txt lists the pages, and the search works from file://.
4. Check: every link, anchor and file that a page refers to is in the site, and no page loads anything from elsewhere.

    python -m tools.site              stage, build, complete, check
    python -m tools.site --stage      only stage, for another builder: mkdocs build --strict
    python -m tools.site --record     also writes the counts to benchmarks/results/docs.json
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from tools import pages

ROOT = Path(__file__).parent.parent
STAGED, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
RESULT = ROOT / "benchmarks" / "results" / "docs.json"
PROJECT = ("DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
_COMMENT = re.compile(r"^<!-- (?:setup|not run|run with|where).*?-->\n*", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(?=(?:#[^)\s]*)?\))")

_REMOTE_WORKER = "https://unpkg.com/iframe-worker/shim"
_FILE_WORKER = """\
if (location.protocol === "file:") {
  const source = %s
  const FromFile = window.Worker
  window.Worker = function (url, options) {
    return new FromFile(URL.createObjectURL(new Blob([source], { type: "text/javascript" })), options)
  }
}
"""


def staged_path(source: Path) -> Path | None:
    """Where a file of the repository is in the staged folder; None for a file that the site does not have."""
    path = source.relative_to(ROOT)
    if path.parts[0] == "docs":
        return Path(*path.parts[1:])
    if str(path) in PROJECT:
        return Path("project", path.name.lower())
    if str(path) == "README.md":
        return Path("index.md")
    if path.parts[:2] == ("benchmarks", "results"):
        return Path("results", path.name)
    return None


def rewrite(text: str, source: Path) -> str:
    """The text of a page with its links as they are in the staged folder, and without hidden comments."""
    here = staged_path(source)
    assert here is not None

    def moved(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / found[1]))
        staged = staged_path(target) if target.is_relative_to(ROOT) else None
        if staged is None:
            raise SystemExit(
                f"{source.relative_to(ROOT)} links to {found[1]}, which is not part of the site. Name the file without a link."
            )
        return os.path.relpath(staged, here.parent)

    return _LINK.sub(moved, _COMMENT.sub("", text))


def stage() -> None:
    """Copy everything that the site is made of to build/docs."""
    shutil.rmtree(STAGED, ignore_errors=True)
    sources = [
        path for path in (ROOT / "docs").rglob("*") if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    ]
    for source in [*sources, *(ROOT / name for name in PROJECT), *(ROOT / "benchmarks" / "results").glob("*.json")]:
        target = STAGED / (staged_path(source) or "")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(rewrite(source.read_text(), source))
        else:
            shutil.copyfile(source, target)


def build() -> list[str]:
    """Build the site; returns the warnings."""
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    output = done.stdout + done.stderr
    warnings = [line.strip() for line in output.splitlines() if re.search(r"warning|error", line, re.IGNORECASE)]
    if done.returncode or warnings:
        print(output, file=sys.stderr)
    if done.returncode and not warnings:
        warnings = [f"the build ended with code {done.returncode}"]
    return warnings


def navigation() -> list[tuple[str, str]]:
    """Section and page of every entry of the navigation, in order."""

    def entries(node: Any, section: str) -> Iterator[tuple[str, str]]:
        for entry in node:
            if isinstance(entry, str):
                yield section, entry
            else:
                [(title, below)] = entry.items()
                yield from (
                    [(section, below)] if isinstance(below, str) else entries(below, f"{section}: {title}" if section else title)
                )

    return list(entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"], ""))


def title_and_summary(text: str) -> tuple[str, str]:
    """The first heading of a page, and the first sentence below it."""
    title = re.search(r"^# (.*)$", text, re.MULTILINE)
    body = text[title.end() :] if title else text
    plain = next((word for word in re.split(r"\n\s*\n", body) if re.match(r"\s*[\w`*\"\[]", word)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(plain.split()))
    return (title[1] if title else ""), re.split(r"(?<=[.:]) ", plain)[0].rstrip(":")


def complete() -> None:
    """Put the Markdown of each page beside it, and write llms.txt."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    lines, current = [f"# {config['site_name']}", "", f"> {config['site_description']}"], ""
    for section, page in navigation():
        source = STAGED / page
        target = SITE / page
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        if section != current:
            lines += ["", f"## {section}", ""]
            current = section
        title, summary = title_and_summary(source.read_text())
        lines.append(f"- [{title}]({page}): {summary}")
    (SITE / "llms.txt").write_text("\n".join(lines) + "\n")


def localize_search() -> None:
    """Let the search work from file://: a browser starts no worker from a file there, but it starts one from its source.

    The builder refers to a script on another server for this; a script of the site takes its place.
    """
    [worker] = (SITE / "assets" / "javascripts" / "workers").glob("search.*.js")
    script = SITE / "assets" / "javascripts" / "file_worker.js"
    script.write_text(_FILE_WORKER % json.dumps(worker.read_text()))
    for page in SITE.rglob("*.html"):
        local = os.path.relpath(script, page.parent)
        page.write_text(page.read_text().replace(_REMOTE_WORKER, local))


class _References(HTMLParser):
    """What a page refers to: files that it loads, links, and its own anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the references of a tag."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(values.get("href", ""))
        elif "src" in values:
            self.loads.append(values["src"])


def check() -> dict[str, Any]:
    """What the built pages refer to: counts, and lists of what is broken or comes from elsewhere."""
    found: dict[Path, _References] = {}
    for path in sorted(SITE.rglob("*.html")):
        found[path] = _References()
        found[path].feed(path.read_text())
    links = 0
    broken, outside = [], []
    for path, references in found.items():
        if path.name == "404.html":  # served for any address, so its links begin at the root of the server
            continue
        for reference in [*references.loads, *references.links]:
            parts = urlsplit(reference)
            if parts.scheme in ("http", "https") or parts.netloc:
                if reference in references.loads:
                    outside.append(f"{path.relative_to(SITE)}: {reference}")
                continue
            if parts.scheme:
                continue
            links += 1
            target = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            anchors = found[target].anchors if target in found else set()
            if not target.exists() or (parts.fragment and target in found and unquote(parts.fragment) not in anchors | {"__top"}):
                broken.append(f"{path.relative_to(SITE)}: {reference}")
    for style in SITE.rglob("*.css"):
        outside += [f"{style.relative_to(SITE)}: {url}" for url in re.findall(r"url\([\"']?(https?:[^)]*)\)", style.read_text())]
    size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    return {"pages": len(found) - 1, "bytes": size, "links": links, "broken_links": broken, "outside_requests": outside}


def record(warnings: list[str], found: dict[str, Any]) -> None:
    """Write the counts of the site to the result file; those of the blocks are kept."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    before = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    site = {
        **found,
        "warnings": len(warnings),
        "broken_links": len(found["broken_links"]),
        "outside_requests": len(found["outside_requests"]),
    }
    made = {"command": "make docs RECORD=1", "commit": commit, "date": datetime.now(UTC).strftime("%Y-%m-%d"), "site": site}
    RESULT.write_text(json.dumps({**before, **made, "blocks": pages.counts()}, indent=1) + "\n")


def main(arguments: list[str]) -> None:
    """Build and check; exits with 1 and a list where something is wrong."""
    stage()
    if "--stage" in arguments:
        return
    warnings = build()
    complete()
    localize_search()
    found = check()
    for problem in [*warnings, *found["broken_links"], *found["outside_requests"]]:
        print(problem)
    if "--record" in arguments:
        record(warnings, found)
    print(
        f"{SITE.relative_to(ROOT)}/index.html: {found['pages']} pages, {found['bytes'] / 1e6:.1f} MB, {found['links']:,} links; "
        f"{len(warnings)} warnings, {len(found['broken_links'])} broken links, {len(found['outside_requests'])} outside requests"
    )
    sys.exit(bool(warnings or found["broken_links"] or found["outside_requests"]))


if __name__ == "__main__":
    main(sys.argv[1:])
