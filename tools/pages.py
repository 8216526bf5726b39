"""The code blocks of the documents, and how each of them is run.

    python -m tools.pages                          runs every block of every page, and prints a line per page
    python -m tools.pages docs/feeding.md          the blocks of one page
    python -m tools.pages --count                  counts them, and runs nothing

The language of a fenced block says what happens to it. A page runs from top to bottom in a folder of its own, as a reader would do it:

    python      is executed; all blocks of a page share their names
    sh          is executed by bash; it ends the page at the first command that fails
    yaml, json  is parsed; so is a file in another language that has a name
    text        is output or a drawing, and is not code

A block whose first line is a comment with a file name (`# train.py`) is written to that file instead. `<!-- setup ... -->` holds Python
that makes the data of a page; readers do not see it. In front of a block, `<!-- run with: --size 50m => --size tiny -->` runs it with
smaller numbers, `<!-- where ray is installed, run with: ... -->` only there (`make test-scale` or `test-originals`), and
`<!-- not run: reason -->` is an exception. Blocks that do not run here are counted.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
LANGUAGES = {"python", "sh", "yaml", "json", "text"}
_BLOCK = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->"
    r"|(?:^ *<!-- (?:not run: (?P<reason>[^\n]*)|(?:where (?P<module>\w+) is installed, )?run with: (?P<changes>.*?)) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
_PRELUDE = 'stoker() { command stoker "$@" || test $? = 3 -a "$1" = diagnose; }\n'
"""On a machine that others use, a diagnosis ends without a verdict and with code 3; it ran."""
_FILE_NAME = re.compile(r"# ([\w./-]+\.(?:py|yaml|json))\n")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page, or its hidden setup."""

    page: str
    line: int
    language: str
    text: str
    exception: str = ""
    changes: tuple[tuple[str, str], ...] = ()

    @property
    def is_code(self) -> bool:
        """Whether the block must run: it is neither output nor a setup."""
        return self.language not in ("text", "setup")

    @property
    def runs(self) -> str:
        """The text that is run: with the smaller numbers."""
        text = self.text
        for old, new in self.changes:
            if old not in text:
                raise ValueError(f"{self.page}:{self.line} is run with {old!r} replaced, which is not part of it.")
            text = text.replace(old, new)
        return text

    @property
    def file_name(self) -> str | None:
        """The file that the block is written to."""
        found = _FILE_NAME.match(self.text)
        return found[1] if found and self.language in ("python", "yaml", "json") else None


def documents() -> list[Path]:
    """Every document of the project."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks_of(document: Path) -> list[Block]:
    """The blocks of a document, in order."""
    text, page, blocks = document.read_text(), str(document.relative_to(ROOT)), []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["setup"] is not None:
            blocks.append(Block(page=page, line=line, language="setup", text=match["setup"]))
            continue
        lines = [line.removeprefix(match["indent"]) for line in match["text"].splitlines(keepends=True)]
        pairs = [change.split(" => ") for change in re.split(r";\s+", match["changes"] or "") if change]
        changes = tuple((old.strip(), new.strip()) for old, new in pairs)
        module = match["module"]
        reason = f"{module} is not installed" if module and importlib.util.find_spec(module) is None else match["reason"] or ""
        block = Block(page=page, line=line, language=match["language"], text="".join(lines), exception=reason, changes=changes)
        blocks.append(block)
    return blocks


def run_page(document: Path, folder: Path) -> Iterator[tuple[Block, dict[str, Any], str]]:
    """Run the blocks of a document in a folder; yields each block that ran, the names of the Python blocks, and what it printed.

    Raises:
        RuntimeError: A block of shell commands failed; the message has its output.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(document):
        if block.exception or block.language == "text":
            continue
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
            _run(block, names)
        yield block, names, printed.getvalue()


def _run(block: Block, names: dict[str, Any]) -> None:
    where = f"{block.page}:{block.line}"
    if block.language == "yaml":
        yaml.safe_load(block.text)
    elif block.language == "json":
        json.loads(block.text if block.file_name is None else block.text.split("\n", 1)[1])
    if block.file_name is not None:
        path = Path(block.file_name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.runs)
    elif block.language in ("python", "setup"):
        exec(compile("\n" * block.line + block.runs, where.rsplit(":", 1)[0], "exec"), names)
    elif block.language == "sh":
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", _PRELUDE + block.runs], env=environment(), capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{where} ended with code {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        print(done.stdout, end="")
    elif block.language not in LANGUAGES:
        raise RuntimeError(
            f"{where} is a block of {block.language or 'no language'!r}; expected one of {', '.join(sorted(LANGUAGES))}."
        )


def environment() -> dict[str, str]:
    """The environment of shell blocks: commands of this interpreter's folder first; pip checks requirements and installs nothing."""
    scripts = str(Path(sys.executable).parent)
    pip = {"PIP_DRY_RUN": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    quiet = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "120", "PYTHONWARNINGS": "ignore"}
    return {**os.environ, **pip, **quiet, "PATH": scripts + os.pathsep + os.environ.get("PATH", "")}


def counts() -> dict[str, int]:
    """How many blocks of code the documents have, how many of them run here, and how many only where an extra is installed."""
    blocks = [block for document in documents() for block in blocks_of(document) if block.is_code]
    elsewhere = sum(block.exception.endswith("is not installed") for block in blocks)
    return {"code_blocks": len(blocks), "run": sum(not block.exception for block in blocks), "run_elsewhere": elsewhere}


def main(arguments: list[str]) -> None:
    """Run or count the blocks of the pages that are named, or of all."""
    if "--count" in arguments:
        print(json.dumps(counts()))
        return
    for document in [Path(name).resolve() for name in arguments] or documents():
        if not any(block.is_code for block in blocks_of(document)):
            continue
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            ran = sum(1 for _ in run_page(document, Path(folder)))
        print(f"{document.relative_to(ROOT)}: {ran} blocks in {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
