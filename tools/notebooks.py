"""The tutorials: Markdown pages with the output of their cells, and the same pages as notebooks.

    python -m tools.notebooks                                  runs every tutorial, writes its outputs and its notebook
    python -m tools.notebooks docs/tutorials/forecast.md       the same for one of them
    python -m tools.notebooks --check [PAGE]                   runs them, and fails where an output differs by more than digits

A page is the source. A `text` block directly behind a block of code is its output, which this program writes. A notebook has the cells of
its page and no outputs: shell blocks begin with `%%bash`, and blocks that are files with `%%writefile`.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
import tempfile
from pathlib import Path

from tools.pages import ROOT, Block, blocks_of, run_page

TUTORIALS = sorted(path for path in (ROOT / "docs" / "tutorials").glob("*.md") if path.name != "index.md")
_CODE = re.compile(r"^```(python|sh|yaml)\n(.*?)^```\n(?:\n```text\n.*?^```\n)?", re.MULTILINE | re.DOTALL)


def notebook(document: Path) -> str:
    """The notebook of a page, as JSON."""
    text = re.sub(r"^<!-- .*?-->\n*", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r" ?\[Download the notebook\]\([^)]*\)\.\n?", "\n", text)
    cells, end = [], 0
    for match in _CODE.finditer(text):
        cells.append(_cell("markdown", text[end : match.start()]))
        name = Block(page="", line=0, language=match[1], text=match[2]).file_name
        magic = f"%%writefile {name}\n" if name else "%%bash\n" if match[1] == "sh" else ""
        cells.append(_cell("code", magic + match[2]))
        end = match.end()
    cells.append(_cell("markdown", text[end:]))
    language = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    cells = [{**cell, "id": f"cell-{number}"} for number, cell in enumerate(cells) if cell["source"]]
    return (
        json.dumps({"cells": cells, "metadata": language, "nbformat": 4, "nbformat_minor": 5}, indent=1, ensure_ascii=False) + "\n"
    )


def _cell(kind: str, text: str) -> dict[str, object]:
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": text.strip("\n").splitlines(keepends=True), **code}


def with_outputs(document: Path, folder: Path) -> str:
    """Run a page in a folder; returns its text with what the blocks print now."""
    outputs = [printed for block, _, printed in run_page(document, folder) if block.language != "setup"]
    assert len(outputs) == sum(block.is_code for block in blocks_of(document))
    rest = iter(outputs)

    def code(found: re.Match[str]) -> str:
        printed = "\n".join(line.rstrip() for line in next(rest).replace(str(folder), "").strip("\n").splitlines())
        return f"```{found[1]}\n{found[2]}```\n" + (f"\n```text\n{printed}\n```\n" if printed.strip() else "")

    return _CODE.sub(code, document.read_text())


def without_digits(text: str) -> list[str]:
    """The lines of a page without what may differ from machine to machine: numbers with their units, and the width of columns."""
    text = re.sub(r"[-+]?\d[\d,.:e+-]*(?: (?:[mµn]?s|min|[kMG]?B)\b)?", "#", text)
    return [re.sub(r"[ ─]+", " ", line) for line in text.splitlines()]


def main(arguments: list[str]) -> None:
    """Run and write the tutorials that are named, or all."""
    is_check = "--check" in arguments
    for document in [Path(name).resolve() for name in arguments if name != "--check"] or TUTORIALS:
        with tempfile.TemporaryDirectory() as folder:
            found, expected = with_outputs(document, Path(folder)), document.read_text()
        if is_check:
            changes = list(difflib.unified_diff(without_digits(expected), without_digits(found), "page", "now", lineterm="", n=1))
            if changes:
                sys.exit(
                    "\n".join([f"{document.relative_to(ROOT)} prints something else now. Run: python -m tools.notebooks", *changes])
                )
            continue
        document.write_text(found)
        document.with_suffix(".ipynb").write_text(notebook(document))
        print(document.relative_to(ROOT), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
